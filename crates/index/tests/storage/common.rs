//! What the tests share: an index in memory, its rows, and searches.

use std::path::Path;
use std::rc::Rc;

use laser_index::builder::{BuildOptions, SegmentBuilder};
use laser_index::cache::Location;
use laser_index::choice::{self, Existing};
use laser_index::encoding::Encoding;
use laser_index::memory::MemoryStore;
use laser_index::meta::{Meta, Parameters};
use laser_index::metric::Metric;
use laser_index::page::UNPLACED;
use laser_index::quantization::Quantization;
use laser_index::query::Query;
use laser_index::raw::RawForm;
use laser_index::scan::{Distance, Iterate, PendingRows, Scan, Settings};
use laser_index::segment::write_pages;
use laser_index::space::prepare;
use laser_index::view::SegmentView;
use laser_index::{IndexError, cache, maintain, pending};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

/// All rows, in strict order.
pub const STRICT: Settings = Settings {
    ef: 0,
    iterate: Iterate::Strict,
    max_tuples: usize::MAX,
    cutoff: f64::INFINITY,
    undirected: false,
    at_once: None,
    recheck: false,
};

pub fn options(
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
pub fn clustered(rng: &mut ChaCha8Rng, n: usize, dims: usize) -> Vec<Vec<f32>> {
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

pub fn insert(store: &MemoryStore, tid: u64, x: &[f32]) -> Option<u64> {
    let parameters = Meta::read(store).unwrap().parameters;
    pending::append(store, &parameters, tid, Some(x)).unwrap()
}

/// Where a server of this test's own would have a file.
pub fn at<'a>(path: &'a Path, folder: &'a Path) -> Location<'a> {
    Location {
        path,
        folder,
        server: 1,
    }
}

/// The segments of an index, opened.
pub fn views(
    store: &MemoryStore,
    meta: &Meta,
    folder: &Path,
) -> Result<Vec<Rc<SegmentView>>, IndexError> {
    let opened = meta.segments.iter().map(|s| {
        let path = folder.join(format!("{:016x}", s.nonce));
        let view = cache::open(store, &meta.parameters, s, at(&path, folder))?;
        view.refresh(store, s, meta.dead_version)?;
        Ok(Rc::new(view))
    });
    opened.collect()
}

/// Rows as a scan gives them, with the numbers that they are ordered by.
pub fn scan(
    store: &MemoryStore,
    folder: &Path,
    x: &[f32],
    settings: Settings,
    k: usize,
) -> (Vec<(f64, u64)>, Scan) {
    try_scan(store, folder, x, settings, k).unwrap()
}

/// The same where there may be damage.
pub fn try_scan(
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

pub fn search(
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

pub fn distance(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    let pairs = || a.iter().zip(b).map(|(x, y)| (f64::from(*x), f64::from(*y)));
    let dot: f64 = pairs().map(|(x, y)| x * y).sum();
    let norm = |v: &[f32]| v.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    match metric {
        Metric::Cosine => 1.0 - dot / (norm(a) * norm(b)),
        Metric::L2 => pairs().map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt(),
        Metric::InnerProduct => -dot,
    }
}

pub fn encoding(options: &BuildOptions, rows: &[Vec<f32>]) -> Encoding {
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

pub fn builder(options: &BuildOptions, encoding: &Encoding) -> SegmentBuilder {
    SegmentBuilder::new(options.clone(), encoding.clone(), None).unwrap()
}

pub fn build(store: &MemoryStore, options: &BuildOptions, rows: &[Vec<f32>]) {
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

pub fn add(store: &MemoryStore, builder: SegmentBuilder) {
    if !builder.is_empty() {
        let built = builder.finish(&|| ()).unwrap();
        let entry = write_pages(store, &built.header, &built.bytes, &built.dead, |_| ()).unwrap();
        maintain::replace(store, &[], &[entry], None).unwrap();
    }
}
