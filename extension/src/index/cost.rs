//! What a scan costs (`amcostestimate`).
//!
//! A scan of the index has a large start and cheap rows: the first row comes when every segment
//! has been searched. `LIMIT` takes the start and a share of the rest, so the two are told apart:
//!
//! * start: opening the index, reading the pending list, walking every segment's graph once, and
//!   embedding the query when the column is text
//! * rest: the wider searches that return all the other rows; each is at least four times as wide as the
//!   one before, up to looking at every vector. Few rows of a limit that is not known come after the first search: their
//!   wider searches are priced by their distances alone
//!
//! Segments are searched in mapped memory and not through the buffer cache, so the work is counted
//! in distances. Their unit is the cost of the distance functions in `sql/types.sql`: 20 times
//! `cpu_operator_cost` for 1,024 dimensions of `f32`, most of which is fetching the value; the
//! walk's own distances are cheaper, in proportion to the bytes that they read.
//!
//! The server adds the fetches of table rows itself (`cost_index` in
//! `src/backend/optimizer/path/costsize.c`).
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use laser_index::codec::Codec;
use laser_index::meta::Meta;
use laser_index::quantization::Quantization;
use laser_index::scan::{
    AtOnce, Iterate, TRUSTED_DIVISOR, WIDEN, is_exhaustive_cheaper, likely, width_asked,
};
use laser_index::view::DEFAULT_EF;
use pgrx::pg_sys;

use super::element::{self, Element};
use super::pages::RelationStore;
use super::wanted::{self, UNLIKE_ESTIMATE, Wanted};
use super::{joined, notice, options, sorted, unlogged};
use crate::encode;
use crate::pg::encoding;
use crate::pg::lists::node;

/// Bytes of a stored vector for which a distance costs one `cpu_operator_cost`.
const BYTES_PER_OPERATOR: f64 = 512.0;
/// Operators' worth of work to open an index and its mapped segments. It keeps tables of a few
/// hundred rows, whose exact order is as cheap, to the sequential scan.
const OPEN: f64 = 4000.0;
/// The same for every segment beyond the first.
const OPEN_SEGMENT: f64 = 400.0;
/// Operators' worth of work to embed a query: as much as the distance of two texts is declared to cost
/// for each row of a sequential scan (`cosine_distance(text, text)` in `sql/index.sql`, which says why as much), which
/// embeds too.
const EMBED: f64 = 10_000.0;
/// What a row costs that is fetched from the table by its address, its distance computed, and perhaps
/// thrown away by a filter, in rows of a sequential scan.
const VISIT: f64 = 20.0;
/// Share of `seq_page_cost` for a page of the pending list: each scan reads all of them, which
/// keeps them in the buffer cache.
const PENDING_PAGE: f64 = 0.1;
/// Operators' worth of work for a distance of a wider search, or of a look at all vectors, and for each byte of these: memory
/// that no search has read before, estimates, and their order. Fitted to what plans take (`make bench-plans`), in what a
/// sequential scan costs in the same time, which is more for wide rows.
const WIDER: f64 = 16.0;
const WIDER_BYTE: f64 = 0.03;
/// The same where a sequential scan costs too little itself, whose price knows nothing of values out of line, and next to
/// nothing of what it takes to embed.
const WIDER_ELSEWHERE: f64 = 18.0;
/// Share of what a distance costs else that it does there, in a first search, in an index on a column of pgvector's, whose operators
/// are declared to cost next to nothing, whatever the dimensions: of 6,000 × 1,536 rows a sequential scan took 94 ms, and a look at all vectors in an index with `f32` 18 to 30.
const ELSEWHERE_OF_FOREIGN: f64 = 0.25;
/// Wider searches that are less likely are in no price.
const UNLIKELY: f64 = 0.01;
/// Neighbours of visited nodes that have not been seen before, as a share; fitted by pgvector to
/// its own graphs (`hnswcostestimate`), and near to what usearch visits.
const NOVELTY: f64 = 0.55;

