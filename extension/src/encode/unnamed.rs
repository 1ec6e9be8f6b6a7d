//! Expressions that embed by whichever model `laser.model` names when they are evaluated. What is stored of them is of
//! different models where the setting has changed.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::CStr;

use pgrx::pg_sys::{self, NodeTag, Oid};

use crate::pg::calls::has_call;
use crate::pg::lists::{members, node};

/// Whether an expression, or one of a list, embeds without a constant that names the model.
///
/// # Safety
/// Expressions as the planner simplifies them, or null; `namespace` is the extension's schema.
pub unsafe fn embeds_by_setting<T>(expressions: *mut T, namespace: Oid) -> bool {
    // What the functions are called is asked of the catalogs afterwards, which is not for a walk.
    let candidates = RefCell::new(Vec::new());
    // SAFETY: by contract; a node is what its tag says, and functions that are called exist.
    unsafe {
        has_call(expressions, |function, arguments| {
            let names_model = members(arguments).get(1).is_some_and(|model| {
                let model = node(model);
                (*model).type_ != NodeTag::T_Const || !(*model.cast::<pg_sys::Const>()).constisnull
            });
            let mut candidates = candidates.borrow_mut();
            if !names_model && !candidates.contains(&function) {
                candidates.push(function);
            }
            false
        });
        candidates.into_inner().into_iter().any(|function| {
            let name = pg_sys::get_func_name(function);
            !name.is_null()
                && CStr::from_ptr(name) == c"laser_embed"
                && pg_sys::get_func_namespace(function) == namespace
        })
    }
}
