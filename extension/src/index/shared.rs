//! Conditions that two tables of a join have alike.
//!
//! Where each table of a query is restricted to one tenant (row-level security, scopes of ORMs), the rows that belong together are
//! of the same tenant: that the other table has few of its rows left makes no partner less likely. The planner cannot know, and
//! counts the condition for each table. Here it is taken for the same where columns of the same name are to equal the same, and
//! tables are joined by what is unique in one of them: without that, the condition may be a part of the key. Where it is one, what
//! they are joined by must nearly be unique without it, as numbers from a sequence are.
#![allow(unsafe_code)]

use std::ffi::CStr;

use pgrx::pg_sys::{self, JoinType, NodeTag};

use super::same_value::has_same_value;
use crate::pg::lists::{members, node};

/// The share of a table's rows that have a value of their own in a column that is taken for unique.
const NEARLY: f64 = 0.9;

/// The rows of `other` that pass its conditions, without those that `table` has as well, which it is joined with by `equalities`.
/// With `is_larger` no condition adds more than makes its share here what it is there: what leaves a hundredth here and most rows there, as
/// a state that both have by the same name, is no tenant, and of the rows there no more than about that share can have a partner that passes.
///
/// # Safety
/// The planner's structures, of a query whose scans are being planned, of two of its tables, and a list of expressions.
pub unsafe fn rows(
    root: *mut pg_sys::PlannerInfo,
    table: &pg_sys::RelOptInfo,
    other: &pg_sys::RelOptInfo,
    equalities: *mut pg_sys::List,
    is_larger: bool,
) -> f64 {
    // SAFETY: by contract: lists of conditions.
    unsafe {
        let is_by_key = members(equalities).iter().any(|cell| {
            let equality = node(cell);
            has_key(root, table, equality) || has_key(root, other, equality)
        });
        if !is_by_key {
            return other.rows;
        }
        let own: Vec<_> = members(table.baserestrictinfo)
            .iter()
            .filter_map(|cell| {
                let condition = cell.ptr_value.cast();
                Some((Equality::read(&*root, table, condition)?, condition))
            })
            .collect();
        let share = |condition: *mut pg_sys::RestrictInfo| {
            pg_sys::clause_selectivity(
                root,
                condition.cast(),
                0,
                JoinType::JOIN_INNER,
                std::ptr::null_mut(),
            )
        };
        let mut rows = other.rows;
        for cell in members(other.baserestrictinfo) {
            let condition = cell.ptr_value.cast::<pg_sys::RestrictInfo>();
            let Some(equality) = Equality::read(&*root, other, condition) else {
                continue;
            };
            if let Some((_, own)) = own.iter().find(|(own, _)| own.is_alike(&*root, &equality)) {
                let mut least = share(condition);
                if is_larger {
                    least = least.max(share(*own));
                }
                rows /= least.max(f64::MIN_POSITIVE);
            }
        }
        rows.min(other.tuples.max(other.rows))
    }
}

/// Whether a column that an equality compares is unique in its table, or nearly and a part of what is.
///
/// # Safety
/// A query that is being planned, one of its tables, and an expression.
unsafe fn has_key(
    root: *mut pg_sys::PlannerInfo,
    table: &pg_sys::RelOptInfo,
    equality: *mut pg_sys::Node,
) -> bool {
    // SAFETY: by contract; nodes are what their tags say, and an index has a number for each key.
    unsafe {
        if (*equality).type_ != NodeTag::T_OpExpr {
            return false;
        }
        let sides = members((*equality.cast::<pg_sys::OpExpr>()).args);
        let columns = sides.iter().filter_map(|side| column(node(side)));
        columns
            .filter(|column| column.varno as pg_sys::Index == table.relid && column.varattno > 0)
            .any(|column| {
                members(table.indexlist).iter().any(|cell| {
                    let index = &*cell.ptr_value.cast::<pg_sys::IndexOptInfo>();
                    let is_key = index.unique && index.immediate && index.indpred.is_null();
                    let keys = std::slice::from_raw_parts(
                        index.indexkeys,
                        index.nkeycolumns.max(0) as usize,
                    );
                    is_key
                        && keys.contains(&i32::from(column.varattno))
                        && (keys.len() == 1 || is_nearly_unique(root, table, column))
                })
            })
    }
}

