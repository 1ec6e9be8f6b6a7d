//! How many rows the innermost query that runs is asked for.
#![allow(unsafe_code)]

use std::cell::Cell;

use pgrx::pg_sys;

use crate::pg::unguarded::standard_ExecutorRun;

thread_local! {
    static NEXT_RUN: Cell<pg_sys::ExecutorRun_hook_type> = const { Cell::new(None) };
    /// The query that runs, and how many of its rows are asked for; zero is all.
    static WANTED: Cell<(*const pg_sys::QueryDesc, u64)> = const { Cell::new((std::ptr::null(), 0)) };
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_RUN.set(pg_sys::ExecutorRun_hook);
        pg_sys::ExecutorRun_hook = Some(run);
    }
}

/// Whether all rows of a query, which has been asked for none before, are asked for now: nobody fetches any later.
pub fn runs_to_end(query: *const pg_sys::QueryDesc) -> bool {
    WANTED.get() == (query, 0)
}

/// Errors pass over this function as over one in C, for the reasons that [`crate::pg::unguarded`] has; what they leave noted is
/// replaced when the next query runs.
#[cfg(not(feature = "pg18"))]
unsafe extern "C-unwind" fn run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    once: bool,
) {
    // SAFETY: called by the server, whose arguments are handed on.
    unsafe {
        let around = WANTED.replace((query, count));
        NEXT_RUN.get().unwrap_or(standard_ExecutorRun)(query, direction, count, once);
        WANTED.set(around);
    }
}

/// The same since PostgreSQL 18.
#[cfg(feature = "pg18")]
unsafe extern "C-unwind" fn run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
) {
    // SAFETY: called by the server, whose arguments are handed on.
    unsafe {
        let around = WANTED.replace((query, count));
        NEXT_RUN.get().unwrap_or(standard_ExecutorRun)(query, direction, count);
        WANTED.set(around);
    }
}
