//! Plans in which a scan of a text index has computed a distance already.
//!
//! A query that is ordered by `body <=> 'what is searched for'` has that expression among the columns of
//! its plan, hidden or not, so the executor computes it of every row that the scan gives: it would embed
//! the row's text. Once the server has made a plan, [`rewrite`] replaces the expression
//!
//! - in the columns and filters of the scan itself by `COALESCE($n, body <=> '…')`, where the executor's
//!   parameter `$n` is what the scan knows of its current row ([`super::given`])
//! - where nobody reads it, as a hidden column at the top of a query, by NULL.
//!
//! What a scan knows is the distance of what the index has stored, which differs from the texts' by its
//! rounding, and the index is its owner's. So it is used by nothing but these nodes: other tables' filters,
//! joins, whatever is stored, and policies compute distances of their own.
//!
//! Invariant: what the plan computes of a scan's rows is in the order that the scan promises, for
//! nodes above it merge and group by it. A scan gives rows in the order of its own distances if it has a
//! parameter, and else in that of the texts' distances, which the executor computes (`xs_recheckorderby`). It
//! has one where its distance is what the plan computes, and where the plan computes none.
//!
//! Columns are not replaced in statements that write, or lock rows: a row that changed meanwhile
//! is another one than the scan has seen (`EvalPlanQual` in `src/backend/executor/execMain.c`). Filters are
//! not, where a table with row-level security or a security-barrier view is part of the statement.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};

use pgrx::pg_sys::{self, NodeTag};

use super::build;
use crate::lists::{members, node};

/// What a statement's list of its parameters' types (`paramExecTypes`) has for those that are ours. No
/// other parameter is of this type.
pub const TYPE: pg_sys::Oid = pg_sys::INTERNALOID;

