//! Whether a distance that a scan has computed goes to the client with nothing comparing it on the way.
//!
//! Texts that are equal have one distance, but an index may have stored them in segments with a rounding each, and what
//! is computed of the texts themselves is another one again. So [`super::rewrite`] lets columns and filters have the
//! index's distances only where no row is taken or left out, put before another, nor a column computed, by one of them
//! beside something else than constants. What is not known here compares. Statements whose rows go elsewhere than to
//! the client have no distances of the index at all ([`super::distance_param`]).
//!
//! Invariant: what is followed are columns by their places, from node to node, so that no cast, whole row or function
//! hides one.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_char, c_void};

use pgrx::pg_sys::{self, NodeTag};

use crate::pg::lists::{members, node};
use crate::pg::unguarded::{equal, expression_tree_walker, func_volatile};

/// Numbers that columns of the nodes below have in a plan; unsigned before PostgreSQL 15.
#[allow(clippy::unnecessary_cast)]
const OUTER: i32 = pg_sys::OUTER_VAR as i32;
#[allow(clippy::unnecessary_cast)]
const INNER: i32 = pg_sys::INNER_VAR as i32;

/// The nodes of a statement's plan and what each is below, but for those in subplans: their rows come to whatever has the
/// expression.
#[derive(Debug, Default)]
pub struct Parents(HashMap<*mut pg_sys::Plan, *mut pg_sys::Plan>);

impl Parents {
    /// # Safety
    /// A statement, which is complete.
    pub unsafe fn of(statement: &pg_sys::PlannedStmt) -> Self {
        let mut parents = Self::default();
        // SAFETY: by contract.
        unsafe { parents.add(statement.planTree, std::ptr::null_mut()) };
        parents
    }

    /// # Safety
    /// A node of a complete plan, or null.
    unsafe fn add(&mut self, plan: *mut pg_sys::Plan, parent: *mut pg_sys::Plan) {
        // SAFETY: by contract: a node is what its tag says.
        unsafe {
            if plan.is_null() {
                return;
            }
            self.0.insert(plan, parent);
            let more = match (*plan).type_ {
                NodeTag::T_SubqueryScan => {
                    self.add((*plan.cast::<pg_sys::SubqueryScan>()).subplan, plan);
                    return;
                }
                NodeTag::T_Append => (*plan.cast::<pg_sys::Append>()).appendplans,
                NodeTag::T_MergeAppend => (*plan.cast::<pg_sys::MergeAppend>()).mergeplans,
                _ => std::ptr::null_mut(),
            };
            for cell in members(more) {
                self.add(cell.ptr_value.cast(), plan);
            }
            self.add((*plan).lefttree, plan);
            self.add((*plan).righttree, plan);
        }
    }

    /// A node and all above it; nothing of one that is not there.
    fn path(&self, plan: *mut pg_sys::Plan) -> Vec<*mut pg_sys::Plan> {
        let mut path = Vec::new();
        let mut at = plan;
        while let Some(&parent) = self.0.get(&at) {
            path.push(at);
            at = parent;
        }
        path
    }
}

/// Whether the distances in a scan's columns go to the client so.
///
/// # Safety
/// A scan of the statement, which is complete and has these parents, and the distance that it is ordered by.
pub unsafe fn reaches_client(
    statement: &pg_sys::PlannedStmt,
    parents: &Parents,
    scan: *mut pg_sys::IndexScan,
    distance: *mut pg_sys::Node,
) -> bool {
    let target = Target {
        scan: scan.cast(),
        path: parents.path(scan.cast()),
        distance,
    };
    // SAFETY: by contract.
    unsafe { target.columns_of(statement.planTree).is_some() }
}

/// Whether a scan's filters compare its distance with constants alone, or the statement's parameters.
///
/// # Safety
/// As [`reaches_client`].
pub unsafe fn filters_alone(scan: &pg_sys::IndexScan, distance: *mut pg_sys::Node) -> bool {
    let sought = Sought::Distance(distance);
    // SAFETY: by contract.
    unsafe {
        let mut filters = members(scan.scan.plan.qual).iter();
        filters.all(|filter| sought.is_beside_constants(node(filter)))
    }
}

/// The scan that is looked for in a plan.
struct Target {
    scan: *mut pg_sys::Plan,
    /// It and all above it.
    path: Vec<*mut pg_sys::Plan>,
    distance: *mut pg_sys::Node,
}

