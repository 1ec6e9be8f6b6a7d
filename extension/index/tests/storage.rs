//! The storage under a double: everything an index does, without PostgreSQL.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use laser_index::builder::{BuildOptions, SegmentBuilder};
use laser_index::codec::{Codec, Metric, Quantization};
use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::{Meta, Parameters};
use laser_index::page::DEAD;
use laser_index::scan::{Iterate, Scan};
use laser_index::segment::write_pages;
use laser_index::store::PageStore;
use laser_index::{IndexError, cache, pending};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

fn options(codec: Codec, folder: &Path) -> BuildOptions {
    BuildOptions {
        parameters: Parameters {
            codec,
            element: 0,
            m: 16,
            ef_construction: 64,
            fingerprint: [0; 32],
            model: String::new(),
        },
        threads: 2,
        memory: 64 << 20,
        expected: 1000,
        folder: folder.to_owned(),
    }
}

/// Points around centres, of unit length.
fn clustered(rng: &mut ChaCha8Rng, n: usize, dims: usize) -> Vec<Vec<f32>> {
    let gauss =
        |rng: &mut ChaCha8Rng| -> f32 { (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0 };
    let centres: Vec<Vec<f32>> = (0..20)
        .map(|_| (0..dims).map(|_| gauss(rng)).collect())
        .collect();
    (0..n)
        .map(|_| {
            let centre = centres.choose(rng).unwrap();
            let x: Vec<f32> = centre.iter().map(|c| c + 0.7 * gauss(rng)).collect();
            let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
            x.iter().map(|x| x / norm).collect()
        })
        .collect()
}

#[test]
fn a_page_that_is_named_twice_is_damage() {
    let codec = Codec::new(4, Metric::L2, Quantization::F32).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = MemoryStore::new();
    Meta::create(&store, options(codec, folder.path()).parameters).unwrap();
    insert(&store, &codec, 1, &[1.0; 4]);
    let twice = Meta::update(&store, |meta| {
        meta.pending.tail = 0;
        Ok(())
    });
    twice.unwrap();
    let mut stored = vec![0; codec.len()];
    codec.encode(&[2.0; 4], &mut stored).unwrap();
    let error = pending::append(&store, &codec, 2, &stored).unwrap_err();
    assert!(
        matches!(error, IndexError::Corrupt { block: 0, .. }),
        "{error}"
    );
    let error = pending::seal(&store, &codec).unwrap_err();
    assert!(
        matches!(error, IndexError::Corrupt { block: 0, .. }),
        "{error}"
    );
}

fn insert(store: &MemoryStore, codec: &Codec, tid: u64, x: &[f32]) -> Option<u64> {
    let mut stored = vec![0; codec.len()];
    assert!(codec.encode(x, &mut stored).unwrap());
    pending::append(store, codec, tid, &stored).unwrap()
}

fn search(
    store: &MemoryStore,
    folder: &Path,
    x: &[f32],
    ef: usize,
    iterate: Iterate,
    k: usize,
) -> Vec<(f32, u64)> {
    let meta = Meta::read(store).unwrap();
    let codec = meta.parameters.codec;
    let query = codec.query(x).unwrap();
    let views = meta
        .segments
        .iter()
        .map(|s| {
            let view =
                cache::open(store, codec, s, &folder.join(format!("{:016x}", s.nonce))).unwrap();
            view.refresh(store, s, meta.dead_version).unwrap();
            Rc::new(view)
        })
        .collect();
    let mut list = Vec::new();
    let mut scratch = Vec::new();
    pending::read(store, &codec, &meta.pending, true, |tid, stored| {
        if tid & DEAD == 0 {
            let (graph, fine) = stored.split_at(codec.graph_len());
            list.push((codec.distance(&query, graph, fine, &mut scratch), tid));
        }
    })
    .unwrap();
    let mut scan = Scan::new(query, ef, iterate, 20_000, views, list);
    let mut hits = Vec::new();
    while hits.len() < k {
        match scan.next(&|| ()) {
            Some(hit) => hits.push(hit),
            None => break,
        }
    }
    hits
}

fn distance(metric: Metric, a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    match metric {
        Metric::Cosine => 1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt(),
        Metric::L2 => a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum(),
        Metric::InnerProduct => -dot(a, b),
    }
}

fn build(store: &MemoryStore, options: &BuildOptions, rows: &[Vec<f32>]) {
    let mut builder = SegmentBuilder::new(options.clone(), None).unwrap();
    for (i, row) in rows.iter().enumerate() {
        assert!(builder.push(i as u64 + 1, row, &|| ()).unwrap());
        if builder.is_full() {
            let next = SegmentBuilder::new(options.clone(), None).unwrap();
            add(store, std::mem::replace(&mut builder, next));
        }
    }
    add(store, builder);
}

fn add(store: &MemoryStore, builder: SegmentBuilder) {
    if !builder.is_empty() {
        let built = builder.finish(&|| ()).unwrap();
        let entry = write_pages(store, &built.header, &built.bytes, &built.dead, |_| ()).unwrap();
        maintain::replace(store, &[], &[entry], None).unwrap();
    }
}

#[test]
fn recall_of_every_quantization_and_metric() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let rows = clustered(&mut rng, 6000, 64);
    let queries = clustered(&mut rng, 0, 64);
    assert!(queries.is_empty());
    for quantization in Quantization::ALL {
        for metric in [Metric::Cosine, Metric::L2, Metric::InnerProduct] {
            let codec = Codec::new(64, metric, quantization).unwrap();
            let store = MemoryStore::new();
            let options = options(codec, folder.path());
            Meta::create(&store, options.parameters.clone()).unwrap();
            build(&store, &options, &rows);
            let (mut found, mut asked) = (0, 0);
            for q in rows.choose_multiple(&mut rng, 40) {
                let q: Vec<f32> = q
                    .iter()
                    .map(|x| x + 0.05 * (rng.random::<f32>() - 0.5))
                    .collect();
                let mut exact: Vec<(f32, u64)> = rows
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
            let report = maintain::check(&store).unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            assert_eq!(report.counts, [1, 6000, 0, 0, 0]);
        }
    }
}

/// Inserts, deletes, merges and sweeps in any order; then the same after a crash at every kind of
/// moment.
#[test]
fn a_model_agrees_whatever_happens() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..12 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let quantization = *Quantization::ALL.choose(&mut rng).unwrap();
        let codec = Codec::new(24, Metric::L2, quantization).unwrap();
        let store = MemoryStore::new();
        let options = options(codec, folder.path());
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
                        insert(&store, &codec, next, &x);
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
                    let how = Merge {
                        plan,
                        options: &options,
                    };
                    maintain::merge(&store, &how, |_, _| ()).unwrap();
                    history.push((store.changes(), model.clone()));
                }
                _ => {
                    maintain::sweep(&store).unwrap();
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
            let report = maintain::check(&crashed).unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            let known = |tid: &u64| before.1.contains_key(tid) || after.1.contains_key(tid);
            assert!(report.rows.iter().all(known), "a row was never there");
            let live = (report.counts[1] + report.counts[3]) as usize;
            let sizes = [before.1.len(), after.1.len()];
            assert!((*sizes.iter().min().unwrap()..=*sizes.iter().max().unwrap()).contains(&live));
            // And the index goes on: nothing of it leaks, nothing is given away twice.
            let swept = maintain::sweep(&crashed).unwrap();
            assert_eq!(maintain::sweep(&crashed).unwrap().reclaimed, 0, "{swept:?}");
            let mut model: BTreeMap<u64, Vec<f32>> = before.1.clone();
            model.retain(|tid, _| after.1.contains_key(tid));
            maintain::delete(&crashed, |tid| !model.contains_key(&tid)).unwrap();
            for tid in 1_000_000..1_000_050 {
                let x: Vec<f32> = (0..24).map(|_| rng.random::<f32>() - 0.5).collect();
                insert(&crashed, &codec, tid, &x);
                model.insert(tid, x);
            }
            let how = Merge {
                plan: Plan::All,
                options: &options,
            };
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
    let report = maintain::check(store).unwrap();
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
        if iterate == Iterate::Strict {
            assert!(hits.is_sorted_by(|a, b| a.0 <= b.0));
            // Rows that a narrower search has missed come too late and are left out. Of signs of
            // random vectors in few dimensions a walk misses many.
            let coarse =
                Meta::read(store).unwrap().parameters.codec.quantization == Quantization::B1;
            let least = if coarse { 5 } else { 9 };
            assert!(
                hits.len() * 10 >= model.len() * least,
                "{} of {}",
                hits.len(),
                model.len()
            );
        } else {
            assert_eq!(hits.len(), model.len());
        }
    }
}

