//! Expressions of a query that have the same value.
//!
//! Subqueries that are evaluated once, as those in policies of row-level security, are different parameters where they are the same.
#![allow(unsafe_code)]

use pgrx::pg_sys::{self, NodeTag};

use crate::pg::lists::{members, node};

/// Whether two expressions are known to have the same value.
///
/// # Safety
/// Expressions of a query that is being planned.
pub unsafe fn has_same_value(
    root: &pg_sys::PlannerInfo,
    one: *mut pg_sys::Node,
    other: *mut pg_sys::Node,
) -> bool {
    // SAFETY: by contract; nodes are what their tags say.
    unsafe {
        if pg_sys::equal(one.cast(), other.cast()) {
            return true;
        }
        if (*one).type_ != (*other).type_ {
            return false;
        }
        match (*one).type_ {
            NodeTag::T_Param => {
                let queries = [one, other].map(|param| evaluated_once(root, &*param.cast()));
                let [Some(one), Some(other)] = queries else {
                    return false;
                };
                pg_sys::equal(one.cast(), other.cast())
                    && !pg_sys::contain_volatile_functions(one.cast())
            }
            NodeTag::T_CoerceViaIO => {
                let [one, other] = [one, other].map(|it| &*it.cast::<pg_sys::CoerceViaIO>());
                one.resulttype == other.resulttype
                    && has_same_value(root, one.arg.cast(), other.arg.cast())
            }
            NodeTag::T_FuncExpr => {
                let [one, other] = [one, other].map(|it| &*it.cast::<pg_sys::FuncExpr>());
                let (its, others) = (members(one.args), members(other.args));
                one.funcid == other.funcid
                    && its.len() == others.len()
                    && its
                        .iter()
                        .zip(others)
                        .all(|(one, other)| has_same_value(root, node(one), node(other)))
                    && !pg_sys::contain_volatile_functions(
                        std::ptr::from_ref(one).cast_mut().cast(),
                    )
            }
            _ => false,
        }
    }
}

/// The subquery whose value a parameter is, which is evaluated once for the query.
///
/// # Safety
/// A query that is being planned, and a parameter of it.
unsafe fn evaluated_once(
    root: &pg_sys::PlannerInfo,
    param: &pg_sys::Param,
) -> Option<*mut pg_sys::Query> {
    if param.paramkind != pg_sys::ParamKind::PARAM_EXEC {
        return None;
    }
    // SAFETY: by contract: the query's subplans, whose structures stay while it is planned.
    unsafe {
        let plan = members(root.init_plans)
            .iter()
            .map(|cell| &*node(cell).cast::<pg_sys::SubPlan>())
            .find(|plan| pg_sys::list_member_int(plan.setParam, param.paramid))?;
        let planned = members((*root.glob).subroots).get((plan.plan_id - 1) as usize)?;
        let planned = &*planned.ptr_value.cast::<pg_sys::PlannerInfo>();
        Some(planned.parse)
    }
}