/// Candidates of the first search in a segment that says it needs `needed`, in an index with this storage
/// parameter.
fn width(own: usize, needed: u32) -> f64 {
    match (options::ef_search(own), needed) {
        (0, 0) => DEFAULT_EF as f64,
        (0, needed) => f64::from(needed),
        (asked, _) => width_asked(asked) as f64,
    }
}

/// The metapage, if it can be read, and the storage parameter `ef_search`.
///
/// # Safety
/// `index` is the description of an index of this access method, and exists.
unsafe fn metapage(index: &pg_sys::IndexOptInfo) -> Option<(Meta, usize)> {
    // SAFETY: the planner holds a lock on the index.
    unsafe {
        let relation = pg_sys::index_open(index.indexoid, pg_sys::NoLock as pg_sys::LOCKMODE);
        unlogged::reset_unlogged(relation);
        let meta = Meta::read(&RelationStore::new(relation));
        let ef_search = options::of(relation).ef_search;
        pg_sys::index_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        meta.ok().map(|meta| (meta, ef_search))
    }
}

fn text_model(meta: &Meta) -> Option<String> {
    let parameters = &meta.parameters;
    (element::of(parameters) == Element::Text).then(|| parameters.model.clone())
}

/// The indexes of a table whose model is the session's, as the statement's plans find them.
#[derive(Default)]
struct OfModel {
    statement: notice::Statement,
    model: String,
    /// All indexes of the table of this access method.
    all: Vec<pg_sys::Oid>,
    /// Those of the model.
    found: HashSet<pg_sys::Oid>,
}

thread_local! {
    /// Kept for a statement: every index of a table asks, and an answer reads all their metapages, which
    /// would make plans quadratic in the number of indexes.
    static OF_MODEL: RefCell<OfModel> = RefCell::default();
}

/// Whether another index of the table has the same column or expression, and this model.
///
/// # Safety
/// `index` is what the planner knows of an index of this access method.
unsafe fn has_twin(index: &pg_sys::IndexOptInfo, model: &str) -> bool {
    // SAFETY: a list of the planner's descriptions of indexes, each with a key at least.
    unsafe {
        let list = (*index.rel).indexlist;
        let relatives: Vec<&pg_sys::IndexOptInfo> = (0..(*list).length as usize)
            .map(|at| &*(*(*list).elements.add(at)).ptr_value.cast())
            .filter(|other: &&pg_sys::IndexOptInfo| {
                other.relam == index.relam && !other.hypothetical
            })
            .collect();
        let known = OfModel {
            statement: notice::Statement::current(),
            model: model.to_owned(),
            all: relatives.iter().map(|other| other.indexoid).collect(),
            found: HashSet::new(),
        };
        let is_known = OF_MODEL.with_borrow(|of| {
            (of.statement, &of.model, &of.all) == (known.statement, &known.model, &known.all)
        });
        if !is_known {
            let is_of = |other: &&&pg_sys::IndexOptInfo| {
                let its = metapage(other).and_then(|(meta, _)| text_model(&meta));
                its.as_deref() == Some(model)
            };
            let found = relatives
                .iter()
                .filter(is_of)
                .map(|other| other.indexoid)
                .collect();
            OF_MODEL.set(OfModel { found, ..known });
        }
        OF_MODEL.with_borrow(|of| {
            relatives.iter().any(|other| {
                other.indexoid != index.indexoid
                    && of.found.contains(&other.indexoid)
                    && (other.indpred.is_null() || other.predOK)
                    && *other.indexkeys == *index.indexkeys
                    && pg_sys::equal(other.indexprs.cast(), index.indexprs.cast())
            })
        })
    }
}

thread_local! {
    /// An index of another model was not used.
    static NOTIFIED: Cell<notice::Statement> = Cell::default();
}

/// Says, once a statement, that an index is left alone because it is of another model than the
/// session's, unless the table has one of that as well.
///
/// # Safety
/// As [`has_twin`].
unsafe fn notice_model(index: &pg_sys::IndexOptInfo, own: &str, session: &str) {
    notice::notify_once(&NOTIFIED, || {
        // SAFETY: by contract; the index exists, so that it has a name.
        let name = unsafe {
            if has_twin(index, session) {
                return None;
            }
            encoding::shown(pg_sys::get_rel_name(index.indexoid))
        };
        let message = format!(
            "index \"{name}\" is not used: it was built with model \"{own}\", this session's is \"{session}\""
        );
        let hint = format!(
            "SET laser.model = '{own}' to use it, CREATE INDEX ... WITH (model = '{session}') for another one"
        );
        Some((message, hint))
    });
}

