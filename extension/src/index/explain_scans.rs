//! `EXPLAIN (LASER)`: what the scans of laser indexes have searched, at the nodes of the plan.
//!
//! PostgreSQL 18 lets an extension add lines to a node, and options to the statement. There is an option, as
//! `pg_overexplain` has some, so that a plan is printed as it always was for whoever did not ask.
//!
//! Numbers are those of all searches of a node, but for its segments and candidates, which are those of the last one. They are kept in the
//! scan, and a worker's scan is gone with it: a node that workers have run has none.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use laser_index::meta::Meta;
use pgrx::pg_sys::{self, NodeTag};

use super::pages::RelationStore;
use super::work::Work;
use super::{build, scan};

/// The option's name, and that of what is kept of it while a statement is explained.
const OPTION: &CStr = c"laser";

thread_local! {
    static NEXT: Cell<pg_sys::explain_per_node_hook_type> = const { Cell::new(None) };
    /// The server's number for [`OPTION`].
    static ID: Cell<c_int> = const { Cell::new(0) };
}

// As in [`crate::pg::unguarded`].
unsafe extern "C-unwind" {
    fn defGetBoolean(option: *mut pg_sys::DefElem) -> bool;
    fn GetExplainExtensionState(output: *mut pg_sys::ExplainState, id: c_int) -> *mut c_void;
    fn SetExplainExtensionState(output: *mut pg_sys::ExplainState, id: c_int, state: *mut c_void);
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before. The server keeps a pointer to the name.
    unsafe {
        ID.set(pg_sys::GetExplainExtensionId(OPTION.as_ptr()));
        pg_sys::RegisterExtensionExplainOption(OPTION.as_ptr(), Some(option));
        NEXT.set(pg_sys::explain_per_node_hook);
        pg_sys::explain_per_node_hook = Some(node);
    }
}

/// What the server calls for the option.
unsafe extern "C-unwind" fn option(
    output: *mut pg_sys::ExplainState,
    option: *mut pg_sys::DefElem,
    _: *mut pg_sys::ParseState,
) {
    // SAFETY: called by the server. What is kept is a flag, which nobody takes for an address.
    unsafe {
        let is_on = ptr::without_provenance_mut(usize::from(defGetBoolean(option)));
        SetExplainExtensionState(output, ID.get(), is_on);
    }
}

/// `explain_per_node_hook`
unsafe extern "C-unwind" fn node(
    state: *mut pg_sys::PlanState,
    ancestors: *mut pg_sys::List,
    relationship: *const c_char,
    name: *const c_char,
    output: *mut pg_sys::ExplainState,
) {
    // SAFETY: called by the server, whose arguments are passed on; a node is what its tag says.
    unsafe {
        if let Some(next) = NEXT.get() {
            next(state, ancestors, relationship, name, output);
        }
        if (*state).type_ == NodeTag::T_IndexScanState
            && !GetExplainExtensionState(output, ID.get()).is_null()
        {
            show(state.cast(), output);
        }
    }
}

/// # Safety
/// The state of a node, whose table and index are locked, and what explains it.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn show(
    state: *mut pg_sys::IndexScanState,
    output: *mut pg_sys::ExplainState,
) {
    // SAFETY: by contract. Without ANALYZE the state has no index open, and it may be one that another extension has
    // made up.
    unsafe {
        let index = pg_sys::RelationIdGetRelation(
            (*(*state).ss.ps.plan.cast::<pg_sys::IndexScan>()).indexid,
        );
        if index.is_null() {
            return;
        }
        let meta = build::is_laser(index).then(|| Meta::read(&RelationStore::new(index)));
        pg_sys::RelationClose(index);
        let Some(meta) = meta else { return };
        // Where it cannot be read, a search reports it.
        let model = meta.map(|meta| meta.parameters.model).unwrap_or_default();
        let is_text = !model.is_empty();
        if let Ok(model) = CString::new(model)
            && is_text
        {
            pg_sys::ExplainPropertyText(c"Embedding Model".as_ptr(), model.as_ptr(), output);
        }
        if (*output).analyze && !ran_in_workers(&(*state).ss.ps) {
            show_work(state, is_text, output);
        }
    }
}

/// # Safety
/// As [`show`], of a statement that has run.
unsafe fn show_work(
    state: *mut pg_sys::IndexScanState,
    is_text: bool,
    output: *mut pg_sys::ExplainState,
) {
    // SAFETY: by contract. A scan begins with its first row, so that the node may have none.
    unsafe {
        let work = match (*state).iss_ScanDesc {
            scan if scan.is_null() => Work::default(),
            scan => scan::work(scan),
        };
        if is_text && (*output).timing {
            let milliseconds = work.embedding.as_secs_f64() * 1000.0;
            let (label, unit) = (c"Embedding Time".as_ptr(), c"ms".as_ptr());
            pg_sys::ExplainPropertyFloat(label, unit, milliseconds, 3, output);
        }
        for (label, number) in [
            (c"Segments", work.extent.segments as u64),
            (c"Pending Rows", work.extent.pending as u64),
            (c"Ef Search", work.extent.ef as u64),
            (c"Visited Vectors", work.visited),
            (c"Reranked Rows", work.reranked),
            (c"Widened Searches", work.widened),
            (c"Cut Searches", work.cut),
        ] {
            pg_sys::ExplainPropertyUInteger(label.as_ptr(), ptr::null(), number, output);
        }
    }
}

/// Whether some of a node's rows come from workers.
///
/// # Safety
/// The state of a node that has run.
unsafe fn ran_in_workers(state: &pg_sys::PlanState) -> bool {
    // SAFETY: by contract; behind the number there are as many counts.
    unsafe {
        state.worker_instrument.as_ref().is_some_and(|workers| {
            let counts = workers.instrument.as_slice(workers.num_workers as usize);
            counts.iter().any(|counts| counts.nloops > 0.0)
        })
    }
}
