//! Functions of the server that hooks, scans, walks over trees and threads call, declared without pgrx's guard.
//!
//! pgrx's own declarations make Rust panics of the server's errors, and those are made errors again where the hook
//! ends: they would lose fields, and be garbled in databases that are not UTF-8. Errors of these pass over the
//! hook as over a function in C, so that nothing in it may need to be dropped.
#![allow(unsafe_code, missing_docs)]

use std::ffi::{c_char, c_int, c_void};

use pgrx::pg_sys;

unsafe extern "C-unwind" {
    /// `src/backend/tcop/postgres.c`
    fn ProcessInterrupts();
    /// `src/backend/optimizer/plan/planner.c`
    pub fn standard_planner(
        query: *mut pg_sys::Query,
        text: *const c_char,
        options: c_int,
        parameters: pg_sys::ParamListInfo,
    ) -> *mut pg_sys::PlannedStmt;
    /// `src/backend/tcop/utility.c`
    pub fn standard_ProcessUtility(
        statement: *mut pg_sys::PlannedStmt,
        text: *const c_char,
        read_only: bool,
        context: pg_sys::ProcessUtilityContext::Type,
        parameters: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        destination: *mut pg_sys::DestReceiver,
        completion: *mut pg_sys::QueryCompletion,
    );
    /// `src/backend/executor/execMain.c`
    pub fn standard_ExecutorStart(query: *mut pg_sys::QueryDesc, flags: c_int);
    /// `src/backend/executor/execMain.c`
    pub fn standard_ExecutorRun(
        query: *mut pg_sys::QueryDesc,
        direction: pg_sys::ScanDirection::Type,
        count: u64,
        #[cfg(not(feature = "pg18"))] once: bool,
    );
    /// `src/backend/executor/execMain.c`
    pub fn standard_ExecutorEnd(query: *mut pg_sys::QueryDesc);
    /// `src/backend/nodes/nodeFuncs.c`
    #[cfg_attr(
        not(any(feature = "pg14", feature = "pg15")),
        link_name = "expression_tree_walker_impl"
    )]
    pub fn expression_tree_walker(
        node: *mut pg_sys::Node,
        walker: unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> bool,
        context: *mut c_void,
    ) -> bool;
    /// `src/backend/nodes/nodeFuncs.c`
    #[cfg_attr(
        not(any(feature = "pg14", feature = "pg15")),
        link_name = "query_tree_walker_impl"
    )]
    pub fn query_tree_walker(
        query: *mut pg_sys::Query,
        walker: unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> bool,
        context: *mut c_void,
        flags: i32,
    ) -> bool;
    /// `src/backend/nodes/equalfuncs.c`
    pub fn equal(a: *const c_void, b: *const c_void) -> bool;

    /// `src/backend/nodes/list.c`
    pub fn lappend(list: *mut pg_sys::List, datum: *mut c_void) -> *mut pg_sys::List;

    /// `src/backend/utils/mmgr/mcxt.c`
    pub fn palloc0(size: usize) -> *mut c_void;
    /// `src/backend/utils/cache/lsyscache.c`
    pub fn func_volatile(function: pg_sys::Oid) -> c_char;
    /// `src/backend/storage/ipc/procsignal.c`. It writes shared memory and sends a signal, allocates nothing and raises
    /// nothing: the one function of the server that a thread other than the session's own may call. pgrx's declaration
    /// would refuse that thread.
    pub fn SendProcSignal(
        process: c_int,
        reason: pg_sys::ProcSignalReason::Type,
        backend: c_int,
    ) -> c_int;
    /// `src/backend/utils/mmgr/mcxt.c`
    pub fn MemoryContextReset(context: pg_sys::MemoryContext);
}

/// Lets a cancel or a shutdown through (`CHECK_FOR_INTERRUPTS` in `miscadmin.h`).
///
/// # Safety
/// Nothing in the functions that have called this is to be dropped.
pub unsafe fn check_for_interrupts() {
    // SAFETY: by contract; set by handlers of signals alone.
    unsafe {
        if std::ptr::read_volatile(&raw const pg_sys::InterruptPending) != 0 {
            ProcessInterrupts();
        }
    }
}
