//! Hands the distance of the row that a scan of a text index has just given to the expressions of a plan
//! that [`super::rewrite`] has made for it.
//!
//! Such an expression has a parameter of the executor, a place in an array that each run of the plan has
//! (`es_param_exec_vals`). When a run begins, the scans of the plan and their places are written down here;
//! a scan that is asked for its first row looks itself up.
//!
//! Invariants:
//! - What is written down of a run goes with the memory context of that run, before the run's own memory
//!   does, after errors as well.
//! - A place is read by expressions of its scan's node alone, which the executor evaluates between one row
//!   of the scan and the next.
//! - It is NULL unless the scan knows the distance of its current row; the expression then computes it.
//! - Rows that are kept, as by CREATE TABLE AS, have what is computed: places stay NULL, and the scan gives
//!   rows in the order of that. So do scans in parallel workers, which do not
//!   know what becomes of their rows; what workers and their leader both run has no places ([`super::rewrite`]).
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::NonNull;

use pgrx::pg_sys::{self, NodeTag};
use pgrx::{PgMemoryContexts, pg_sys::ParamExecData};

use super::rewrite::TYPE;
use crate::lists::members;

/// A scan of a run.
struct Scan {
    /// The run's memory context (`es_query_cxt`).
    run: pg_sys::MemoryContext,
    node: *const pg_sys::IndexScanState,
    place: NonNull<ParamExecData>,
    query: *const pg_sys::QueryDesc,
}

thread_local! {
    static NEXT_HOOK: Cell<pg_sys::ExecutorStart_hook_type> = const { Cell::new(None) };
    static SCANS: RefCell<Vec<Scan>> = const { RefCell::new(Vec::new()) };
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_HOOK.set(pg_sys::ExecutorStart_hook);
        pg_sys::ExecutorStart_hook = Some(start);
    }
}

/// Where a scan leaves the distance of its current row, as long as it lives.
#[derive(Debug, Clone, Copy)]
pub struct Place(NonNull<ParamExecData>);

impl Place {
    /// That of a scan, which begins to give rows, if its plan has one for it.
    pub fn of(scan: pg_sys::IndexScanDesc) -> Option<Self> {
        // SAFETY: set when a worker starts.
        if unsafe { pg_sys::ParallelWorkerNumber } >= 0 {
            return None;
        }
        SCANS.with_borrow(|scans| {
            // SAFETY: nodes and the query live as long as the run, and with that what is written down of them.
            // Where its rows go is known once it runs.
            unsafe {
                let own = |entry: &&Scan| std::ptr::eq((*entry.node).iss_ScanDesc, scan);
                let own = scans.iter().rev().find(own);
                let own = own.filter(|own| !is_kept((*own.query).dest));
                own.map(|own| Self(own.place))
            }
        })
    }

    /// Tells the distance of the row that the scan gives now, if it knows that.
    ///
    /// # Safety
    /// The scan is under way.
    pub unsafe fn set(mut self, distance: Option<f64>) {
        // SAFETY: the run's array lives as long as the run, longer than its scans.
        unsafe {
            let place = self.0.as_mut();
            place.value = pg_sys::Datum::from(distance.unwrap_or(0.0).to_bits());
            place.isnull = distance.is_none();
        }
    }
}

/// Forgets a run when its memory goes.
struct Run(pg_sys::MemoryContext);

impl Drop for Run {
    fn drop(&mut self) {
        // When the session ends, thread-locals may be gone before the last contexts.
        let _ = SCANS.try_with(|scans| {
            // It is borrowed where memory has run out while a run was written down.
            if let Ok(mut scans) = scans.try_borrow_mut() {
                scans.retain(|scan| scan.run != self.0);
            }
        });
    }
}

unsafe extern "C-unwind" {
    /// `src/backend/executor/execMain.c`, declared as `standard_planner` is in [`super::rewrite`].
    fn standard_ExecutorStart(query: *mut pg_sys::QueryDesc, flags: i32);
}

