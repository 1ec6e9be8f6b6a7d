//! Index scans.
#![allow(unsafe_code)]

use laser_index::meta::{META_BLOCK, Meta, Parameters};
use laser_index::metric::Metric;
use laser_index::page::{UNPLACED, address, row_name};
use laser_index::query::Query;
use laser_index::reorder::{Rank, Reorder};
use laser_index::scan::{Distance, EXHAUSTIVE_EF, Iterate, PendingRows, Scan, Settings};
use laser_index::{IndexError, Result, pending};
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pgrx::{PgMemoryContexts, PgSqlErrorCode as Code, pg_sys};

use super::cutoff::Cutoff;
use super::distance_param::DistanceParam;
use super::element::{self, Element};
use super::errors::OrReport;
use super::pages::RelationStore;
use super::rows::{RowCheck, Rows};
use super::runs::{self, AtOnce};
use super::statistics::{self, Counter};
use super::work::{Extent, Work};
use super::{cache, notice, options, unlogged};
use crate::encode::{self, CachedEmbedding};
use crate::pg::encoding;
use crate::pg::errors::{raise, raise_hint};
use crate::pg::interrupts::pause;
use crate::pg::statistics::scans;
use crate::pg::tid::unpack;

/// How far a text's cosine distance may be from that of its embedding when the row was stored: the same model
/// may have run on another processor or GPU since, in other arithmetic. Embeddings with a cosine of
/// 0.9975 give distances that differ by 0.07; `auto` wants 0.9995 of f32. Where it is farther, the server reports
/// that the index returned rows in wrong order.
const MODEL_SLACK: f64 = 0.07;

/// The same for models that sessions run themselves, which sum a table's rows: their order is all that differs.
const SUM_SLACK: f64 = 1e-4;

/// What a scan is looking for.
struct Asked {
    /// The text, in the encoding of the database.
    text: Vec<u8>,
    /// Its embedding.
    known: Rc<CachedEmbedding>,
    /// Whether the model sums rows of a table.
    is_sum: bool,
    /// The session's model, and [`encode::model_changes`] when that was asked for.
    model: Option<String>,
    changes: Cell<u64>,
}

impl Asked {
    /// Whether the session's model is still the same. What `<=>` computes for a row is of that.
    fn is_of_session(&self) -> bool {
        let changes = encode::model_changes();
        let is_same = changes == self.changes.get() || encode::session_model() == self.model;
        if is_same {
            self.changes.set(changes);
        }
        is_same
    }
}

/// How far below its bound a distance may be that the executor computes: only texts have no vector in their table.
fn slack(text: Option<&Asked>) -> f64 {
    match text {
        None => 0.0,
        Some(asked) if asked.is_sum => SUM_SLACK,
        Some(_) => MODEL_SLACK,
    }
}

/// State of a scan between calls. The memory context of the scan drops it, on errors as well.
#[derive(Default)]
struct State {
    scan: Option<Scan>,
    /// The last text asked for and its embedding: a nested loop may ask for it again.
    text: Option<Asked>,
    /// Where the distance of the row that was given last is told: for texts, where the plan reads it.
    place: Option<DistanceParam>,
    /// The rows of the table, if the scan knows its plan: it then gives them in their true order.
    rows: Option<Rc<Rows>>,
    /// How far rows may be, by the filters of its plan.
    cutoff: Option<Rc<Cutoff>>,
    /// Whether it looks at every vector from the beginning: a walk misses rows, which would come out of order at the end of a
    /// scan that goes so far.
    exhaustive: bool,
    /// How many rows its limit wants, and whether who takes them goes wrong where one comes late.
    at_once: Option<AtOnce>,
    /// Rows that wait for their turn.
    held: Reorder,
    /// A row whose visibility, filters and distance are to be checked, and the result.
    unchecked: Option<Row>,
    checked: Option<RowCheck>,
    /// The row that is given to the executor.
    given: Option<Row>,
    /// Whether rows come in the order of distances that are computed from them. It is the order of the index's own
    /// where the executor is told those.
    recheck: bool,
    /// Whether the index may lack rows, see [`Meta::complete`].
    incomplete: bool,
    /// Where the search is counted.
    counts: Option<statistics::Place>,
    /// Rows of the table that it has fetched, or had the executor fetch.
    fetched: u64,
    /// What earlier searches of the scan have done, and what all texts took.
    work: Work,
    /// Blocks of the table, as far as they were counted.
    blocks: u64,
}

