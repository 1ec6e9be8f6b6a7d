//! Calls in expressions.
#![allow(unsafe_code)]

use std::ffi::c_void;

use pgrx::pg_sys::{self, NodeTag, Oid};

use super::unguarded::expression_tree_walker;

/// Whether an expression, or one of a list, has a call of a function or an operator that is wanted, by the function's OID and
/// the arguments. Queries in it are not looked into.
///
/// # Safety
/// Expressions as the parser or the planner has them, or null. `is_wanted` calls nothing of the server's: pgrx would make a
/// panic of an error, which cannot unwind through the server's walk.
pub unsafe fn has_call<T, F>(expressions: *mut T, is_wanted: F) -> bool
where
    F: Fn(Oid, *mut pg_sys::List) -> bool,
{
    let context = (&raw const is_wanted).cast_mut().cast();
    // SAFETY: by contract.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| walk::<F>(expressions.cast(), context)) }
}

/// Errors of the server (of its limit of stack) pass over this function: it has nothing to be dropped, and [`has_call`] has
/// the guard.
unsafe extern "C-unwind" fn walk<F>(expression: *mut pg_sys::Node, context: *mut c_void) -> bool
where
    F: Fn(Oid, *mut pg_sys::List) -> bool,
{
    // SAFETY: an expression, a list of some, or null; a node is what its tag says; the context is the `F` of `has_call`.
    unsafe {
        if expression.is_null() {
            return false;
        }
        let is_wanted = &*context.cast::<F>();
        let found = match (*expression).type_ {
            NodeTag::T_FuncExpr => {
                let call = &*expression.cast::<pg_sys::FuncExpr>();
                is_wanted(call.funcid, call.args)
            }
            NodeTag::T_OpExpr => {
                let call = &*expression.cast::<pg_sys::OpExpr>();
                is_wanted(call.opfuncid, call.args)
            }
            NodeTag::T_Query => return false,
            _ => false,
        };
        found || expression_tree_walker(expression, walk::<F>, context)
    }
}