thread_local! {
    static NEXT_HOOK: Cell<pg_sys::planner_hook_type> = const { Cell::new(None) };
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_HOOK.set(pg_sys::planner_hook);
        pg_sys::planner_hook = Some(plan);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn plan(
    query: *mut pg_sys::Query,
    text: *const c_char,
    options: c_int,
    parameters: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: called by the server; the plan is new, and in the current memory context.
    unsafe {
        let planned = match NEXT_HOOK.get() {
            Some(next) => {
                pg_sys::ffi::pg_guard_ffi_boundary(|| next(query, text, options, parameters))
            }
            None => pg_sys::standard_planner(query, text, options, parameters),
        };
        if let Some(planned) = planned.as_mut() {
            rewrite(planned);
        }
        planned
    }
}

/// # Safety
/// A complete plan, which nobody else has seen.
unsafe fn rewrite(statement: &mut pg_sys::PlannedStmt) {
    // SAFETY: by contract; the lists are of plans, some of which may be null, and of range table entries.
    unsafe {
        let mut found = Found::default();
        found.walk(statement.planTree, true);
        for plan in members(statement.subplans) {
            found.walk(plan.ptr_value.cast(), true);
        }
        if found.scans.is_empty() {
            return;
        }
        let hidden: Vec<_> = (found.roots.iter())
            .filter_map(|root| hide_unread(*root, &found))
            .collect();
        let reads_only = statement.commandType == pg_sys::CmdType::CMD_SELECT
            && !statement.hasModifyingCTE
            && statement.rowMarks.is_null();
        let secures = |cell: &pg_sys::ListCell| {
            let entry = &*node(cell).cast::<pg_sys::RangeTblEntry>();
            entry.security_barrier
                || (entry.relid != pg_sys::InvalidOid && has_row_security(entry.relid))
        };
        let secure = members(statement.rtable).iter().any(secures);
        for scan in &found.scans {
            take_distance(
                &mut **scan,
                statement,
                hidden.contains(scan),
                (reads_only, reads_only && !secure),
            );
        }
    }
}

/// What a plan has of interest.
#[derive(Default)]
struct Found {
    /// Scans of text indexes.
    scans: Vec<*mut pg_sys::IndexScan>,
    /// Plans of whole (sub)queries.
    roots: Vec<*mut pg_sys::Plan>,
}

impl Found {
    /// Visits a plan and all below it.
    ///
    /// # Safety
    /// A plan of the server's, or null.
    unsafe fn walk(&mut self, plan: *mut pg_sys::Plan, is_root: bool) {
        // SAFETY: by contract; a node is what its tag says.
        unsafe {
            if plan.is_null() {
                return;
            }
            if is_root {
                self.roots.push(plan);
            }
            match (*plan).type_ {
                NodeTag::T_IndexScan => {
                    let scan = plan.cast::<pg_sys::IndexScan>();
                    if is_of_texts(&*scan) {
                        self.scans.push(scan);
                    }
                }
                NodeTag::T_ModifyTable => self.roots.push((*plan).lefttree),
                NodeTag::T_SubqueryScan => {
                    self.walk((*plan.cast::<pg_sys::SubqueryScan>()).subplan, true);
                }
                NodeTag::T_Append => {
                    self.walk_all((*plan.cast::<pg_sys::Append>()).appendplans);
                }
                NodeTag::T_MergeAppend => {
                    self.walk_all((*plan.cast::<pg_sys::MergeAppend>()).mergeplans);
                }
                NodeTag::T_CustomScan => {
                    self.walk_all((*plan.cast::<pg_sys::CustomScan>()).custom_plans);
                }
                _ => {}
            }
            self.walk((*plan).lefttree, false);
            self.walk((*plan).righttree, false);
        }
    }

    /// # Safety
    /// A list of plans.
    unsafe fn walk_all(&mut self, plans: *mut pg_sys::List) {
        // SAFETY: by contract.
        unsafe {
            for plan in members(plans) {
                self.walk(plan.ptr_value.cast(), false);
            }
        }
    }
}

/// Whether it is a scan of an index of ours on text, in the order of a distance.
///
/// # Safety
/// A plan's scan, whose index the planner has locked.
unsafe fn is_of_texts(scan: &pg_sys::IndexScan) -> bool {
    if scan.indexorderbyorig.is_null() {
        return false;
    }
    // SAFETY: by contract; an open index has what its relation says.
    unsafe {
        let index = pg_sys::RelationIdGetRelation(scan.indexid);
        if index.is_null() {
            return false;
        }
        let method = (*index).rd_indam.as_ref();
        let is_ours = method.is_some_and(|method| {
            method.ambuild.map(|f| f as *const () as usize)
                == Some(build::build as *const () as usize)
        });
        let is_text = is_ours && *(*index).rd_opcintype == pg_sys::TEXTOID;
        pg_sys::RelationClose(index);
        is_text && (*ordering(scan)).type_ == NodeTag::T_OpExpr
    }
}

/// Whether a table has row-level security, for whomever.
fn has_row_security(table: pg_sys::Oid) -> bool {
    // SAFETY: a look-up in a system cache; the row is released after what is in it was read.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::RELOID as c_int;
        let row = pg_sys::SearchSysCache1(cache, table.into());
        if row.is_null() {
            return true;
        }
        let has = (*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_class>()).relrowsecurity;
        pg_sys::ReleaseSysCache(row);
        has
    }
}

/// The distance that a scan is ordered by.
///
/// # Safety
/// A plan's scan with an order.
unsafe fn ordering(scan: &pg_sys::IndexScan) -> *mut pg_sys::Node {
    // SAFETY: by contract: it has one at least.
    unsafe {
        members(scan.indexorderbyorig)
            .first()
            .map(|cell| node(cell))
    }
    .expect("an ordered scan")
}

