//! How often the nodes of a plan have an operator.
//!
//! Written for [`super::rewrite`], which must not overlook one: nodes of a kind that is not known here, as
//! another extension's, count as having it everywhere.
#![allow(unsafe_code)]

use std::ffi::c_void;

use pgrx::pg_sys::{self, NodeTag};

use crate::pg::unguarded::expression_tree_walker;

/// An operator, and how often it was met, or its function.
struct Counted {
    operator: pg_sys::Oid,
    function: pg_sys::Oid,
    count: usize,
}

/// Errors of the server (of its limit of stack) pass over this function: it has nothing to be dropped, and
/// [`in_expression`] has the guard, so that a level of an expression costs little of the stack.
unsafe extern "C-unwind" fn count(expression: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: an expression of a plan, a list of some, or null; the context is a `Counted`, which nobody else
    // uses meanwhile.
    unsafe {
        if expression.is_null() {
            return false;
        }
        let counted = context.cast::<Counted>();
        let is_one = match (*expression).type_ {
            NodeTag::T_OpExpr => (*expression.cast::<pg_sys::OpExpr>()).opno == (*counted).operator,
            NodeTag::T_FuncExpr => {
                (*expression.cast::<pg_sys::FuncExpr>()).funcid == (*counted).function
            }
            _ => false,
        };
        (*counted).count += usize::from(is_one);
        expression_tree_walker(expression, count, context)
    }
}

/// How often an expression, or a list of some, has an operator, also by its function's name; subplans that it calls are not part of it, what
/// is handed to them is.
///
/// # Safety
/// An expression of a plan, a list of some, or null.
pub unsafe fn in_expression<T>(expression: *mut T, operator: pg_sys::Oid) -> usize {
    // SAFETY: by contract; a look-up in a cache.
    unsafe {
        let function = pg_sys::get_opcode(operator);
        let mut counted = Counted {
            operator,
            function,
            count: 0,
        };
        pg_sys::ffi::pg_guard_ffi_boundary(|| count(expression.cast(), (&raw mut counted).cast()));
        counted.count
    }
}

/// How often a node's own expressions have an operator, not those of nodes below it; `None` for nodes of
/// a kind that is not known here.
///
/// # Safety
/// A node of a complete plan.
pub unsafe fn in_node(plan: *mut pg_sys::Plan, operator: pg_sys::Oid) -> Option<usize> {
    // SAFETY: by contract: a node is what its tag says, and has lists of expressions.
    unsafe {
        let within = |list: *mut pg_sys::List| in_expression(list, operator);
        let common = within((*plan).targetlist) + within((*plan).qual) + within((*plan).initPlan);
        let of_join = || within((*plan.cast::<pg_sys::Join>()).joinqual);
        let more = match (*plan).type_ {
            NodeTag::T_ProjectSet
            | NodeTag::T_Append
            | NodeTag::T_MergeAppend
            | NodeTag::T_RecursiveUnion
            | NodeTag::T_BitmapAnd
            | NodeTag::T_BitmapOr
            | NodeTag::T_SeqScan
            | NodeTag::T_SubqueryScan
            | NodeTag::T_CteScan
            | NodeTag::T_NamedTuplestoreScan
            | NodeTag::T_WorkTableScan
            | NodeTag::T_Material
            | NodeTag::T_Sort
            | NodeTag::T_IncrementalSort
            | NodeTag::T_Group
            | NodeTag::T_Agg
            | NodeTag::T_Unique
            | NodeTag::T_Gather
            | NodeTag::T_GatherMerge
            | NodeTag::T_SetOp
            | NodeTag::T_LockRows => 0,
            NodeTag::T_NestLoop => of_join(),
            NodeTag::T_MergeJoin => {
                of_join() + within((*plan.cast::<pg_sys::MergeJoin>()).mergeclauses)
            }
            NodeTag::T_HashJoin => {
                let join = &*plan.cast::<pg_sys::HashJoin>();
                of_join() + within(join.hashclauses) + within(join.hashkeys)
            }
            NodeTag::T_Hash => within((*plan.cast::<pg_sys::Hash>()).hashkeys),
            NodeTag::T_Memoize => within((*plan.cast::<pg_sys::Memoize>()).param_exprs),
            NodeTag::T_Result => {
                let constant = (*plan.cast::<pg_sys::Result>()).resconstantqual;
                in_expression(constant, operator)
            }
            NodeTag::T_Limit => {
                let limit = &*plan.cast::<pg_sys::Limit>();
                in_expression(limit.limitOffset, operator)
                    + in_expression(limit.limitCount, operator)
            }
            NodeTag::T_WindowAgg => {
                let window = &*plan.cast::<pg_sys::WindowAgg>();
                #[cfg(not(feature = "pg14"))]
                let runs = within(window.runCondition);
                #[cfg(feature = "pg14")]
                let runs = 0;
                runs + in_expression(window.startOffset, operator)
                    + in_expression(window.endOffset, operator)
            }
            NodeTag::T_IndexScan => {
                let scan = &*plan.cast::<pg_sys::IndexScan>();
                within(scan.indexqual) + within(scan.indexqualorig) + within(scan.indexorderbyorig)
            }
            NodeTag::T_IndexOnlyScan => {
                let scan = &*plan.cast::<pg_sys::IndexOnlyScan>();
                within(scan.indexqual) + within(scan.recheckqual) + within(scan.indexorderby)
            }
            NodeTag::T_BitmapIndexScan => {
                let scan = &*plan.cast::<pg_sys::BitmapIndexScan>();
                within(scan.indexqual) + within(scan.indexqualorig)
            }
            NodeTag::T_BitmapHeapScan => {
                within((*plan.cast::<pg_sys::BitmapHeapScan>()).bitmapqualorig)
            }
            NodeTag::T_TidScan => within((*plan.cast::<pg_sys::TidScan>()).tidquals),
            NodeTag::T_TidRangeScan => within((*plan.cast::<pg_sys::TidRangeScan>()).tidrangequals),
            NodeTag::T_SampleScan => {
                in_expression((*plan.cast::<pg_sys::SampleScan>()).tablesample, operator)
            }
            NodeTag::T_FunctionScan => within((*plan.cast::<pg_sys::FunctionScan>()).functions),
            NodeTag::T_ValuesScan => within((*plan.cast::<pg_sys::ValuesScan>()).values_lists),
            NodeTag::T_TableFuncScan => {
                in_expression((*plan.cast::<pg_sys::TableFuncScan>()).tablefunc, operator)
            }
            NodeTag::T_ForeignScan => {
                let scan = &*plan.cast::<pg_sys::ForeignScan>();
                within(scan.fdw_exprs)
                    + within(scan.fdw_scan_tlist)
                    + within(scan.fdw_recheck_quals)
            }
            _ => return None,
        };
        Some(common + more)
    }
}
