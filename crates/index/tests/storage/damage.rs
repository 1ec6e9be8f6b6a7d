//! Damage, other formats, and others at work meanwhile.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Barrier;

use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::{MemorySet, MemoryStore};
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::page::PageKind;
use laser_index::quantization::Quantization;
use laser_index::scan::{Iterate, Settings};
use laser_index::store::PageStore;
use laser_index::{IndexError, cache, check, pending};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{STRICT, at, build, clustered, distance, insert, options, search, try_scan};

#[test]
fn a_page_that_is_named_twice_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(4, Metric::L2, Quantization::F32, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    insert(&store, 1, &[1.0; 4]);
    let twice = Meta::update(&store, |meta| {
        meta.pending.tail = 0;
        Ok(())
    });
    twice.unwrap();
    let error = pending::append(&store, &options.parameters, 2, Some(&[2.0; 4])).unwrap_err();
    assert!(
        matches!(error, IndexError::Corrupt { block: 0, .. }),
        "{error}"
    );
    let error = pending::seal(&store).unwrap_err();
    assert!(
        matches!(error, IndexError::Corrupt { block: 0, .. }),
        "{error}"
    );
}

#[test]
fn damage_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let rows = clustered(&mut rng, 500, 32);
    let options = options(32, Metric::Cosine, Quantization::I8, folder.path());
    let make = || {
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &rows);
        for (i, row) in rows.iter().take(40).enumerate() {
            insert(&store, 10_000 + i as u64, row);
        }
        store
    };
    let blocks = make().blocks();
    let mut seen = BTreeSet::new();
    for block in 1..blocks {
        let store = make();
        let before = store.read(block, |b| Ok(b.to_vec())).unwrap();
        let used = 24 + laser_index::page::header(&before).len as usize;
        let at = rng.random_range(0..used);
        store.damage(block, |b| b[at] ^= 0x40);
        let report = check::check(&store, &std::env::temp_dir()).unwrap();
        let kind = laser_index::page::kind(block, &before).unwrap().unwrap();
        let what = format!("byte {at} of block {block}, {kind:?}");
        seen.insert(format!("{kind:?}"));
        // The bits of dead entries have no checksum: a live row may be taken for a dead one.
        let bits = kind == PageKind::Bitmap && at >= 24;
        assert!(!report.problems.is_empty() || bits, "{what}");
        // A search, without a file from before the damage, names the damage or returns rows of the table.
        let fresh = folder.path().join(format!("damaged {block}"));
        std::fs::create_dir(&fresh).unwrap();
        let settings = Settings {
            ef: 10,
            iterate: Iterate::Strict,
            max_tuples: 20_000,
            cutoff: f64::INFINITY,
            undirected: false,
            at_once: None,
            recheck: false,
        };
        match try_scan(&store, &fresh, &rows[7], settings, usize::MAX) {
            Ok((hits, _)) => {
                // Or what a map says of the pages of bits, which nobody reads where none is set.
                let is_of_bits = matches!(kind, PageKind::Bitmap | PageKind::Map);
                assert!(is_of_bits, "{what} was not noticed");
                assert!((539..=540).contains(&hits.len()), "{what}: {}", hits.len());
                let known = |tid: &u64| (1..=500).contains(tid) || (10_000..10_040).contains(tid);
                assert!(hits.iter().all(|hit| known(&hit.1)), "{what}");
            }
            Err(error) => assert!(
                matches!(
                    error,
                    IndexError::Corrupt { .. }
                        | IndexError::Segment { .. }
                        | IndexError::Moved { .. }
                        | IndexError::Version { .. }
                ),
                "{what}: {error}"
            ),
        }
    }
    for kind in ["Map", "Data", "Bitmap", "Pending"] {
        assert!(seen.contains(kind), "no page of the kind {kind}: {seen:?}");
    }
}

/// Where a segment has a file and no dead entries, a search needs none of its pages.
#[test]
fn a_new_session_reads_few_pages() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(8, Metric::L2, Quantization::F32, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let rows = clustered(&mut ChaCha8Rng::seed_from_u64(15), 500, 8);
    build(&store, &options, &rows);
    let found = |store: &MemoryStore| {
        let search = try_scan(store, folder.path(), &rows[7], STRICT, 5);
        search.map(|(hits, _)| hits.into_iter().map(|hit| hit.1).collect::<Vec<_>>())
    };
    let before = found(&store).unwrap();
    let damaged = |store: &MemoryStore| {
        for block in 1..store.blocks() {
            store.damage(block, |page| page.fill(0xFF));
        }
    };
    let bytes = store.to_bytes();
    damaged(&store);
    assert_eq!(found(&store).unwrap(), before);
    // With one that is dead, it needs those that say so.
    let store = MemoryStore::from_bytes(&bytes).unwrap();
    maintain::delete(&store, |tid| tid == before[0]).unwrap();
    assert_eq!(found(&store).unwrap()[..4], before[1..]);
    damaged(&store);
    found(&store).unwrap_err();
}

#[test]
fn damaged_files_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let rows = clustered(&mut rng, 300, 32);
    let options = options(32, Metric::Cosine, Quantization::F16, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    let meta = Meta::read(&store).unwrap();
    let path = folder.path().join("segment");
    let tid = cache::open(
        &store,
        &meta.parameters,
        &meta.segments[0],
        at(&path, folder.path()),
    )
    .unwrap()
    .tid(5);
    for round in 0..20 {
        let view = cache::open(
            &store,
            &meta.parameters,
            &meta.segments[0],
            at(&path, folder.path()),
        )
        .unwrap();
        assert_eq!(view.tid(5), tid);
        drop(view);
        let mut bytes = std::fs::read(&path).unwrap();
        match round % 3 {
            0 => bytes.truncate(rng.random_range(0..bytes.len())),
            1 => {
                let at = rng.random_range(0..144);
                bytes[at] ^= 1;
            }
            _ => {
                let at = rng.random_range(256..bytes.len() - 64);
                bytes[at] ^= 0x10;
            }
        }
        std::fs::write(&path, bytes).unwrap();
    }
}

