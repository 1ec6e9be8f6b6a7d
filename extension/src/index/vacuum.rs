//! VACUUM.
#![allow(unsafe_code)]

use std::ffi::c_void;

use laser_index::maintain::{self, Plan};
use laser_index::meta::Meta;
use laser_index::{pending, sweep};
use pgrx::pg_sys;

use super::element;
use super::errors::OrReport;
use super::merge;
use super::pages::{MergeLock, RelationStore};
use super::unlogged;
use crate::pg::tid::unpack;

/// # Safety
/// `stats` is null or what an earlier call has returned.
unsafe fn statistics(
    stats: *mut pg_sys::IndexBulkDeleteResult,
) -> &'static mut pg_sys::IndexBulkDeleteResult {
    // SAFETY: by contract; the server owns the result.
    unsafe {
        if stats.is_null() {
            &mut *pg_sys::palloc0(size_of::<pg_sys::IndexBulkDeleteResult>()).cast()
        } else {
            &mut *stats
        }
    }
}

/// `ambulkdelete`: marks dead entries. When it returns, no new scan sees them, and the addresses of
/// their rows may be used again.
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn bulk_delete(
    info: *mut pg_sys::IndexVacuumInfo,
    stats: *mut pg_sys::IndexBulkDeleteResult,
    callback: pg_sys::IndexBulkDeleteCallback,
    state: *mut c_void,
) -> *mut pg_sys::IndexBulkDeleteResult {
    // SAFETY: the server passes an open index and a callback.
    unsafe {
        let stats = statistics(stats);
        let index = (*info).index;
        unlogged::reset_unlogged(index);
        let store = RelationStore::in_vacuum(index);
        let callback = callback.expect("a callback is passed");
        let lock = MergeLock::wait(index);
        let done = maintain::delete(&store, |tid| {
            let mut pointer = unpack(tid);
            // The callback may raise an error, see validate_index_callback().
            pg_sys::ffi::pg_guard_ffi_boundary(|| callback(&mut pointer, state))
        })
        .or_report();
        drop(lock);
        stats.tuples_removed += done.removed as f64;
        stats.num_index_tuples = done.live as f64;
        stats
    }
}

/// `amvacuumcleanup`: merges, and gives space back.
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn cleanup(
    info: *mut pg_sys::IndexVacuumInfo,
    stats: *mut pg_sys::IndexBulkDeleteResult,
) -> *mut pg_sys::IndexBulkDeleteResult {
    // SAFETY: the server passes an open index.
    unsafe {
        unlogged::reset_unlogged((*info).index);
        unlogged::fill_init_fork((*info).index);
        if (*info).analyze_only {
            return stats;
        }
        let stats = statistics(stats);
        let index = (*info).index;
        let store = RelationStore::in_vacuum(index);
        let lock = MergeLock::wait(index);
        // First what merges that failed have left: on a full disk there is no other room for this one.
        sweep::sweep(&store).or_report();
        // Rows that were never committed may have decided the number of dimensions.
        let forget = element::is_undeclared(index) && count(&store) == 0;
        let plan = if forget { Plan::All } else { Plan::Vacuum };
        // A VACUUM that failed here would leave the table's oldest transactions where they are.
        merge::try_merge(index, &store, plan).or_report();
        if forget {
            pending::forget_dimensions(&store).or_report();
        }
        let swept = sweep::sweep(&store).or_report();
        let live = count(&store);
        drop(lock);
        stats.num_pages = swept.pages;
        stats.pages_free = swept.free;
        stats.pages_newly_deleted = stats.pages_newly_deleted.max(swept.reclaimed);
        stats.pages_deleted = swept.free;
        stats.num_index_tuples = live as f64;
        stats.estimated_count = false;
        stats
    }
}

/// Live entries.
fn count(store: &RelationStore) -> u64 {
    let meta = Meta::read(store).or_report();
    let mut live: u64 = meta.segments.iter().map(|s| u64::from(s.live())).sum();
    pending::read(store, &meta.parameters, &meta.pending, true, |entry| {
        live += u64::from(entry.is_live())
    })
    .or_report();
    live
}
