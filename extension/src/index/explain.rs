//! `EXPLAIN` names the models of the text indexes that a plan searches.
//!
//! The statement's text says nothing of the model: an index has one of its own. Servers before 18 let
//! nobody add to a node of a plan, so that the line stands at the end, where the plan has been
//! shown and is given up (`ExplainOnePlan` in `src/backend/commands/explain.c` calls `ExecutorEnd` before it writes the
//! time of execution). `EXPLAIN EXECUTE` and auto_explain pass the hook by, and have no such line.
//!
//! Invariant: the hooks call the server without pgrx's guard, as those of [`super::rewrite`] do and for its
//! reason, so that nothing in them may need to be dropped. What is left behind by an error is
//! forgotten when its transaction, or subtransaction, is aborted.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use pgrx::pg_sys;

use super::pages::RelationStore;
use super::rewrite;
use crate::pg::unguarded::{standard_ExecutorEnd, standard_planner};
use laser_index::meta::Meta;

/// A statement that is being explained.
#[derive(Clone, Copy)]
struct Explained {
    output: *mut pg_sys::ExplainState,
    query: *mut pg_sys::Query,
    /// Null until it is planned.
    plan: *mut pg_sys::PlannedStmt,
    transaction: pg_sys::SubTransactionId,
}

impl Explained {
    const NOTHING: Self = Self {
        output: ptr::null_mut(),
        query: ptr::null_mut(),
        plan: ptr::null_mut(),
        transaction: 0,
    };
}

thread_local! {
    static EXPLAINED: Cell<Explained> = const { Cell::new(Explained::NOTHING) };
    static NEXT_EXPLAIN: Cell<pg_sys::ExplainOneQuery_hook_type> = const { Cell::new(None) };
    static NEXT_PLAN: Cell<pg_sys::planner_hook_type> = const { Cell::new(None) };
    static NEXT_END: Cell<pg_sys::ExecutorEnd_hook_type> = const { Cell::new(None) };
}

// As in [`crate::pg::unguarded`].
unsafe extern "C-unwind" {
    fn ExplainPropertyText(
        label: *const c_char,
        value: *const c_char,
        output: *mut pg_sys::ExplainState,
    );
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    fn standard_ExplainOneQuery(
        query: *mut pg_sys::Query,
        options: c_int,
        into: *mut pg_sys::IntoClause,
        output: *mut pg_sys::ExplainState,
        text: *const c_char,
        parameters: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
    );
    #[cfg(not(any(feature = "pg17", feature = "pg18")))]
    fn pg_plan_query(
        query: *mut pg_sys::Query,
        text: *const c_char,
        options: c_int,
        parameters: pg_sys::ParamListInfo,
    ) -> *mut pg_sys::PlannedStmt;
    #[cfg(not(any(feature = "pg17", feature = "pg18")))]
    fn ExplainOnePlan(
        plan: *mut pg_sys::PlannedStmt,
        into: *mut pg_sys::IntoClause,
        output: *mut pg_sys::ExplainState,
        text: *const c_char,
        parameters: pg_sys::ParamListInfo,
        environment: *mut pg_sys::QueryEnvironment,
        duration: *const pg_sys::instr_time,
        buffers: *const pg_sys::BufferUsage,
    );
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_EXPLAIN.set(pg_sys::ExplainOneQuery_hook);
        pg_sys::ExplainOneQuery_hook = Some(explain);
        NEXT_PLAN.set(pg_sys::planner_hook);
        pg_sys::planner_hook = Some(plan);
        NEXT_END.set(pg_sys::ExecutorEnd_hook);
        pg_sys::ExecutorEnd_hook = Some(end);
        pg_sys::RegisterXactCallback(Some(transaction_ends), ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_ends), ptr::null_mut());
    }
}

/// `planner_hook`: finds out which plan is explained.
unsafe extern "C-unwind" fn plan(
    query: *mut pg_sys::Query,
    text: *const c_char,
    options: c_int,
    parameters: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: called by the server, whose arguments are passed on.
    let plan = unsafe {
        match NEXT_PLAN.get() {
            Some(next) => next(query, text, options, parameters),
            None => standard_planner(query, text, options, parameters),
        }
    };
    let explained = EXPLAINED.get();
    if explained.query == query && explained.plan.is_null() && !explained.output.is_null() {
        EXPLAINED.set(Explained { plan, ..explained });
    }
    plan
}