/// The executor's errors pass over this function as over one in C, for the reasons that
/// [`super::rewrite`] has.
unsafe extern "C-unwind" fn start(query: *mut pg_sys::QueryDesc, flags: i32) {
    // SAFETY: called by the server with a query; afterwards it has a state, and nodes if it is to run.
    unsafe {
        match NEXT_HOOK.get() {
            Some(next) => next(query, flags),
            None => standard_ExecutorStart(query, flags),
        }
        write_down(query);
    }
}

/// Writes down the scans of a run.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn write_down(query: *mut pg_sys::QueryDesc) {
    // SAFETY: the server has just made ready to run this query.
    unsafe {
        let (state, nodes) = ((*query).estate, (*query).planstate);
        // Parameters of ours are the last ones.
        let types = members((*(*query).plannedstmt).paramExecTypes);
        let is_ours = |cell: &&pg_sys::ListCell| cell.oid_value == TYPE;
        let ours = types.iter().rev().take_while(is_ours).count();
        if ours == 0 || state.is_null() || nodes.is_null() {
            return;
        }
        let (first, places) = (types.len() - ours, (*state).es_param_exec_vals);
        for parameter in first..types.len() {
            (*places.add(parameter)).isnull = true;
        }
        let mut collected = Collected {
            first,
            found: Vec::new(),
        };
        visit(nodes, (&raw mut collected).cast());
        let run = (*state).es_query_cxt;
        PgMemoryContexts::For(run).leak_and_drop_on_delete(Run(run));
        SCANS.with_borrow_mut(|scans| {
            for (node, parameter) in collected.found {
                let place = NonNull::new_unchecked(places.add(parameter));
                scans.push(Scan {
                    run,
                    node,
                    place,
                    query,
                });
            }
        });
    }
}

/// Whether what a query gives is kept in a table: it then computes what it keeps.
///
/// # Safety
/// A receiver of rows, or null.
unsafe fn is_kept(receiver: *mut pg_sys::DestReceiver) -> bool {
    // SAFETY: by contract.
    let receiver = unsafe { receiver.as_ref() };
    receiver.is_some_and(|receiver| {
        matches!(
            receiver.mydest,
            pg_sys::CommandDest::DestIntoRel | pg_sys::CommandDest::DestTransientRel
        )
    })
}

unsafe extern "C-unwind" {
    /// `src/backend/nodes/nodeFuncs.c`
    #[cfg_attr(
        not(any(feature = "pg14", feature = "pg15")),
        link_name = "planstate_tree_walker_impl"
    )]
    fn planstate_tree_walker(
        state: *mut pg_sys::PlanState,
        walker: unsafe extern "C-unwind" fn(*mut pg_sys::PlanState, *mut c_void) -> bool,
        context: *mut c_void,
    ) -> bool;
}

/// What [`visit`] collects: of a plan whose first parameter of ours is this one, and all behind it, pairs of
/// a scan and its parameter.
struct Collected {
    first: usize,
    found: Vec<(*const pg_sys::IndexScanState, usize)>,
}

/// Collects the scans that have a parameter of ours.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn visit(state: *mut pg_sys::PlanState, context: *mut c_void) -> bool {
    // SAFETY: a state of the executor's, or null; the context is what is collected, which nobody else uses
    // meanwhile.
    unsafe {
        if state.is_null() {
            return false;
        }
        if (*state).type_ == NodeTag::T_IndexScanState {
            let collected = &mut *context.cast::<Collected>();
            let before = collected.first as i32 - 1;
            let own = pg_sys::bms_next_member((*(*state).plan).allParam, before);
            if let Ok(own) = usize::try_from(own) {
                collected.found.push((state.cast(), own));
            }
        }
        pg_sys::ffi::pg_guard_ffi_boundary(|| planstate_tree_walker(state, visit, context))
    }
}