impl Target {
    /// The columns of a node that have distances of the scan, which is this node or below it; `None` if it is not, or
    /// if something between compares them.
    ///
    /// # Safety
    /// A node of a complete plan, or null.
    unsafe fn columns_of(&self, plan: *mut pg_sys::Plan) -> Option<Vec<i16>> {
        // SAFETY: by contract: a node is what its tag says, and has lists of expressions.
        unsafe {
            if !self.path.contains(&plan) {
                return None;
            }
            if plan == self.scan {
                return self.own_columns();
            }
            let (left, right) = ((*plan).lefttree, (*plan).righttree);
            let of_any = |list| {
                let mut plans = members(list).iter();
                plans.find_map(|cell| self.columns_of(cell.ptr_value.cast()))
            };
            let outer = |columns| Sought::Columns(OUTER, columns);
            let inner = |columns| Sought::Columns(INNER, columns);
            let sought = match (*plan).type_ {
                NodeTag::T_Limit => {
                    let option = (*plan.cast::<pg_sys::Limit>()).limitOption;
                    if option != pg_sys::LimitOption::LIMIT_OPTION_COUNT {
                        return None;
                    }
                    outer(self.columns_of(left)?)
                }
                NodeTag::T_Material
                | NodeTag::T_Memoize
                | NodeTag::T_ProjectSet
                | NodeTag::T_Result => outer(self.columns_of(left)?),
                NodeTag::T_Hash => {
                    let sought = outer(self.columns_of(left)?);
                    sought.is_not_in((*plan.cast::<pg_sys::Hash>()).hashkeys)?;
                    sought
                }
                NodeTag::T_Sort | NodeTag::T_IncrementalSort => {
                    // Each begins with a Sort.
                    let sort = &*plan.cast::<pg_sys::Sort>();
                    let columns = self.columns_of(left)?;
                    let keys = std::slice::from_raw_parts(sort.sortColIdx, sort.numCols as usize);
                    if keys.iter().any(|key| columns.contains(key)) {
                        return None;
                    }
                    outer(columns)
                }
                NodeTag::T_SubqueryScan => {
                    let scan = &*plan.cast::<pg_sys::SubqueryScan>();
                    let table = scan.scan.scanrelid as i32;
                    Sought::Columns(table, self.columns_of(scan.subplan)?)
                }
                NodeTag::T_Append => outer(of_any((*plan.cast::<pg_sys::Append>()).appendplans)?),
                // Of equal distances any may come first.
                NodeTag::T_MergeAppend => {
                    outer(of_any((*plan.cast::<pg_sys::MergeAppend>()).mergeplans)?)
                }
                NodeTag::T_NestLoop | NodeTag::T_HashJoin => {
                    let sought = match self.columns_of(left) {
                        Some(columns) => outer(columns),
                        None => inner(self.columns_of(right)?),
                    };
                    sought.is_not_in((*plan.cast::<pg_sys::Join>()).joinqual)?;
                    if (*plan).type_ == NodeTag::T_NestLoop {
                        let handed = (*plan.cast::<pg_sys::NestLoop>()).nestParams;
                        for parameter in members(handed) {
                            let parameter = &*node(parameter).cast::<pg_sys::NestLoopParam>();
                            sought.is_not_in(parameter.paramval)?;
                        }
                    } else {
                        let join = &*plan.cast::<pg_sys::HashJoin>();
                        sought.is_not_in(join.hashclauses)?;
                        sought.is_not_in(join.hashkeys)?;
                    }
                    sought
                }
                _ => return None,
            };
            let mut filters = members((*plan).qual).iter();
            if !filters.all(|filter| sought.is_beside_constants(node(filter))) {
                return None;
            }
            let mut given = Vec::new();
            for column in members((*plan).targetlist) {
                let column = &*node(column).cast::<pg_sys::TargetEntry>();
                let expression = column.expr.cast::<pg_sys::Node>();
                if sought.is(expression) {
                    given.push(column.resno);
                } else {
                    sought.is_not_in(expression)?;
                }
            }
            Some(given)
        }
    }

    /// The scan's own columns that have its distance; `None` if one has something else beside it.
    ///
    /// # Safety
    /// The scan exists still.
    unsafe fn own_columns(&self) -> Option<Vec<i16>> {
        let sought = Sought::Distance(self.distance);
        let mut given = Vec::new();
        // SAFETY: by contract.
        unsafe {
            for column in members((*self.scan).targetlist) {
                let column = &*node(column).cast::<pg_sys::TargetEntry>();
                let found = sought.look_at(column.expr);
                if found.is_met {
                    given.push(column.resno);
                    if found.others {
                        return None;
                    }
                }
            }
        }
        Some(given)
    }
}

