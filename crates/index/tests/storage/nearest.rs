//! The nearest rows are found, whatever the data.

use laser_index::check;
use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::quantization::Quantization;
use laser_index::scan::{Iterate, Settings};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{build, clustered, distance, insert, options, scan, search};

#[test]
fn recall_of_every_quantization_and_metric() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let rows = clustered(&mut rng, 6000, 64);
    for quantization in Quantization::ALL {
        for metric in [Metric::Cosine, Metric::L2, Metric::InnerProduct] {
            let store = MemoryStore::new();
            let options = options(64, metric, quantization, folder.path());
            Meta::create(&store, options.parameters.clone()).unwrap();
            build(&store, &options, &rows);
            let (mut found, mut asked) = (0, 0);
            for q in rows.choose_multiple(&mut rng, 200) {
                let q: Vec<f32> = q
                    .iter()
                    .map(|x| x + 0.05 * (rng.random::<f32>() - 0.5))
                    .collect();
                let mut exact: Vec<(f64, u64)> = rows
                    .iter()
                    .enumerate()
                    .map(|(i, x)| (distance(metric, &q, x), i as u64 + 1))
                    .collect();
                exact.sort_by(|a, b| a.0.total_cmp(&b.0));
                let tenth = exact[9].0;
                let hits = search(&store, folder.path(), &q, 40, Iterate::Off, 10);
                asked += 10;
                found += hits
                    .iter()
                    .filter(|h| distance(metric, &q, &rows[h.1 as usize - 1]) <= tenth + 1e-6)
                    .count();
            }
            let recall = found as f64 / asked as f64;
            assert!(recall >= 0.95, "{quantization:?} {metric:?}: {recall}");
            let report = check::check(&store, &std::env::temp_dir()).unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            assert_eq!(report.counts, [1, 6000, 0, 0, 0]);
        }
    }
}

/// Equal rows share a node: thousands of them neither hide other rows nor each other.
#[test]
fn duplicates_are_all_found() {
    let folder = tempfile::tempdir().unwrap();
    for quantization in Quantization::ALL {
        let options = options(32, Metric::Cosine, quantization, folder.path());
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let mut rows = clustered(&mut rng, 2000, 32);
        let same = rows[0].clone();
        rows.extend(std::iter::repeat_n(same.clone(), 3000));
        build(&store, &options, &rows);
        let report = check::check(&store, &std::env::temp_dir()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.counts[1], 5000);
        let hits = search(&store, folder.path(), &same, 10, Iterate::Strict, 4000);
        assert!(
            hits[..3000].iter().all(|h| h.1 == 1 || h.1 > 2000),
            "{quantization:?}"
        );
        assert!(hits.len() > 3500);
        let mut reached = 0;
        for i in 0..500 {
            let nearest = search(&store, folder.path(), &rows[i + 1], 40, Iterate::Off, 1);
            reached += usize::from(nearest[0].1 == i as u64 + 2);
        }
        assert!(reached >= 490, "{quantization:?}: {reached}");
        // Once more through a merge that continues the segment, and one that does not.
        for i in 0..300 {
            insert(&store, 10_000 + i, &same);
        }
        let how = Merge::new(Plan::All, &options);
        maintain::merge(&store, &how, |_, _| ()).unwrap();
        maintain::delete(&store, |tid| tid > 2000 && tid % 2 == 0).unwrap();
        maintain::merge(&store, &how, |_, _| ()).unwrap();
        let report = check::check(&store, &std::env::temp_dir()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.counts, [1, 2000 + 1500 + 150, 0, 0, 0]);
    }
}

