//! Hands the distance of the row that a scan of a text index has just given to the expressions of a plan
//! that [`super::rewrite`] has made for it.
//!
//! Such an expression has a parameter of the executor, a place in an array that each run of the plan has
//! (`es_param_exec_vals`). [`super::runs`] writes down which scan has which.
//!
//! Invariants:
//! - A place is read by expressions of its scan's node alone, which the executor evaluates between one row
//!   of the scan and the next.
//! - It is NULL unless the scan knows the distance of its current row; the expression then computes it.
//! - Rows that go elsewhere than to the client, as to CREATE TABLE AS, cursors and functions, have what is computed: places stay
//!   NULL, and the scan gives rows in the order of that. So do scans in parallel workers, which do not
//!   know what becomes of their rows; what workers and their leader both run has no places ([`super::rewrite`]).
#![allow(unsafe_code)]

use std::ptr::NonNull;

use pgrx::pg_sys::{self, ParamExecData};

use super::asked;
use super::rewrite::{READ, UNREAD};
use crate::pg::lists::members;
use crate::pg::statement;

/// Where a scan leaves the distance of its current row, as long as it lives.
#[derive(Debug, Clone, Copy)]
pub struct DistanceParam(NonNull<ParamExecData>);

impl DistanceParam {
    /// That of a parameter of a run.
    ///
    /// # Safety
    /// The run has such a parameter.
    pub unsafe fn of(run: &pg_sys::EState, parameter: usize) -> Option<Self> {
        // SAFETY: by contract.
        NonNull::new(unsafe { run.es_param_exec_vals.add(parameter) }).map(Self)
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

/// The number of the first parameter of ours in a statement, which are its last ones, and of all.
///
/// # Safety
/// A statement that is about to run.
pub unsafe fn parameters(statement: &pg_sys::PlannedStmt) -> (usize, usize) {
    // SAFETY: by contract, a list of types.
    unsafe {
        let types = members(statement.paramExecTypes);
        let is_ours = |cell: &&pg_sys::ListCell| [READ, UNREAD].contains(&cell.oid_value);
        let ours = types.iter().rev().take_while(is_ours).count();
        (types.len() - ours, types.len())
    }
}

/// The parameter that a scan sets, in a statement whose first one of ours has this number.
///
/// # Safety
/// A plan of this statement.
pub unsafe fn parameter(plan: &pg_sys::Plan, first: usize) -> Option<usize> {
    // SAFETY: by contract.
    let own = unsafe { pg_sys::bms_next_member(plan.allParam, first as i32 - 1) };
    usize::try_from(own).ok()
}

/// Whether a parameter of ours is one that nothing reads.
///
/// # Safety
/// A statement that has it.
pub unsafe fn is_unread(statement: &pg_sys::PlannedStmt, parameter: usize) -> bool {
    // SAFETY: by contract, a list of types.
    unsafe {
        let type_of = members(statement.paramExecTypes).get(parameter);
        type_of.is_some_and(|cell| cell.oid_value == UNREAD)
    }
}

/// Whether all that a query gives goes to the client at once, or nowhere, as EXPLAIN's. A function, a table and whatever
/// else may compare it with what is computed elsewhere; and what is left in a cursor may be fetched by any of these.
///
/// # Safety
/// A query that runs, and is asked for its first row.
pub unsafe fn goes_to_client(query: *const pg_sys::QueryDesc) -> bool {
    use pg_sys::CommandDest as To;
    // SAFETY: by contract; a portal that is active lives.
    unsafe {
        let Some(receiver) = (*query).dest.as_ref() else {
            return false;
        };
        let portal = pg_sys::ActivePortal.as_ref();
        let portal = portal.filter(|portal| std::ptr::eq(portal.queryDesc, query));
        match receiver.mydest {
            // A cursor that goes back keeps them.
            To::DestRemote | To::DestRemoteExecute => {
                portal.is_some_and(|portal| {
                    portal.cursorOptions & pg_sys::CURSOR_OPT_SCROLL as i32 == 0
                }) && asked::runs_to_end(query)
            }
            To::DestCopyOut => statement::copies_for_client(),
            // What MOVE passes by is a cursor's.
            To::DestNone => portal.is_none(),
            // EXECUTE collects the rows of a portal of its own; so do FETCH, and cursors that outlive their transaction.
            To::DestTuplestore => {
                portal.is_some() && asked::runs_to_end(query) && statement::executes_for_client()
            }
            _ => false,
        }
    }
}
