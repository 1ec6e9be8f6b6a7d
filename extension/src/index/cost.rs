//! What a scan costs (`amcostestimate`).
//!
//! A scan of the index has a large start and cheap rows: the first row comes when every segment
//! has been searched. `LIMIT` takes the start and a share of the rest, so the two are told apart:
//!
//! * start: opening the index, reading the pending list, walking every segment's graph once, and
//!   embedding the query when the column is text
//! * rest: the wider searches that return all the other rows; each is four times as wide as the
//!   one before, up to looking at every vector
//!
//! Segments are searched in mapped memory and not through the buffer cache, so the work is counted
//! in distances. Their unit is the cost of the distance functions in `sql/types.sql`: 20 times
//! `cpu_operator_cost` for 1,024 dimensions of `f32`, most of which is fetching the value; the
//! walk's own distances are cheaper, in proportion to the bytes that they read.
//!
//! The server adds the fetches of table rows itself (`cost_index` in
//! `src/backend/optimizer/path/costsize.c`).
#![allow(unsafe_code)]

use laser_index::codec::{Codec, Quantization};
use laser_index::meta::Meta;
use laser_index::scan::{Iterate, WALK_PART};
use laser_index::view::DEFAULT_EF;
use pgrx::pg_sys;

use super::element::{self, Element};
use super::options;
use super::pages::RelationStore;

/// Bytes of a stored vector for which a distance costs one `cpu_operator_cost`.
const BYTES_PER_OPERATOR: f64 = 512.0;
/// Operators' worth of work to open an index and its mapped segments. It keeps tables of a few
/// hundred rows, whose exact order is as cheap, to the sequential scan.
const OPEN: f64 = 4000.0;
/// The same for every segment beyond the first.
const OPEN_SEGMENT: f64 = 400.0;
/// Operators' worth of work to embed a query: the cost of `laser_embed` in `sql/encode.sql`.
const EMBED: f64 = 10_000.0;
/// What a row costs that is fetched from the table by its address, its distance computed, and perhaps
/// thrown away by a filter: so many rows of a sequential scan.
const VISIT: f64 = 20.0;
/// Share of `seq_page_cost` for a page of the pending list: each scan reads all of them, which
/// keeps them in the buffer cache.
const PENDING_PAGE: f64 = 0.1;
/// Neighbours of visited nodes that have not been seen before, as a share; fitted by pgvector to
/// its own graphs (`hnswcostestimate`), and near to what usearch visits.
const NOVELTY: f64 = 0.55;

/// Candidates of the first search in a segment that says it needs so many.
fn width(needed: u32) -> f64 {
    match (options::ef_search(), needed) {
        (0, 0) => DEFAULT_EF as f64,
        (0, needed) => f64::from(needed),
        (asked, _) => asked as f64,
    }
}

/// What the metapage says about the work.
struct Shape {
    /// Live entries of the segments, and the candidates of a first search in each.
    segments: Vec<(f64, f64)>,
    pending_entries: f64,
    pending_pages: f64,
    /// Operators' worth of work for one distance.
    distance: f64,
    m: f64,
    text: bool,
    /// Whether every row of the table is in the index.
    complete: bool,
}

impl Shape {
    /// Reads the metapage. A page that cannot be read is no reason to fail a plan: the scan will
    /// say what is wrong.
    ///
    /// # Safety
    /// `index` is the description of an index of this access method.
    unsafe fn read(index: &pg_sys::IndexOptInfo) -> Self {
        let unknown = Self {
            segments: vec![(index.tuples.max(1.0), width(0))],
            pending_entries: 0.0,
            pending_pages: 0.0,
            distance: 2.0,
            m: 16.0,
            text: false,
            complete: true,
        };
        if index.hypothetical {
            return unknown;
        }
        // SAFETY: the planner holds a lock on the index.
        let meta = unsafe {
            let relation = pg_sys::index_open(index.indexoid, pg_sys::NoLock as pg_sys::LOCKMODE);
            let meta = Meta::read(&RelationStore::new(relation));
            pg_sys::index_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            meta
        };
        let Ok(meta) = meta else { return unknown };
        let parameters = &meta.parameters;
        let quantization = parameters.quantization.unwrap_or(Quantization::I8);
        let codec = Codec::new(parameters.dims, parameters.metric, quantization);
        let segments: Vec<(f64, f64)> = meta
            .segments
            .iter()
            .map(|entry| (f64::from(entry.live()), width(entry.ef)))
            .collect();
        let pages = meta.pending.pages() as f64;
        let entries = pages * laser_index::pending::entries_per_page(parameters) as f64;
        Self {
            segments,
            pending_entries: entries,
            pending_pages: pages,
            distance: (codec.graph_len() as f64 / BYTES_PER_OPERATOR).max(0.25),
            m: meta.parameters.m as f64,
            text: element::of(&meta.parameters) == Element::Text,
            complete: meta.complete,
        }
    }

    /// Distances computed to find `ef` candidates among `n` entries.
    fn walk(&self, n: f64, ef: f64) -> f64 {
        if ef * WALK_PART as f64 >= n {
            return n;
        }
        let levels = n.ln() / self.m.ln();
        let novelty = (NOVELTY * levels / (1.0 + ef.ln())).min(1.0);
        (levels * self.m + 2.0 * self.m * ef * novelty).min(n)
    }

