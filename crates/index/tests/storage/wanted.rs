//! How far a search goes by what is wanted of it.

use std::rc::Rc;

use laser_index::cache;
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::query::Query;
use laser_index::scan::{AtOnce, Iterate, PendingRows, Scan, Settings};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{STRICT, at, build, distance, options, scan, search};

/// Rows near the query that no transaction can see, as versions that VACUUM has not removed yet.
#[test]
fn dead_rows_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(8, Metric::L2, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(16);
    // The first 1000 are near the query.
    let rows: Vec<Vec<f32>> = (0..4000)
        .map(|i| {
            let size = if i < 1000 { 0.01 } else { 1.0 };
            (0..8)
                .map(|_| size * rng.random_range(-1.0..1.0f32))
                .collect()
        })
        .collect();
    build(&store, &options, &rows);
    let meta = Meta::read(&store).unwrap();
    for ef in [10, 1000] {
        let open = |s| {
            let path = folder.path().join("a");
            let view =
                cache::open(&store, &options.parameters, s, at(&path, folder.path())).unwrap();
            view.refresh(&store, s, meta.dead_version).unwrap();
            Rc::new(view)
        };
        let settings = Settings {
            ef,
            max_tuples: 300,
            recheck: true,
            ..STRICT
        };
        let query = Query::new(Metric::L2, 8, &[0.0; 8]).unwrap();
        let views = meta.segments.iter().map(open).collect();
        let mut scan = Scan::new(&query, settings, views, PendingRows::default());
        let mut live = Vec::new();
        while let Some((_, tid)) = scan.next(&|| ()) {
            if tid <= 1000 {
                scan.was_dead();
            } else {
                live.push(tid);
            }
        }
        let most = 300.max(ef);
        assert!(live.len() >= most, "{ef}: {}", live.len());
        assert!(scan.was_cut());
    }
}