/// What the metapage says about the work.
struct Shape {
    /// Entries of the segments, dead ones included as a search counts them, and the candidates of a
    /// first search in each.
    segments: Vec<(f64, f64)>,
    /// Whether these were set by hand.
    is_width_set: bool,
    /// Live entries of all segments.
    live: f64,
    pending_entries: f64,
    pending_pages: f64,
    /// Operators' worth of work for one distance.
    distance: f64,
    /// Bytes of a stored vector, and of one in the table at least.
    bytes: f64,
    given_bytes: f64,
    m: f64,
    /// The model of an index on text.
    model: Option<String>,
    /// Whether it is on a column of pgvector's.
    foreign: bool,
    /// Whether every row of the table is in the index.
    complete: bool,
}

impl Shape {
    /// Reads the metapage. A page that cannot be read is no reason to fail a plan: the scan will
    /// raise the error.
    ///
    /// # Safety
    /// `index` is the description of an index of this access method.
    unsafe fn read(index: &pg_sys::IndexOptInfo) -> Self {
        let unknown = Self {
            segments: vec![(index.tuples.max(1.0), width(0, 0))],
            is_width_set: options::ef_search(0) > 0,
            live: index.tuples.max(1.0),
            pending_entries: 0.0,
            pending_pages: 0.0,
            distance: 2.0,
            bytes: 1024.0,
            given_bytes: 1024.0,
            m: 16.0,
            model: None,
            foreign: false,
            complete: true,
        };
        if index.hypothetical {
            return unknown;
        }
        // SAFETY: by contract.
        let Some((meta, ef_search)) = (unsafe { metapage(index) }) else {
            return unknown;
        };
        let parameters = &meta.parameters;
        let quantization = parameters.quantization.unwrap_or(Quantization::I8);
        let codec = Codec::new(parameters.dims, parameters.metric, quantization);
        let segments: Vec<(f64, f64)> = meta
            .segments
            .iter()
            .map(|entry| (f64::from(entry.count), width(ef_search, entry.ef)))
            .collect();
        let pages = meta.pending.pages() as f64;
        let entries = pages * laser_index::pending::entries_per_page(parameters) as f64;
        Self {
            segments,
            is_width_set: options::ef_search(ef_search) > 0,
            live: meta.segments.iter().map(|s| f64::from(s.live())).sum(),
            pending_entries: entries,
            pending_pages: pages,
            distance: (codec.graph_len() as f64 / BYTES_PER_OPERATOR).max(0.25),
            bytes: codec.len() as f64,
            given_bytes: 2.0 * parameters.dims as f64,
            m: meta.parameters.m as f64,
            model: text_model(&meta),
            foreign: element::of(parameters).is_foreign(),
            complete: meta.complete,
        }
    }

    /// Makes the first searches as wide as they are for what is wanted at once.
    fn widen_for(&mut self, wanted: AtOnce) {
        let wanted = match self.is_width_set {
            true => AtOnce { rank: 0, ..wanted },
            false => wanted,
        };
        let segments = self.segments.len();
        for (n, ef) in &mut self.segments {
            *ef = wanted.width(*ef as usize, *n as usize, segments) as f64;
        }
    }