/// Replaces hidden columns that nobody reads by NULL: distances at the top of a query, below what passes rows
/// on as they are. Returns the scan whose order the query has, if nothing but the scan has its distance now.
///
/// # Safety
/// The plan of a query, or null.
unsafe fn hide_unread(
    mut plan: *mut pg_sys::Plan,
    found: &Found,
) -> Option<*mut pg_sys::IndexScan> {
    // SAFETY: by contract; a node is what its tag says.
    unsafe {
        loop {
            match plan.as_ref()?.type_ {
                // The rows of `WITH TIES` are compared.
                NodeTag::T_Limit
                    if (*plan.cast::<pg_sys::Limit>()).limitOption
                        == pg_sys::LimitOption::LIMIT_OPTION_COUNT => {}
                NodeTag::T_LockRows => {}
                _ => break,
            }
            plan = (*plan).lefttree;
        }
        // Joins that keep the order of what is to their left, down to a scan. Other nodes may sort, group or
        // merge by the column.
        let mut joins = Vec::new();
        let mut below = plan;
        while matches!(
            below.as_ref()?.type_,
            NodeTag::T_NestLoop | NodeTag::T_HashJoin
        ) {
            joins.push(below);
            below = (*below).lefttree;
        }
        let scan = below.cast::<pg_sys::IndexScan>();
        if !found.scans.contains(&scan) {
            return None;
        }
        let operator = (*ordering(&*scan).cast::<pg_sys::OpExpr>()).opno;
        let mut hidden = false;
        for cell in members((*plan).targetlist) {
            let entry = &mut *node(cell).cast::<pg_sys::TargetEntry>();
            let expression = entry.expr.cast::<pg_sys::Node>();
            if entry.resjunk
                && !expression.is_null()
                && (*expression).type_ == NodeTag::T_OpExpr
                && (*expression.cast::<pg_sys::OpExpr>()).opno == operator
            {
                let null = pg_sys::makeNullConst(pg_sys::FLOAT8OID, -1, pg_sys::InvalidOid);
                entry.expr = null.cast();
                hidden = true;
            }
        }
        let computes_it = |join: &*mut pg_sys::Plan| {
            let of_join = (*join.cast::<pg_sys::Join>()).joinqual;
            let of_hash = match (**join).type_ {
                NodeTag::T_HashJoin => (*join.cast::<pg_sys::HashJoin>()).hashclauses,
                _ => std::ptr::null_mut(),
            };
            [(**join).targetlist, (**join).qual, of_join, of_hash]
                .iter()
                .any(|list| has_operator(list.cast(), (&raw const operator).cast_mut().cast()))
        };
        // The scan's own columns are another's concern: they may have this distance, or one to another text.
        let own = (*scan).scan.plan.targetlist;
        let in_scan = has_operator(own.cast(), (&raw const operator).cast_mut().cast());
        (hidden && !in_scan && !joins.iter().any(computes_it)).then_some(scan)
    }
}

/// What [`replace`] looks for and puts in its place.
struct Replacement {
    distance: *mut pg_sys::Node,
    parameter: i32,
    done: bool,
}

/// Has a scan's columns and filters read the distance that the scan has computed, if they may, and
/// gives the scan a parameter where that keeps the order which it promises.
///
/// # Safety
/// A scan of this statement, as [`is_of_texts`] said of it.
unsafe fn take_distance(
    scan: &mut pg_sys::IndexScan,
    statement: &mut pg_sys::PlannedStmt,
    is_hidden: bool,
    (in_columns, in_filters): (bool, bool),
) {
    // SAFETY: by contract.
    unsafe {
        let mut replacement = Replacement {
            distance: ordering(scan),
            parameter: members(statement.paramExecTypes).len() as i32,
            done: false,
        };
        let plan = &mut scan.scan.plan;
        let within = |list: *mut pg_sys::List, replacement: &mut Replacement| {
            replace(list.cast(), std::ptr::from_mut(replacement).cast()).cast()
        };
        let columns = within(plan.targetlist, &mut replacement);
        let in_order = if replacement.done {
            in_columns
        } else {
            is_hidden
        };
        if !in_order {
            return;
        }
        let filters = in_filters.then(|| within(plan.qual, &mut replacement));
        if in_columns {
            plan.targetlist = columns;
        }
        if let Some(filters) = filters {
            plan.qual = filters;
        }
        plan.allParam = pg_sys::bms_add_member(plan.allParam, replacement.parameter);
        statement.paramExecTypes = pg_sys::lappend_oid(statement.paramExecTypes, TYPE);
    }
}

