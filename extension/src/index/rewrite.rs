//! Plans in which a scan of a text index has computed a distance already.
//!
//! A query that is ordered by `body <=> 'what is searched for'` has that expression among the columns of
//! its plan, hidden or not, so the executor computes it of every row that the scan gives: it would embed
//! the row's text. Once the server has made a plan, [`rewrite`] replaces the expression
//!
//! - in the columns and filters of the scan itself by `COALESCE($n, body <=> '…')`, where the executor's
//!   parameter `$n` is what the scan knows of its current row ([`super::distance_param`])
//! - where nobody reads it, as a hidden column at the top of a query, by NULL.
//!
//! What a scan knows is the distance of what the index has stored, which differs from the texts' by its
//! rounding, and the index is its owner's. So it is used by nothing but these nodes: other tables' filters,
//! joins, whatever is stored, and policies compute distances of their own.
//!
//! Invariant: what the plan computes of a scan's rows is in the order that the scan promises, for
//! nodes above it merge and group by it, and by columns that are said to be equal to it. A scan gives rows in
//! the order of its own distances if it has a parameter, and else in that of the texts' distances, which
//! the executor computes (`xs_recheckorderby`). It has one where no other node of the same (sub)query has
//! its operator, and all of its own expressions that have it read the parameter. Queries around a subquery
//! know its order by the columns that it gives them.
//!
//! Distances from different parameters are different, also in plans for values that are equal ([`super::constants`]). Nothing is
//! replaced where distances of several rows may be compared ([`uncompared`]): texts that are equal have one
//! distance, and an index may have stored them in segments with a rounding each. Nor are columns in statements that write, or lock
//! rows: a row that changed meanwhile is another one than the scan has seen (`EvalPlanQual` in `src/backend/executor/execMain.c`).
//! Filters are not, where a table with row-level security or a security-barrier view is part of the statement. Nothing is in subqueries where some process, or run, may not know the
//! distances, or somebody else's filter hear of them: views and policies may have subqueries, each process of a
//! parallel plan may run one, and `EvalPlanQual` runs them again. Nor is anything below a Gather.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};

use pgrx::pg_sys::{self, NodeTag};

use super::constants::Constants;
use super::{build, mentions, uncompared};
use crate::pg::catalogs;
use crate::pg::interrupts::pause;
use crate::pg::lists::{members, node};
use crate::pg::unguarded::{equal, lappend, palloc0, standard_planner};

/// What a statement's list of its parameters' types (`paramExecTypes`) has for those that are ours. No type has such a
/// number (`pg_type.dat` begins with 16), so that no other parameter does.
pub const READ: pg_sys::Oid = pg_sys::Oid::from_u32(1);
/// The same for parameters which nothing reads: their scans compute no distance that anybody sees.
pub const UNREAD: pg_sys::Oid = pg_sys::Oid::from_u32(2);

thread_local! {
    static NEXT_HOOK: Cell<pg_sys::planner_hook_type> = const { Cell::new(None) };
    /// Whether the session has loaded the library, and planned nothing since.
    static JUST_LOADED: Cell<bool> = const { Cell::new(false) };
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_HOOK.set(pg_sys::planner_hook);
        pg_sys::planner_hook = Some(plan);
        // A parallel worker gets plans that the session has made.
        let with_server = pg_sys::process_shared_preload_libraries_in_progress;
        JUST_LOADED.set(!with_server && pg_sys::ParallelWorkerNumber < 0);
    }
}

/// Whether the library was loaded while the session's last plan was made, or after that.
pub fn is_late() -> bool {
    JUST_LOADED.get()
}

