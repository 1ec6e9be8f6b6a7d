//! Whether a distance that a scan has computed goes to the client with nothing comparing it on the way.
//!
//! Texts that are equal have one distance, but an index may have stored them in segments with a rounding each, and what
//! is computed of the texts themselves is another one again. So [`super::rewrite`] lets columns and filters have the
//! index's distances only where no row is taken or left out, nor a column computed, by one of them beside another.
//! What is not known here compares.
#![allow(unsafe_code)]

use std::ffi::c_void;

use pgrx::pg_sys::{self, NodeTag};

use crate::pg::lists::{members, node};
use crate::pg::unguarded::expression_tree_walker;

unsafe extern "C-unwind" {
    /// `src/backend/nodes/equalfuncs.c`
    fn equal(a: *const c_void, b: *const c_void) -> bool;
}

/// Whether columns of a scan go to the client so. Their values come to the nodes above it alone: to those between it
/// and the top of the statement, by parameters of a nested loop to the loop's right side, and by those of subplans to
/// these. Scans in subplans are left out: their rows come to whoever has the expression.
///
/// # Safety
/// A scan of the statement, which is complete, and the distance that it is ordered by.
pub unsafe fn reaches_client(
    statement: &pg_sys::PlannedStmt,
    scan: *mut pg_sys::IndexScan,
    distance: *mut pg_sys::Node,
) -> bool {
    // SAFETY: by contract.
    unsafe {
        let mut own = columns_of((*scan).scan.plan.targetlist);
        let mut is_joined = false;
        own.all(|column| Found::in_expression(column, distance).is_alone())
            && passes(statement.planTree, scan.cast(), &mut is_joined)
    }
}

/// Whether a scan's filters compare its distance with constants alone, or the statement's parameters.
///
/// # Safety
/// As [`reaches_client`].
pub unsafe fn filters_alone(scan: &pg_sys::IndexScan, distance: *mut pg_sys::Node) -> bool {
    // SAFETY: by contract.
    unsafe {
        let mut own = members(scan.scan.plan.qual).iter();
        own.all(|cell| Found::in_expression(node(cell), distance).is_alone())
    }
}

/// Whether a scan is at this node or below it, and the nodes between pass its columns on; and whether one of these
/// joins, so that rows have columns of other scans beside its.
///
/// # Safety
/// Nodes of a complete plan.
unsafe fn passes(plan: *mut pg_sys::Plan, scan: *mut pg_sys::Plan, is_joined: &mut bool) -> bool {
    // SAFETY: by contract: a node is what its tag says, and has lists of expressions.
    unsafe {
        if plan.is_null() {
            return false;
        }
        if plan == scan {
            return true;
        }
        let mut below = |list| {
            let mut plans = members(list).iter();
            plans.any(|cell| passes(cell.ptr_value.cast(), scan, is_joined))
        };
        let passes_rows = match (*plan).type_ {
            NodeTag::T_Limit => {
                let option = (*plan.cast::<pg_sys::Limit>()).limitOption;
                option == pg_sys::LimitOption::LIMIT_OPTION_COUNT
                    && passes((*plan).lefttree, scan, is_joined)
            }
            NodeTag::T_Material
            | NodeTag::T_Memoize
            | NodeTag::T_ProjectSet
            | NodeTag::T_Result => {
                (*plan).qual.is_null() && passes((*plan).lefttree, scan, is_joined)
            }
            NodeTag::T_SubqueryScan => passes(
                (*plan.cast::<pg_sys::SubqueryScan>()).subplan,
                scan,
                is_joined,
            ),
            NodeTag::T_Append => below((*plan.cast::<pg_sys::Append>()).appendplans),
            // Of equal distances any may come first.
            NodeTag::T_MergeAppend => below((*plan.cast::<pg_sys::MergeAppend>()).mergeplans),
            NodeTag::T_NestLoop => {
                let join = &*plan.cast::<pg_sys::NestLoop>();
                let compares = !join.join.joinqual.is_null() || !join.join.plan.qual.is_null();
                let hands_on = !join.nestParams.is_null();
                let passes = !compares
                    && (passes((*plan).righttree, scan, is_joined)
                        || !hands_on && passes((*plan).lefttree, scan, is_joined));
                *is_joined = true;
                passes
            }
            _ => false,
        };
        let is_harmless = |expression| {
            let found = Found::in_expression(expression, std::ptr::null_mut());
            found.is_bare || !found.others && (found.columns <= 1 || !*is_joined)
        };
        passes_rows
            && columns_of((*plan).targetlist).all(is_harmless)
            && members((*plan).qual)
                .iter()
                .all(|cell| is_harmless(node(cell)))
    }
}

/// The expressions of a node's columns.
///
/// # Safety
/// A list of columns, or null.
unsafe fn columns_of<'a>(
    list: *mut pg_sys::List,
) -> impl Iterator<Item = *mut pg_sys::Node> + use<'a> {
    // SAFETY: by contract.
    unsafe {
        let column = |cell| (*node(cell).cast::<pg_sys::TargetEntry>()).expr.cast();
        members(list).iter().map(column)
    }
}

/// What an expression has in it.
struct Found {
    /// That of the scan, or null.
    distance: *mut pg_sys::Node,
    /// How often it was met.
    distances: usize,
    /// Columns of a type that a distance has.
    columns: usize,
    /// Subplans, or what they or other nodes hand on.
    others: bool,
    /// No more than a column, or something that subplans or other nodes hand on.
    is_bare: bool,
}

impl Found {
    /// # Safety
    /// Expressions of a plan; the distance may be null.
    unsafe fn in_expression(expression: *mut pg_sys::Node, distance: *mut pg_sys::Node) -> Self {
        let bare = [NodeTag::T_Var, NodeTag::T_Param];
        let mut found = Self {
            distance,
            distances: 0,
            columns: 0,
            others: false,
            // SAFETY: by contract.
            is_bare: unsafe { expression.is_null() || bare.contains(&(*expression).type_) },
        };
        // SAFETY: by contract.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| find(expression, (&raw mut found).cast()));
        }
        found
    }

    /// Whether a distance, if there is one, is beside nothing but constants and what else the row has.
    fn is_alone(&self) -> bool {
        self.distances == 0 || !self.others
    }
}

/// Errors of the server (of its limit of stack) pass over this function: it has nothing to be dropped.
unsafe extern "C-unwind" fn find(expression: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: an expression of a plan, a list of some, or null; the context is a `Found`, which nobody else
    // uses meanwhile.
    unsafe {
        if expression.is_null() {
            return false;
        }
        let found = &mut *context.cast::<Found>();
        if !found.distance.is_null() && equal(expression.cast(), found.distance.cast()) {
            found.distances += 1;
            return false;
        }
        match (*expression).type_ {
            NodeTag::T_Var => {
                let column = &*expression.cast::<pg_sys::Var>();
                found.columns += usize::from(column.vartype == pg_sys::FLOAT8OID);
            }
            NodeTag::T_Param => {
                let kind = (*expression.cast::<pg_sys::Param>()).paramkind;
                found.others |= kind != pg_sys::ParamKind::PARAM_EXTERN;
            }
            NodeTag::T_SubPlan | NodeTag::T_AlternativeSubPlan => found.others = true,
            _ => {}
        }
        expression_tree_walker(expression, find, context)
    }
}
