//! INSERT, COPY, and UPDATE where it is not HOT.
#![allow(unsafe_code)]

use laser_index::maintain::Plan;
use laser_index::meta::{Meta, Parameters};
use laser_index::page::{NULL, UNDIRECTED};
use laser_index::{IndexError, Result, pending, space};
use pgrx::pg_sys::{self, Datum};

use super::element::{self, Element};
use super::errors::OrReport;
use super::maintenance::{self, MergeOwner};
use super::merge;
use super::options;
use super::pages::{MergeLock, RelationStore};
use super::undecided;
use super::unlogged;
use crate::pg::tid::pack;

/// `aminsert`: appends to the pending list. Nothing is locked while a text is embedded. A list that has
/// become too long is left to the worker of the database, or merged here where there is none.
#[pgrx::pg_guard]
#[allow(clippy::too_many_arguments)] // the signature is the server's
pub unsafe extern "C-unwind" fn insert(
    index: pg_sys::Relation,
    values: *mut Datum,
    isnull: *mut bool,
    tid: pg_sys::ItemPointer,
    heap: pg_sys::Relation,
    _unique: pg_sys::IndexUniqueCheck::Type,
    _unchanged: bool,
    _info: *mut pg_sys::IndexInfo,
) -> bool {
    // SAFETY: the server passes an open index and one value.
    unsafe {
        unlogged::reset_unlogged(index);
        let store = RelationStore::new(index);
        let tid = pack(tid);
        let mut attempts = 0;
        let (pages, added) = loop {
            match put(&store, tid, (!*isnull).then_some(*values)) {
                // The number of dimensions has been decided or forgotten meanwhile.
                Err(IndexError::Moved { .. }) if attempts < 100 => attempts += 1,
                Ok(put) => break put,
                Err(error) => {
                    let parameters = Meta::read(&store).or_report().parameters;
                    element::of(&parameters).report(error)
                }
            }
        };
        let limit = maintenance::pages_of(options::of(index).pending_list_limit).max(1);
        if pages > limit {
            // The row is in the index already; merging can wait until it can be done.
            if added {
                match maintenance::request_merge(index, heap) {
                    MergeOwner::Worker | MergeOwner::Later(None) => {}
                    MergeOwner::Later(Some(error)) => pgrx::warning!("{error}"),
                    MergeOwner::Session => merge_here(index, &store),
                }
            }
            maintenance::slow_down((*index).rd_id, pages, limit);
        }
        false
    }
}

/// Merges the pending list, unless somebody else does.
///
/// # Safety
/// `index` is open, `store` its pages.
unsafe fn merge_here(index: pg_sys::Relation, store: &RelationStore) {
    // SAFETY: by contract.
    unsafe {
        if merge::may_begin((*index).rd_id)
            && let Some(lock) = MergeLock::attempt(index)
        {
            merge::try_merge(index, store, Plan::Insert).or_report();
            drop(lock);
        }
    }
}

/// Appends a row to the pending list. Returns the pages of the list, and whether one was added.
///
/// # Safety
/// The value is of the type that the index is on.
unsafe fn put(store: &RelationStore, tid: u64, value: Option<Datum>) -> Result<(u64, bool)> {
    let meta = Meta::read(store)?;
    let before = meta.pending.pages();
    // SAFETY: by contract.
    let pages = unsafe { append(store, meta.parameters, tid, value) }?;
    Ok((pages.unwrap_or(before), pages.is_some()))
}

/// # Safety
/// As for [`put`].
unsafe fn append(
    store: &RelationStore,
    mut parameters: Parameters,
    tid: u64,
    value: Option<Datum>,
) -> Result<Option<u64>> {
    let Some(value) = value else {
        return pending::append(store, &parameters, tid | NULL, None);
    };
    // SAFETY: by contract.
    unsafe {
        if parameters.is_undecided() {
            let dims = element::with_vector(element::of(&parameters), value, <[f32]>::len);
            parameters = undecided::decide(store, dims);
        }
        let append = |x: &[f32]| {
            // What has no direction has no place in the graph, but its row is in the index.
            match space::prepare(parameters.metric, parameters.dims, x)? {
                Some(_) => pending::append(store, &parameters, tid, Some(x)),
                None => pending::append(store, &parameters, tid | UNDIRECTED, None),
            }
        };
        match element::of(&parameters) {
            Element::Text => {
                let text = element::text(value);
                append(&element::embed(&parameters, &[&text]))
            }
            element => element::with_vector(element, value, append),
        }
    }
}
