//! The storage under a double: everything an index does, without PostgreSQL.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Barrier;

use laser_index::builder::{BuildOptions, SegmentBuilder, needed};
use laser_index::choice::{self, Existing};
use laser_index::codec::Codec;
use laser_index::encoding::Encoding;
use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::{MemorySet, MemoryStore};
use laser_index::meta::{Meta, Parameters};
use laser_index::metric::Metric;
use laser_index::page::{NULL, PageKind, UNDIRECTED, UNPLACED, address};
use laser_index::quantization::Quantization;
use laser_index::query::Query;
use laser_index::raw::RawForm;
use laser_index::scan::{AtOnce, Distance, Iterate, PendingRows, Scan, Settings};
use laser_index::segment::write_pages;
use laser_index::space::prepare;
use laser_index::store::PageStore;
use laser_index::view::SegmentView;
use laser_index::{IndexError, cache, check, pending, sweep};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

fn options(
    dims: usize,
    metric: Metric,
    quantization: impl Into<Option<Quantization>>,
    folder: &Path,
) -> BuildOptions {
    let quantization = quantization.into();
    BuildOptions {
        parameters: Parameters {
            dims,
            metric,
            quantization,
            raw: RawForm::choose(dims, false, quantization).unwrap(),
            element: 0,
            m: 16,
            ef_construction: 64,
            fingerprint: [0; 32],
            model: String::new(),
        },
        threads: 2,
        memory: 64 << 20,
        cache: 0,
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
    let folder = tempfile::tempdir().unwrap();
    let options = options(4, Metric::L2, Quantization::F32, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    insert(&store, 1, &[1.0; 4]);
    let twice = Meta::update(&store, |meta| {
        meta.pending.tail = 0;
        Ok(())
    });
    twice.unwrap();
    let error = pending::append(&store, &options.parameters, 2, Some(&[2.0; 4])).unwrap_err();
    assert!(
        matches!(error, IndexError::Corrupt { block: 0, .. }),
        "{error}"
    );
    let error = pending::seal(&store).unwrap_err();
    assert!(
        matches!(error, IndexError::Corrupt { block: 0, .. }),
        "{error}"
    );
}

fn insert(store: &MemoryStore, tid: u64, x: &[f32]) -> Option<u64> {
    let parameters = Meta::read(store).unwrap().parameters;
    pending::append(store, &parameters, tid, Some(x)).unwrap()
}

/// The segments of an index, opened.
fn views(
    store: &MemoryStore,
    meta: &Meta,
    folder: &Path,
) -> Result<Vec<Rc<SegmentView>>, IndexError> {
    let opened = meta.segments.iter().map(|s| {
        let path = folder.join(format!("{:016x}", s.nonce));
        let view = cache::open(store, &meta.parameters, s, &path, folder)?;
        view.refresh(store, s, meta.dead_version)?;
        Ok(Rc::new(view))
    });
    opened.collect()
}

/// Rows as a scan gives them, with the numbers that they are ordered by.
fn scan(
    store: &MemoryStore,
    folder: &Path,
    x: &[f32],
    settings: Settings,
    k: usize,
) -> (Vec<(f64, u64)>, Scan) {
    try_scan(store, folder, x, settings, k).unwrap()
}

/// The same where there may be damage.
fn try_scan(
    store: &MemoryStore,
    folder: &Path,
    x: &[f32],
    settings: Settings,
    k: usize,
) -> Result<(Vec<(f64, u64)>, Scan), IndexError> {
    let meta = Meta::read(store)?;
    let parameters = &meta.parameters;
    let query = Query::new(parameters.metric, parameters.dims, x)?;
    let views = views(store, &meta, folder)?;
    let mut rows = PendingRows::default();
    let mut vector = Vec::new();
    pending::read(store, parameters, &meta.pending, true, |entry| {
        if !entry.is_live() {
        } else if entry.tid & UNPLACED != 0 {
            rows.unplaced.push(entry.tid);
        } else {
            let error = entry.decode(parameters, &mut vector);
            rows.placed.push((query.measure(&vector, error), entry.tid));
        }
    })?;
    let mut scan = Scan::new(&query, settings, views, rows);
    let mut hits = Vec::new();
    while hits.len() < k {
        match scan.next(&|| ()) {
            Some((Distance::Known(known), tid)) if settings.recheck => {
                hits.push((known.lower, tid))
            }
            Some((Distance::Known(known), tid)) => hits.push((known.estimate, tid)),
            Some((Distance::Undirected, tid)) => hits.push((f64::NAN, tid)),
            Some((Distance::Null, tid)) => hits.push((f64::INFINITY, tid)),
            None => break,
        }
    }
    // Rows without a direction or a value come last, and are compared with nothing.
    let falls = hits.windows(2).any(|pair| pair[1].0 < pair[0].0);
    assert_eq!(scan.is_out_of_order(), falls);
    Ok((hits, scan))
}

fn search(
    store: &MemoryStore,
    folder: &Path,
    x: &[f32],
    ef: usize,
    iterate: Iterate,
    k: usize,
) -> Vec<(f64, u64)> {
    let settings = Settings {
        ef,
        iterate,
        max_tuples: 20_000,
        cutoff: f64::INFINITY,
        undirected: false,
        at_once: None,
        recheck: false,
    };
    scan(store, folder, x, settings, k).0
}

fn distance(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    let pairs = || a.iter().zip(b).map(|(x, y)| (f64::from(*x), f64::from(*y)));
    let dot: f64 = pairs().map(|(x, y)| x * y).sum();
    let norm = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    match metric {
        Metric::Cosine => 1.0 - dot / (norm(a) * norm(b)),
        Metric::L2 => pairs().map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt(),
        Metric::InnerProduct => -dot,
    }
}

fn encoding(options: &BuildOptions, rows: &[Vec<f32>]) -> Encoding {
    let p = &options.parameters;
    let sample: Vec<Vec<f32>> = rows
        .iter()
        .filter_map(|x| prepare(p.metric, p.dims, x).unwrap())
        .collect();
    choice::choose(
        p.metric,
        p.dims,
        p.quantization,
        &sample,
        rows.len(),
        Existing::default(),
        &|| (),
    )
}

fn builder(options: &BuildOptions, encoding: &Encoding) -> SegmentBuilder {
    SegmentBuilder::new(options.clone(), encoding.clone(), None).unwrap()
}

fn build(store: &MemoryStore, options: &BuildOptions, rows: &[Vec<f32>]) {
    let encoding = encoding(options, rows);
    let mut builder = builder(options, &encoding);
    for (i, row) in rows.iter().enumerate() {
        builder.push(i as u64 + 1, row, &|| ()).unwrap();
        if builder.is_full() {
            let next = self::builder(options, &encoding);
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

/// Inserts, deletes, merges and sweeps in any order; then the same after a crash at every kind of
/// moment.
#[test]
fn a_model_agrees_whatever_happens() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..12 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let quantization = *Quantization::ALL.choose(&mut rng).unwrap();
        let store = MemoryStore::new();
        let options = options(24, Metric::L2, quantization, folder.path());
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
                        insert(&store, next, &x);
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
                    let how = Merge::new(plan, &options);
                    maintain::merge(&store, &how, |_, _| ()).unwrap();
                    history.push((store.changes(), model.clone()));
                }
                _ => {
                    sweep::sweep(&store).unwrap();
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
            let report = check::check(&crashed, &std::env::temp_dir()).unwrap();
            assert_eq!(report.problems, Vec::<String>::new());
            let known = |tid: &u64| before.1.contains_key(tid) || after.1.contains_key(tid);
            assert!(report.rows.iter().all(known), "a row was never there");
            let live = (report.counts[1] + report.counts[3]) as usize;
            let sizes = [before.1.len(), after.1.len()];
            assert!((*sizes.iter().min().unwrap()..=*sizes.iter().max().unwrap()).contains(&live));
            // And the index goes on: nothing of it leaks, nothing is given away twice.
            let swept = sweep::sweep(&crashed).unwrap();
            assert_eq!(sweep::sweep(&crashed).unwrap().reclaimed, 0, "{swept:?}");
            let mut model: BTreeMap<u64, Vec<f32>> = before.1.clone();
            model.retain(|tid, _| after.1.contains_key(tid));
            maintain::delete(&crashed, |tid| !model.contains_key(&tid)).unwrap();
            for tid in 1_000_000..1_000_050 {
                let x: Vec<f32> = (0..24).map(|_| rng.random::<f32>() - 0.5).collect();
                insert(&crashed, tid, &x);
                model.insert(tid, x);
            }
            let how = Merge::new(Plan::All, &options);
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
    let report = check::check(store, &std::env::temp_dir()).unwrap();
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
        assert_eq!(hits.len(), model.len(), "rows are lost");
        if iterate == Iterate::Strict {
            // Rows that a narrower search has missed come at the end. Of signs of random vectors in
            // few dimensions a walk misses many.
            let coarse =
                Meta::read(store).unwrap().parameters.quantization == Some(Quantization::B1);
            let least = if coarse { 5 } else { 9 };
            let sorted = hits.windows(2).take_while(|w| w[0].0 <= w[1].0).count() + 1;
            assert!(
                sorted * 10 >= model.len() * least,
                "{sorted} of {}",
                model.len()
            );
            assert!(hits[sorted.min(hits.len())..].is_sorted_by(|a, b| a.0 <= b.0));
        }
    }
}

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
fn damage_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let rows = clustered(&mut rng, 500, 32);
    let options = options(32, Metric::Cosine, Quantization::I8, folder.path());
    let make = || {
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &rows);
        for (i, row) in rows.iter().take(40).enumerate() {
            insert(&store, 10_000 + i as u64, row);
        }
        store
    };
    let blocks = make().blocks();
    let mut seen = BTreeSet::new();
    for block in 1..blocks {
        let store = make();
        let before = store.read(block, |b| Ok(b.to_vec())).unwrap();
        let used = 24 + laser_index::page::header(&before).len as usize;
        let at = rng.random_range(0..used);
        store.damage(block, |b| b[at] ^= 0x40);
        let report = check::check(&store, &std::env::temp_dir()).unwrap();
        let kind = laser_index::page::kind(block, &before).unwrap().unwrap();
        let what = format!("byte {at} of block {block}, {kind:?}");
        seen.insert(format!("{kind:?}"));
        // The bits of dead entries have no checksum: a live row may be taken for a dead one.
        let bits = kind == PageKind::Bitmap && at >= 24;
        assert!(!report.problems.is_empty() || bits, "{what}");
        // A search, without a file from before the damage, names the damage or returns rows of the table.
        let fresh = folder.path().join(format!("damaged {block}"));
        std::fs::create_dir(&fresh).unwrap();
        let settings = Settings {
            ef: 10,
            iterate: Iterate::Strict,
            max_tuples: 20_000,
            cutoff: f64::INFINITY,
            undirected: false,
            at_once: None,
            recheck: false,
        };
        match try_scan(&store, &fresh, &rows[7], settings, usize::MAX) {
            Ok((hits, _)) => {
                assert_eq!(kind, PageKind::Bitmap, "{what} was not noticed");
                assert!((539..=540).contains(&hits.len()), "{what}: {}", hits.len());
                let known = |tid: &u64| (1..=500).contains(tid) || (10_000..10_040).contains(tid);
                assert!(hits.iter().all(|hit| known(&hit.1)), "{what}");
            }
            Err(error) => assert!(
                matches!(
                    error,
                    IndexError::Corrupt { .. }
                        | IndexError::Segment { .. }
                        | IndexError::Moved { .. }
                        | IndexError::Version { .. }
                ),
                "{what}: {error}"
            ),
        }
    }
    for kind in ["Map", "Data", "Bitmap", "Pending"] {
        assert!(seen.contains(kind), "no page of the kind {kind}: {seen:?}");
    }
}

#[test]
fn damaged_files_are_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let rows = clustered(&mut rng, 300, 32);
    let options = options(32, Metric::Cosine, Quantization::F16, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, &rows);
    let meta = Meta::read(&store).unwrap();
    let path = folder.path().join("segment");
    let tid = cache::open(
        &store,
        &meta.parameters,
        &meta.segments[0],
        &path,
        folder.path(),
    )
    .unwrap()
    .tid(5);
    for round in 0..20 {
        let view = cache::open(
            &store,
            &meta.parameters,
            &meta.segments[0],
            &path,
            folder.path(),
        )
        .unwrap();
        assert_eq!(view.tid(5), tid);
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

/// An index of the first format, kept as a file, still opens: 400 vectors in a segment, 30 dead ones
/// among them, 50 in the pending list. `LASER_KEEP_INDEX=path` writes such a file.
#[test]
fn an_old_index_still_opens() {
    let folder = tempfile::tempdir().unwrap();
    // No generator of random numbers: the file must be comparable in years to come.
    let row = |i: u64| -> Vec<f32> {
        (0..24)
            .map(|j| ((i * 31 + j * j * 7) as f32).sin())
            .collect()
    };
    if let Some(path) = std::env::var_os("LASER_KEEP_INDEX") {
        let store = MemoryStore::new();
        let mut options = options(24, Metric::Cosine, Quantization::I8, folder.path());
        options.parameters.element = 2;
        options.parameters.model = "kept".into();
        options.parameters.fingerprint = [0x5a; 32];
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &(1..=400).map(row).collect::<Vec<_>>());
        for i in 401..=450 {
            insert(&store, i, &row(i));
        }
        maintain::delete(&store, |tid| tid <= 30).unwrap();
        std::fs::write(path, store.to_bytes()).unwrap();
    }
    let store = MemoryStore::from_bytes(include_bytes!("data/index-1.bin")).unwrap();
    let report = check::check(&store, &std::env::temp_dir()).unwrap();
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
        // Rows 163 and 450 are as near to each other as twelve bits can tell.
        assert!(distance(Metric::Cosine, &row(i), &row(hits[0].1)) < 1e-4);
        assert!(hits[0].0.abs() < 1e-3);
    }
    // It is not only read: a merge writes the current format.
    insert(&store, 451, &row(451));
    let options = options(24, Metric::Cosine, Quantization::I8, folder.path());
    maintain::merge(&store, &Merge::new(Plan::All, &options), |_, _| ()).unwrap();
    assert_eq!(
        check::check(&store, &std::env::temp_dir()).unwrap().counts,
        [1, 421, 0, 0, 0]
    );
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
            let view = cache::open(&store, &options.parameters, s, &path, folder.path()).unwrap();
            view.refresh(&store, s, meta.dead_version).unwrap();
            Rc::new(view)
        };
        let settings = Settings {
            ef,
            iterate: Iterate::Strict,
            max_tuples: 300,
            cutoff: f64::INFINITY,
            undirected: false,
            at_once: None,
            recheck: true,
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
        ef: 0,
        iterate: Iterate::Strict,
        max_tuples: usize::MAX,
        cutoff: f64::INFINITY,
        undirected: false,
        at_once: Some(AtOnce {
            rows: wanted,
            asked: wanted,
            then_all: false,
        }),
        recheck: false,
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
            let mut exact: Vec<f64> = rows
                .iter()
                .map(|x| distance(Metric::InnerProduct, &query, x))
                .collect();
            exact.sort_by(f64::total_cmp);
            // As many as have to be compared by their true distances.
            let hits = search(&store, folder.path(), &query, 0, Iterate::Strict, 30);
            found[i % 3] += hits
                .iter()
                .filter(|(_, tid)| {
                    distance(Metric::InnerProduct, &query, &rows[*tid as usize - 1])
                        <= exact[9] + 1e-4
                })
                .count();
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
        maintain::merge(&store, &merge, |_, _| ()).unwrap();
        assert_eq!(Meta::read(&store).unwrap().segments.len(), 2);
        let rows = [older, later].concat();
        let mut found = 0;
        for _ in 0..50 {
            let query = gauss(0.3);
            let product = |x: &[f32]| distance(Metric::InnerProduct, &query, x);
            let mut exact: Vec<f64> = rows.iter().map(|x| product(x)).collect();
            exact.sort_by(f64::total_cmp);
            let hits = search(&store, folder.path(), &query, 0, Iterate::Strict, 30);
            let is_near = |tid: u64| product(&rows[tid as usize - 1]) <= exact[9] + 1e-4;
            found += hits.iter().filter(|(_, tid)| is_near(*tid)).count();
        }
        assert!(found >= 475, "{found} of 500, {long_first}");
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
    for (metric, quantization) in [
        (Metric::Cosine, Quantization::I8),
        (Metric::L2, Quantization::F32),
        (Metric::Cosine, Quantization::F16),
    ] {
        let little = needed(&Codec::new(24, metric, quantization), 16, 900);
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

/// A store in which something happens before a certain page is read, as on a standby while recovery goes on.
struct Meanwhile<'a, F> {
    store: &'a MemoryStore,
    reads: Cell<usize>,
    at: usize,
    happens: F,
}

impl<F: Fn()> PageStore for Meanwhile<'_, F> {
    type Set<'b>
        = MemorySet<'b>
    where
        Self: 'b;

    fn blocks(&self) -> u32 {
        self.store.blocks()
    }

    fn read<R>(
        &self,
        block: u32,
        look: impl FnOnce(&[u8]) -> Result<R, IndexError>,
    ) -> Result<R, IndexError> {
        if self.reads.replace(self.reads.get() + 1) == self.at {
            (self.happens)();
        }
        self.store.read(block, look)
    }

    fn begin(&self) -> MemorySet<'_> {
        self.store.begin()
    }

    fn release(&self, block: u32) {
        self.store.release(block);
    }

    fn publish_released(&self) {}

    fn folder(&self) -> Option<PathBuf> {
        None
    }

    fn released(&self) -> u32 {
        self.store.released()
    }

    fn pause(&self) {}
}