/// Rewrites the plan of a query that is about to begin where the library was loaded while it was planned, or after
/// that, so that [`plan`] has not seen it. It and others may be kept by the server, which is to plan them again.
///
/// # Safety
/// A query that is about to begin.
pub unsafe fn rewrite_if_planned_before(query: *mut pg_sys::QueryDesc) {
    if !JUST_LOADED.take() {
        return;
    }
    // SAFETY: by contract. The copy is in the memory of whoever begins the query, as the query is.
    unsafe {
        let copy = pg_sys::copyObjectImpl((*query).plannedstmt.cast()).cast();
        rewrite(
            &mut *copy,
            Constants::of_planned((*query).sourceText, (*query).params),
        );
        (*query).plannedstmt = copy;
        pg_sys::ResetPlanCache();
    }
}

/// Errors of the planner, and of functions that it evaluates, pass over this function as over one in C:
/// made a panic and an error again, they would lose fields and be garbled in databases that are not
/// UTF-8. So nothing here may need to be dropped, and nothing may panic but in [`rewrite_guarded`].
unsafe extern "C-unwind" fn plan(
    query: *mut pg_sys::Query,
    text: *const c_char,
    options: c_int,
    parameters: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    // SAFETY: called by the server; the plan is new, and in the current memory context.
    unsafe {
        JUST_LOADED.set(false);
        let constants = Constants::of(query);
        let planned = match NEXT_HOOK.get() {
            Some(next) => next(query, text, options, parameters),
            None => standard_planner(query, text, options, parameters),
        };
        if !planned.is_null() {
            rewrite_guarded(planned, constants);
        }
        planned
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn rewrite_guarded(
    planned: *mut pg_sys::PlannedStmt,
    constants: Constants,
) {
    // SAFETY: a complete plan, which nobody else has seen.
    unsafe { rewrite(&mut *planned, constants) }
}

/// The text indexes that a plan searches.
///
/// # Safety
/// A complete plan, whose tables and indexes are locked.
pub unsafe fn text_indexes(statement: &pg_sys::PlannedStmt) -> Vec<pg_sys::Oid> {
    // SAFETY: by contract.
    let levels = unsafe { Levels::of(statement) };
    let scans = levels.0.iter().flat_map(|level| &level.scans);
    // SAFETY: nodes of the plan.
    scans.map(|scan| unsafe { (**scan).indexid }).collect()
}

/// # Safety
/// A complete plan, which nobody else has seen.
unsafe fn rewrite(statement: &mut pg_sys::PlannedStmt, constants: Constants) {
    // SAFETY: by contract; the lists are of plans, some of which may be null, and of range table entries.
    unsafe {
        let levels = Levels::of(statement);
        if levels.0.iter().all(|level| level.scans.is_empty()) {
            return;
        }
        let reads_only = statement.commandType == pg_sys::CmdType::CMD_SELECT
            && !statement.hasModifyingCTE
            && statement.rowMarks.is_null();
        let secures = |cell: &pg_sys::ListCell| {
            let entry = &*node(cell).cast::<pg_sys::RangeTblEntry>();
            entry.security_barrier
                || (entry.relid != pg_sys::InvalidOid && has_row_security(entry.relid))
        };
        let secure = members(statement.rtable).iter().any(secures);
        let in_filters = reads_only && !secure;
        let parents = uncompared::Parents::of(statement);
        // How often all levels have an operator.
        let mut everywhere: HashMap<pg_sys::Oid, Option<usize>> = HashMap::new();
        for level in levels.0.iter().filter(|level| !level.scans.is_empty()) {
            pause();
            hide_unread(level);
            // It may be part of what decides who sees a row: a policy's subquery, or a view's. Or each process of
            // a parallel plan runs it, and workers have no places; or it is run again for a row that somebody has
            // changed meanwhile, when it has none either: all must find the same rows.
            if (secure || statement.parallelModeNeeded || !reads_only) && !level.outermost
                || level.has_any(&[NodeTag::T_Gather, NodeTag::T_GatherMerge])
            {
                continue;
            }
            for operator in level.operators() {
                let scans =
                    || (level.scans.iter()).filter(|scan| operator_of(&***scan) == operator);
                let own: usize = scans()
                    .filter_map(|scan| mentions::in_node(scan.cast(), operator))
                    .sum();
                if level.mentions(operator) != Some(own) || constants.may_be_mistaken(operator) {
                    continue;
                }
                let in_columns = reads_only
                    && scans().all(|scan| {
                        uncompared::reaches_client(statement, &parents, *scan, ordering(&**scan))
                    });
                // What one (sub)query leaves out another may be there for. What replaces the operator has it still.
                let mut is_only = || {
                    let all = everywhere.entry(operator).or_insert_with(|| {
                        let each = levels.0.iter().map(|level| level.mentions(operator));
                        each.sum()
                    });
                    *all == Some(own)
                };
                let in_filters = in_filters
                    && is_only()
                    && scans().all(|scan| uncompared::filters_alone(&**scan, ordering(&**scan)));
                for scan in scans() {
                    take_distance(&mut **scan, statement, (in_columns, in_filters), constants);
                }
            }
        }
    }
}

/// The (sub)queries of a plan.
#[derive(Default)]
struct Levels(Vec<Level>);

/// A (sub)query: what the server plans at a time, and knows the order of.
struct Level {
    plan: *mut pg_sys::Plan,
    /// Of the statement itself, and not of a subquery, a view or an expression's plan.
    outermost: bool,
    nodes: Vec<*mut pg_sys::Plan>,
    /// Scans of text indexes among them.
    scans: Vec<*mut pg_sys::IndexScan>,
}

impl Level {
    /// The operators that scans are ordered by, each once.
    ///
    /// # Safety
    /// The plan exists still.
    unsafe fn operators(&self) -> Vec<pg_sys::Oid> {
        // SAFETY: by contract.
        let operator = |scan: &*mut pg_sys::IndexScan| unsafe { operator_of(&**scan) };
        let mut operators: Vec<_> = self.scans.iter().map(operator).collect();
        operators.sort_unstable_by_key(|operator| operator.to_u32());
        operators.dedup();
        operators
    }

    /// How often the nodes have an operator; `None` where that is not known of one of them.
    ///
    /// # Safety
    /// The plan exists still.
    unsafe fn mentions(&self, operator: pg_sys::Oid) -> Option<usize> {
        let nodes = self.nodes.iter();
        // SAFETY: by contract.
        nodes
            .map(|node| unsafe { mentions::in_node(*node, operator) })
            .sum()
    }

    /// Whether one of its nodes is of one of these kinds.
    ///
    /// # Safety
    /// The plan exists still.
    unsafe fn has_any(&self, kinds: &[NodeTag]) -> bool {
        // SAFETY: by contract.
        let is_one = |node: &*mut pg_sys::Plan| kinds.contains(unsafe { &(**node).type_ });
        self.nodes.iter().any(is_one)
    }
}

impl Levels {
    /// # Safety
    /// A complete plan, whose tables and indexes are locked.
    unsafe fn of(statement: &pg_sys::PlannedStmt) -> Self {
        let mut levels = Self::default();
        // SAFETY: by contract; the list is of plans, some of which may be null.
        unsafe {
            levels.visit(statement.planTree, true);
            for plan in members(statement.subplans) {
                levels.visit(plan.ptr_value.cast(), false);
            }
        }
        levels
    }

    /// Visits the plan of a (sub)query and all below it.
    ///
    /// # Safety
    /// A plan of the server's, or null.
    unsafe fn visit(&mut self, plan: *mut pg_sys::Plan, outermost: bool) {
        if !plan.is_null() {
            self.0.push(Level {
                plan,
                outermost,
                nodes: Vec::new(),
                scans: Vec::new(),
            });
            // SAFETY: by contract.
            unsafe { self.walk(plan, self.0.len() - 1) };
        }
    }

    /// Visits a plan of the level of this number and all below it.
    ///
    /// # Safety
    /// As [`Self::visit`].
    unsafe fn walk(&mut self, plan: *mut pg_sys::Plan, number: usize) {
        // SAFETY: by contract; a node is what its tag says.
        unsafe {
            if plan.is_null() {
                return;
            }
            let level = &mut self.0[number];
            let outermost = level.outermost;
            match (*plan).type_ {
                // A subquery whose scan the server has left out, for it would do nothing.
                NodeTag::T_Limit if level.plan != plan => return self.visit(plan, false),
                NodeTag::T_ModifyTable => return self.visit((*plan).lefttree, outermost),
                _ => level.nodes.push(plan),
            }
            match (*plan).type_ {
                NodeTag::T_IndexScan => {
                    let scan = plan.cast::<pg_sys::IndexScan>();
                    if is_of_texts(&*scan) {
                        level.scans.push(scan);
                    }
                }
                NodeTag::T_SubqueryScan => {
                    let scan = plan.cast::<pg_sys::SubqueryScan>();
                    self.visit((*scan).subplan, false);
                }
                NodeTag::T_Append => {
                    self.walk_all((*plan.cast::<pg_sys::Append>()).appendplans, number);
                }
                NodeTag::T_MergeAppend => {
                    self.walk_all((*plan.cast::<pg_sys::MergeAppend>()).mergeplans, number);
                }
                NodeTag::T_BitmapAnd => {
                    self.walk_all((*plan.cast::<pg_sys::BitmapAnd>()).bitmapplans, number);
                }
                NodeTag::T_BitmapOr => {
                    self.walk_all((*plan.cast::<pg_sys::BitmapOr>()).bitmapplans, number);
                }
                NodeTag::T_CustomScan => {
                    self.walk_all((*plan.cast::<pg_sys::CustomScan>()).custom_plans, number);
                }
                _ => {}
            }
            self.walk((*plan).lefttree, number);
            self.walk((*plan).righttree, number);
        }
    }

    /// # Safety
    /// A list of plans.
    unsafe fn walk_all(&mut self, plans: *mut pg_sys::List, number: usize) {
        // SAFETY: by contract.
        unsafe {
            for plan in members(plans) {
                self.walk(plan.ptr_value.cast(), number);
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
        let is_text = build::is_laser(index) && *(*index).rd_opcintype == pg_sys::TEXTOID;
        pg_sys::RelationClose(index);
        is_text && (*ordering(scan)).type_ == NodeTag::T_OpExpr
    }
}

/// Whether a table has row-level security, for whomever; so does one that is gone.
fn has_row_security(table: pg_sys::Oid) -> bool {
    let look = |form: &pg_sys::FormData_pg_class| form.relrowsecurity;
    // SAFETY: rows of this cache.
    unsafe { catalogs::row(pg_sys::SysCacheIdentifier::RELOID, table, look) }.unwrap_or(true)
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

/// The operator of that distance.
///
/// # Safety
/// As [`is_of_texts`] said of it.
unsafe fn operator_of(scan: &pg_sys::IndexScan) -> pg_sys::Oid {
    // SAFETY: by contract.
    unsafe { (*ordering(scan).cast::<pg_sys::OpExpr>()).opno }
}

/// Replaces hidden columns that nobody reads by NULL: distances at the top of a query, below what passes rows
/// on as they are.
///
/// # Safety
/// The plan exists still.
unsafe fn hide_unread(level: &Level) {
    // SAFETY: by contract; a node is what its tag says.
    unsafe {
        let mut plan = level.plan;
        while let Some(node) = plan.as_ref() {
            match node.type_ {
                // The rows of `WITH TIES` are compared.
                NodeTag::T_Limit
                    if (*plan.cast::<pg_sys::Limit>()).limitOption
                        == pg_sys::LimitOption::LIMIT_OPTION_COUNT => {}
                NodeTag::T_LockRows => {}
                _ => break,
            }
            plan = node.lefttree;
        }
        // Joins that keep the order of what is to their left, down to a scan. Other nodes may sort, group or
        // merge by the column.
        let mut below = plan;
        while let Some(node) = below.as_ref()
            && matches!(node.type_, NodeTag::T_NestLoop | NodeTag::T_HashJoin)
        {
            below = node.lefttree;
        }
        let scan = below.cast::<pg_sys::IndexScan>();
        if !level.scans.contains(&scan) {
            return;
        }
        let operator = operator_of(&*scan);
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
            }
        }
    }
}

/// What [`replace`] looks for and puts in its place.
struct Replacement {
    distance: *mut pg_sys::Node,
    constants: Constants,
    parameter: i32,
    /// How often it has.
    done: usize,
}

/// Has a scan's columns and filters read the distance that the scan has computed, and gives the scan a
/// parameter, if that replaces all that the operator computes of its rows.
///
/// # Safety
/// A scan of this statement, as [`is_of_texts`] said of it.
unsafe fn take_distance(
    scan: &mut pg_sys::IndexScan,
    statement: &mut pg_sys::PlannedStmt,
    (in_columns, in_filters): (bool, bool),
    constants: Constants,
) {
    // SAFETY: by contract.
    unsafe {
        let distance = ordering(scan);
        let operator = operator_of(scan);
        let parameter = members(statement.paramExecTypes).len() as i32;
        // The list with the distance replaced, and whether it had any; none where it may not be, or where some other
        // distance of this operator stays in it.
        let replaced = |list: *mut pg_sys::List, allowed: bool| {
            let mut replacement = Replacement {
                distance,
                constants,
                parameter,
                done: 0,
            };
            let new = pg_sys::ffi::pg_guard_ffi_boundary(|| {
                replace(list.cast(), (&raw mut replacement).cast())
            });
            let all = replacement.done == mentions::in_expression(list, operator);
            let has_any = replacement.done > 0;
            (all && (allowed || !has_any)).then_some((new.cast(), has_any))
        };
        let plan = &mut scan.scan.plan;
        if let Some((columns, columns_read)) = replaced(plan.targetlist, in_columns)
            && let Some((filters, filters_read)) = replaced(plan.qual, in_filters)
        {
            plan.targetlist = columns;
            plan.qual = filters;
            plan.allParam = pg_sys::bms_add_member(plan.allParam, parameter);
            let of_type = if columns_read || filters_read {
                READ
            } else {
                UNREAD
            };
            statement.paramExecTypes = pg_sys::lappend_oid(statement.paramExecTypes, of_type);
        }
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

/// A copy of an expression with the distance replaced. Errors of the server pass over it, as over
/// `count` in [`super::mentions`].
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
        let replacement = context.cast::<Replacement>();
        let (distance, constants) = ((*replacement).distance, (*replacement).constants);
        let is_same = equal(expression.cast(), distance.cast())
            && constants.mark(expression) == constants.mark(distance);
        if !is_same {
            return expression_tree_mutator(expression, replace, context);
        }
        (*replacement).done += 1;
        let parameter = new::<pg_sys::Param>(NodeTag::T_Param);
        (*parameter).paramkind = pg_sys::ParamKind::PARAM_EXEC;
        (*parameter).paramid = (*replacement).parameter;
        (*parameter).paramtype = pg_sys::FLOAT8OID;
        (*parameter).paramtypmod = -1;
        (*parameter).location = -1;
        let either = new::<pg_sys::CoalesceExpr>(NodeTag::T_CoalesceExpr);
        (*either).coalescetype = pg_sys::FLOAT8OID;
        let arguments = lappend(std::ptr::null_mut(), parameter.cast());
        (*either).args = lappend(arguments, expression.cast());
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
        let node = palloc0(size_of::<T>()).cast::<pg_sys::Node>();
        (*node).type_ = tag;
        node.cast()
    }
}