unsafe extern "C-unwind" {
    /// `src/backend/nodes/nodeFuncs.c`
    #[cfg_attr(
        not(any(feature = "pg14", feature = "pg15")),
        link_name = "expression_tree_mutator_impl"
    )]
    fn expression_tree_mutator(
        node: *mut pg_sys::Node,
        mutator: unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> *mut pg_sys::Node,
        context: *mut c_void,
    ) -> *mut pg_sys::Node;
}

unsafe extern "C-unwind" {
    /// `src/backend/nodes/nodeFuncs.c`
    #[cfg_attr(
        not(any(feature = "pg14", feature = "pg15")),
        link_name = "expression_tree_walker_impl"
    )]
    fn expression_tree_walker(
        node: *mut pg_sys::Node,
        walker: unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> bool,
        context: *mut c_void,
    ) -> bool;
}

/// Whether an expression has an operator, whose OID the context is.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn has_operator(
    expression: *mut pg_sys::Node,
    context: *mut c_void,
) -> bool {
    // SAFETY: an expression of a plan, a list of some, or null; the context is an OID.
    unsafe {
        if expression.is_null() {
            return false;
        }
        (*expression).type_ == NodeTag::T_OpExpr
            && (*expression.cast::<pg_sys::OpExpr>()).opno == *context.cast::<pg_sys::Oid>()
            || pg_sys::ffi::pg_guard_ffi_boundary(|| {
                expression_tree_walker(expression, has_operator, context)
            })
    }
}

/// A copy of an expression with the distance replaced.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn replace(
    expression: *mut pg_sys::Node,
    context: *mut c_void,
) -> *mut pg_sys::Node {
    // SAFETY: an expression of a plan, a list of some, or null; the context is a `Replacement`, which
    // nobody else uses meanwhile.
    unsafe {
        if expression.is_null() {
            return expression;
        }
        let replacement = &mut *context.cast::<Replacement>();
        if !pg_sys::equal(expression.cast(), replacement.distance.cast()) {
            return pg_sys::ffi::pg_guard_ffi_boundary(|| {
                expression_tree_mutator(expression, replace, context)
            });
        }
        replacement.done = true;
        let parameter = new::<pg_sys::Param>(NodeTag::T_Param);
        (*parameter).paramkind = pg_sys::ParamKind::PARAM_EXEC;
        (*parameter).paramid = replacement.parameter;
        (*parameter).paramtype = pg_sys::FLOAT8OID;
        (*parameter).paramtypmod = -1;
        (*parameter).location = -1;
        let either = new::<pg_sys::CoalesceExpr>(NodeTag::T_CoalesceExpr);
        (*either).coalescetype = pg_sys::FLOAT8OID;
        let arguments = pg_sys::lappend(std::ptr::null_mut(), parameter.cast());
        (*either).args = pg_sys::lappend(arguments, expression.cast());
        (*either).location = -1;
        either.cast()
    }
}

/// A new node, all zeros but for its tag (`makeNode` in `nodes.h`).
///
/// # Safety
/// `T` is the struct of this tag.
unsafe fn new<T>(tag: NodeTag) -> *mut T {
    // SAFETY: by contract; memory of that size.
    unsafe {
        let node = pg_sys::palloc0(size_of::<T>()).cast::<pg_sys::Node>();
        (*node).type_ = tag;
        node.cast()
    }
}
