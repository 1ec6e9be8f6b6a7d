//! How much of exact search a search finds, at the current settings and at other widths: for random rows, or for what the
//! index was asked.
#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use laser_index::meta::{Meta, Parameters};
use laser_index::metric::Metric;
use laser_index::query::Query;
use laser_index::scan::{Distance, Iterate, Scan, Settings};
use laser_sampling::SplitMix64;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::errors::OrReport;
use super::info::{Opened, retry};
use super::notice::notify;
use super::rights::Use;
use super::scan::pending_rows;
use super::statistics::queries;
use super::table::Table;
use super::{cache, element, options, wanted};
use crate::pg::catalogs::reads_all_statistics;
use crate::pg::encoding;
use crate::pg::errors::raise_hint;
use crate::pg::interrupts::pause;
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

/// What is searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Queries {
    /// The vectors of random rows.
    Rows,
    /// What searches have asked for, of which a sample is kept.
    Asked,
}

impl Queries {
    fn of(name: &[u8]) -> Self {
        match name {
            b"rows" => Self::Rows,
            b"asked" => Self::Asked,
            _ => raise_hint(
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("unknown queries \"{}\"", encoding::name(name)),
                "Queries are 'rows', the vectors of random rows, or 'asked', the queries that were sampled while \
                 laser.track_queries was on.",
            ),
        }
    }
}

/// A query.
struct Sample {
    vector: Vec<f32>,
    /// Rows that each search has found, in its order, and the bounds of their distances.
    found: Vec<Vec<(u64, f64)>>,
    /// The true distances of those rows.
    distances: HashMap<u64, f64>,
    /// Distances of the nearest rows.
    nearest: BinaryHeap<Number>,
}

impl Sample {
    fn new(vector: Vec<f32>) -> Self {
        Self {
            vector,
            found: Vec::new(),
            distances: HashMap::new(),
            nearest: BinaryHeap::new(),
        }
    }

