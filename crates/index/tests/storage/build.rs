//! Builds, inserts and merges.

use laser_index::budget::needed;
use laser_index::builder::BuildOptions;
use laser_index::codec::Codec;
use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::page::NULL;
use laser_index::quantization::Quantization;
use laser_index::scan::Iterate;
use laser_index::{IndexError, check};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::common::{add, build, builder, clustered, distance, encoding, insert, options, search};

#[test]
fn memory_stays_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let rows = clustered(&mut rng, 8000, 256);
    let mut options = options(256, Metric::Cosine, Quantization::I8, folder.path());
    options.memory = 4 << 20;
    options.expected = 100_000;
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    let meta = Meta::read(&store).unwrap();
    assert!(meta.segments.len() > 1);
    let live: u32 = meta.segments.iter().map(|s| s.count).sum();
    assert_eq!(live, 8000);
    // Merging respects it as well.
    maintain::merge(&store, &Merge::new(Plan::All, &options), |_, _| ()).unwrap();
    assert!(Meta::read(&store).unwrap().segments.len() > 1);

    let mut builder = builder(&options, &encoding(&options, &rows));
    let mut i = 0;
    while !builder.is_full() {
        builder.push(i, &rows[i as usize], &|| ()).unwrap();
        i += 1;
    }
    while builder.added() + 64 < builder.len() {
        std::thread::yield_now();
    }
    let used = builder.memory();
    assert!((2 << 20..4 << 20).contains(&used), "{used}");
}

#[test]
fn a_vector_that_cannot_be_indexed_stops_a_build() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(4, Metric::Cosine, Quantization::I8, folder.path());
    let encoding = encoding(&options, &[vec![1.0; 4]]);
    let mut builder = builder(&options, &encoding);
    // A vector without a direction has no place, but its row is in the index.
    builder.push(1, &[0.0; 4], &|| ()).unwrap();
    assert_eq!(builder.len(), 1);
    assert!(matches!(
        builder.push(1, &[1.0; 3], &|| ()),
        Err(IndexError::Dimensions { .. })
    ));
    assert!(matches!(
        builder.push(1, &[f32::NAN; 4], &|| ()),
        Err(IndexError::NotFinite)
    ));
    drop(builder);
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "files are left behind"
    );
}

#[test]
fn sessions_append_at_once() {
    let store = MemoryStore::new();
    let folder = tempfile::tempdir().unwrap();
    let options = options(16, Metric::L2, Quantization::I8, folder.path());
    Meta::create(&store, options.parameters.clone()).unwrap();
    std::thread::scope(|scope| {
        for session in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..2000 {
                    insert(store, session * 10_000 + i + 1, &[i as f32; 16]);
                }
            });
        }
        for _ in 0..20 {
            maintain::merge(&store, &Merge::new(Plan::Insert, &options), |_, _| ()).unwrap();
        }
    });
    let report = check::check(&store, &std::env::temp_dir()).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.counts[1] + report.counts[3], 8000);
}

/// A merge adds to the largest graph, dead entries and all, also where the data chose the quantization.
#[test]
fn merges_continue_what_there_is() {
    for quantization in [None, Some(Quantization::I8)] {
        let folder = tempfile::tempdir().unwrap();
        let options = options(32, Metric::L2, quantization, folder.path());
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(12);
        let rows = clustered(&mut rng, 3000, 32);
        build(&store, &options, &rows);
        maintain::delete(&store, |tid| tid % 100 == 0).unwrap();
        for (i, x) in clustered(&mut rng, 2500, 32).iter().enumerate() {
            insert(&store, 10_000 + i as u64, x);
        }
        let how = Merge::new(Plan::Insert, &options);
        maintain::merge(&store, &how, |_, _| ()).unwrap();
        let meta = Meta::read(&store).unwrap();
        let segments = meta.segments.iter().map(|s| (s.live(), s.dead));
        assert_eq!(
            segments.collect::<Vec<_>>(),
            [(5470, 30)],
            "{quantization:?}"
        );
        assert_eq!(
            check::check(&store, &std::env::temp_dir())
                .unwrap()
                .problems,
            Vec::<String>::new()
        );
        let found = (0..500).filter(|&i| {
            let nearest = search(&store, folder.path(), &rows[i], 40, Iterate::Off, 1);
            nearest[0].1 == i as u64 + 1
        });
        assert!(found.count() >= 490);
    }
}