#[test]
fn memory_stays_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let rows = clustered(&mut rng, 8000, 256);
    let codec = Codec::new(256, Metric::Cosine, Quantization::I8).unwrap();
    let mut options = options(codec, folder.path());
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
    maintain::merge(
        &store,
        &Merge {
            plan: Plan::All,
            options: &options,
        },
        |_, _| (),
    )
    .unwrap();
    assert!(Meta::read(&store).unwrap().segments.len() > 1);

    let mut builder = SegmentBuilder::new(options, None).unwrap();
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
fn damage_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let rows = clustered(&mut rng, 500, 32);
    let codec = Codec::new(32, Metric::Cosine, Quantization::I8).unwrap();
    let options = options(codec, folder.path());
    let make = || {
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &rows);
        for (i, row) in rows.iter().take(40).enumerate() {
            insert(&store, &codec, 10_000 + i as u64, row);
        }
        store
    };
    let blocks = make().blocks();
    for block in 1..blocks {
        let store = make();
        let before = store.read(block, |b| Ok(b.to_vec())).unwrap();
        let used = 24 + laser_index::page::header(&before).len as usize;
        let at = rng.random_range(0..used);
        store.damage(block, |b| b[at] ^= 0x40);
        let report = maintain::check(&store).unwrap();
        let known = |tid: &u64| (1..=500).contains(tid) || (10_000..10_040).contains(tid);
        let kind = laser_index::page::kind(block, &before).unwrap();
        let unprotected = kind == Some(laser_index::page::PageKind::Pending)
            || kind == Some(laser_index::page::PageKind::Bitmap);
        assert!(
            !report.problems.is_empty() || !report.rows.iter().all(known) || unprotected,
            "block {block} byte {at}"
        );
        // A search says what is wrong or gives rows, but does not crash.
        let meta = Meta::read(&store).unwrap();
        let path = folder.path().join(format!("damaged {block}"));
        let _ = cache::open(&store, codec, &meta.segments[0], &path);
    }
}

