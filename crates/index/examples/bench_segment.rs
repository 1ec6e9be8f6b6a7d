//! Measures segments alone: time of CPU to build them, recall and time of searches.
//!
//! ```text
//! bench_segment [--parts N] [--memory BYTES] VECTORS QUERIES DIMENSIONS METRIC QUANTIZATION M EF_CONSTRUCTION EF…
//! ```
//!
//! The files hold little-endian f32, row by row. The rows make one segment, or `--parts` of them by turns, as little
//! memory and no cache do. With little `--memory` the graph of a segment is made in parts. An ef of 0 is each segment's own, as scans have it;
//! then the number of searches that were made again, wider, is told. Prints one line for each ef, what a search takes that finds the
//! file in memory but not mapped yet, as the first one of a session does, and what a look at every row takes.
#![allow(unsafe_code)]

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use laser_index::builder::{BuildOptions, SegmentBuilder};
use laser_index::bytes::SegmentBytes;
use laser_index::choice::{self, Existing};
use laser_index::memory::MemoryStore;
use laser_index::meta::Parameters;
use laser_index::metric::Metric;
use laser_index::quantization::Quantization;
use laser_index::query::{Estimate, Query};
use laser_index::raw::RawForm;
use laser_index::scan::{Distance, Hit, Iterate, PendingRows, Scan, Settings};
use laser_index::segment::write_pages;
use laser_index::space::prepare;
use laser_index::view::{Candidate, SegmentView};
use laser_vector::Element;

fn floats(path: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).expect("a readable file");
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

const SETTINGS: Settings = Settings {
    ef: 0,
    iterate: Iterate::Off,
    max_tuples: usize::MAX,
    recheck: false,
    cutoff: f64::INFINITY,
    undirected: false,
    at_once: None,
};

fn known((distance, tid): Hit) -> Option<(Estimate, u64)> {
    match distance {
        Distance::Known(estimate) => Some((estimate, tid)),
        _ => None,
    }
}

/// Seconds of CPU that this process has used.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("a name")
        .split_whitespace()
        .collect();
    let ticks: f64 = fields[11..13]
        .iter()
        .map(|f| f.parse::<f64>().expect("a number"))
        .sum();
    ticks / 100.0
}

/// A segment of every `parts`-th row from `first` on, with the numbers of the rows as addresses.
fn build(
    rows: &[f32],
    (first, parts): (usize, usize),
    parameters: &Parameters,
    memory: usize,
    folder: &Path,
) -> (SegmentView, Range, u64) {
    let Parameters { dims, metric, .. } = *parameters;
    let rows = || {
        let rows = rows.chunks_exact(dims).enumerate();
        rows.skip(first).step_by(parts)
    };
    let count = rows().len();
    let options = BuildOptions {
        parameters: parameters.clone(),
        threads: 1,
        memory,
        cache: 64 << 30,
        expected: count,
        folder: folder.to_owned(),
    };
    let sample: Vec<Vec<f32>> = rows()
        .step_by(count.div_ceil(8192))
        .filter_map(|(_, x)| prepare(metric, dims, x).expect("a vector"))
        .collect();
    let encoding = choice::choose(
        metric,
        dims,
        parameters.quantization,
        &sample,
        count,
        Existing::default(),
        &|| (),
    );
    let mut builder = SegmentBuilder::new(options, encoding, None).expect("a graph");
    for (i, row) in rows() {
        assert!(!builder.is_full(), "memory for {i} rows");
        builder.push(i as u64, row, &|| ()).expect("a vector");
    }
    let built = builder.finish(&|| ()).expect("a segment");
    let store = MemoryStore::new();
    let entry =
        write_pages(&store, &built.header, &built.bytes, &built.dead, |_| ()).expect("pages");
    let file = built.into_bytes();
    let range = (file.as_ptr() as usize, file.len());
    let view = SegmentView::open(parameters, &entry, SegmentBytes::from(file)).expect("a segment");
    (view, range, entry.bytes)
}

/// Where a mapped file begins, and its length.
type Range = (usize, usize);

/// Has this process forget where the pages of mapped files are.
fn unmap(ranges: &[Range]) {
    for &(at, len) in ranges {
        // SAFETY: the pages are those of a file that nobody writes to, and are mapped again when they are wanted.
        let result = unsafe { libc::madvise(at as *mut libc::c_void, len, libc::MADV_DONTNEED) };
        assert_eq!(result, 0, "pages of a file can be unmapped");
    }
}