/// A graph that is made in parts, where memory is small, finds as much as one that is not, and goes on by merges; nothing
/// is left of the parts.
#[test]
fn a_graph_in_parts_is_one_segment() {
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    let mut rows = clustered(&mut rng, 12_100, 24);
    let queries = rows.split_off(12_000);
    // Some vectors are in several parts.
    for i in 0..600 {
        rows[20 * i] = rows[i % 30].clone();
    }
    for (metric, quantization, part) in [
        (Metric::Cosine, Quantization::I8, 900),
        // More than walks could begin in.
        (Metric::L2, Quantization::F32, 250),
        (Metric::Cosine, Quantization::F16, 900),
    ] {
        let little = needed(&Codec::new(24, metric, quantization), 16, part);
        let found = [little, 64 << 20].map(|memory| {
            let folder = tempfile::tempdir().unwrap();
            let options = BuildOptions {
                memory,
                cache: 1 << 30,
                ..options(24, metric, quantization, folder.path())
            };
            let store = MemoryStore::new();
            Meta::create(&store, options.parameters.clone()).unwrap();
            let merge = || {
                let how = Merge::new(Plan::All, &options);
                maintain::merge(&store, &how, |_, _| ()).unwrap();
                assert_eq!(Meta::read(&store).unwrap().segments.len(), 1);
            };
            let (first, rest) = rows.split_at(8000);
            let mut builder = builder(&options, &encoding(&options, &rows));
            for (row, tid) in first.iter().zip(1..) {
                assert!(!builder.is_full());
                builder.push(tid, row, &|| ()).unwrap();
            }
            builder.push_unplaced(12_001 | NULL);
            add(&store, builder);
            // What is dead is left out, and later the graph is continued.
            maintain::delete(&store, |tid| tid % 100 == 0).unwrap();
            for (row, tid) in rest.iter().zip(8001..) {
                insert(&store, tid, row);
            }
            merge();
            for (row, tid) in first.iter().zip(20_001..).take(2000) {
                insert(&store, tid, row);
            }
            merge();
            let report = check::check(&store, &std::env::temp_dir()).unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            assert_eq!(report.rows.len(), 12_001 - 80 + 2000);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
            let row = |tid: u64| &rows[(tid as usize - 1) % 20_000];
            let mut found = 0;
            for query in &queries {
                let tids = (1..=12_000).filter(|tid| tid % 100 != 0 || *tid > 8000);
                let tids = tids.chain(20_001..=22_000);
                let mut exact: Vec<f64> =
                    tids.map(|tid| distance(metric, query, row(tid))).collect();
                exact.sort_by(f64::total_cmp);
                let hits = search(&store, folder.path(), query, 40, Iterate::Relaxed, 10);
                let near =
                    |hit: &&(f64, u64)| distance(metric, query, row(hit.1)) <= exact[9] + 1e-5;
                found += hits.iter().filter(near).count();
            }
            found
        });
        let [parts, whole] = found;
        assert!(
            parts + 15 >= whole && parts > 850,
            "{metric:?} {quantization:?}: {parts} of 1000 in parts, {whole}"
        );
    }
}

/// Rows that share vectors take little of a file, and as much of a merge as others: full segments of them are left as they are.
#[test]
fn full_segments_of_duplicates_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = options(3, Metric::L2, None, folder.path());
    (options.memory, options.cache) = (4 << 20, 0);
    let rows: Vec<Vec<f32>> = (0..40_000)
        .map(|i| vec![(i % 500) as f32, (i % 50) as f32, 1.0])
        .collect();
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    let how = Merge::new(Plan::Vacuum, &options);
    maintain::merge(&store, &how, |_, _| ()).unwrap();
    let before = Meta::read(&store).unwrap().segments;
    assert!(before.len() > 1, "{}", before.len());
    for plan in [Plan::Vacuum, Plan::All] {
        let made = maintain::merge(&store, &Merge::new(plan, &options), |_, _| ()).unwrap();
        assert_eq!(made, 0, "{plan:?}");
    }
}