#[test]
fn damaged_files_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let rows = clustered(&mut rng, 300, 32);
    let codec = Codec::new(32, Metric::Cosine, Quantization::F16).unwrap();
    let options = options(codec, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    let meta = Meta::read(&store).unwrap();
    let path = folder.path().join("segment");
    for round in 0..20 {
        let view = cache::open(&store, codec, &meta.segments[0], &path).unwrap();
        assert_eq!(view.tid(5), view.tid(5));
        drop(view);
        let mut bytes = std::fs::read(&path).unwrap();
        match round % 3 {
            0 => bytes.truncate(rng.random_range(0..bytes.len())),
            1 => {
                let at = rng.random_range(0..144);
                bytes[at] ^= 1;
            }
            _ => {
                let at = rng.random_range(256..bytes.len() - 64);
                bytes[at] ^= 0x10;
            }
        }
        std::fs::write(&path, bytes).unwrap();
    }
}

#[test]
fn a_vector_that_cannot_be_indexed_stops_a_build() {
    let folder = tempfile::tempdir().unwrap();
    let codec = Codec::new(4, Metric::Cosine, Quantization::I8).unwrap();
    let mut builder = SegmentBuilder::new(options(codec, folder.path()), None).unwrap();
    assert!(!builder.push(1, &[0.0; 4], &|| ()).unwrap());
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
    let codec = Codec::new(16, Metric::L2, Quantization::I8).unwrap();
    let options = options(codec, folder.path());
    Meta::create(&store, options.parameters.clone()).unwrap();
    std::thread::scope(|scope| {
        for session in 0..4u64 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..2000 {
                    insert(store, &codec, session * 10_000 + i + 1, &[i as f32; 16]);
                }
            });
        }
        for _ in 0..20 {
            maintain::merge(
                &store,
                &Merge {
                    plan: Plan::Insert,
                    options: &options,
                },
                |_, _| (),
            )
            .unwrap();
        }
    });
    let report = maintain::check(&store).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.counts[1] + report.counts[3], 8000);
}

