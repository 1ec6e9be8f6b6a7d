//! An index beside a simple model of one.

use std::collections::BTreeMap;
use std::path::Path;

use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::quantization::Quantization;
use laser_index::scan::Iterate;
use laser_index::{check, sweep};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{insert, options, search};

/// Inserts, deletes, merges and sweeps in any order; then the same after a crash at every kind of
/// moment.
#[test]
fn a_model_agrees_whatever_happens() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..12 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let quantization = *Quantization::ALL.choose(&mut rng).unwrap();
        let store = MemoryStore::new();
        let options = options(24, Metric::L2, quantization, folder.path());
        Meta::create(&store, options.parameters.clone()).unwrap();
        let mut model: BTreeMap<u64, Vec<f32>> = BTreeMap::new();
        // The live rows as of each number of changes, where the list of changes may stop.
        let mut history = vec![(store.changes(), model.clone())];
        let mut next = 1;
        for _ in 0..60 {
            match rng.random_range(0..10) {
                0..6 => {
                    for _ in 0..rng.random_range(1..200) {
                        let x: Vec<f32> = (0..24).map(|_| rng.random::<f32>() - 0.5).collect();
                        insert(&store, next, &x);
                        model.insert(next, x);
                        next += 1;
                        history.push((store.changes(), model.clone()));
                    }
                }
                6 | 7 => {
                    let doomed: Vec<u64> = model
                        .keys()
                        .copied()
                        .filter(|_| rng.random_bool(0.2))
                        .collect();
                    let done = maintain::delete(&store, |tid| doomed.contains(&tid)).unwrap();
                    assert_eq!(done.removed as usize, doomed.len());
                    for tid in &doomed {
                        model.remove(tid);
                    }
                    assert_eq!(done.live as usize, model.len());
                    history.push((store.changes(), model.clone()));
                }
                8 => {
                    let plan = *[Plan::Insert, Plan::Vacuum, Plan::All]
                        .choose(&mut rng)
                        .unwrap();
                    let how = Merge::new(plan, &options);
                    maintain::merge(&store, &how, |_, _| ()).unwrap();
                    history.push((store.changes(), model.clone()));
                }
                _ => {
                    sweep::sweep(&store).unwrap();
                    history.push((store.changes(), model.clone()));
                }
            }
        }
        agrees(&store, folder.path(), &model, &mut rng);
        for _ in 0..25 {
            let changes = rng.random_range(history[0].0..=store.changes());
            let crashed = store.crashed_after(changes);
            // What was finished before the crash is there; what was under way may be.
            let before = history.iter().rev().find(|h| h.0 <= changes).unwrap();
            let after = history.iter().find(|h| h.0 >= changes).unwrap();
            let report = check::check(&crashed, &std::env::temp_dir()).unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            let known = |tid: &u64| before.1.contains_key(tid) || after.1.contains_key(tid);
            assert!(report.rows.iter().all(known), "a row was never there");
            let live = (report.counts[1] + report.counts[3]) as usize;
            let sizes = [before.1.len(), after.1.len()];
            assert!((*sizes.iter().min().unwrap()..=*sizes.iter().max().unwrap()).contains(&live));
            // And the index goes on: nothing of it leaks, nothing is given away twice.
            let swept = sweep::sweep(&crashed).unwrap();
            assert_eq!(sweep::sweep(&crashed).unwrap().reclaimed, 0, "{swept:?}");
            let mut model: BTreeMap<u64, Vec<f32>> = before.1.clone();
            model.retain(|tid, _| after.1.contains_key(tid));
            maintain::delete(&crashed, |tid| !model.contains_key(&tid)).unwrap();
            for tid in 1_000_000..1_000_050 {
                let x: Vec<f32> = (0..24).map(|_| rng.random::<f32>() - 0.5).collect();
                insert(&crashed, tid, &x);
                model.insert(tid, x);
            }
            let how = Merge::new(Plan::All, &options);
            maintain::merge(&crashed, &how, |_, _| ()).unwrap();
            agrees(&crashed, folder.path(), &model, &mut rng);
        }
    }
}

fn agrees(
    store: &MemoryStore,
    folder: &Path,
    model: &BTreeMap<u64, Vec<f32>>,
    rng: &mut ChaCha8Rng,
) {
    let report = check::check(store, &std::env::temp_dir()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!((report.counts[1] + report.counts[3]) as usize, model.len());
    assert!(report.rows.iter().eq(model.keys()));
    for iterate in [Iterate::Strict, Iterate::Relaxed] {
        let q: Vec<f32> = (0..24).map(|_| rng.random::<f32>() - 0.5).collect();
        let hits = search(store, folder, &q, 10, iterate, usize::MAX);
        let mut tids: Vec<u64> = hits.iter().map(|h| h.1).collect();
        tids.sort_unstable();
        tids.dedup();
        assert_eq!(tids.len(), hits.len(), "a row came twice");
        assert!(tids.iter().all(|t| model.contains_key(t)));
        assert_eq!(hits.len(), model.len(), "rows are lost");
        if iterate == Iterate::Strict {
            // Rows that a narrower search has missed come at the end. Of signs of random vectors in
            // few dimensions a walk misses many.
            let coarse =
                Meta::read(store).unwrap().parameters.quantization == Some(Quantization::B1);
            let least = if coarse { 5 } else { 9 };
            let sorted = hits.windows(2).take_while(|w| w[0].0 <= w[1].0).count() + 1;
            assert!(
                sorted * 10 >= model.len() * least,
                "{sorted} of {}",
                model.len()
            );
            assert!(hits[sorted.min(hits.len())..].is_sorted_by(|a, b| a.0 <= b.0));
        }
    }
}