    /// Distances computed by the first search of all segments, or by one that is so wide.
    fn search(&self, at_least: f64) -> f64 {
        let walk = |&(n, ef): &(f64, f64)| self.walk(n, ef.max(at_least));
        self.segments.iter().map(walk).sum()
    }

    /// Candidates of the first search of all segments.
    fn first(&self) -> f64 {
        self.segments.iter().map(|(n, ef)| ef.min(*n)).sum()
    }

    /// Whether the first search looks at every vector.
    fn is_exhaustive(&self) -> bool {
        let every = |&(n, ef): &(f64, f64)| ef * WALK_PART as f64 >= n;
        self.segments.iter().all(every)
    }

    fn entries(&self) -> f64 {
        self.segments.iter().map(|(n, _)| n).sum::<f64>() + self.pending_entries
    }
}

/// Rows that a scan is expected to give until the query has what it wants, if the order of the rows
/// and the filters have nothing to do with each other.
///
/// `tuple_fraction` is the number of rows that the query wants (`LIMIT` and `OFFSET` together), a
/// share of them where the number is not known (cursors, `LIMIT $1` in a generic plan), or zero for
/// all. A share may be wanted now and the rest later, so it counts as all rows.
fn visited(root: &pg_sys::PlannerInfo, rel: &pg_sys::RelOptInfo, entries: f64) -> f64 {
    // SAFETY: the server passes the query that it plans.
    let query = unsafe { &*root.parse };
    // Here the limit counts groups, not rows.
    let grouped = !query.groupClause.is_null()
        || !query.groupingSets.is_null()
        || !query.distinctClause.is_null()
        || !query.havingQual.is_null()
        || query.hasAggs
        || query.hasWindowFuncs;
    if grouped || root.tuple_fraction < 1.0 || rel.rows <= 0.0 {
        return entries;
    }
    (root.tuple_fraction * (entries / rel.rows).max(1.0)).min(entries)
}

/// Makes a path worse than any other, also than those that a setting such as `enable_seqscan`
/// disables. From PostgreSQL 18 on the number of disabled nodes counts before any cost.
fn rule_out(
    #[cfg_attr(not(feature = "pg18"), allow(unused_variables))] path: &mut pg_sys::IndexPath,
    startup: &mut f64,
    total: &mut f64,
) {
    *startup = f64::MAX;
    *total = f64::MAX;
    #[cfg(feature = "pg18")]
    {
        path.path.disabled_nodes = 1 << 16;
    }
}

/// `amcostestimate`
#[pgrx::pg_guard]
#[allow(clippy::too_many_arguments)] // the signature is the server's
pub unsafe extern "C-unwind" fn estimate(
    root: *mut pg_sys::PlannerInfo,
    path: *mut pg_sys::IndexPath,
    _loop_count: f64,
    startup: *mut pg_sys::Cost,
    total: *mut pg_sys::Cost,
    selectivity: *mut pg_sys::Selectivity,
    correlation: *mut f64,
    pages: *mut f64,
) {
    // SAFETY: the server passes its planner's structures and places for the results.
    unsafe {
        let index = &*(*path).indexinfo;
        *correlation = 0.0;
        *pages = f64::from(index.pages);
        let table = (*index.rel).tuples;
        *selectivity = if table > 0.0 {
            (index.tuples / table).min(1.0)
        } else {
            1.0
        };

        // The access method can only order.
        if (*path).indexorderbys.is_null() {
            rule_out(&mut *path, &mut *startup, &mut *total);
            return;
        }
        let shape = Shape::read(index);
        let widest = shape.segments.iter().map(|(_, ef)| *ef).fold(1.0, f64::max);
        let entries = shape.entries();
        let deliverable = match options::iterate() {
            Iterate::Off => shape.first() + shape.pending_entries,
            _ => (options::max_scan_tuples() as f64).max(widest),
        };
        let visited = visited(&*root, &*index.rel, entries);
        // A plan that wants more rows than a scan gives must not get only the nearest of them. One that
        // wants most of them would get those that walks have missed at the end, out of order. An
        // index of the first format lacks the rows without a vector.
        let most = visited * 2.0 > entries && !shape.is_exhaustive();
        if visited > deliverable || most || (!shape.complete && visited >= entries) {
            rule_out(&mut *path, &mut *startup, &mut *total);
            return;
        }

        let mut random_page = 0.0;
        let mut seq_page = 0.0;
        pg_sys::get_tablespace_page_costs(index.reltablespace, &mut random_page, &mut seq_page);
        let operator = pg_sys::cpu_operator_cost;
        let more_segments = shape.segments.len().saturating_sub(1) as f64;
        let embed = if shape.text { EMBED } else { 0.0 };
        let distances = shape.search(0.0) + shape.pending_entries;
        let start = random_page
            + PENDING_PAGE * seq_page * shape.pending_pages
            + operator * (OPEN + OPEN_SEGMENT * more_segments + embed + shape.distance * distances);

        // Each wider search looks again at what the ones before have seen, which doubles the work
        // at most; the last of them looks at everything. LIMIT takes a share of what comes after
        // the start, so that share is made to be the work for the rows that are wanted.
        let rest = if visited <= widest {
            0.0
        } else {
            let wider = shape.search(visited) + shape.pending_entries;
            shape.distance * operator * 2.0 * wider
        };
        let share = (visited / entries.max(1.0)).clamp(1e-9, 1.0);
        *startup = start;
        *total = start + rest / share + VISIT * pg_sys::cpu_tuple_cost * entries;
    }
}