impl State {
    /// Ends a search, and counts what it has done.
    fn finish(&mut self) {
        if let Some(search) = self.scan.take() {
            let work = Work::of(&search, std::mem::take(&mut self.fetched));
            if let Some(counts) = self.counts.take() {
                work.count(counts);
            }
            self.work = self.work.and(work);
        }
    }
}

/// What the searches of a scan have done so far.
///
/// # Safety
/// `scan` is a scan of [`begin`].
#[cfg(feature = "pg18")]
pub unsafe fn work(scan: pg_sys::IndexScanDesc) -> Work {
    // SAFETY: by contract.
    let state = unsafe { &*(*scan).opaque.cast::<State>() };
    match &state.scan {
        Some(search) => state.work.and(Work::of(search, state.fetched)),
        None => state.work,
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.finish();
    }
}

thread_local! {
    /// A scan was cut short.
    static NOTIFIED_CUT: Cell<notice::Statement> = Cell::default();
    /// An index lacks rows.
    static NOTIFIED_INCOMPLETE: Cell<notice::Statement> = Cell::default();
    /// Rows came too late.
    static NOTIFIED_LATE: Cell<notice::Statement> = Cell::default();
}

/// Sends a notice of what a scan could not return, once a statement.
fn notify(last: &'static notice::LastNotified, message: impl FnOnce() -> String, hint: &str) {
    notice::notify_once(last, || Some((message(), hint.to_owned())));
}

/// `ambeginscan`
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn begin(
    index: pg_sys::Relation,
    keys: i32,
    orderbys: i32,
) -> pg_sys::IndexScanDesc {
    // SAFETY: the server passes an open index.
    unsafe {
        let scan = pg_sys::RelationGetIndexScan(index, keys, orderbys);
        let state =
            PgMemoryContexts::CurrentMemoryContext.leak_and_drop_on_delete(State::default());
        (*scan).opaque = state.cast();
        // One ordering operator, whose distance of the row is compared with what is left here.
        (*scan).xs_orderbyvals =
            pg_sys::palloc0(size_of::<pg_sys::Datum>() * orderbys.max(1) as usize).cast();
        (*scan).xs_orderbynulls =
            pg_sys::palloc0(size_of::<bool>() * orderbys.max(1) as usize).cast();
        scan
    }
}

/// `amrescan`
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn rescan(
    scan: pg_sys::IndexScanDesc,
    _keys: pg_sys::ScanKey,
    _nkeys: i32,
    orderbys: pg_sys::ScanKey,
    norderbys: i32,
) {
    // SAFETY: the server passes a scan of `begin` and as many keys as it announced there.
    unsafe {
        let state = &mut *(*scan).opaque.cast::<State>();
        state.finish();
        (state.scan, state.held) = (None, Reorder::default());
        state.at_once = None;
        if !orderbys.is_null() && norderbys > 0 {
            std::ptr::copy(orderbys, (*scan).orderByData, norderbys as usize);
        }
    }
}

/// `amendscan`
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn end(scan: pg_sys::IndexScanDesc) {
    // SAFETY: the server passes a scan of `begin`.
    unsafe { *(*scan).opaque.cast::<State>() = State::default() };
}

/// `amgettuple`
///
/// It has no guard of pgrx's: filters, distances and limits of the plan run functions of users, whose errors must keep
/// their fields ([`crate::pg::unguarded`]). So nothing here is to be dropped; what is, [`attach`] and [`step`] have, under guards of
/// their own.
pub unsafe extern "C-unwind" fn next(
    scan: pg_sys::IndexScanDesc,
    direction: pg_sys::ScanDirection::Type,
) -> bool {
    // SAFETY: the server passes a scan of `begin`, whose state nobody else uses while it asks for a row.
    unsafe {
        let state = (*scan).opaque.cast::<State>();
        if (*state).scan.is_none() {
            attach(scan);
            if let Some(cutoff) = &(*state).cutoff {
                cutoff.evaluate();
            }
        }
        loop {
            match step(scan, direction) {
                Step::Given => return true,
                Step::End => return false,
                Step::CheckRow => {}
            }
            if let (Some(rows), Some(row)) = (&(*state).rows, (*state).unchecked) {
                (*state).checked = Some(rows.check_row(scan, unpack(row.tid), row.recheck));
                (*state).fetched += 1;
            }
        }
    }
}