    /// Distances of the `k` rows that a query gets by the search of this number, which holds every row back
    /// until the bound of the next one has passed its true distance.
    fn given(&self, search: usize, k: usize) -> Vec<f64> {
        let mut held = BinaryHeap::new();
        let mut given = Vec::new();
        for (tid, bound) in &self.found[search] {
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
    let mut random = SplitMix64::new(laser_index::meta::nonce());
    let mut chosen: Vec<Sample> = Vec::new();
    let mut rows = Vec::new();
    table.vectors(parameters, |tid, x| {
        rows.push(tid);
        if chosen.len() < samples {
            chosen.push(Sample::new(x.to_vec()));
            return;
        }
        let place = random.below(rows.len());
        if place < samples {
            chosen[place] = Sample::new(x.to_vec());
        }
    });
    rows.sort_unstable();
    (chosen, rows)
}

/// Queries that the index was asked, each of those that are kept equally likely, and the addresses of all rows, ascending.
/// An error where none is kept.
fn recollect(
    table: &Table,
    index: pg_sys::Relation,
    parameters: &Parameters,
    samples: usize,
) -> (Vec<Sample>, Vec<u64>) {
    // SAFETY: the index is open.
    let (oid, name) = unsafe { ((*index).rd_id, encoding::name_of(index)) };
    let mut asked = queries::asked(oid, parameters);
    if asked.is_empty() {
        raise_hint(
            Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("no queries of index \"{name}\" are kept"),
            match queries::is_possible() {
                true => {
                    "A superuser sets laser.track_queries to on; what is searched for from then on is kept, of up to 64 indexes, until \
                         the server is started again."
                }
                false => {
                    "Add laser to shared_preload_libraries, start the server again, and set laser.track_queries to on."
                }
            },
        );
    }
    // The first ones of a random order (Fisher-Yates).
    let mut random = SplitMix64::new(laser_index::meta::nonce());
    let chosen = samples.min(asked.len());
    for place in 0..chosen {
        let other = place + random.below(asked.len() - place);
        asked.swap(place, other);
    }
    asked.truncate(chosen);
    let mut rows = Vec::new();
    table.vectors(parameters, |tid, _| rows.push(tid));
    rows.sort_unstable();
    (asked.into_iter().map(Sample::new).collect(), rows)
}

/// Rows that a search is asked for: more than k, since true distances may have another order than
/// their bounds.
fn asked(k: usize) -> usize {
    k.saturating_mul(4).saturating_add(32)
}

/// Raises a SQL error where samples may take more than `maintenance_work_mem`.
fn check_memory(samples: usize, searches: usize, k: usize, dims: usize) {
    // Found rows stand in lists and in a table of hashes, which keeps a part of it free.
    let found = asked(k).saturating_mul(size_of::<(u64, f64)>() * (3 + searches));
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

/// Queries of an index, what searches have found for them, and what there is.
struct Trial {
    // Dropped before the index is closed.
    table: Table,
    opened: Opened,
    parameters: Parameters,
    samples: Vec<Sample>,
    /// The addresses of all rows, ascending.
    rows: Vec<u64>,
    k: usize,
}

impl Trial {
    /// Takes queries of an index that the current role maintains, with room for the results of `searches` searches each.
    fn new(index: pg_sys::Oid, queries: Queries, samples: i32, searches: usize, k: i32) -> Self {
        if samples < 1 || k < 1 {
            raise_hint(
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                "samples and k must be positive",
                "Ask for at least 1 query and 1 neighbour of it; the defaults are samples => 100 and k => 10.",
            );
        }
        let k = k as usize;
        // A recall tells of other roles' queries as much as the caller's rows ask: whoever owns the table could find
        // out by many of them what was searched for.
        if matches!(queries, Queries::Asked) && !reads_all_statistics() {
            raise_hint(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                "permission denied for the queries of other roles",
                "queries => 'asked' is for members of pg_read_all_stats who maintain the table; queries => 'rows' takes \
                 the vectors of random rows.",
            );
        }
        let opened = Opened::new(index, Use::Maintain, pg_sys::AccessShareLock);
        opened.expect_ready();
        let store = opened.store();
        // SAFETY: the index is open. The snapshot of the table is taken before the index is read.
        let table = unsafe { Table::new(opened.raw()) };
        let parameters = Meta::read(&store).or_report().parameters;
        check_memory(samples as usize, searches, k, parameters.dims);
        let samples = samples as usize;
        let (samples, rows) = match queries {
            Queries::Rows => draw(&table, &parameters, samples),
            Queries::Asked => recollect(&table, opened.raw(), &parameters, samples),
        };
        Self {
            table,
            opened,
            parameters,
            samples,
            rows,
            k,
        }
    }

    /// The candidates that a query keeps now; zero for as many as each segment needs.
    fn width(&self) -> usize {
        // SAFETY: the index is open.
        options::ef_search(unsafe { options::of(self.opened.raw()) }.ef_search)
    }

    /// Searches for all samples. Returns how long it took to find the first `k` rows of each, in all, and
    /// whether every search was exhaustive.
    fn search(&mut self, ef: usize) -> (Duration, bool) {
        let settings = Settings {
            ef,
            iterate: options::iterate(),
            max_tuples: options::max_scan_tuples(),
            recheck: true,
            cutoff: f64::INFINITY,
            undirected: false,
            // As a query with a limit of as many.
            at_once: (options::iterate() == Iterate::Strict).then(|| wanted::at_once(self.k, 1.0)),
        };
        let (store, p, k) = (self.opened.store(), &self.parameters, self.k);
        let (mut time, mut exhaustive) = (Duration::ZERO, true);
        for sample in &mut self.samples {
            pause();
            let begun = Instant::now();
            let mut took = None;
            let query = Query::new(p.metric, p.dims, &sample.vector).or_report();
            let mut scan = retry(|| {
                let meta = Meta::read(&store)?;
                // SAFETY: the index is open.
                let views = unsafe { cache::views(self.opened.raw(), &store, &meta) }?;
                let pending = pending_rows(&store, &meta, &query)?;
                Ok(Scan::new(&query, settings, views, pending))
            });
            let mut found = Vec::new();
            exhaustive &= scan.is_exhaustive();
            while found.len() < asked(k)
                && let Some((Distance::Known(known), tid)) = scan.next(&pause)
            {
                // Entries of rows that the snapshot does not see are left out, as a query leaves them.
                if self.rows.binary_search(&tid).is_ok() {
                    found.push((tid, known.lower));
                    sample.distances.insert(tid, f64::INFINITY);
                }
                if found.len() == k {
                    took.get_or_insert_with(|| begun.elapsed());
                }
            }
            time += took.unwrap_or_else(|| begun.elapsed());
            sample.found.push(found);
        }
        (time, exhaustive)
    }

    /// Computes the distances of all rows to all samples.
    fn compare(&mut self) {
        let (mut compared, samples) = (0usize, &mut self.samples);
        let (metric, k) = (self.parameters.metric, self.k);
        self.table.vectors(&self.parameters, |tid, x| {
            for sample in samples.iter_mut() {
                compared += x.len();
                if compared >= PAUSE {
                    compared = 0;
                    pause();
                }
                let distance = distance(metric, &sample.vector, x);
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
    }

    /// Share of the nearest rows that the search of this number has found.
    fn recall(&self, search: usize) -> Option<f64> {
        let (mut found, mut wanted) = (0, 0);
        for sample in &self.samples {
            // A row as near as the farthest of the nearest is one of them.
            let Some(Number(farthest)) = sample.nearest.peek() else {
                continue;
            };
            wanted += sample.nearest.len();
            let given = sample.given(search, self.k);
            found += given.iter().filter(|d| *d <= farthest).count();
        }
        (wanted > 0).then(|| found as f64 / wanted as f64)
    }
}

#[unsafe(no_mangle)]
#[doc(hidden)]
pub extern "C" fn pg_finfo_laser_index_recall_wrapper() -> &'static pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

/// `laser_index_recall(regclass, integer, integer [, text]) -> double precision`: version 0.1.0 has declared it without
/// the last argument.
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn laser_index_recall_wrapper(
    fcinfo: pg_sys::FunctionCallInfo,
) -> pg_sys::Datum {
    // SAFETY: a strict function with the declared arguments.
    let (index, samples, k, queries) = unsafe {
        let args = (*fcinfo).args.as_slice((*fcinfo).nargs as usize);
        let number = |at: usize| args[at].value.value() as i32;
        let queries = args.get(3).map_or(Queries::Rows, |name| {
            Queries::of(&element::text(name.value))
        });
        let index = pg_sys::Oid::from(args[0].value.value() as u32);
        (index, number(1), number(2), queries)
    };
    let mut trial = Trial::new(index, queries, samples, 1, k);
    trial.search(trial.width());
    trial.compare();
    match trial.recall(0) {
        Some(recall) => pg_sys::Datum::from(recall.to_bits()),
        None => {
            // SAFETY: as above.
            unsafe { (*fcinfo).isnull = true };
            pg_sys::Datum::from(0)
        }
    }
}

/// Widths that are tried.
const WIDTHS: [i32; 18] = [
    16, 24, 40, 64, 100, 150, 200, 300, 400, 600, 800, 1200, 1800, 2700, 4000, 6000, 8000, 10_000,
];

/// One row for each width that was tried, the last of which is enough, if one is.
#[pg_extern(sql = "")]
fn laser_index_tune(
    index: pg_sys::Oid,
    target: f64,
    samples: i32,
    k: i32,
    queries: &[u8],
) -> TableIterator<
    'static,
    (
        name!(ef_search, i32),
        name!(recall, f64),
        name!(milliseconds, f64),
        name!(is_enough, bool),
    ),
> {
    if !(target > 0.0 && target <= 1.0) {
        raise_hint(
            Code::ERRCODE_INVALID_PARAMETER_VALUE,
            "target must be above 0 and at most 1",
            "Give the recall to reach as a fraction, as in target => 0.95.",
        );
    }
    let queries = Queries::of(queries);
    let mut trial = Trial::new(index, queries, samples, WIDTHS.len(), k);
    // Files that are made for the first search, and what it reads from the disk, are no part of its time.
    trial.search(WIDTHS[0] as usize);
    for sample in &mut trial.samples {
        sample.found.clear();
    }
    let mut times = Vec::new();
    for width in WIDTHS {
        let (time, exhaustive) = trial.search(width as usize);
        times.push((width, time));
        // Wider searches would do the same.
        if exhaustive {
            break;
        }
    }
    trial.compare();
    if queries == Queries::Rows && !trial.samples.is_empty() {
        notify(
            "widths were tried with rows of the index as queries",
            "What is unlike the rows, as words where these are sentences, finds less at a width that is set. After a while with \
             laser.track_queries on: queries => 'asked'.",
        );
    }
    let samples = trial.samples.len().max(1) as f64;
    let mut tried = Vec::new();
    for (search, (width, time)) in times.into_iter().enumerate() {
        let Some(recall) = trial.recall(search) else {
            break;
        };
        let is_enough = recall >= target;
        tried.push((
            width,
            recall,
            1000.0 * time.as_secs_f64() / samples,
            is_enough,
        ));
        if is_enough {
            break;
        }
    }
    TableIterator::new(tried)
}
