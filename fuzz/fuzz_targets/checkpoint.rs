//! PyTorch checkpoints: zip archives, pickles, tensors.
#![no_main]

use laser_fuzz::folder;
use laser_import::pickle::Pickle;
use laser_import::torch::Checkpoint;
use laser_import::zip;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: laser_fuzz::init(), |data| laser_fuzz::run(|| {
    if let Ok(entries) = zip::entries(data) {
        assert!(entries.values().all(|range| data.get(range.clone()).is_some()));
    }
    if let Ok((pickle, len)) = Pickle::read(data) {
        assert!(len <= data.len());
        assert!(pickle.try_node(pickle.root()).is_some());
    }
    let path = folder().join("model.pt");
    std::fs::write(&path, data).expect("a file");
    let Ok(checkpoint) = Checkpoint::open(&path) else { return };
    let root = checkpoint.pickle.root();
    let dicts = [root].into_iter().chain(checkpoint.pickle.get(root, "model"));
    for tensors in dicts.filter_map(|id| checkpoint.tensors(id).ok()) {
        for (name, id) in tensors.iter().take(64) {
            let _ = checkpoint.tensor(name, *id);
        }
    }
}));