/// Where the nearest are one tight group, a width that is enough for these says nothing of what lies behind it.
#[test]
fn as_many_are_found_at_once_as_are_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let (groups, dims, wanted) = (1000, 32, 500);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut gauss = |scale: f32| -> Vec<f32> {
        let uniform =
            |rng: &mut ChaCha8Rng| (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0;
        (0..dims).map(|_| scale * uniform(&mut rng)).collect()
    };
    // Groups within groups.
    let mut add = |centre: &[f32], scale: f32| -> Vec<f32> {
        centre
            .iter()
            .zip(gauss(scale))
            .map(|(x, y)| x + y)
            .collect()
    };
    let outer: Vec<Vec<f32>> = (0..100).map(|_| add(&vec![0.0; dims], 1.0)).collect();
    let centres: Vec<Vec<f32>> = (0..groups).map(|i| add(&outer[i % 100], 0.1)).collect();
    let mut near = |i: usize| add(&centres[i % groups], 0.001);
    let rows: Vec<Vec<f32>> = (0..30 * groups).map(&mut near).collect();
    let options = options(dims, Metric::InnerProduct, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    let settings = Settings {
        at_once: Some(AtOnce {
            rows: wanted,
            rank: wanted,
            asked: wanted,
            then_all: false,
        }),
        ..STRICT
    };
    let mut found = 0;
    for i in 0..20 {
        let query = near(i * 37);
        let product = |x: &[f32]| distance(Metric::InnerProduct, &query, x);
        let mut exact: Vec<f64> = rows.iter().map(|x| product(x)).collect();
        exact.sort_by(f64::total_cmp);
        let (hits, _) = scan(&store, folder.path(), &query, settings, wanted);
        let is_near = |tid: u64| product(&rows[tid as usize - 1]) <= exact[wanted - 1] + 1e-3;
        found += hits.iter().filter(|(_, tid)| is_near(*tid)).count();
    }
    assert!(
        found >= 20 * wanted * 97 / 100,
        "{found} of {}",
        20 * wanted
    );
}

/// Where filters refuse most rows, the next search is as wide as those that pass are far apart, and no wider than they prove to be.
#[test]
fn searches_are_as_wide_as_filters_want() {
    let folder = tempfile::tempdir().unwrap();
    let (n, dims) = (30_000, 8);
    let mut rng = ChaCha8Rng::seed_from_u64(19);
    let rows: Vec<Vec<f32>> = (0..n)
        .map(|_| (0..dims).map(|_| rng.random()).collect())
        .collect();
    let options = options(dims, Metric::L2, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    // Which rows pass, what was estimated, and most searches of all twenty queries.
    for (one_in, estimated, most) in [(100, 1500, 50), (100, 15, 70), (3, usize::MAX, 40)] {
        let settings = Settings {
            ef: 40,
            at_once: Some(AtOnce {
                rows: 10,
                rank: 10,
                asked: estimated,
                then_all: false,
            }),
            ..STRICT
        };
        let (mut searches, mut visited) = (0, 0);
        for query in rows.iter().take(20) {
            let (_, mut scan) = scan(&store, folder.path(), query, settings, 0);
            let mut passed = 0;
            while passed < 10 {
                let (_, tid) = scan.next(&|| ()).expect("more rows");
                match tid % one_in {
                    0 => passed += 1,
                    _ => scan.was_refused(),
                }
            }
            searches += scan.searches;
            visited = visited.max(scan.visited);
        }
        assert!(
            searches <= most,
            "{searches} for one in {one_in}, {estimated}"
        );
        // One in three is no reason to look at every vector, whatever was estimated.
        assert!(one_in > 3 || visited < n / 2, "{visited}");
    }
    // A width that is set is a little more than it says, and without wider searches all that it keeps is given.
    for (ef, kept) in [(16, 17), (100, 107), (800, 850)] {
        let hits = search(&store, folder.path(), &rows[0], ef, Iterate::Off, n);
        assert_eq!(hits.len(), kept);
    }
}

/// Walks miss more of what lies farther down the order: who wants that says so, and is searched for more widely. How many rows a
/// scan gives at most has nothing to do with it.
#[test]
fn deep_rows_are_searched_for_more_widely() {
    let folder = tempfile::tempdir().unwrap();
    let (n, dims, wanted) = (30_000, 24, 50);
    let mut rng = ChaCha8Rng::seed_from_u64(45);
    let mut point = || (0..dims).map(|_| rng.random()).collect::<Vec<f32>>();
    let queries: Vec<Vec<f32>> = (0..20).map(|_| point()).collect();
    let rows: Vec<Vec<f32>> = (0..n).map(|_| point()).collect();
    let options = options(dims, Metric::L2, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    let search = |rank: usize, iterate: Iterate, max_tuples: usize| {
        let settings = Settings {
            iterate,
            max_tuples,
            at_once: Some(AtOnce {
                rows: wanted,
                rank,
                asked: wanted,
                then_all: false,
            }),
            ..STRICT
        };
        let (mut found, mut visited, mut given) = (0, 0, 0);
        for query in &queries {
            let mut exact: Vec<f64> = (rows.iter())
                .map(|x| distance(Metric::L2, query, x))
                .collect();
            exact.sort_by(f64::total_cmp);
            let (hits, mut scan) = scan(&store, folder.path(), query, settings, wanted);
            let is_near = |tid: u64| {
                distance(Metric::L2, query, &rows[tid as usize - 1]) <= exact[wanted - 1] + 1e-3
            };
            found += hits.iter().filter(|(_, tid)| is_near(*tid)).count();
            visited += scan.visited;
            given += hits.len() + std::iter::from_fn(|| scan.next(&|| ())).count();
        }
        (found, visited, given)
    };
    let nearest = search(10, Iterate::Off, usize::MAX);
    let deep = search(wanted, Iterate::Off, usize::MAX);
    assert!(
        deep.0 > nearest.0 && deep.1 > nearest.1 * 5 / 4,
        "{nearest:?} {deep:?}"
    );
    assert!(deep.0 >= 20 * wanted * 99 / 100, "{deep:?}");
    // As many as the search keeps whatever the rank, and those that came late.
    let [nearest, deep] = [10, wanted].map(|rank| search(rank, Iterate::Strict, 1).2);
    assert!(nearest.abs_diff(deep) <= 100, "{nearest} {deep}");
}
