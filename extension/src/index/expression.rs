//! Expressions of plans that the executor has made ready.
#![allow(unsafe_code)]

use pgrx::pg_sys;

/// The value of an expression, and whether it is NULL, as the executor evaluates it (`ExecEvalExprSwitchContext` in
/// `executor.h`): what it needs, and a result that is not passed by value, are in the context's memory for a row.
///
/// # Safety
/// An expression of a run that goes on, and the context that it is evaluated in. Its errors pass over this, and over all
/// functions up to the server's or to a guard: in none of them may anything need to be dropped.
pub unsafe fn evaluate(
    state: *mut pg_sys::ExprState,
    context: *mut pg_sys::ExprContext,
) -> (pg_sys::Datum, bool) {
    // SAFETY: by contract.
    unsafe {
        let before = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = (*context).ecxt_per_tuple_memory;
        let mut is_null = (*state).evalfunc.is_none();
        let value = match (*state).evalfunc {
            Some(evaluate) => evaluate(state, context, &raw mut is_null),
            None => pg_sys::Datum::null(),
        };
        pg_sys::CurrentMemoryContext = before;
        (value, is_null)
    }
}
