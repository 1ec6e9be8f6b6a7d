//! Queries unlike the rows.

use std::collections::HashSet;

use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::quantization::Quantization;
use laser_index::scan::{Iterate, Settings};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{build, clustered, distance, options, scan};

const DIMS: usize = 24;
const DEFAULT: Settings = Settings {
    ef: 0,
    iterate: Iterate::Strict,
    max_tuples: 20_000,
    cutoff: f64::INFINITY,
    recheck: true,
    undirected: false,
    at_once: None,
};

/// How many of the ten nearest rows all queries find together, and for how many of them the search was made again.
fn found(
    store: &MemoryStore,
    folder: &std::path::Path,
    (rows, metric): (&[Vec<f32>], Metric),
    queries: &[Vec<f32>],
    settings: Settings,
) -> (usize, usize) {
    let (mut hits, mut again) = (0, 0);
    for query in queries {
        let mut all: Vec<(f64, u64)> = (rows.iter().zip(1..))
            .map(|(row, tid)| (distance(metric, query, row), tid))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let nearest: HashSet<u64> = all[..10].iter().map(|(_, tid)| *tid).collect();
        let (rows, scan) = scan(store, folder, query, settings, 10);
        hits += (rows.iter())
            .filter(|(_, tid)| nearest.contains(tid))
            .count();
        again += usize::from(scan.widened > 0);
    }
    (hits, again)
}

/// The width is measured with rows. Directions that no row has are searched for with more, and found as well; where the width was
/// set, it stays.
#[test]
fn queries_unlike_the_rows_are_searched_for_again() {
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    let mut all = clustered(&mut rng, 12_100, DIMS);
    let likes = all.split_off(12_000);
    let direction = |_| (0..DIMS).map(|_| rng.random_range(-1.0..1.0f32)).collect();
    let others: Vec<Vec<f32>> = (0..100).map(direction).collect();
    for metric in [Metric::Cosine, Metric::L2] {
        for quantization in [Some(Quantization::F32), None] {
            let folder = tempfile::tempdir().unwrap();
            let options = options(DIMS, metric, quantization, folder.path());
            let store = MemoryStore::new();
            Meta::create(&store, options.parameters.clone()).unwrap();
            build(&store, &options, &all);
            let find = |queries: &[Vec<f32>], ef| {
                let settings = Settings { ef, ..DEFAULT };
                found(&store, folder.path(), (&all, metric), queries, settings)
            };
            let (hits, again) = find(&likes, 0);
            assert!(hits >= 980 && again <= 15, "{hits}, {again} of 100");
            let (hits, again) = find(&others, 0);
            assert!(hits >= 950 && again >= 60, "{hits}, {again} of 100");
            let (as_set, again) = find(&others, 64);
            assert!(as_set + 50 < hits && again == 0, "{as_set}, {again} of 100");
        }
    }
}

/// For inner products with rows that lie to one side of the origin, queries around it are unlike them: 774 of 1,000 were found.
#[test]
fn queries_without_what_all_rows_share_are_searched_for_again() {
    let mut rng = ChaCha8Rng::seed_from_u64(32);
    let metric = Metric::InnerProduct;
    let direction = |rng: &mut ChaCha8Rng| {
        let x: Vec<f32> = (0..DIMS)
            .map(|_| (0..12).map(|_| rng.random_range(-0.5..0.5f32)).sum())
            .collect();
        let length = x.iter().map(|x| x * x).sum::<f32>().sqrt();
        x.into_iter().map(|x| x / length).collect::<Vec<f32>>()
    };
    let mut row = |i: usize| {
        let length = 0.7 + 0.6 * (i % 1000) as f32 / 1000.0;
        let one = direction(&mut rng).into_iter();
        one.map(|x| length * x + 0.8).collect::<Vec<f32>>()
    };
    let rows: Vec<Vec<f32>> = (0..40_000).map(&mut row).collect();
    let likes: Vec<Vec<f32>> = (0..100).map(|i| row(10 * i)).collect();
    let others: Vec<Vec<f32>> = (0..100).map(|_| direction(&mut rng)).collect();
    let folder = tempfile::tempdir().unwrap();
    let options = options(DIMS, metric, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    let find = |queries: &[Vec<f32>]| {
        let of = (&rows[..], metric);
        found(&store, folder.path(), of, queries, DEFAULT)
    };
    let (hits, again) = find(&likes);
    assert!(hits >= 980 && again <= 30, "{hits}, {again} of 100");
    let (hits, again) = find(&others);
    assert!(hits >= 960 && again >= 100, "{hits}, {again} of 100");
}
