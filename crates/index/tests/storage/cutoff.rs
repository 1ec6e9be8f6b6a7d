//! Rows up to a distance.

use std::collections::BTreeSet;

use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::page::{NULL, UNDIRECTED};
use laser_index::pending;
use laser_index::quantization::Quantization;
use laser_index::scan::{Iterate, Settings};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{add, build, builder, clustered, distance, encoding, insert, options, scan};

/// Of the rows up to a cutoff a scan gives all that it would give without, however it goes on, and it searches once
/// more than that takes.
#[test]
fn nothing_is_lost_before_a_cutoff() {
    let mut rng = ChaCha8Rng::seed_from_u64(29);
    let rows = clustered(&mut rng, 6000, 16);
    let queries = clustered(&mut rng, 20, 16);
    let truth = |metric, query: &[f32]| {
        let all = rows.iter().map(|row| distance(metric, query, row));
        let mut all: Vec<(f64, u64)> = all.zip(1..).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    };
    for metric in [Metric::Cosine, Metric::L2, Metric::InnerProduct] {
        for quantization in [Quantization::F32, Quantization::I8, Quantization::B1] {
            let folder = tempfile::tempdir().unwrap();
            let options = options(16, metric, quantization, folder.path());
            let store = MemoryStore::new();
            Meta::create(&store, options.parameters.clone()).unwrap();
            let (first, rest) = rows.split_at(3000);
            build(&store, &options, first);
            let encoding = encoding(&options, rest);
            let mut second = builder(&options, &encoding);
            let (segment, list) = rest.split_at(2800);
            for (row, tid) in segment.iter().zip(3001..) {
                second.push(tid, row, &|| ()).unwrap();
            }
            add(&store, second);
            for (row, tid) in list.iter().zip(5801..) {
                insert(&store, tid, row);
            }
            pending::append(&store, &options.parameters, 7000 | NULL, None).unwrap();
            for iterate in [Iterate::Off, Iterate::Relaxed, Iterate::Strict] {
                let (mut found, mut wanted, mut searches) = (0, 0, 0);
                for query in &queries {
                    let truth = truth(metric, query);
                    let settings = |rank: usize| Settings {
                        ef: 200,
                        iterate,
                        max_tuples: 20_000,
                        cutoff: match rank {
                            0 => truth[0].0 - 1e-3,
                            rank => truth[rank].0,
                        },
                        recheck: true,
                        undirected: false,
                        at_once: None,
                    };
                    for rank in [0, 10, 50, 1000] {
                        let settings = settings(rank);
                        let (hits, scan) = scan(&store, folder.path(), query, settings, usize::MAX);
                        assert!(!scan.was_cut());
                        assert!(hits.iter().all(|(_, tid)| *tid != 7000));
                        // What one search is sure of serves a cutoff near by.
                        if rank == 50 && quantization != Quantization::B1 {
                            searches += scan.searches;
                        }
                        if iterate == Iterate::Off && rank == 1000 {
                            continue;
                        }
                        let given: BTreeSet<u64> = hits.iter().map(|(_, tid)| *tid).collect();
                        let within = truth.iter().take_while(|(d, _)| *d <= settings.cutoff);
                        let within: Vec<u64> = within.map(|(_, tid)| *tid).collect();
                        wanted += within.len();
                        found += within.iter().filter(|tid| given.contains(tid)).count();
                        if rank == 0 {
                            let most = if quantization == Quantization::B1 {
                                6000
                            } else {
                                20
                            };
                            assert!(
                                hits.len() <= most,
                                "{metric:?} {quantization:?} {}",
                                hits.len()
                            );
                        }
                    }
                }
                assert!(
                    found as f64 >= 0.995 * wanted as f64,
                    "{metric:?} {quantization:?} {iterate:?}: {found} of {wanted}"
                );
                assert!(
                    searches <= 5 * queries.len(),
                    "{metric:?} {quantization:?}: {searches}"
                );
            }
        }
    }
}

/// A walk is sure of its own candidates; of rows in groups it may lack whole groups before a cutoff.
#[test]
fn groups_before_a_cutoff_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(32, Metric::L2, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(31);
    let mut point = |size: f32| -> Vec<f32> {
        (0..32)
            .map(|_| size * rng.random_range(-1.0..1.0f32))
            .collect()
    };
    let centres: Vec<Vec<f32>> = (0..600).map(|_| point(1.0)).collect();
    let mut rows = Vec::new();
    for i in 0..12_000 {
        let noise = point(0.02);
        rows.push(
            centres[i % 600]
                .iter()
                .zip(noise)
                .map(|(c, x)| c + x)
                .collect(),
        );
    }
    let queries: Vec<Vec<f32>> = (0..20).map(|_| point(1.0)).collect();
    build(&store, &options, &rows);
    let (mut found, mut wanted) = (0, 0);
    for query in &queries {
        let mut truth: Vec<f64> = rows
            .iter()
            .map(|row| distance(Metric::L2, query, row))
            .collect();
        truth.sort_by(f64::total_cmp);
        for rank in [200, 800] {
            let settings = Settings {
                ef: 0,
                iterate: Iterate::Strict,
                max_tuples: usize::MAX,
                cutoff: truth[rank],
                undirected: false,
                at_once: None,
                recheck: true,
            };
            let (hits, _) = scan(&store, folder.path(), query, settings, usize::MAX);
            let near =
                |tid: u64| distance(Metric::L2, query, &rows[tid as usize - 1]) <= truth[rank];
            found += hits.iter().filter(|(_, tid)| near(*tid)).count();
            wanted += rank + 1;
        }
    }
    assert!(found as f64 >= 0.99 * wanted as f64, "{found} of {wanted}");
}

/// Nothing is near to a query without a direction, and no wider search finds that out.
#[test]
fn a_query_without_a_direction_has_nothing_before_a_cutoff() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(16, Metric::Cosine, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let rows = clustered(&mut ChaCha8Rng::seed_from_u64(31), 3000, 16);
    build(&store, &options, &rows);
    let settings = Settings {
        ef: 0,
        iterate: Iterate::Strict,
        max_tuples: 20_000,
        cutoff: 2.0,
        undirected: false,
        at_once: None,
        recheck: true,
    };
    let (hits, scan) = scan(&store, folder.path(), &[0.0; 16], settings, usize::MAX);
    assert_eq!((hits.len(), scan.searches), (0, 0));
    // To a filter that NaN passes all rows are as good.
    let settings = Settings {
        undirected: true,
        at_once: None,
        ..settings
    };
    let (hits, _) = self::scan(&store, folder.path(), &[0.0; 16], settings, usize::MAX);
    assert_eq!(hits.len(), 3000);
    // And of a query that has one, those without come last.
    for tid in [4000, 4001] {
        pending::append(&store, &options.parameters, tid | UNDIRECTED, None).unwrap();
    }
    pending::append(&store, &options.parameters, 4002 | NULL, None).unwrap();
    let settings = Settings {
        cutoff: -1.0,
        ..settings
    };
    let (hits, _) = self::scan(&store, folder.path(), &[1.0; 16], settings, usize::MAX);
    let tids: Vec<u64> = hits.iter().map(|(_, tid)| *tid).collect();
    assert_eq!(tids, [4000, 4001]);
}