/// An index of the first format, kept as a file, still opens: 400 vectors in a segment, 30 dead ones
/// among them, 50 in the pending list. `LASER_KEEP_INDEX=path` writes such a file.
#[test]
fn an_old_index_still_opens() {
    let folder = tempfile::tempdir().unwrap();
    // No generator of random numbers: the file must be comparable in years to come.
    let row = |i: u64| -> Vec<f32> {
        (0..24)
            .map(|j| ((i * 31 + j * j * 7) as f32).sin())
            .collect()
    };
    if let Some(path) = std::env::var_os("LASER_KEEP_INDEX") {
        let store = MemoryStore::new();
        let mut options = options(24, Metric::Cosine, Quantization::I8, folder.path());
        options.parameters.element = 2;
        options.parameters.model = "kept".into();
        options.parameters.fingerprint = [0x5a; 32];
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &(1..=400).map(row).collect::<Vec<_>>());
        for i in 401..=450 {
            insert(&store, i, &row(i));
        }
        maintain::delete(&store, |tid| tid <= 30).unwrap();
        std::fs::write(path, store.to_bytes()).unwrap();
    }
    let store = MemoryStore::from_bytes(include_bytes!("../data/index-1.bin")).unwrap();
    let report = check::check(&store, &std::env::temp_dir()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.rows.iter().copied().eq(31..=450));
    assert_eq!(report.counts, [1, 370, 30, 50, 0]);
    let meta = Meta::read(&store).unwrap();
    assert_eq!(meta.parameters.model, "kept");
    assert_eq!(meta.parameters.fingerprint, [0x5a; 32]);
    assert_eq!(
        (meta.parameters.m, meta.parameters.ef_construction),
        (16, 64)
    );
    for i in [31, 200, 400, 401, 450] {
        let hits = search(&store, folder.path(), &row(i), 40, Iterate::Off, 1);
        // Rows 163 and 450 are as near to each other as twelve bits can tell.
        assert!(distance(Metric::Cosine, &row(i), &row(hits[0].1)) < 1e-4);
        assert!(hits[0].0.abs() < 1e-3);
    }
    // It is not only read: a merge writes the current format.
    insert(&store, 451, &row(451));
    let options = options(24, Metric::Cosine, Quantization::I8, folder.path());
    maintain::merge(&store, &Merge::new(Plan::All, &options), |_, _| ()).unwrap();
    assert_eq!(
        check::check(&store, &std::env::temp_dir()).unwrap().counts,
        [1, 421, 0, 0, 0]
    );
}

/// A store in which something happens before a certain page is read, as on a standby while recovery goes on.
struct Meanwhile<'a, F> {
    store: &'a MemoryStore,
    reads: Cell<usize>,
    at: usize,
    happens: F,
}

impl<F: Fn()> PageStore for Meanwhile<'_, F> {
    type Set<'b>
        = MemorySet<'b>
    where
        Self: 'b;

    fn blocks(&self) -> u32 {
        self.store.blocks()
    }

    fn read<R>(
        &self,
        block: u32,
        look: impl FnOnce(&[u8]) -> Result<R, IndexError>,
    ) -> Result<R, IndexError> {
        if self.reads.replace(self.reads.get() + 1) == self.at {
            (self.happens)();
        }
        self.store.read(block, look)
    }

    fn begin(&self) -> MemorySet<'_> {
        self.store.begin()
    }

    fn release(&self, block: u32) {
        self.store.release(block);
    }

    fn publish_released(&self) {}

    fn folder(&self) -> Option<PathBuf> {
        None
    }

    fn released(&self) -> u32 {
        self.store.released()
    }

    fn pause(&self) {}
}

#[test]
fn an_address_that_is_used_again_during_a_check_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(8, Metric::L2, Quantization::F32, folder.path());
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    let rows = clustered(&mut rng, 500, 8);
    let mut at = 0;
    loop {
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &rows);
        insert(&store, 1000, &rows[0]);
        let meanwhile = Meanwhile {
            store: &store,
            reads: Cell::new(0),
            at,
            happens: || {
                maintain::delete(&store, |tid| tid == 7).unwrap();
                insert(&store, 7, &rows[1]);
            },
        };
        let report = check::check(&meanwhile, &std::env::temp_dir()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "before page {at}");
        if meanwhile.reads.get() <= at {
            break;
        }
        at += 1;
    }
    assert!(at > 10, "{at} pages are read");
}

/// After a start of the server all want the file of a segment at once: one makes it, and the others have the same.
#[test]
fn one_of_many_makes_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(8, Metric::L2, Quantization::F32, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let rows = clustered(&mut ChaCha8Rng::seed_from_u64(14), 2000, 8);
    build(&store, &options, &rows);
    let entry = Meta::read(&store).unwrap().segments[0];
    for _ in 0..5 {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("relation/segment");
        let start = Barrier::new(8);
        let views = std::thread::scope(|scope| {
            let open = || {
                start.wait();
                let view = cache::open(&store, &options.parameters, &entry, at(&path, own.path()));
                drop(view.unwrap());
                std::fs::metadata(&path).unwrap().ino()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            let found = threads.into_iter().map(|thread| thread.join().unwrap());
            found.collect::<BTreeSet<u64>>()
        });
        assert_eq!(views.len(), 1, "files made");
    }
}