    /// Distances computed to find `ef` candidates among `n` entries.
    fn walk(&self, n: f64, ef: f64) -> f64 {
        if is_exhaustive_cheaper(n as usize, ef as usize) {
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

    /// Distances computed after a first search that is at most so wide, for `wanted` rows of which a share passes the filters:
    /// those of each wider one, which looks again at what the ones before have seen, as likely as it is that there are
    /// too few rows before it.
    fn distances_of_wider(&self, first: f64, wanted: f64, passing: f64) -> f64 {
        let estimated = (wanted / passing * UNLIKE_ESTIMATE) as usize;
        let (mut width, mut distances) = (first, 0.0);
        while self.search(width) < self.live {
            let trusted = width / TRUSTED_DIVISOR as f64;
            let short = too_few(wanted, trusted, passing);
            if short < UNLIKELY {
                break;
            }
            let passed = (trusted * passing) as usize;
            let rows = likely(wanted as usize, estimated, trusted as usize, passed);
            let wider = rows.saturating_mul(TRUSTED_DIVISOR) as f64;
            width = (width * WIDEN as f64).max(wider);
            distances += short * (self.search(width) + self.pending_entries);
        }
        distances
    }

    /// Distances computed by a first search of the least width that there is by default.
    fn usual(&self) -> f64 {
        let walk = |&(n, ef): &(f64, f64)| self.walk(n, ef.min(DEFAULT_EF as f64));
        self.segments.iter().map(walk).sum()
    }

    /// Candidates of the first search of all segments.
    fn first(&self) -> f64 {
        self.segments.iter().map(|(n, ef)| ef.min(*n)).sum()
    }

    /// Candidates of the widest first search of a segment.
    fn widest(&self) -> f64 {
        self.segments.iter().map(|(_, ef)| *ef).fold(1.0, f64::max)
    }

    /// Whether the first search looks at every vector.
    fn is_exhaustive(&self) -> bool {
        let every = |&(n, ef): &(f64, f64)| is_exhaustive_cheaper(n as usize, ef as usize);
        self.segments.iter().all(every)
    }

    fn entries(&self) -> f64 {
        self.live + self.pending_entries
    }
}

/// How likely it is that fewer than `wanted` of the first `rows` pass, of which a share does in the mean.
fn too_few(wanted: f64, rows: f64, passing: f64) -> f64 {
    let (mean, variance) = (rows * passing, rows * passing * (1.0 - passing));
    // Almost the normal distribution's.
    let logistic = |x: f64| 1.0 / (1.0 + (-1.702 * x).exp());
    match variance > 0.0 {
        true => logistic((wanted - 0.5 - mean) / variance.sqrt()),
        false => f64::from(mean < wanted),
    }
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

        // The access method can only order, and by one distance: the server hands it all that is sorted by.
        let orders = (*path).indexorderbys;
        if orders.is_null() || (*orders).length != 1 {
            rule_out(&mut *path, &mut *startup, &mut *total);
            return;
        }
        let mut shape = Shape::read(index);
        // What the index holds and what the operator means are embeddings of different models. The plan
        // is replaced when the setting changes, see `assign_model`.
        if let Some(own) = &shape.model
            && let Some(session) = encode::session_model()
            && session != *own
        {
            notice_model(index, own, &session);
            rule_out(&mut *path, &mut *startup, &mut *total);
            return;
        }
        if shape.foreign {
            let order = node(&*(*orders).elements);
            encode::refuse_mixed_order(order, root);
        }
        let entries = shape.entries();
        let deliverable = match options::iterate() {
            Iterate::Off => shape.first() + shape.pending_entries,
            _ => (options::max_scan_tuples() as f64).max(shape.widest()),
        };
        let wanted = match wanted::rows(root) {
            // It may prove to be more than such a scan gives.
            Wanted::Unknown if deliverable < entries || !shape.complete => Wanted::All,
            wanted => wanted,
        };
        // Joins need not be estimated.
        if wanted == Wanted::All && entries > 0.0 && !shape.is_exhaustive() {
            rule_out(&mut *path, &mut *startup, &mut *total);
            return;
        }
        // Of the rows that pass the table's own conditions, joins may leave out more. What is estimated to have no partner is a
        // small difference of large numbers: were it far too small, other plans would embed all texts.
        let rows = (*index.rel).rows;
        let is_text = shape.model.is_some();
        let joins = joined::left(root, &*index.rel, is_text);
        let left = rows * joins.with * if is_text { 1.0 } else { joins.without };
        let (visited, _) = wanted.of(entries, left);
        let (_, share) = wanted.of(entries, rows * joins.counted_twice);
        // A plan that wants more rows than a scan gives must not get only the nearest of them. One that
        // wants most of them would get those that walks have missed at the end, out of order; for texts that is better than to
        // embed them all where joins leave more than was thought. An
        // index of the first format lacks the rows without a vector; pages of its list may be almost
        // empty.
        let surely = if is_text {
            wanted.of(entries, rows).0
        } else {
            visited
        };
        let most = surely * 2.0 > entries && !shape.is_exhaustive();
        if visited > deliverable || most || (!shape.complete && visited >= shape.live) {
            rule_out(&mut *path, &mut *startup, &mut *total);
            return;
        }

        if options::iterate() == Iterate::Strict
            && let Some(limit) = wanted::limit(root, &*index.rel, wanted)
        {
            let refused = match index.indrestrictinfo.is_null() {
                true => 1.0,
                false => entries / rows.max(1.0),
            };
            shape.widen_for(wanted::at_once(limit, refused));
        }

        let mut random_page = 0.0;
        let mut seq_page = 0.0;
        pg_sys::get_tablespace_page_costs(index.reltablespace, &mut random_page, &mut seq_page);
        let operator = pg_sys::cpu_operator_cost;
        let more_segments = shape.segments.len().saturating_sub(1) as f64;
        let embed = if is_text { EMBED } else { 0.0 };
        let distances = shape.search(0.0) + shape.pending_entries;
        let usual = shape.usual() + shape.pending_entries;
        let is_elsewhere = is_text
            || f64::from((*index.rel).pages) * f64::from(pg_sys::BLCKSZ)
                < table * shape.given_bytes;
        let wider = match is_elsewhere {
            true => shape.distance + WIDER_ELSEWHERE,
            false => WIDER + WIDER_BYTE * shape.bytes,
        };
        // A first search that is wide takes as much, but where all else is priced too low.
        let elsewhere = match shape.foreign {
            true => ELSEWHERE_OF_FOREIGN * shape.distance,
            false => shape.distance,
        };
        let (distance, excess) = match (is_elsewhere, shape.is_exhaustive()) {
            (true, _) => (elsewhere, elsewhere),
            (false, true) => (wider, wider),
            (false, false) => (shape.distance, wider),
        };
        let start = random_page
            + PENDING_PAGE * seq_page * shape.pending_pages
            + operator
                * (OPEN
                    + OPEN_SEGMENT * more_segments
                    + embed
                    + distance * distances.min(usual)
                    + excess * (distances - usual).max(0.0));

        // LIMIT takes a share of what comes after the start, so that share is made to be the work for the rows that are
        // visited.
        let passing = (left / entries.max(1.0)).min(1.0);
        let rest = if options::iterate() == Iterate::Off {
            0.0
        } else if wanted == Wanted::Unknown {
            // It may well be less: by the distances alone, of the last search and as many before.
            let candidates = visited * TRUSTED_DIVISOR as f64;
            let last = shape.search(candidates) + shape.pending_entries;
            let is_wider = candidates > shape.widest();
            f64::from(is_wider) * operator * shape.distance * 2.0 * last
        } else {
            operator * wider * shape.distances_of_wider(shape.widest(), visited * passing, passing)
        };
        *startup = start;
        *total = start + (rest + VISIT * pg_sys::cpu_tuple_cost * visited) / share;

        // Where joins leave more rows than the server thinks, it also takes more of the scan to be read than will be, and fewer
        // texts to be embedded by plans that sort.
        let more = joins.with * joins.without / joins.counted_twice;
        if more > 1.0 {
            *selectivity /= more;
            if let Wanted::Rows(wanted) = wanted {
                // The executor takes a limit of more than half of them for one that wants most rows ([`super::runs`]): its own,
                // whatever one above it wants.
                let own = match wanted::own_limit(root) {
                    Wanted::Rows(own) => own.max(wanted),
                    _ => wanted,
                };
                let least = 2.0 * own + 1.0;
                (*path).path.rows = ((*path).path.rows / more).max(least).min((*path).path.rows);
            }
            let texts = (more - 1.0) * rows * joins.counted_twice;
            sorted::add(root, (*index.rel).relid, operator * embed * texts);
        }
    }
}
