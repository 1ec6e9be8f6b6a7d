//! What is found at a width that is set, of kinds of data for which graphs are hard to link.

use laser_index::budget::needed;
use laser_index::builder::BuildOptions;
use laser_index::codec::Codec;
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::quantization::Quantization;
use laser_index::scan::Iterate;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{build, distance, options, search};

const K: usize = 10;

/// The share of the ten nearest that searches by L2 with this number of candidates find.
fn recall(options: &BuildOptions, rows: &[Vec<f32>], queries: &[Vec<f32>], ef: usize) -> f64 {
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, options, rows);
    assert_eq!(Meta::read(&store).unwrap().segments.len(), 1);
    let mut found = 0;
    for query in queries {
        let mut exact: Vec<f64> = (rows.iter())
            .map(|row| distance(Metric::L2, query, row))
            .collect();
        exact.sort_unstable_by(f64::total_cmp);
        let hits = search(&store, &options.folder, query, ef, Iterate::Off, K);
        let of = |tid: u64| distance(Metric::L2, query, &rows[tid as usize - 1]);
        found += hits
            .iter()
            .filter(|hit| of(hit.1) <= exact[K - 1] + 1e-4)
            .count();
    }
    found as f64 / (K * queries.len()) as f64
}

/// Short vectors are near to all others in many dimensions, and all walks go by them. Where edges from one to another were
/// given for ones to nodes that walks miss, much less was found.
#[test]
fn what_is_near_to_all_leads_to_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    let mut sparse = |count: usize| -> Vec<Vec<f32>> {
        let mut one = || match rng.random_range(0..10) {
            0 => (0..12)
                .map(|_| rng.random::<f32>() - 0.5)
                .sum::<f32>()
                .abs(),
            _ => 0.0,
        };
        let mut row = || (0..1024).map(|_| one()).collect();
        (0..count).map(|_| row()).collect()
    };
    let (rows, queries) = (sparse(10_000), sparse(100));
    let options = options(1024, Metric::L2, Quantization::I8, folder.path());
    let found = recall(&options, &rows, &queries, 40);
    assert!(found > 0.9, "{found}");
}

/// Rows that come from as many places in turn as a part of a graph has nodes: where the same nodes of each part were on the upper
/// levels, these were all in a few of the places, and walks came to no other.
#[test]
fn places_in_turn_are_all_on_the_upper_levels() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(32);
    let mut point =
        |wide: f32| -> Vec<f32> { (0..8).map(|_| rng.random_range(-wide..wide)).collect() };
    let places: Vec<Vec<f32>> = (0..64).map(|_| point(20.0)).collect();
    let mut rows = |count: usize| -> Vec<Vec<f32>> {
        let near = |i: usize| {
            (places[i % 64].iter().zip(point(1.5)))
                .map(|(x, y)| x + y)
                .collect()
        };
        (0..count).map(near).collect()
    };
    let (rows, queries) = (rows(12_000), rows(200));
    let own = options(8, Metric::L2, Quantization::F32, folder.path());
    let little = needed(&Codec::new(8, Metric::L2, Quantization::F32), 16, 64);
    for memory in [little, own.memory] {
        let options = BuildOptions {
            memory,
            cache: 1 << 30,
            ..own.clone()
        };
        let found = recall(&options, &rows, &queries, 40);
        assert!(found > 0.98, "{found} with {memory} bytes");
    }
}
