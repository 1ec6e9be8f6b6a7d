//! Index scans.
#![allow(unsafe_code)]

use laser_index::codec::Query;
use laser_index::meta::{Meta, Parameters};
use laser_index::page::DEAD;
use laser_index::scan::{Hit, Iterate, Scan};
use laser_index::{IndexError, Result, pending};
use pgrx::{PgMemoryContexts, PgSqlErrorCode as Code, pg_sys};

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
            state.scan = Some(start(scan, &mut state.text));
        }
        let search = state.scan.as_mut().expect("started above");
        match search.next(&pause) {
            Some((_, tid)) => {
                (*scan).xs_heaptid = unpack(tid);
                (*scan).xs_recheck = false;
                (*scan).xs_recheckorderby = false;
                true
            }
            None => false,
        }
    }
}

/// # Safety
/// `scan` is a scan of `begin` with its keys.
unsafe fn start(scan: pg_sys::IndexScanDesc, text: &mut Option<(Vec<u8>, Vec<f32>)>) -> Scan {
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
            let nothing = parameters.codec.query(&[0.0; undecided::NO_DIMENSIONS]);
            let (nothing, off) = (nothing.or_report(), Iterate::Off);
            return Scan::new(nothing, 1, off, 1, Vec::new(), Vec::new());
        }
        let key = &*(*scan).orderByData;
        let null = key.sk_flags & pg_sys::SK_ISNULL as i32 != 0;
        let query = query(&parameters, (!null).then_some(key.sk_argument), text);
        let mut attempts = 0;
        loop {
            match open(index, &store, &query) {
                Ok(scan) => return scan,
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
    let codec = parameters.codec;
    let Some(datum) = datum else {
        // Nothing is nearer to NULL than anything else.
        return codec.query(&vec![0.0; codec.dims]).or_report();
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
                codec
                    .query(&text.as_ref().expect("embedded above").1)
                    .or_report()
            }
            element => element::with_vector(element, datum, |x| codec.query(x)).or_report(),
        }
    }
}

/// Opens everything that one version of the metapage refers to.
///
/// # Safety
/// `index` is open and `store` its pages.
unsafe fn open(index: pg_sys::Relation, store: &RelationStore, query: &Query) -> Result<Scan> {
    let meta = Meta::read(store)?;
    let codec = meta.parameters.codec;
    // SAFETY: by contract.
    let views = unsafe { cache::views(index, store, &meta) }?;
    let mut list: Vec<Hit> = Vec::new();
    let mut scratch = Vec::new();
    pending::read(store, &codec, &meta.pending, true, |tid, stored| {
        if tid & DEAD == 0 {
            let (graph, fine) = stored.split_at(codec.graph_len());
            list.push((codec.distance(query, graph, fine, &mut scratch), tid));
        }
    })?;
    Ok(Scan::new(
        query.clone(),
        options::ef_search(),
        options::iterate(),
        options::max_scan_tuples(),
        views,
        list,
    ))
}