/// Page faults of this process so far that needed no read.
fn faults() -> i64 {
    // SAFETY: a number is written to each field, all of which may be zero.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage.ru_minflt
    }
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut parts = 1;
    let mut memory = 8 << 30;
    while args[0].starts_with("--") {
        let value = args[1].parse().expect("a number");
        match args[0].as_str() {
            "--parts" => parts = value,
            "--memory" => memory = value,
            other => panic!("there is no option {other}"),
        }
        args.drain(..2);
    }
    let number = |i: usize| args[i].parse::<usize>().expect("a number");
    let dims = number(2);
    let (rows, queries) = (floats(&args[0]), floats(&args[1]));
    let metric = match args[3].as_str() {
        "cosine" => Metric::Cosine,
        "l2" => Metric::L2,
        "ip" => Metric::InnerProduct,
        other => panic!("there is no metric {other}"),
    };
    let quantization = match args[4].as_str() {
        "auto" => None,
        name => Some(Quantization::from_name(name).expect("a quantization")),
    };
    let parameters = Parameters {
        dims,
        metric,
        quantization,
        raw: RawForm::choose(dims, false, quantization).expect("dimensions"),
        element: 0,
        m: number(5),
        ef_construction: number(6),
        fingerprint: [0; 32],
        model: String::new(),
    };
    let folder = std::env::temp_dir().join(format!("laser-segment-{}", std::process::id()));
    let count = rows.len() / dims;
    let start = cpu();
    let (mut views, mut ranges, mut bytes) = (Vec::new(), Vec::new(), 0);
    for part in 0..parts {
        let (view, range, len) = build(&rows, (part, parts), &parameters, memory, &folder);
        views.push(Rc::new(view));
        ranges.push(range);
        bytes += len;
    }
    let build = cpu() - start;
    let own: Vec<usize> = views.iter().map(|view| view.ef()).collect();
    let codec = views[0].encoding().codec;
    println!("default ef {own:?}, {:?}", codec.format);
    let distance = |q: &[f32], x: &[f32]| match metric {
        Metric::L2 => f32::l2_squared(q, x),
        Metric::InnerProduct => -f32::dot(q, x),
        Metric::Cosine => -f32::dot(q, x) / f32::dot(x, x).sqrt(),
    };
    let exact: Vec<f32> = queries
        .chunks_exact(dims)
        .map(|q| {
            let mut all: Vec<f32> = rows.chunks_exact(dims).map(|x| distance(q, x)).collect();
            *all.select_nth_unstable_by(9, f32::total_cmp).1
        })
        .collect();
    for ef in args[7..]
        .iter()
        .map(|ef| ef.parse::<usize>().expect("a number"))
    {
        let (mut found, mut widened, mut scratch) = (0, 0, Vec::new());
        let (wall, start) = (Instant::now(), cpu());
        let rounds = if ef == 0 || ef > 1000 { 1 } else { 5 };
        for _ in 0..rounds {
            found = 0;
            for (q, tenth) in queries.chunks_exact(dims).zip(&exact) {
                let query = Query::new(metric, dims, q).expect("a query");
                let mut hits = Vec::new();
                if ef == 0 {
                    let mut scan =
                        Scan::new(&query, SETTINGS, views.clone(), PendingRows::default());
                    let next = || scan.next(&|| ());
                    hits.extend(std::iter::from_fn(next).take(10).filter_map(known));
                    widened += scan.widened;
                }
                for view in views.iter().filter(|_| ef > 0) {
                    let searched = view.search(&view.probe(&query), ef, false, &mut scratch);
                    let row = |(estimate, entry): Candidate| (estimate, view.tid(entry as usize));
                    hits.extend(searched.found.into_iter().map(row));
                }
                hits.sort_unstable_by(|a, b| a.0.estimate.total_cmp(&b.0.estimate));
                let good = |hit: &&(Estimate, u64)| {
                    let x = &rows[hit.1 as usize * dims..][..dims];
                    distance(q, x) <= tenth + 1e-6 * tenth.abs()
                };
                found += hits.iter().take(10).filter(good).count();
            }
        }
        let n = exact.len();
        let used = cpu() - start;
        println!(
            "{} parts {parts} m {} efc {} build {build:.1}s MB {:.1} ef {ef} recall {:.4} us {:.1} (wall {:.1}) again {widened}",
            views[0].encoding().codec.quantization.name(),
            args[5],
            args[6],
            bytes as f64 / 1e6,
            found as f64 / (10 * n) as f64,
            1e6 * used / (n * rounds) as f64,
            1e6 * wall.elapsed().as_secs_f64() / (n * rounds) as f64,
        );
    }
    let _ = std::fs::remove_dir_all(folder);
    let (mut scratch, mut time, mut mapped) = (Vec::new(), Duration::ZERO, 0);
    let few = queries.chunks_exact(dims).take(50);
    let asked = few.len();
    for q in few {
        unmap(&ranges);
        let query = Query::new(metric, dims, q).expect("a query");
        let (before, start) = (faults(), Instant::now());
        for view in &views {
            view.search(&view.probe(&query), 100, false, &mut scratch);
        }
        time += start.elapsed();
        mapped += faults() - before;
    }
    println!(
        "not mapped, ef 100: us {:.0}, faults {:.0}",
        1e6 * time.as_secs_f64() / asked as f64,
        mapped as f64 / asked as f64
    );
    let (start, mut scratch, mut sum) = (cpu(), Vec::new(), 0.0);
    let few = queries.chunks_exact(dims).take(50);
    let asked = few.len();
    for q in few {
        let query = Query::new(metric, dims, q).expect("a query");
        for view in &views {
            view.scan(
                &view.probe(&query),
                &mut scratch,
                &|| (),
                |(estimate, _)| sum += estimate.estimate,
            );
        }
    }
    let us = 1e6 * (cpu() - start) / asked as f64;
    println!(
        "every row: us {us:.1} (mean distance {:.3})",
        sum / (asked * count) as f64
    );
}