/// What lies behind a group of rows around the query, which a filter excludes.
#[test]
fn rows_behind_a_crowd_are_found() {
    const GROUPS: usize = 24;
    let folder = tempfile::tempdir().unwrap();
    let options = options(32, Metric::L2, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(14);
    let mut point = |size: f32| -> Vec<f32> {
        (0..32)
            .map(|_| size * rng.random_range(-1.0..1.0f32))
            .collect()
    };
    let centres: Vec<Vec<f32>> = (0..GROUPS).map(|_| point(1.0)).collect();
    let rows: Vec<Vec<f32>> = (0..500 * GROUPS)
        .map(|i| {
            let noise = point(0.2);
            centres[i % GROUPS]
                .iter()
                .zip(noise)
                .map(|(c, x)| c + x)
                .collect()
        })
        .collect();
    build(&store, &options, &rows);
    let (mut found, mut wanted) = (0, 0);
    for own in 0..60 {
        let is_other = |tid: u64| (tid as usize - 1) % GROUPS != own % GROUPS;
        let mut exact: Vec<f64> = (1..=rows.len() as u64)
            .filter(|tid| is_other(*tid))
            .map(|tid| distance(Metric::L2, &rows[own], &rows[tid as usize - 1]))
            .collect();
        exact.sort_by(f64::total_cmp);
        // As many rows as a query reads that wants ten of other groups.
        let hits = search(&store, folder.path(), &rows[own], 40, Iterate::Strict, 510);
        let near = |hit: &&(f64, u64)| {
            let distance = distance(Metric::L2, &rows[own], &rows[hit.1 as usize - 1]);
            is_other(hit.1) && distance <= exact[9] + 1e-6
        };
        found += hits.iter().filter(near).count();
        wanted += 10;
    }
    assert!(100 * found >= 98 * wanted, "{found} of {wanted}");
}

/// Data of many kinds: the lower bounds of a scan are below the true distances, rows held back until
/// their bound has passed come in the true order, and the nearest are found.
#[test]
fn data_of_many_kinds_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    type Kind = fn(&mut ChaCha8Rng, usize) -> f32;
    let kinds: [(&str, Kind); 6] = [
        ("uniform", |rng, _| rng.random()),
        ("offset", |rng, _| 100.0 + rng.random::<f32>()),
        ("sparse", |rng, _| {
            if rng.random_bool(0.1) {
                rng.random()
            } else {
                0.0
            }
        }),
        ("dominant", |rng, i| {
            rng.random_range(-1.0..1.0) * if i == 0 { 1e4 } else { 1.0 }
        }),
        ("huge", |rng, _| 1e15 * rng.random::<f32>()),
        ("tiny", |rng, _| 1e-12 * rng.random::<f32>()),
    ];
    for (name, kind) in kinds {
        for (dims, metric) in [
            (3, Metric::L2),
            (3, Metric::InnerProduct),
            (40, Metric::Cosine),
            (40, Metric::L2),
            (40, Metric::InnerProduct),
        ] {
            let mut row = || (0..dims).map(|i| kind(&mut rng, i)).collect::<Vec<f32>>();
            let rows: Vec<Vec<f32>> = (0..4000).map(|_| row()).collect();
            let queries: Vec<Vec<f32>> = (0..20).map(|_| row()).collect();
            let options = options(dims, metric, None, folder.path());
            let store = MemoryStore::new();
            Meta::create(&store, options.parameters.clone()).unwrap();
            build(&store, &options, &rows[..3500]);
            for (i, row) in rows[3500..].iter().enumerate() {
                insert(&store, 3501 + i as u64, row);
            }
            let mut found = 0;
            for query in &queries {
                if query.iter().all(|x| *x == 0.0) {
                    found += 10;
                    continue;
                }
                let truth = |tid: u64| {
                    let distance = distance(metric, query, &rows[tid as usize - 1]);
                    // A row without a direction comes last.
                    if distance.is_nan() {
                        f64::MAX
                    } else {
                        distance
                    }
                };
                let settings = Settings {
                    // As many as the segment was measured to need: the default.
                    ef: 0,
                    iterate: Iterate::Strict,
                    max_tuples: 20_000,
                    cutoff: f64::INFINITY,
                    undirected: false,
                    at_once: None,
                    recheck: true,
                };
                let (hits, _) = scan(&store, folder.path(), query, settings, 100);
                // As the executor does it.
                let mut held: Vec<(f64, u64)> = Vec::new();
                let mut given = Vec::new();
                for (lower, tid) in hits {
                    let distance = truth(tid);
                    let slack = 1e-5
                        * distance
                            .abs()
                            .max(if metric == Metric::Cosine { 1.0 } else { 0.0 });
                    if distance < f64::MAX {
                        assert!(
                            lower <= distance + slack,
                            "{name} {dims} {metric:?}: {lower} {distance}"
                        );
                    }
                    held.push((distance, tid));
                    held.sort_by(|a, b| a.0.total_cmp(&b.0));
                    while held.first().is_some_and(|first| first.0 <= lower) {
                        given.push(held.remove(0));
                    }
                }
                given.extend(held);
                let mut exact: Vec<f64> = (1..=rows.len() as u64).map(truth).collect();
                exact.sort_by(f64::total_cmp);
                let near = |d: &f64| *d <= exact[9] + exact[9].abs() * 1e-5;
                found += given.iter().take(10).filter(|hit| near(&hit.0)).count();
            }
            let recall = found as f64 / 200.0;
            assert!(recall >= 0.9, "{name} {dims} {metric:?}: {recall}");
        }
    }
}

