//! Expressions of plans that the executor has made ready.
#![allow(unsafe_code)]

use pgrx::pg_sys;

/// The value of an expression, and whether it is NULL, as the executor evaluates it (`ExecEvalExprSwitchContext` in
/// `executor.h`): what it needs, and a result that is not passed by value, are in the context's memory for a row.
///
/// # Safety
/// An expression of a run that goes on, and the context that it is evaluated in. It may raise errors, for which
/// the caller has a guard, and over which no Rust that is to be dropped may lie.
pub unsafe fn evaluate(
    state: *mut pg_sys::ExprState,
    context: *mut pg_sys::ExprContext,
) -> (pg_sys::Datum, bool) {
    // SAFETY: by contract.
    unsafe {
        let before = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = (*context).ecxt_per_tuple_memory;
        let mut is_null = false;
        let evaluate = (*state).evalfunc.expect("it is ready to run");
        let value = evaluate(state, context, &raw mut is_null);
        pg_sys::CurrentMemoryContext = before;
        (value, is_null)
    }
}