/// An index of the first format, kept as a file, still opens: 400 vectors in a segment, 30 dead ones
/// among them, 50 in the pending list. `LASER_KEEP_INDEX=path` writes such a file.
#[test]
fn an_old_index_still_opens() {
    let folder = tempfile::tempdir().unwrap();
    let codec = Codec::new(24, Metric::Cosine, Quantization::I8).unwrap();
    // No generator of random numbers: the file must be comparable in years to come.
    let row = |i: u64| -> Vec<f32> {
        (0..24)
            .map(|j| ((i * 31 + j * j * 7) as f32).sin())
            .collect()
    };
    if let Some(path) = std::env::var_os("LASER_KEEP_INDEX") {
        let store = MemoryStore::new();
        let mut options = options(codec, folder.path());
        options.parameters.element = 2;
        options.parameters.model = "kept".into();
        options.parameters.fingerprint = [0x5a; 32];
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &(1..=400).map(row).collect::<Vec<_>>());
        for i in 401..=450 {
            insert(&store, &codec, i, &row(i));
        }
        maintain::delete(&store, |tid| tid <= 30).unwrap();
        std::fs::write(path, store.to_bytes()).unwrap();
    }
    let store = MemoryStore::from_bytes(include_bytes!("data/index-1.bin")).unwrap();
    let report = maintain::check(&store).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert!(report.rows.iter().copied().eq(31..=450));
    assert_eq!(report.counts, [1, 370, 30, 50, 0]);
    let meta = Meta::read(&store).unwrap();
    assert_eq!(meta.parameters.model, "kept");
    assert_eq!(meta.parameters.fingerprint, [0x5a; 32]);
    assert_eq!(
        (meta.parameters.m, meta.parameters.ef_construction),
        (16, 64)
    );
    for i in [31, 200, 400, 401, 450] {
        let hits = search(&store, folder.path(), &row(i), 40, Iterate::Off, 1);
        assert_eq!(hits[0].1, i);
        assert!(hits[0].0.abs() < 1e-3);
    }
    // It is not only read: a merge writes the current format.
    insert(&store, &codec, 451, &row(451));
    let options = options(codec, folder.path());
    maintain::merge(
        &store,
        &Merge {
            plan: Plan::All,
            options: &options,
        },
        |_, _| (),
    )
    .unwrap();
    assert_eq!(maintain::check(&store).unwrap().counts, [1, 421, 0, 0, 0]);
}

/// Equal rows share a node: thousands of them neither hide other rows nor each other.
#[test]
fn duplicates_are_all_found() {
    let folder = tempfile::tempdir().unwrap();
    for quantization in Quantization::ALL {
        let codec = Codec::new(32, Metric::Cosine, quantization).unwrap();
        let options = options(codec, folder.path());
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let mut rows = clustered(&mut rng, 2000, 32);
        let same = rows[0].clone();
        rows.extend(std::iter::repeat_n(same.clone(), 3000));
        build(&store, &options, &rows);
        let report = maintain::check(&store).unwrap();
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
            insert(&store, &codec, 10_000 + i, &same);
        }
        let how = Merge {
            plan: Plan::All,
            options: &options,
        };
        maintain::merge(&store, &how, |_, _| ()).unwrap();
        maintain::delete(&store, |tid| tid > 2000 && tid % 2 == 0).unwrap();
        maintain::merge(&store, &how, |_, _| ()).unwrap();
        let report = maintain::check(&store).unwrap();
        assert_eq!(report.problems, Vec::<String>::new());
        assert_eq!(report.counts, [1, 2000 + 1500 + 150, 0, 0, 0]);
    }
}
