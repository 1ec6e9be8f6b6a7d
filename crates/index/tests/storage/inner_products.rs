//! Inner products, whose largest are where the rows are longest.

use std::path::Path;

use laser_index::check;
use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::scan::{Iterate, Settings};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{build, distance, insert, options, scan, search, views};

/// How many of `count` rows that a search gives are among the ten with the largest inner products.
fn near(
    store: &MemoryStore,
    folder: &Path,
    rows: &[Vec<f32>],
    query: &[f32],
    ef: usize,
    count: usize,
) -> usize {
    let product = |x: &[f32]| distance(Metric::InnerProduct, query, x);
    let mut exact: Vec<f64> = rows.iter().map(|x| product(x)).collect();
    exact.sort_by(f64::total_cmp);
    let hits = search(store, folder, query, ef, Iterate::Strict, count);
    let is_near = |tid: u64| product(&rows[tid as usize - 1]) <= exact[9] + 1e-4;
    hits.iter().filter(|(_, tid)| is_near(*tid)).count()
}

/// Vectors that are much longer than those of a segment of inner products come by a merge: they hide none.
#[test]
fn long_vectors_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    // Dimensions, lengths, and the length of the long ones and how many they are; segments afterwards.
    let cases = [
        (48, 0.2..2.0, 20.0, 120, 1),
        (32, 1.0..1.001, 2.4, 120, 1),
        (8, 0.9..1.0, 1e6, 1, 2),
        (48, 0.2..2.0, 1e6, 3, 2),
    ];
    for (dims, lengths, long, count, segments) in cases {
        let name = format!("{dims} {long}");
        let options = options(dims, Metric::InnerProduct, None, folder.path());
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(15);
        let mut row = |length: f32| -> Vec<f32> {
            let x: Vec<f32> = (0..dims)
                .map(|_| (0..6).map(|_| rng.random_range(-1.0..1.0f32)).sum())
                .collect();
            let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
            x.iter().map(|x| x * length / norm).collect()
        };
        let step = (lengths.end - lengths.start) / 6000.0;
        let mut rows: Vec<Vec<f32>> = (0..6000)
            .map(|i| row(lengths.start + step * i as f32))
            .collect();
        build(&store, &options, &rows);
        rows.extend((0..count).map(|_| row(long)));
        for (i, x) in rows.iter().enumerate().skip(6000) {
            insert(&store, i as u64 + 1, x);
        }
        for _ in 0..2 {
            let how = Merge::new(Plan::All, &options);
            maintain::merge(&store, &how, |_, _| ()).unwrap();
        }
        let meta = Meta::read(&store).unwrap();
        assert_eq!(meta.segments.len(), segments, "{name}");
        let report = check::check(&store, &std::env::temp_dir()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.rows.len(), rows.len());
        let (mut found, mut wanted) = (0, 0);
        for _ in 0..40 {
            let q = row(1.0);
            let product = |tid: u64| distance(Metric::InnerProduct, &q, &rows[tid as usize - 1]);
            let mut exact: Vec<f64> = (1..=6000).map(product).collect();
            exact.sort_by(f64::total_cmp);
            let before = (6001..=rows.len() as u64).filter(|tid| product(*tid) <= exact[9]);
            let settings = Settings {
                ef: 0,
                iterate: Iterate::Strict,
                max_tuples: 20_000,
                cutoff: f64::INFINITY,
                undirected: false,
                at_once: None,
                recheck: false,
            };
            let k = before.count() + 10;
            let (hits, scan) = scan(&store, folder.path(), &q, settings, k);
            assert!(!scan.was_cut(), "{name}: {scan:?}");
            let near = |hit: &&(f64, u64)| hit.1 <= 6000 && product(hit.1) <= exact[9] + 1e-6;
            found += hits.iter().filter(near).count();
            wanted += 10;
        }
        assert!(10 * found >= 9 * wanted, "{name}: {found} of {wanted}");
    }
}

