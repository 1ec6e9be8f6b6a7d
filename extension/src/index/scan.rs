//! Index scans.
#![allow(unsafe_code)]

use laser_index::meta::{Meta, Parameters};
use laser_index::page::UNPLACED;
use laser_index::query::Query;
use laser_index::scan::{Distance, Iterate, PendingRows, Scan, Settings};
use laser_index::{IndexError, Result, pending};
use std::cell::Cell;

use pgrx::{PgLogLevel, PgMemoryContexts, PgSqlErrorCode as Code, ereport, pg_sys};

use super::build::{pause, unpack};
use super::element::{self, Element};
use super::errors::OrReport;
use super::pages::RelationStore;
use super::{cache, options, undecided};
use crate::types::raise;

/// State of a scan between calls. The memory context of the scan drops it, on errors as well.
#[derive(Default)]
struct State {
    scan: Option<Scan>,
    /// The last text asked for and its embedding: a nested loop may ask for it again.
    text: Option<(Vec<u8>, Vec<f32>)>,
    /// Whether the table has the vectors themselves. Those of texts are in the index alone: what
    /// the model says of a text now may differ from them by its rounding.
    recheck: bool,
}

thread_local! {
    /// Start of the last statement that was told of a scan that ended early.
    static TOLD: Cell<pg_sys::TimestampTz> = const { Cell::new(0) };
}

/// Says, once a statement, that a scan has ended before it had given all rows.
fn notice_cut() {
    // SAFETY: a plain question to the server.
    let statement = unsafe { pg_sys::GetCurrentStatementStartTimestamp() };
    if !options::scan_notices() || TOLD.replace(statement) == statement {
        return;
    }
    ereport!(
        PgLogLevel::NOTICE,
        Code::ERRCODE_SUCCESSFUL_COMPLETION,
        format!(
            "an index scan ended after laser.max_scan_tuples ({}) rows: the query may lack rows",
            options::max_scan_tuples()
        ),
        "Increase laser.max_scan_tuples, or set laser.scan_notices = off to hide this notice."
    );
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
        (*(*scan).opaque.cast::<State>()).scan = None;
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
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn next(
    scan: pg_sys::IndexScanDesc,
    direction: pg_sys::ScanDirection::Type,
) -> bool {
    // SAFETY: the server passes a scan of `begin`.
    unsafe {
        if direction != pg_sys::ScanDirection::ForwardScanDirection {
            raise(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "a laser index cannot be scanned backward",
            );
        }
        let state = &mut *(*scan).opaque.cast::<State>();
        if state.scan.is_none() {
            let (search, recheck) = start(scan, &mut state.text);
            (state.scan, state.recheck) = (Some(search), recheck);
        }
        let search = state.scan.as_mut().expect("started above");
        let Some((distance, tid)) = search.next(&pause) else {
            if search.was_cut() {
                notice_cut();
            }
            return false;
        };
        (*scan).xs_heaptid = unpack(tid);
        (*scan).xs_recheck = false;
        let (value, recheck) = match distance {
            // The executor computes the distance itself, and sorts by it: what is given here is
            // never above it.
            Distance::Known(known) if state.recheck => (Some(known.lower), true),
            Distance::Known(known) => (Some(known.estimate), false),
            Distance::Undirected => (Some(f64::NAN), false),
            Distance::Null => (None, false),
        };
        (*scan).xs_recheckorderby = recheck;
        *(*scan).xs_orderbynulls = value.is_none();
        *(*scan).xs_orderbyvals = pg_sys::Datum::from(value.unwrap_or(0.0).to_bits());
        true
    }
}

/// # Safety
/// `scan` is a scan of `begin` with its keys.
unsafe fn start(
    scan: pg_sys::IndexScanDesc,
    text: &mut Option<(Vec<u8>, Vec<f32>)>,
) -> (Scan, bool) {
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
        let store = RelationStore::new(index);
        let parameters = Meta::read(&store).or_report().parameters;
        if undecided::is_undecided(&parameters) {
            // No row has come that this snapshot could see.
            let zero = [0.0; undecided::NO_DIMENSIONS];
            let nothing = Query::new(parameters.metric, zero.len(), &zero).or_report();
            let settings = Settings {
                ef: 1,
                iterate: Iterate::Off,
                max_tuples: 1,
                recheck: false,
            };
            let scan = Scan::new(&nothing, settings, Vec::new(), PendingRows::default());
            return (scan, false);
        }
        let key = &*(*scan).orderByData;
        let null = key.sk_flags & pg_sys::SK_ISNULL as i32 != 0;
        let query = query(&parameters, (!null).then_some(key.sk_argument), text);
        let settings = Settings {
            ef: options::ef_search(),
            iterate: options::iterate(),
            max_tuples: options::max_scan_tuples(),
            recheck: element::of(&parameters) != Element::Text,
        };
        let mut attempts = 0;
        loop {
            match open(index, &store, &query, settings) {
                Ok(scan) => return (scan, settings.recheck),
                // A merge has replaced what the metapage said; the new one says where it is now.
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
        if let Some(statistics) = (*index).pgstat_info.as_mut() {
            #[cfg(any(feature = "pg14", feature = "pg15"))]
            let searches = &mut statistics.t_counts.t_numscans;
            #[cfg(not(any(feature = "pg14", feature = "pg15")))]
            let searches = &mut statistics.counts.numscans;
            *searches += 1;
        }
        #[cfg(feature = "pg18")]
        if let Some(instrument) = (*scan).instrument.as_mut() {
            instrument.nsearches += 1;
        }
    }
}

/// # Safety
/// The datum is of the type that the index expects.
unsafe fn query(
    parameters: &Parameters,
    datum: Option<pg_sys::Datum>,
    text: &mut Option<(Vec<u8>, Vec<f32>)>,
) -> Query {
    let query = |x: &[f32]| Query::new(parameters.metric, parameters.dims, x);
    let Some(datum) = datum else {
        // Nothing is nearer to NULL than anything else.
        return query(&vec![0.0; parameters.dims]).or_report();
    };
    // SAFETY: by contract.
    unsafe {
        match element::of(parameters) {
            Element::Text => {
                let asked = element::text(datum);
                if text.as_ref().is_none_or(|(known, _)| *known != asked) {
                    let x = element::embed(parameters, &[&asked]);
                    *text = Some((asked, x));
                }
                query(&text.as_ref().expect("embedded above").1).or_report()
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
    query: &Query,
    settings: Settings,
) -> Result<Scan> {
    let meta = Meta::read(store)?;
    // SAFETY: by contract.
    let views = unsafe { cache::views(index, store, &meta) }?;
    let rows = pending_rows(store, &meta, query)?;
    Ok(Scan::new(query, settings, views, rows))
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