/// Learns what the plan says of a scan that begins.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn attach(scan: pg_sys::IndexScanDesc) {
    // SAFETY: called by `next`.
    unsafe {
        let context = runs::scan_context(scan);
        let state = &mut *(*scan).opaque.cast::<State>();
        (state.place, state.rows, state.cutoff) = (context.place, context.rows, context.cutoff);
        let is_strict = options::iterate() == Iterate::Strict;
        state.exhaustive = context.wants_all && is_strict;
        state.at_once = context.at_once.filter(|_| is_strict);
        let is_final = state.rows.as_deref().is_some_and(Rows::are_final);
        if let Some(wanted) = state.at_once
            && is_final
            && !state.exhaustive
        {
            state.held = Reorder::collecting(wanted.rows);
        }
    }
}

/// Goes on until a row can be given, or is to be checked.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn step(
    scan: pg_sys::IndexScanDesc,
    direction: pg_sys::ScanDirection::Type,
) -> Step {
    if direction != pg_sys::ScanDirection::ForwardScanDirection {
        raise(
            Code::ERRCODE_FEATURE_NOT_SUPPORTED,
            "a laser index cannot be scanned backward",
        );
    }
    // SAFETY: called by `next`.
    unsafe {
        let state = &mut *(*scan).opaque.cast::<State>();
        if state.scan.is_none() {
            let (search, recheck, complete) = start(scan, state);
            (state.scan, state.recheck, state.incomplete) = (Some(search), recheck, !complete);
            (state.unchecked, state.checked) = (None, None);
            let then_all = |wanted: AtOnce| wanted.searched.then_all;
            if recheck && state.text.is_some() && !state.at_once.is_some_and(then_all) {
                // Each row that is kept is embedded: a cursor that is asked for ten is not to wait for as many as its limit.
                state.held = Reorder::default();
            }
            (state.counts, state.fetched) = (statistics::of((*scan).indexRelation), 0);
            if let Some(counts) = state.counts {
                counts.add(Counter::Searches, 1);
            }
        } else if state.checked.is_none()
            && (*scan).kill_prior_tuple
            && let Some(search) = &mut state.scan
        {
            // What no transaction can see is none of the rows that the query has been given.
            search.was_dead();
        }
        if let Some(asked) = &state.text
            && !asked.is_of_session()
        {
            refuse_model((*scan).indexRelation, asked);
        }
        let step = state.step(scan);
        if let (Step::Given, Some(row)) = (step, state.given) {
            (*scan).xs_heaptid = unpack(row.tid);
            (*scan).xs_recheck = false;
            (*scan).xs_recheckorderby = row.recheck;
            *(*scan).xs_orderbynulls = row.value.is_none();
            *(*scan).xs_orderbyvals = pg_sys::Datum::from(row.value.unwrap_or(0.0).to_bits());
        }
        step
    }
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
enum Step {
    /// [`State::given`] is given to the executor.
    Given,
    /// [`State::unchecked`] is to be checked.
    CheckRow,
    /// There is nothing more.
    End,
}

/// A row that was found.
#[derive(Debug, Clone, Copy)]
struct Row {
    tid: u64,
    /// Its place in the order; `None` is NULL.
    value: Option<f64>,
    /// Whether its distance is to be computed, and sorted by: `value` is never above it.
    recheck: bool,
}

impl State {
    /// Goes on until a row can be given, in the true order where the scan checks rows, or is to be checked.
    ///
    /// # Safety
    /// `scan` is the one that has this state.
    unsafe fn step(&mut self, scan: pg_sys::IndexScanDesc) -> Step {
        let Some(search) = self.scan.as_mut() else {
            return Step::End;
        };
        if let (Some(row), Some(checked)) = (self.unchecked.take(), self.checked.take()) {
            match checked {
                RowCheck::Unseen => {}
                RowCheck::Filtered => search.was_refused(),
                RowCheck::Dead => search.was_dead(),
                RowCheck::Passes(_)
                    if !self.recheck && !self.held.is_collecting() && self.held.is_empty() =>
                {
                    self.given = Some(row);
                    return Step::Given;
                }
                RowCheck::Passes(distance) => {
                    let distance = if row.recheck { distance } else { row.value };
                    let (bound, rank) = (Rank::of(row.value), Rank::of(distance));
                    if rank < bound {
                        // SAFETY: by contract.
                        unsafe { blame_file((*scan).indexRelation) };
                        // As the executor says it: an expression has another value than when the row was stored.
                        raise(
                            Code::ERRCODE_INTERNAL_ERROR,
                            "index returned tuples in wrong order",
                        );
                    }
                    if let Err(error) = self.held.hold(bound, rank, row.tid) {
                        super::errors::report(error.into());
                    }
                }
            }
        }
        loop {
            if let Some((rank, tid)) = self.held.pop_due() {
                if let Some(place) = self.place {
                    // SAFETY: the scan is under way.
                    unsafe { place.set(rank.distance().filter(|distance| !distance.is_nan())) };
                }
                self.given = Some(Row {
                    tid,
                    value: rank.distance(),
                    recheck: false,
                });
                return Step::Given;
            }
            if self.held.has_ended() {
                return Step::End;
            }
            pause();
            if self.held.is_collecting() && search.is_about_to_widen() {
                search.start_over();
                self.held.start_over();
            }
            let Some((distance, tid)) = search.next(&pause) else {
                say_end(search, self.incomplete);
                self.held.end();
                continue;
            };
            if search.is_out_of_order() && options::iterate() == Iterate::Strict {
                notify(
                    &NOTIFIED_LATE,
                    || {
                        "an index scan missed rows that it gives now, after farther ones: the query's order may be wrong"
                            .into()
                    },
                    "Increase laser.ef_search",
                );
            }
            // SAFETY: by contract.
            unsafe { expect_in_table(scan, tid, &mut self.blocks) };
            let (value, recheck) = match distance {
                Distance::Known(known) if self.recheck => {
                    (Some(known.lower - slack(self.text.as_ref())), true)
                }
                Distance::Known(known) => (Some(known.estimate), false),
                Distance::Undirected => (Some(f64::NAN), false),
                Distance::Null => (None, false),
            };
            if let Some(place) = self.place {
                let known = matches!(distance, Distance::Known(_)).then_some(value);
                // SAFETY: the scan is under way.
                unsafe { place.set(known.flatten()) };
            }
            let row = Row {
                tid,
                value,
                recheck,
            };
            let Some(rows) = &self.rows else {
                self.fetched += u64::from(recheck);
                self.given = Some(row);
                return Step::Given;
            };
            if !self.recheck
                && rows.all_pass()
                && self.held.is_empty()
                && !self.held.is_collecting()
            {
                self.given = Some(row);
                return Step::Given;
            }
            self.unchecked = Some(row);
            return Step::CheckRow;
        }
    }
}

/// Raises an error for the address of a row that its table cannot have, which the table would raise one for that names
/// neither index nor file. `blocks` are those of the table, as far as they were counted.
///
/// # Safety
/// The scan is under way.
unsafe fn expect_in_table(scan: pg_sys::IndexScanDesc, tid: u64, blocks: &mut u64) {
    let block = address(tid) >> 16;
    if block < *blocks {
        return;
    }
    // SAFETY: by contract; both relations are open.
    unsafe {
        let (heap, index) = ((*scan).heapRelation, (*scan).indexRelation);
        let main = pg_sys::ForkNumber::MAIN_FORKNUM;
        *blocks = match std::ptr::eq((*heap).rd_tableam, pg_sys::GetHeapamTableAmRoutine()) {
            true => pg_sys::RelationGetNumberOfBlocksInFork(heap, main).into(),
            false => u64::MAX,
        };
        if block >= *blocks {
            blame_file(index);
            raise_hint(
                Code::ERRCODE_INDEX_CORRUPTED,
                format!(
                    "index \"{}\" leads to {}, but its table has {blocks} blocks",
                    encoding::name_of(index),
                    row_name(tid),
                ),
                "The table is not affected. Rebuild the index with REINDEX; laser_index_check() gives details.",
            );
        }
    }
}

/// Raises the error for a query that is read further after `laser.model` was changed.
///
/// # Safety
/// The index is open.
unsafe fn refuse_model(index: pg_sys::Relation, asked: &Asked) -> ! {
    let began = asked.model.as_deref().unwrap_or_default();
    let model = encode::session_model().unwrap_or_default();
    raise_hint(
        Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!(
            "the search in index \"{}\" began with model \"{began}\", this session's is now \"{model}\"",
            // SAFETY: by contract.
            unsafe { encoding::name_of(index) }
        ),
        "Set laser.model before a query or a cursor begins, and not in functions that it calls.",
    )
}

/// Raises an error if a file that was opened without being verified is to blame for what cannot be.
///
/// # Safety
/// The index is open.
unsafe fn blame_file(index: pg_sys::Relation) {
    // SAFETY: by contract.
    if let Some(path) = unsafe { cache::remove_damaged(index) } {
        raise_hint(
            Code::ERRCODE_INDEX_CORRUPTED,
            format!(
                "file \"{}\" of index \"{}\" is damaged",
                path.display(),
                // SAFETY: by contract.
                unsafe { encoding::name_of(index) }
            ),
            "Run the statement again: the file was removed, and is made again from the index, which is not affected. Check the \
             disk that it was on.",
        );
    }
}

/// Says what a search that has ended could not give.
fn say_end(search: &Scan, incomplete: bool) {
    if search.was_cut() {
        let most = options::max_scan_tuples();
        notify(
            &NOTIFIED_CUT,
            || {
                format!(
                    "an index scan ended after laser.max_scan_tuples ({most}) rows: the query may lack rows"
                )
            },
            "Increase laser.max_scan_tuples",
        );
    } else if incomplete && search.wants_unplaced() && options::iterate() != Iterate::Off {
        notify(
            &NOTIFIED_INCOMPLETE,
            || {
                "an index scan ended in an index of an older format, which lacks the rows without a vector: \
                 the query may lack rows"
                    .into()
            },
            "REINDEX the index",
        );
    }
}

/// The search, whether its distances are to be compared with true ones, and whether every row of the
/// table is in the index.
///
/// # Safety
/// `scan` is a scan of `begin` with its keys.
unsafe fn start(scan: pg_sys::IndexScanDesc, state: &mut State) -> (Scan, bool, bool) {
    // SAFETY: by contract.
    unsafe {
        if (*scan).numberOfOrderBys < 1 {
            raise(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "a laser index cannot be scanned without ORDER BY",
            );
        }
        let snapshot = (*scan).xs_snapshot;
        let mvcc = [
            pg_sys::SnapshotType::SNAPSHOT_MVCC,
            pg_sys::SnapshotType::SNAPSHOT_HISTORIC_MVCC,
        ];
        if !snapshot.is_null() && !mvcc.contains(&(*snapshot).snapshot_type) {
            // Addresses of rows may be used again while a scan is under way; an MVCC snapshot is
            // too old to see the rows that use them.
            raise(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "a laser index needs an MVCC snapshot",
            );
        }
        count(scan);
        let index = (*scan).indexRelation;
        unlogged::reset_unlogged(index);
        let store = RelationStore::for_scan(index, snapshot);
        let key = &*(*scan).orderByData;
        let null = key.sk_flags & pg_sys::SK_ISNULL as i32 != 0;
        let mut attempts = 0;
        loop {
            let meta = Meta::read(&store).or_report();
            let (parameters, complete) = (meta.parameters, meta.complete);
            let query = query(
                index,
                &parameters,
                (!null).then_some(key.sk_argument),
                (&mut state.text, &mut state.work.embedding),
            );
            let recheck = state.place.is_none();
            let (mut cutoff, mut undirected) = (f64::INFINITY, false);
            if let Some(limits) = &state.cutoff {
                (cutoff, undirected) = limits.distance((!null).then_some(key.sk_argument));
                if recheck {
                    cutoff += slack(state.text.as_ref());
                }
                if undirected && parameters.metric == Metric::Cosine {
                    // pgvector gives NaN for vectors that laser knows a direction of; their bound is zero.
                    cutoff = cutoff.max(0.0);
                }
            }
            let settings = Settings {
                ef: match state.exhaustive {
                    true => EXHAUSTIVE_EF,
                    false => options::ef_search(options::of(index).ef_search),
                },
                iterate: options::iterate(),
                max_tuples: options::max_scan_tuples(),
                recheck,
                cutoff,
                undirected,
                at_once: state.at_once.map(|wanted| wanted.searched),
            };
            match open(index, &store, &parameters, &query, settings) {
                Ok((scan, extent)) => {
                    state.work.extent = extent;
                    if !null {
                        statistics::queries::record(index, &parameters, &query);
                    }
                    return (scan, recheck, complete);
                }
                // A merge has replaced what the metapage said; the new one says where it is now. Or the
                // first vector has come, and with it the number of dimensions.
                Err(IndexError::Moved { .. }) if attempts < 100 => attempts += 1,
                Err(error) => super::errors::report(error),
            }
        }
    }
}

/// Counts a search: for `pg_stat_all_indexes.idx_scan` as `pgstat_count_index_scan` in `pgstat.h`
/// does, and for `EXPLAIN (ANALYZE)` where the server shows it.
///
/// # Safety
/// `scan` is a scan of `begin`.
unsafe fn count(scan: pg_sys::IndexScanDesc) {
    // SAFETY: by contract. The statistics belong to the open index; there are none where they are
    // switched off.
    unsafe {
        let index = (*scan).indexRelation;
        #[cfg(not(feature = "pg14"))]
        if (*index).pgstat_info.is_null() && (*index).pgstat_enabled {
            pg_sys::pgstat_assoc_relation(index);
        }
        if let Some(searches) = scans(index) {
            *searches += 1;
        }
        #[cfg(feature = "pg18")]
        if let Some(instrument) = (*scan).instrument.as_mut() {
            instrument.nsearches += 1;
        }
    }
}

/// # Safety
/// `index` is open; the datum is of the type that it expects.
unsafe fn query(
    index: pg_sys::Relation,
    parameters: &Parameters,
    datum: Option<pg_sys::Datum>,
    (text, embedding): (&mut Option<Asked>, &mut Duration),
) -> Query {
    let arithmetic = element::of(parameters).arithmetic();
    let query = |x: &[f32]| {
        Query::new(parameters.metric, parameters.dims, x).map(|query| query.compared_by(arithmetic))
    };
    let Some(datum) = datum.filter(|_| !parameters.is_undecided()) else {
        // Nothing is nearer to NULL than anything else, and rows without a vector are near to nothing.
        return query(&vec![0.0; parameters.dims]).or_report();
    };
    // SAFETY: by contract.
    unsafe {
        match element::of(parameters) {
            Element::Text => {
                let asked = element::text(datum);
                let text = match text {
                    Some(known) if known.text == asked && known.is_of_session() => known,
                    _ => {
                        let name = encoding::name_of(index);
                        let begun = Instant::now();
                        let known = element::embed_query(parameters, &name, &asked);
                        *embedding += begun.elapsed();
                        let is_sum = encode::is_resident();
                        text.insert(Asked {
                            text: asked,
                            known,
                            is_sum,
                            model: encode::session_model(),
                            changes: Cell::new(encode::model_changes()),
                        })
                    }
                };
                query(&text.known.data).or_report()
            }
            element => element::with_vector(element, datum, query).or_report(),
        }
    }
}

/// Opens everything that one version of the metapage refers to.
///
/// # Safety
/// `index` is open and `store` its pages.
unsafe fn open(
    index: pg_sys::Relation,
    store: &RelationStore,
    parameters: &Parameters,
    query: &Query,
    settings: Settings,
) -> Result<(Scan, Extent)> {
    let meta = Meta::read(store)?;
    if meta.parameters != *parameters {
        return Err(IndexError::Moved {
            block: META_BLOCK,
            owner: 0,
        });
    }
    // SAFETY: by contract.
    let views = unsafe { cache::views(index, store, &meta) }?;
    let rows = pending_rows(store, &meta, query)?;
    let ef = views.iter().map(|view| match settings.ef {
        0 => view.ef(),
        ef => ef,
    });
    let extent = Extent {
        segments: views.len(),
        pending: rows.placed.len() + rows.unplaced.len(),
        ef: ef.max().unwrap_or(0),
    };
    Ok((Scan::new(query, settings, views, rows), extent))
}

/// The live rows of the pending list.
pub fn pending_rows(store: &RelationStore, meta: &Meta, query: &Query) -> Result<PendingRows> {
    let mut rows = PendingRows::default();
    let mut x = Vec::new();
    pending::read(store, &meta.parameters, &meta.pending, true, |entry| {
        if !entry.is_live() {
        } else if entry.tid & UNPLACED != 0 {
            rows.unplaced.push(entry.tid);
        } else {
            let error = entry.decode(&meta.parameters, &mut x);
            rows.placed.push((query.measure(&x, error), entry.tid));
        }
    })?;
    Ok(rows)
}