/// For inner products the largest are in one segment, for queries like the rows of any.
#[test]
fn queries_like_another_segments_rows_find_the_longest() {
    let folder = tempfile::tempdir().unwrap();
    let (n, dims) = (16_000, 24);
    for seed in [2, 3] {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut gauss = |scale: f32| -> Vec<f32> {
            let uniform =
                |rng: &mut ChaCha8Rng| (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0;
            (0..dims).map(|_| scale * uniform(&mut rng)).collect()
        };
        // A long tight source first, then one of clusters.
        let long = gauss(5.0);
        let centres: Vec<Vec<f32>> = (0..20).map(|_| gauss(3.0)).collect();
        let add =
            |a: &[f32], b: Vec<f32>| -> Vec<f32> { a.iter().zip(b).map(|(x, y)| x + y).collect() };
        let mut rows: Vec<Vec<f32>> = (0..n / 2).map(|_| add(&long, gauss(0.01))).collect();
        rows.extend((0..n / 2).map(|i| add(&centres[i % 20], gauss(0.1))));
        let mut options = options(dims, Metric::InnerProduct, None, folder.path());
        (options.memory, options.expected) = (4 << 20, n);
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &rows);
        let segments = Meta::read(&store).unwrap().segments.len();
        let mut found = [0; 3];
        for i in 0..60 {
            let query = match i % 3 {
                0 => add(&long, gauss(0.01)),
                1 => add(&centres[i % 20], gauss(0.1)),
                _ => gauss(1.0),
            };
            // As many as have to be compared by their true distances.
            found[i % 3] += near(&store, folder.path(), &rows, &query, 0, 30);
        }
        // Those in directions that no row has are not what widths are measured with.
        let [long, clusters, random] = found;
        let (like_rows, all) = (long + clusters, long + clusters + random);
        assert!(
            like_rows >= 392 && all >= 480,
            "{found:?} of 200 each in {segments} segments"
        );
    }
}

/// The same of rows that come later, into a segment of their own, and of those that were there.
#[test]
fn queries_like_older_or_later_rows_find_the_longest_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let dims = 48;
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut gauss = |scale: f32| -> Vec<f32> {
        let uniform =
            |rng: &mut ChaCha8Rng| (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0;
        (0..dims).map(|_| scale * uniform(&mut rng)).collect()
    };
    let far = gauss(60.0 / (dims as f32).sqrt());
    for long_first in [false, true] {
        let short: Vec<Vec<f32>> = (0..if long_first { 6_000 } else { 20_000 })
            .map(|_| gauss(0.3))
            .collect();
        let long: Vec<Vec<f32>> = (0..if long_first { 20_000 } else { 6_000 })
            .map(|_| far.iter().zip(gauss(1.0)).map(|(x, y)| x + y).collect())
            .collect();
        let (older, later) = if long_first {
            (long, short)
        } else {
            (short, long)
        };
        let options = options(dims, Metric::InnerProduct, None, folder.path());
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &older);
        for (x, tid) in later.iter().zip(older.len() as u64 + 1..) {
            insert(&store, tid, x);
        }
        let open = |meta: &Meta| views(&store, meta, folder.path());
        let merge = Merge::new(Plan::Insert, &options).with_views(&open);
        // Whoever ends a merge leaves no new segment beside others whose widths know nothing of it.
        let width = || Meta::read(&store).unwrap().segments[0].ef;
        let mut in_time = 0;
        maintain::merge(&store, &merge, |_, _| in_time = width()).unwrap();
        assert_eq!(in_time, width());
        assert_eq!(Meta::read(&store).unwrap().segments.len(), 2);
        let rows = [older, later].concat();
        let mut found = 0;
        for _ in 0..50 {
            let query = gauss(0.3);
            found += near(&store, folder.path(), &rows, &query, 0, 30);
        }
        assert!(found >= 475, "{found} of 500, {long_first}");
    }
}

/// A width that is set by hand finds as much as it finds elsewhere, where a graph of distances answers for inner products of rows whose
/// lengths differ: .946 of the ten nearest before it was doubled there.
#[test]
fn a_width_that_is_set_suffices_where_lengths_differ() {
    let folder = tempfile::tempdir().unwrap();
    let dims = 128;
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let mut row = |spread: f32| -> Vec<f32> {
        let mut normal = || (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0;
        let length = (spread * normal()).exp();
        let x: Vec<f32> = (0..dims).map(|_| normal()).collect();
        let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        x.iter().map(|x| x * length / norm).collect()
    };
    let rows: Vec<Vec<f32>> = (0..20_000).map(|_| row(0.4)).collect();
    let options = options(dims, Metric::InnerProduct, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    let mut found = 0;
    for _ in 0..50 {
        let query = row(0.0);
        found += near(&store, folder.path(), &rows, &query, 100, 10);
    }
    assert!(found >= 485, "{found} of 500");
}
