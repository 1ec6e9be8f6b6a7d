//! Searches by cells beside searches of all pairs.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

mod common;

use laser_mining::approximate::{self, Approximate};
use laser_mining::knn::{self, Control, Options};
use laser_mining::{Error, Neighbours, RowStore, Rows, Side};
use std::collections::HashSet;
use std::sync::atomic::Ordering;

const DIMENSIONS: usize = 32;
const K: usize = 4;

fn clustered(seed: u64, rows: usize) -> Vec<f32> {
    common::rows(seed, rows, DIMENSIONS, 200, true)
}

fn search(
    source: &[f32],
    target: &[f32],
    recall: f64,
    options: &Options<'_>,
) -> Option<Approximate> {
    approximate::both_rows(source.into(), target.into(), DIMENSIONS, K, recall, options).unwrap()
}

/// The share of the neighbours that are found; those that are have their exact cosines.
fn share(found: &Neighbours, all: &Neighbours) -> f64 {
    assert_eq!((found.rows(), found.k()), (all.rows(), all.k()));
    let (mut common, mut wanted) = (0, 0);
    for row in 0..all.rows() {
        let own = found.positions(row);
        assert_eq!(own.iter().collect::<HashSet<_>>().len(), own.len(), "{row}");
        assert!(found.cosines(row).is_sorted_by(|a, b| a >= b), "{row}");
        for (position, cosine) in all.positions(row).iter().zip(all.cosines(row)) {
            wanted += 1;
            if let Some(at) = own.iter().position(|own| own == position) {
                common += 1;
                assert_eq!(found.cosines(row)[at], *cosine, "{row}");
            }
        }
    }
    f64::from(common) / f64::from(wanted)
}

#[test]
fn rows_in_groups_are_found_by_their_cells() {
    for (sources, targets) in [(30_000, 40_000), (60_000, 15_000)] {
        let (source, target) = (clustered(1, sources), clustered(2, targets));
        let options = Options::default();
        let all = knn::both(&source, &target, DIMENSIONS, K, &options).unwrap();
        for recall in [0.9, 0.99] {
            let control = Control::default();
            let options = Options {
                control: Some(&control),
                ..options.clone()
            };
            let by_cells = search(&source, &target, recall, &options).expect("groups");
            let (cells, probes, found) = (by_cells.cells, by_cells.probes, by_cells.found);
            assert!(by_cells.recall >= recall, "{}", by_cells.recall);
            assert!(probes * 3 <= cells, "{probes} of {cells}");
            for (found, all) in [(&found.forward, &all.0), (&found.backward, &all.1)] {
                let share = share(found, all);
                assert!(share > recall - 0.01, "{share} of {recall}");
            }
            let done = control.done.load(Ordering::Relaxed);
            let total = control.total.load(Ordering::Relaxed);
            assert!(done < (sources * targets) as u64 / 2, "{done}");
            assert!(
                (0.8..1.2).contains(&(done as f64 / total as f64)),
                "{done} of {total}"
            );
        }
    }
}

#[test]
fn threads_change_nothing_and_files_and_memory_little() {
    let (source, target) = (clustered(3, 20_000), clustered(4, 30_000));
    let one = Options {
        threads: 1,
        ..Options::default()
    };
    let whole = search(&source, &target, 0.95, &one).expect("groups");
    let three = Options {
        threads: 3,
        ..Options::default()
    };
    let again = search(&source, &target, 0.95, &three).expect("groups");
    assert_eq!((again.cells, again.probes), (whole.cells, whole.probes));
    assert_eq!(again.found, whole.found);

    let stored = |values: &[f32]| {
        let mut store = RowStore::new(DIMENSIONS, 1 << 16, None);
        for row in values.chunks(DIMENSIONS) {
            store.push(row).unwrap();
        }
        assert!(store.spilled());
        store
    };
    let (source_store, target_store) = (stored(&source), stored(&target));
    let filed = |options: &Options<'_>| {
        let (x, y) = ((&source_store).into(), (&target_store).into());
        approximate::both_rows(x, y, DIMENSIONS, K, 0.95, options).unwrap()
    };
    let filed = |options: &Options<'_>| filed(options).expect("groups");
    assert_eq!(filed(&three).found, whole.found);
    // A smaller sample makes other cells.
    let all = knn::both(&source, &target, DIMENSIONS, K, &one).unwrap();
    let little = filed(&Options {
        memory: Some(4 << 20),
        ..three
    });
    assert!(share(&little.found.forward, &all.0) > 0.94);
    assert!(share(&little.found.backward, &all.1) > 0.94);
}

#[test]
fn what_spares_nothing_compares_all() {
    let options = Options::default();
    let is_all = |source: &[f32], target: &[f32], recall| {
        assert!(search(source, target, recall, &options).is_none());
    };
    // Directions that are all as far from each other; few rows; all neighbours; no rows.
    let even = |seed| common::rows(seed, 20_000, DIMENSIONS, 0, false);
    is_all(&even(1), &even(2), 0.99);
    is_all(&clustered(1, 3_000), &clustered(2, 3_000), 0.9);
    is_all(&clustered(1, 20_000), &clustered(2, 20_000), 1.0);
    is_all(&[], &clustered(2, 50_000), 0.9);
    // Rows that would be read once for each of many parts.
    let (source, target) = (clustered(1, 30_000), clustered(2, 30_000));
    let options = Options {
        memory: Some(1 << 16),
        ..options
    };
    assert!(search(&source, &target, 0.9, &options).is_none());
}

/// One text that half of the rows have is in one cell, as large as half of the rows.
#[test]
fn copies_are_found_however_many() {
    let mut target = clustered(5, 40_000);
    let copied = target[..DIMENSIONS].to_vec();
    for row in target.chunks_mut(DIMENSIONS).step_by(2) {
        row.copy_from_slice(&copied);
    }
    let source = clustered(6, 20_000);
    let options = Options::default();
    let all = knn::both(&source, &target, DIMENSIONS, K, &options).unwrap();
    let found = search(&source, &target, 0.95, &options)
        .expect("groups")
        .found;
    assert!(share(&found.forward, &all.0) > 0.94);
    assert!(share(&found.backward, &all.1) > 0.94);
}

#[test]
fn it_stops_when_told_and_names_bad_rows() {
    let (mut source, target) = (clustered(7, 30_000), clustered(8, 20_000));
    let control = Control::default();
    control.cancel.store(true, Ordering::Relaxed);
    let options = Options {
        control: Some(&control),
        ..Options::default()
    };
    let both = |source: &[f32], options: &Options<'_>| {
        let (source, target) = (Rows::Slice(source), Rows::Slice(&target));
        approximate::both_rows(source, target, DIMENSIONS, K, 0.95, options)
    };
    assert!(matches!(both(&source, &options), Err(Error::Cancelled)));
    source[12_345 * DIMENSIONS] = f32::NAN;
    let error = both(&source, &Options::default()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NotFinite {
                side: Side::Source,
                row: 12_345
            }
        ),
        "{error}"
    );
}
