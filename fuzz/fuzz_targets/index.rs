//! All pages of a small index, with correct checksums: checked, deleted from, merged, swept.
#![no_main]

use laser_fuzz::{folder, seal};
use laser_index::builder::BuildOptions;
use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::store::PageStore;
use laser_index::{check, sweep};
use libfuzzer_sys::fuzz_target;

// Byte 0: what is done; the rest are pages as MemoryStore::to_bytes() writes them.
fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    let Some((&what, pages)) = data.split_first() else { return };
    let Some(store) = MemoryStore::from_bytes(pages) else { return };
    if store.blocks() == 0 {
        return;
    }
    if what & 1 == 1 {
        seal::seal_store(&store);
    }
    let checked = check::check(&store, &std::env::temp_dir());
    let Ok(meta) = Meta::read(&store) else { return };
    if meta.parameters.dims > 256 {
        return;
    }
    if what & 2 == 2 {
        let _ = maintain::delete(&store, |tid| tid % 3 == 0);
    }
    if what & 4 == 4 {
        let _ = sweep::sweep(&store);
    }
    // Merging takes what it reads for true: damage that the check does not see must not hurt it.
    let options = BuildOptions {
        parameters: meta.parameters.clone(),
        threads: 1,
        memory: 8 << 20,
        cache: 0,
        expected: 100,
        folder: folder().clone(),
    };
    let plan = if what & 8 == 8 { Plan::All } else { Plan::Vacuum };
    let how = Merge::new(plan, &options);
    let merged = maintain::merge(&store, &how, |_, _| ());
    if merged.is_ok() && checked.is_ok_and(|report| report.problems.is_empty()) {
        check::check(&store, &std::env::temp_dir()).expect("a metapage that was read before");
    }
}));
