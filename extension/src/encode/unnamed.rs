//! Expressions that embed by whichever model `laser.model` names when they are evaluated. What is stored of them is of
//! different models where the setting has changed.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};

use pgrx::pg_sys::{self, NodeTag};

use crate::pg::lists::{members, node};
use crate::pg::unguarded::expression_tree_walker;

/// Whether an expression, or one of a list, embeds without a constant that names the model.
///
/// # Safety
/// Expressions as the planner simplifies them, or null; `namespace` is the extension's schema.
pub unsafe fn embeds_by_setting<T>(expressions: *mut T, namespace: pg_sys::Oid) -> bool {
    let mut namespace = namespace;
    // SAFETY: by contract.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            has_one(expressions.cast(), (&raw mut namespace).cast())
        })
    }
}

/// Errors of the server (of its limit of stack) pass over this function: it has nothing to be dropped, and
/// [`embeds_by_setting`] has the guard.
unsafe extern "C-unwind" fn has_one(expression: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: an expression, a list of some, or null; the context is the OID of a schema.
    unsafe {
        if expression.is_null() {
            return false;
        }
        if (*expression).type_ == NodeTag::T_FuncExpr {
            let call = &*expression.cast::<pg_sys::FuncExpr>();
            let name = pg_sys::get_func_name(call.funcid);
            if !name.is_null()
                && CStr::from_ptr(name) == c"laser_embed"
                && pg_sys::get_func_namespace(call.funcid) == *context.cast::<pg_sys::Oid>()
                && !members(call.args).get(1).is_some_and(|model| {
                    let model = node(model);
                    (*model).type_ != NodeTag::T_Const
                        || !(*model.cast::<pg_sys::Const>()).constisnull
                })
            {
                return true;
            }
        }
        expression_tree_walker(expression, has_one, context)
    }
}
