//! How much of exact search a search finds.
#![allow(unsafe_code)]

use std::collections::{BinaryHeap, HashMap};

use laser_index::codec::Metric;
use laser_index::meta::{Meta, Parameters};
use laser_index::scan::{Hit, Scan};
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::build::pause;
use super::errors::OrReport;
use super::info::{Opened, pending_entries, retry};
use super::rights::Use;
use super::table::Table;
use super::{cache, options};
use crate::types::raise;
use laser_vector::kernels;

/// A number that can be compared, also where it is none.
#[derive(PartialEq)]
struct Distance(f64);

impl Eq for Distance {}

impl Ord for Distance {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Distance {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// What the operator of the index gives for two vectors, or what has the same order.
fn distance(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
    match metric {
        Metric::Cosine => kernels::cosine_distance(a, b),
        Metric::L2 => f64::from(kernels::f32_l2_squared(a, b)),
        Metric::InnerProduct => f64::from(-kernels::f32_dot(a, b)),
    }
}

/// A random row's vector as a query.
struct Sample {
    vector: Vec<f32>,
    /// Rows that the search has found, with their distances once those are known.
    found: HashMap<u64, Option<f64>>,
    /// Distances of the nearest rows.
    nearest: BinaryHeap<Distance>,
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
            found: HashMap::new(),
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
    let codec = parameters.codec;
    let (mut samples, rows) = draw(&table, &parameters, samples as usize);
    let (views, list) = retry(|| {
        let meta = Meta::read(&store)?;
        // SAFETY: the index is open.
        let views = unsafe { cache::views(opened.raw(), &store, &meta) }?;
        Ok((views, pending_entries(&store, &meta)?))
    });

    let mut scratch = Vec::new();
    for sample in &mut samples {
        pause();
        let query = codec.query(&sample.vector).or_report();
        let pending: Vec<Hit> = list
            .iter()
            .map(|(tid, stored)| {
                let (graph, fine) = stored.split_at(codec.graph_len());
                (codec.distance(&query, graph, fine, &mut scratch), *tid)
            })
            .collect();
        let mut scan = Scan::new(
            query,
            options::ef_search(),
            options::iterate(),
            options::max_scan_tuples(),
            views.clone(),
            pending,
        );
        while sample.found.len() < k
            && let Some((_, tid)) = scan.next(&pause)
        {
            // Entries of rows that the snapshot does not see are left out, as a query leaves them.
            if rows.binary_search(&tid).is_ok() {
                sample.found.insert(tid, None);
            }
        }
    }

    table.vectors(&parameters, |tid, x| {
        for sample in &mut samples {
            let distance = distance(codec.metric, &sample.vector, x);
            if let Some(found) = sample.found.get_mut(&tid) {
                *found = Some(distance);
            }
            if sample.nearest.len() < k {
                sample.nearest.push(Distance(distance));
            } else if sample.nearest.peek().is_some_and(|far| distance < far.0) {
                sample.nearest.pop();
                sample.nearest.push(Distance(distance));
            }
        }
    });
    let (mut found, mut wanted) = (0, 0);
    for sample in &samples {
        // A row as near as the farthest of the nearest is one of them.
        let Some(Distance(farthest)) = sample.nearest.peek() else {
            continue;
        };
        wanted += sample.nearest.len();
        found += sample
            .found
            .values()
            .flatten()
            .filter(|d| *d <= farthest)
            .count();
    }
    (wanted > 0).then(|| found as f64 / wanted as f64)
}