/// Whether a column has nearly as many different values as its table has rows, by statistics.
///
/// # Safety
/// As [`has_key`]; a column of the table.
unsafe fn is_nearly_unique(
    root: *mut pg_sys::PlannerInfo,
    table: &pg_sys::RelOptInfo,
    column: &pg_sys::Var,
) -> bool {
    // SAFETY: by contract. What is looked up is given back.
    unsafe {
        let mut found = pg_sys::VariableStatData::default();
        let column = std::ptr::from_ref(column).cast_mut().cast();
        pg_sys::examine_variable(root, column, 0, &raw mut found);
        let mut is_guess = true;
        let values = pg_sys::get_variable_numdistinct(&raw mut found, &raw mut is_guess);
        if let (false, Some(free)) = (found.statsTuple.is_null(), found.freefunc) {
            free(found.statsTuple);
        }
        !is_guess && values >= NEARLY * table.tuples
    }
}

/// The column that an expression is, under another type with the same bytes perhaps.
///
/// # Safety
/// An expression, which outlives what is returned.
unsafe fn column<'a>(mut expression: *mut pg_sys::Node) -> Option<&'a pg_sys::Var> {
    // SAFETY: by contract; nodes are what their tags say.
    unsafe {
        while (*expression).type_ == NodeTag::T_RelabelType {
            expression = (*expression.cast::<pg_sys::RelabelType>()).arg.cast();
        }
        ((*expression).type_ == NodeTag::T_Var).then(|| &*expression.cast())
    }
}

/// The condition that a column equals something that no table has, or one of several such things.
struct Equality<'a> {
    column: &'a CStr,
    value: *mut pg_sys::Node,
    /// Whether the value is an array of them.
    is_any: bool,
}

impl<'a> Equality<'a> {
    /// `None` for a condition of another kind.
    ///
    /// # Safety
    /// A query that is being planned, one of its tables, and a condition on that.
    unsafe fn read(
        root: &'a pg_sys::PlannerInfo,
        table: &pg_sys::RelOptInfo,
        condition: *const pg_sys::RestrictInfo,
    ) -> Option<Self> {
        // SAFETY: by contract; nodes are what their tags say.
        unsafe {
            let condition = &*condition;
            let clause = condition.clause.cast::<pg_sys::Node>();
            let (arguments, is_equality, is_any) = match (*clause).type_ {
                NodeTag::T_OpExpr => {
                    let is_equality = !condition.mergeopfamilies.is_null();
                    ((*clause.cast::<pg_sys::OpExpr>()).args, is_equality, false)
                }
                NodeTag::T_ScalarArrayOpExpr => {
                    let any = &*clause.cast::<pg_sys::ScalarArrayOpExpr>();
                    let kind = pg_sys::exprType(node(members(any.args).first()?));
                    let is_equality = any.useOr
                        && pg_sys::op_mergejoinable(any.opno, kind)
                        && !pg_sys::contain_volatile_functions(clause);
                    (any.args, is_equality, true)
                }
                _ => return None,
            };
            let ([left, right], true) = (members(arguments), is_equality) else {
                return None;
            };
            let (left, right) = (node(left), node(right));
            let is_of_table = |side| pg_sys::contain_var_clause(side);
            let (own, value) = match (is_of_table(left), is_of_table(right)) {
                (true, false) => (left, right),
                // `3 = ANY (column)` is of the column's elements.
                (false, true) if !is_any => (right, left),
                _ => return None,
            };
            let number = column(own)?.varattno;
            let entry = *root.simple_rte_array.add(table.relid as usize);
            let name = pg_sys::get_rte_attribute_name(entry, number);
            Some(Self {
                column: CStr::from_ptr(name),
                value,
                is_any,
            })
        }
    }

    /// # Safety
    /// Both of the same query, which is being planned.
    unsafe fn is_alike(&self, root: &pg_sys::PlannerInfo, other: &Self) -> bool {
        self.column == other.column
            && self.is_any == other.is_any
            // SAFETY: by contract: expressions of the query.
            && unsafe { has_same_value(root, self.value, other.value) }
    }
}
