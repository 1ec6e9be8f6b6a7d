//! Rows without a vector, or of vectors without a direction.

use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::page::{NULL, UNDIRECTED, address};
use laser_index::quantization::Quantization;
use laser_index::scan::{Iterate, Settings};
use laser_index::{check, pending};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{add, builder, encoding, insert, options, scan, search};

/// Dead vectors beside many live rows without one: walks do not pass them all, and VACUUM removes them.
#[test]
fn live_rows_without_a_vector_hide_no_dead_ones() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(8, Metric::L2, None, folder.path());
    let mut rng = ChaCha8Rng::seed_from_u64(36);
    let rows: Vec<Vec<f32>> = (0..6000)
        .map(|_| (0..8).map(|_| rng.random_range(-1.0..1.0f32)).collect())
        .collect();
    for left in [0, 20] {
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        let mut builder = builder(&options, &encoding(&options, &rows));
        for (row, tid) in rows.iter().zip(1..) {
            builder.push(tid, row, &|| ()).unwrap();
        }
        for tid in 6001..=60_000 {
            builder.push_unplaced(tid | NULL);
        }
        add(&store, builder);
        maintain::delete(&store, |tid| (left + 1..=6000).contains(&tid)).unwrap();
        let settings = || Settings {
            ef: 40,
            iterate: Iterate::Strict,
            max_tuples: 20_000,
            cutoff: f64::INFINITY,
            undirected: false,
            at_once: None,
            recheck: false,
        };
        let wanted = left as usize + 10;
        let (hits, found) = scan(&store, folder.path(), &rows[0], settings(), wanted);
        assert_eq!(hits.len(), wanted);
        assert!(
            found.visited <= left as usize,
            "{} of {left}",
            found.visited
        );

        let how = Merge::new(Plan::Vacuum, &options);
        maintain::merge(&store, &how, |_, _| ()).unwrap();
        let meta = Meta::read(&store).unwrap();
        let kept: u32 = meta.segments.iter().map(|s| s.count).sum();
        assert_eq!(u64::from(kept), left + 54_000);
        let report = check::check(&store, &std::env::temp_dir()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        let (hits, _) = scan(&store, folder.path(), &rows[0], settings(), wanted);
        assert_eq!(hits.len(), wanted);
    }
}

/// Rows without a vector are in memory until a segment ends, also where its graph is made in parts.
#[test]
fn addresses_stay_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    for (memory, cache) in [(16 << 20, 1 << 40), (16 << 20, 0), (1 << 20, 1 << 40)] {
        let mut options = options(8, Metric::Cosine, None, folder.path());
        (options.memory, options.cache) = (memory, cache);
        let mut builder = builder(&options, &encoding(&options, &[vec![1.0; 8]]));
        while !builder.is_full() {
            builder.push_unplaced(builder.len() as u64 | NULL);
        }
        let bytes = 8 * builder.len();
        assert!(2 * bytes <= memory, "{bytes} of {memory}");
    }
}

/// Where a vector takes much, as for inner products by distances, hundreds of addresses take as much.
#[test]
fn addresses_count_by_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(1000, Metric::InnerProduct, Quantization::F32, folder.path());
    options.memory = 32 << 20;
    let sample: Vec<Vec<f32>> = (1..100)
        .map(|i| (0..1000).map(|j| (i * (j + 1) % 17) as f32).collect())
        .collect();
    let encoding = encoding(&options, &sample);
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    for segment in 0..3u64 {
        let mut builder = builder(&options, &encoding);
        for row in 1..=100_000 {
            assert!(!builder.is_full());
            builder.push_unplaced((segment << 32 | row) | NULL);
        }
        for (x, row) in sample.iter().zip(100_001..) {
            builder.push(segment << 32 | row, x, &|| ()).unwrap();
        }
        add(&store, builder);
    }
    let merge = Merge::new(Plan::All, &options);
    maintain::merge(&store, &merge, |_, _| ()).unwrap();
    let meta = Meta::read(&store).unwrap();
    assert_eq!(meta.segments.len(), 1);
    assert_eq!(meta.segments[0].live(), 300_297);
}

/// Rows without a vector, and of vectors without a direction, are in the index: they come last.
#[test]
fn every_row_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(8, Metric::Cosine, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    let merge = |plan| {
        let how = Merge::new(plan, &options);
        maintain::merge(&store, &how, |_, _| ()).unwrap();
    };
    let parameters = &options.parameters;
    for tid in 1..=3000u64 {
        match tid % 10 {
            0 => pending::append(&store, parameters, tid | NULL, None).unwrap(),
            1 => pending::append(&store, parameters, tid | UNDIRECTED, None).unwrap(),
            _ => {
                let x: Vec<f32> = (0..8).map(|_| rng.random::<f32>()).collect();
                insert(&store, tid, &x)
            }
        };
        if tid % 700 == 0 {
            merge(if tid % 2 == 0 {
                Plan::Insert
            } else {
                Plan::All
            });
        }
    }
    let check = |expected: usize| {
        let report = check::check(&store, &std::env::temp_dir()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.rows.len(), expected);
        for iterate in [Iterate::Strict, Iterate::Relaxed] {
            let hits = search(&store, folder.path(), &[1.0; 8], 10, iterate, usize::MAX);
            assert_eq!(hits.len(), expected);
            let kinds: Vec<u8> = hits
                .iter()
                .map(|(distance, _)| {
                    u8::from(distance.is_nan()) + 2 * u8::from(distance.is_infinite())
                })
                .collect();
            assert!(kinds.is_sorted());
            assert!(hits.iter().all(|(_, tid)| *tid == address(*tid)));
        }
    };
    check(3000);
    let done = maintain::delete(&store, |tid| tid % 3 == 0).unwrap();
    assert_eq!((done.removed, done.live), (1000, 2000));
    check(2000);
    merge(Plan::All);
    check(2000);
    merge(Plan::Vacuum);
    check(2000);
}
