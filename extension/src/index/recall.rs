//! How much of exact search a search finds.
#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use laser_index::codec::Metric;
use laser_index::meta::{Meta, Parameters};
use laser_index::query::Query;
use laser_index::scan::{Distance, Scan, Settings};
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::build::pause;
use super::errors::OrReport;
use super::info::{Opened, retry};
use super::rights::Use;
use super::scan::pending_rows;
use super::table::Table;
use super::{cache, options};
use crate::types::{raise, raise_hint};
use laser_vector::kernels;

/// A number that can be compared, also where it is none.
#[derive(PartialEq)]
struct Number(f64);

impl Eq for Number {}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// What the operator of the index gives for two vectors.
fn distance(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    match metric {
        Metric::Cosine => kernels::cosine_distance(a, b),
        Metric::L2 => kernels::l2_distance(a, b),
        Metric::InnerProduct => f64::from(-kernels::f32_dot(a, b)),
    }
}

/// Components that are compared between two looks for interrupts.
const PAUSE: usize = 1 << 18;

/// A random row's vector as a query.
struct Sample {
    vector: Vec<f32>,
    /// Rows that the search has found, in its order, and the bounds of their distances.
    found: Vec<(u64, f64)>,
    /// The true distances of those rows.
    distances: HashMap<u64, f64>,
    /// Distances of the nearest rows.
    nearest: BinaryHeap<Number>,
}

impl Sample {
    /// Distances of the `k` rows that a query gets, which holds every row back until the bound of
    /// the next one has passed its true distance.
    fn given(&self, k: usize) -> Vec<f64> {
        let mut held = BinaryHeap::new();
        let mut given = Vec::new();
        for (tid, bound) in &self.found {
            let near = |held: &BinaryHeap<Reverse<Number>>| {
                held.peek().is_some_and(|nearest| nearest.0.0 <= *bound)
            };
            while near(&held) {
                given.extend(held.pop().map(|nearest| nearest.0.0));
            }
            held.push(Reverse(Number(self.distances[tid])));
        }
        given.extend(std::iter::from_fn(|| held.pop().map(|nearest| nearest.0.0)));
        given.truncate(k);
        given
    }
}

/// Vectors of random rows, each row equally likely (reservoir sampling, Vitter's algorithm R), and
/// the addresses of all rows, ascending.
fn draw(table: &Table, parameters: &Parameters, samples: usize) -> (Vec<Sample>, Vec<u64>) {
    // SplitMix64 (Steele, Lea & Flood 2014).
    let mut state = laser_index::meta::nonce();
    let mut random = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut chosen: Vec<Sample> = Vec::new();
    let mut rows = Vec::new();
    table.vectors(parameters, |tid, x| {
        rows.push(tid);
        let sample = || Sample {
            vector: x.to_vec(),
            found: Vec::new(),
            distances: HashMap::new(),
            nearest: BinaryHeap::new(),
        };
        if chosen.len() < samples {
            chosen.push(sample());
            return;
        }
        let place = (random() % rows.len() as u64) as usize;
        if place < samples {
            chosen[place] = sample();
        }
    });
    rows.sort_unstable();
    (chosen, rows)
}

/// Rows that a search is asked for: more than k, since true distances may have another order than
/// their bounds.
fn asked(k: usize) -> usize {
    k.saturating_mul(4).saturating_add(32)
}

/// Raises a SQL error where samples may take more than `maintenance_work_mem`.
fn check_memory(samples: usize, k: usize, dims: usize) {
    // Found rows stand in a list and in a table of hashes, which keeps a part of it free.
    let found = asked(k).saturating_mul(size_of::<(u64, f64)>() * 4);
    let each = found
        .saturating_add(k.saturating_mul(2 * size_of::<Number>()))
        .saturating_add(dims * size_of::<f32>() + size_of::<Sample>());
    // SAFETY: an integer setting of the server, read on its only thread.
    let memory = unsafe { pg_sys::maintenance_work_mem } as usize * 1024;
    let needed = each.saturating_mul(samples);
    if needed > memory {
        raise_hint(
            Code::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            format!(
                "{samples} samples with {k} neighbours take {} kB, more than maintenance_work_mem",
                needed / 1024
            ),
            "Ask for fewer samples or neighbours, or raise maintenance_work_mem.",
        );
    }
}

#[pg_extern(sql = "")]
fn laser_index_recall(index: pg_sys::Oid, samples: i32, k: i32) -> Option<f64> {
    if samples < 1 || k < 1 {
        raise(
            Code::ERRCODE_INVALID_PARAMETER_VALUE,
            "samples and k must be positive",
        );
    }
    let k = k as usize;
    let opened = Opened::new(index, Use::Maintain, pg_sys::AccessShareLock);
    let store = opened.store();
    // SAFETY: the index is open. The snapshot of the table is taken before the index is read.
    let table = unsafe { Table::new(opened.raw()) };
    let parameters = Meta::read(&store).or_report().parameters;
    check_memory(samples as usize, k, parameters.dims);
    let (mut samples, rows) = draw(&table, &parameters, samples as usize);
    let settings = Settings {
        ef: options::ef_search(),
        iterate: options::iterate(),
        max_tuples: options::max_scan_tuples(),
        recheck: true,
        cutoff: f64::INFINITY,
        undirected: false,
    };
    for sample in &mut samples {
        pause();
        let query = Query::new(parameters.metric, parameters.dims, &sample.vector).or_report();
        let mut scan = retry(|| {
            let meta = Meta::read(&store)?;
            // SAFETY: the index is open.
            let views = unsafe { cache::views(opened.raw(), &store, &meta) }?;
            let pending = pending_rows(&store, &meta, &query)?;
            Ok(Scan::new(&query, settings, views, pending))
        });
        while sample.found.len() < asked(k)
            && let Some((Distance::Known(known), tid)) = scan.next(&pause)
        {
            // Entries of rows that the snapshot does not see are left out, as a query leaves them.
            if rows.binary_search(&tid).is_ok() {
                sample.found.push((tid, known.lower));
                sample.distances.insert(tid, f64::INFINITY);
            }
        }
    }

    let mut compared = 0usize;
    table.vectors(&parameters, |tid, x| {
        for sample in &mut samples {
            compared += x.len();
            if compared >= PAUSE {
                compared = 0;
                pause();
            }
            let distance = distance(parameters.metric, &sample.vector, x);
            if let Some(found) = sample.distances.get_mut(&tid) {
                *found = distance;
            }
            if sample.nearest.len() < k {
                sample.nearest.push(Number(distance));
            } else if sample.nearest.peek().is_some_and(|far| distance < far.0) {
                sample.nearest.pop();
                sample.nearest.push(Number(distance));
            }
        }
    });
    let (mut found, mut wanted) = (0, 0);
    for sample in &samples {
        // A row as near as the farthest of the nearest is one of them.
        let Some(Number(farthest)) = sample.nearest.peek() else {
            continue;
        };
        wanted += sample.nearest.len();
        let given = sample.given(k);
        found += given.iter().filter(|d| *d <= farthest).count();
    }
    (wanted > 0).then(|| found as f64 / wanted as f64)
}