/// A walk that has come to a ring finds all of it before what lies in the middle.
#[test]
fn a_crowd_amid_others_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(2, Metric::L2, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let rows: Vec<Vec<f32>> = (1..=20_000)
        .map(|i| match i % 100 {
            0 => vec![0.0, 0.0],
            _ => vec![(i as f32).cos(), (i as f32).sin()],
        })
        .collect();
    build(&store, &options, &rows);
    for query in [[0.0f32, 0.001], [0.01, 0.01], [-0.02, 0.01], [0.0, 0.0]] {
        for cutoff in [0.1, f64::INFINITY] {
            let settings = Settings {
                ef: 0,
                iterate: Iterate::Strict,
                max_tuples: usize::MAX,
                cutoff,
                undirected: false,
                at_once: None,
                recheck: true,
            };
            let (hits, _) = scan(&store, folder.path(), &query, settings, 10);
            let near = |tid: u64| distance(Metric::L2, &query, &rows[tid as usize - 1]) < 0.1;
            let found = hits.iter().filter(|(_, tid)| near(*tid)).count();
            assert_eq!(found, 10, "{query:?} {cutoff}");
        }
    }
}

/// Equal rows, at which walks begin as well, keep none from going down to where other queries are.
#[test]
fn a_crowd_is_not_all_that_is_begun_with() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(48, Metric::L2, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(48);
    let normal = |rng: &mut ChaCha8Rng| (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0;
    let mut vector = |size: f32| -> Vec<f32> { (0..48).map(|_| size * normal(&mut rng)).collect() };
    let centres: Vec<Vec<f32>> = (0..50).map(|_| vector(1.0)).collect();
    let mut near = |i: usize| -> Vec<f32> {
        let other = vector(0.02);
        centres[i % 50]
            .iter()
            .zip(other)
            .map(|(a, b)| a + b)
            .collect()
    };
    let row = |i| match i % 2000 {
        1999 => vec![0.0; 48],
        _ => near(i),
    };
    let rows: Vec<Vec<f32>> = (0..40_000).map(row).collect();
    build(&store, &options, &rows);
    let mut found = 0;
    for i in 0..120 {
        let query = near(i);
        let hits = search(&store, folder.path(), &query, 0, Iterate::Strict, 10);
        let of_cluster = |(_, tid): &&(f64, u64)| (*tid as usize - 1) % 50 == i % 50;
        found += hits.iter().filter(of_cluster).count();
    }
    assert!(found >= 1180, "{found} of 1200");
}