/// What is looked for in expressions.
enum Sought {
    Distance(*mut pg_sys::Node),
    /// Columns of the node below, by the number that its columns have.
    Columns(i32, Vec<i16>),
}

impl Sought {
    /// Whether an expression is that and nothing more.
    ///
    /// # Safety
    /// An expression of a plan.
    unsafe fn is(&self, expression: *mut pg_sys::Node) -> bool {
        // SAFETY: by contract: a node is what its tag says.
        unsafe {
            if expression.is_null() {
                return false;
            }
            match self {
                Self::Distance(distance) => equal(expression.cast(), distance.cast()),
                Self::Columns(table, columns) => {
                    (*expression).type_ == NodeTag::T_Var && {
                        let column = &*expression.cast::<pg_sys::Var>();
                        is_of(column, *table) && columns.contains(&column.varattno)
                    }
                }
            }
        }
    }

    /// # Safety
    /// An expression of a plan, a list of some, or null.
    unsafe fn look_at<T>(&self, expression: *mut T) -> Found<'_> {
        let mut found = Found {
            sought: self,
            is_met: false,
            others: false,
        };
        // SAFETY: by contract.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| find(expression.cast(), (&raw mut found).cast()));
        }
        found
    }

    /// `None` if it is in an expression, or in a list of some.
    ///
    /// # Safety
    /// As [`Self::look_at`].
    unsafe fn is_not_in<T>(&self, expression: *mut T) -> Option<()> {
        // SAFETY: by contract.
        let found = unsafe { self.look_at(expression) };
        (!found.is_met).then_some(())
    }

    /// Whether a filter does not have it, or compares it with constants and the statement's parameters.
    ///
    /// # Safety
    /// As [`Self::look_at`].
    unsafe fn is_beside_constants(&self, filter: *mut pg_sys::Node) -> bool {
        // SAFETY: by contract.
        unsafe {
            let found = self.look_at(filter);
            !found.is_met || (!found.others && (*filter).type_ == NodeTag::T_OpExpr)
        }
    }
}

/// Whether a column is of the node, or the table, of this number.
#[allow(clippy::unnecessary_cast)]
fn is_of(column: &pg_sys::Var, table: i32) -> bool {
    column.varno as i32 == table
}

/// What an expression has in it.
struct Found<'s> {
    sought: &'s Sought,
    is_met: bool,
    /// Columns, subplans, what they or other nodes hand on, and functions that are not the server's own or have effects,
    /// outside of what is sought.
    others: bool,
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
        if found.sought.is(expression) {
            found.is_met = true;
            return false;
        }
        match (*expression).type_ {
            NodeTag::T_Var => {
                found.others = true;
                // A whole row has all columns.
                let column = &*expression.cast::<pg_sys::Var>();
                if let Sought::Columns(table, columns) = found.sought {
                    found.is_met |=
                        is_of(column, *table) && column.varattno == 0 && !columns.is_empty();
                }
            }
            NodeTag::T_Param => {
                let kind = (*expression.cast::<pg_sys::Param>()).paramkind;
                found.others |= kind != pg_sys::ParamKind::PARAM_EXTERN;
            }
            NodeTag::T_SubPlan | NodeTag::T_AlternativeSubPlan => found.others = true,
            // Whatever they compute.
            NodeTag::T_FuncExpr => {
                let function = (*expression.cast::<pg_sys::FuncExpr>()).funcid;
                // One with effects may do anything with what it is given, as `set_config` and `query_to_xml` do.
                found.others |= function.to_u32() >= pg_sys::FirstNormalObjectId
                    || func_volatile(function) == pg_sys::PROVOLATILE_VOLATILE as c_char;
            }
            NodeTag::T_OpExpr | NodeTag::T_DistinctExpr | NodeTag::T_NullIfExpr => {
                let operator = (*expression.cast::<pg_sys::OpExpr>()).opno;
                found.others |= operator.to_u32() >= pg_sys::FirstNormalObjectId;
            }
            NodeTag::T_CoerceToDomain => found.others = true,
            _ => {}
        }
        expression_tree_walker(expression, find, context)
    }
}