/// `ExplainOneQuery_hook`
unsafe extern "C-unwind" fn explain(
    query: *mut pg_sys::Query,
    options: c_int,
    into: *mut pg_sys::IntoClause,
    output: *mut pg_sys::ExplainState,
    text: *const c_char,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
) {
    // SAFETY: called by the server, whose arguments are passed on.
    unsafe {
        let outer = EXPLAINED.replace(Explained {
            output,
            query,
            plan: ptr::null_mut(),
            transaction: pg_sys::GetCurrentSubTransactionId(),
        });
        match NEXT_EXPLAIN.get() {
            Some(next) => next(query, options, into, output, text, parameters, environment),
            None => standard(query, options, into, output, text, parameters, environment),
        }
        EXPLAINED.set(outer);
    }
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
use standard_ExplainOneQuery as standard;

/// What `ExplainOneQuery` does without a hook, in servers that do not export it.
///
/// # Safety
/// As the hook.
#[cfg(not(any(feature = "pg17", feature = "pg18")))]
unsafe fn standard(
    query: *mut pg_sys::Query,
    options: c_int,
    into: *mut pg_sys::IntoClause,
    output: *mut pg_sys::ExplainState,
    text: *const c_char,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
) {
    // SAFETY: by contract; counters of this process.
    unsafe {
        let before = pg_sys::pgBufferUsage;
        let start = std::time::Instant::now();
        let plan = pg_plan_query(query, text, options, parameters);
        let taken = start.elapsed();
        #[cfg(feature = "pg16")]
        let duration = pg_sys::instr_time {
            ticks: taken.as_nanos() as i64,
        };
        #[cfg(not(feature = "pg16"))]
        let duration = pg_sys::instr_time {
            tv_sec: taken.as_secs() as _,
            tv_nsec: taken.subsec_nanos() as _,
        };
        let mut buffers = pg_sys::BufferUsage::default();
        let counts = match (*output).buffers {
            true => {
                let now = &raw const pg_sys::pgBufferUsage;
                pg_sys::BufferUsageAccumDiff(&mut buffers, now, &before);
                &raw const buffers
            }
            false => ptr::null(),
        };
        ExplainOnePlan(
            plan,
            into,
            output,
            text,
            parameters,
            environment,
            &duration,
            counts,
        );
    }
}

/// `ExecutorEnd_hook`
unsafe extern "C-unwind" fn end(query: *mut pg_sys::QueryDesc) {
    let explained = EXPLAINED.get();
    // SAFETY: the server ends the execution of a plan that exists still, as does what explains it.
    unsafe {
        if !explained.plan.is_null() && (*query).plannedstmt == explained.plan {
            show_models(explained.plan, explained.output);
        }
        match NEXT_END.get() {
            Some(next) => next(query),
            None => standard_ExecutorEnd(query),
        }
    }
}

/// # Safety
/// A complete plan, whose tables and indexes are locked, and what explains it.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn show_models(
    plan: *mut pg_sys::PlannedStmt,
    output: *mut pg_sys::ExplainState,
) {
    // SAFETY: by contract.
    unsafe {
        let mut models: Vec<String> = rewrite::text_indexes(&*plan)
            .into_iter()
            .filter_map(|index| model(index))
            .collect();
        models.sort();
        models.dedup();
        if let Ok(models) = CString::new(models.join(", "))
            && !models.is_empty()
        {
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                ExplainPropertyText(c"Embedding Model".as_ptr(), models.as_ptr(), output);
            });
        }
    }
}

/// The model of a text index; none where its metapage cannot be read, which a search of it reports.
///
/// # Safety
/// The index exists and is locked.
unsafe fn model(index: pg_sys::Oid) -> Option<String> {
    // SAFETY: by contract.
    unsafe {
        let lock = pg_sys::NoLock as pg_sys::LOCKMODE;
        let relation = pg_sys::index_open(index, lock);
        let meta = Meta::read(&RelationStore::new(relation));
        pg_sys::index_close(relation, lock);
        meta.ok().map(|meta| meta.parameters.model)
    }
}

unsafe extern "C-unwind" fn transaction_ends(event: pg_sys::XactEvent::Type, _: *mut c_void) {
    if event == pg_sys::XactEvent::XACT_EVENT_ABORT {
        EXPLAINED.set(Explained::NOTHING);
    }
}

unsafe extern "C-unwind" fn subtransaction_ends(
    event: pg_sys::SubXactEvent::Type,
    which: pg_sys::SubTransactionId,
    _: pg_sys::SubTransactionId,
    _: *mut c_void,
) {
    // Numbers grow: what began in it or in one of its own has its number or a larger one. What began before
    // goes on; an EXPLAIN around one that failed is not shown any more.
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB
        && EXPLAINED.get().transaction >= which
    {
        EXPLAINED.set(Explained::NOTHING);
    }
}