#[test]
fn an_address_that_is_used_again_during_a_check_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(8, Metric::L2, Quantization::F32, folder.path());
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    let rows = clustered(&mut rng, 500, 8);
    let mut at = 0;
    loop {
        let store = MemoryStore::new();
        Meta::create(&store, options.parameters.clone()).unwrap();
        build(&store, &options, &rows);
        insert(&store, 1000, &rows[0]);
        let meanwhile = Meanwhile {
            store: &store,
            reads: Cell::new(0),
            at,
            happens: || {
                maintain::delete(&store, |tid| tid == 7).unwrap();
                insert(&store, 7, &rows[1]);
            },
        };
        let report = check::check(&meanwhile, &std::env::temp_dir()).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "before page {at}");
        if meanwhile.reads.get() <= at {
            break;
        }
        at += 1;
    }
    assert!(at > 10, "{at} pages are read");
}

/// After a start of the server all want the file of a segment at once: one makes it, and the others have the same.
#[test]
fn one_of_many_makes_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(8, Metric::L2, Quantization::F32, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let rows = clustered(&mut ChaCha8Rng::seed_from_u64(14), 2000, 8);
    build(&store, &options, &rows);
    let entry = Meta::read(&store).unwrap().segments[0];
    for _ in 0..5 {
        let own = tempfile::tempdir().unwrap();
        let path = own.path().join("relation/segment");
        let start = Barrier::new(8);
        let views = std::thread::scope(|scope| {
            let open = || {
                start.wait();
                let view = cache::open(&store, &options.parameters, &entry, &path, own.path());
                drop(view.unwrap());
                std::fs::metadata(&path).unwrap().ino()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            let found = threads.into_iter().map(|thread| thread.join().unwrap());
            found.collect::<BTreeSet<u64>>()
        });
        assert_eq!(views.len(), 1, "files made");
    }
}
