//! Expressions of a query that have the same value.
//!
//! Subqueries that are evaluated once, as those in policies of row-level security, are different parameters where they are the same.
#![allow(unsafe_code)]

use std::ffi::c_void;

use pgrx::pg_sys::{self, NodeTag};

use crate::pg::lists::{members, node};
use crate::pg::unguarded::expression_tree_walker;

/// Whether two expressions are known to have the same value. What is volatile in them, and in no subquery of theirs, is not seen.
///
/// # Safety
/// Expressions of a query that is being planned.
pub unsafe fn has_same_value(
    root: &pg_sys::PlannerInfo,
    one: *mut pg_sys::Node,
    other: *mut pg_sys::Node,
) -> bool {
    // SAFETY: by contract. The copies are of this function.
    unsafe {
        if pg_sys::equal(one.cast(), other.cast()) {
            return true;
        }
        let names = names(root);
        if names.is_empty() {
            return false;
        }
        let [one, other] = [one, other].map(|expression| {
            let copy = pg_sys::copyObjectImpl(expression.cast()).cast();
            let context = (&raw const names).cast_mut().cast();
            pg_sys::ffi::pg_guard_ffi_boundary(|| rename(copy, context));
            copy.cast()
        });
        pg_sys::equal(one, other)
    }
}

/// Parameters of subqueries that are evaluated once, each with that of the first one which is the same.
type Names = Vec<(i32, i32)>;

/// The names of a query's parameters; those of subqueries that are volatile have no others.
///
/// # Safety
/// A query that is being planned.
unsafe fn names(root: &pg_sys::PlannerInfo) -> Names {
    let mut seen: Vec<(i32, *mut pg_sys::Query)> = Vec::new();
    let mut names = Names::new();
    // SAFETY: by contract: the query's subplans, whose structures stay while it is planned.
    unsafe {
        let planned = members((*root.glob).subroots);
        for cell in members(root.init_plans) {
            let plan = &*node(cell).cast::<pg_sys::SubPlan>();
            let (pg_sys::SubLinkType::EXPR_SUBLINK, Some(set)) =
                (plan.subLinkType, plan.setParam.as_ref())
            else {
                continue;
            };
            let of = planned.get((plan.plan_id - 1) as usize);
            let (1, Some(of)) = (set.length, of) else {
                continue;
            };
            let param = (*set.elements).int_value;
            let query = (*of.ptr_value.cast::<pg_sys::PlannerInfo>()).parse;
            let is_it = |&&(_, first): &&(i32, *mut pg_sys::Query)| {
                pg_sys::equal(first.cast(), query.cast())
            };
            match seen.iter().find(is_it) {
                Some(&(first, _)) => names.push((param, first)),
                None if pg_sys::contain_volatile_functions(query.cast()) => {}
                None => seen.push((param, query)),
            }
        }
    }
    names
}

/// Writes the first names of parameters into an expression. Errors of the server (of its limit of stack) pass over this function: it has
/// nothing to be dropped, and [`has_same_value`] has the guard.
unsafe extern "C-unwind" fn rename(expression: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: an expression that nobody else has, a list of some, or null; a node is what its tag says; the context is the names.
    unsafe {
        if expression.is_null() {
            return false;
        }
        if (*expression).type_ != NodeTag::T_Param {
            return expression_tree_walker(expression, rename, context);
        }
        let param = &mut *expression.cast::<pg_sys::Param>();
        let names = &*context.cast::<Names>();
        if param.paramkind == pg_sys::ParamKind::PARAM_EXEC
            && let Some((_, first)) = names.iter().find(|(name, _)| *name == param.paramid)
        {
            param.paramid = *first;
        }
        false
    }
}
