//! Conditions that two tables of a join have alike.
//!
//! Where each table of a query is restricted to one tenant (row-level security, scopes of ORMs), the rows that belong together are
//! of the same tenant: that the other table has few of its rows left makes no partner less likely. The planner cannot know, and
//! counts the condition for each table. Here it is taken for the same where columns of the same name are to equal the same, and
//! tables are joined by what is unique in one of them: without that, the condition may be a part of the key.
#![allow(unsafe_code)]

use std::ffi::CStr;

use pgrx::pg_sys::{self, JoinType, NodeTag};

use crate::pg::lists::{members, node};

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
            has_key(table, equality) || has_key(other, equality)
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
            if let Some((_, own)) = own.iter().find(|(own, _)| own.is_alike(&equality)) {
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

/// Whether a column that an equality compares is unique in its table.
///
/// # Safety
/// One of the planner's tables, and an expression.
unsafe fn has_key(table: &pg_sys::RelOptInfo, equality: *mut pg_sys::Node) -> bool {
    // SAFETY: by contract; nodes are what their tags say, and an index has a number for each key.
    unsafe {
        if (*equality).type_ != NodeTag::T_OpExpr {
            return false;
        }
        let sides = members((*equality.cast::<pg_sys::OpExpr>()).args);
        let columns = sides.iter().filter_map(|side| column(node(side)));
        columns
            .filter(|column| column.varno as pg_sys::Index == table.relid)
            .any(|column| {
                members(table.indexlist).iter().any(|cell| {
                    let index = &*cell.ptr_value.cast::<pg_sys::IndexOptInfo>();
                    index.unique
                        && index.immediate
                        && index.indpred.is_null()
                        && index.nkeycolumns == 1
                        && *index.indexkeys == i32::from(column.varattno)
                })
            })
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

/// The condition that a column equals something that no table has.
struct Equality<'a> {
    column: &'a CStr,
    value: *mut pg_sys::Node,
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
            let clause = condition.clause.cast::<pg_sys::OpExpr>();
            if condition.mergeopfamilies.is_null() || (*clause).xpr.type_ != NodeTag::T_OpExpr {
                return None;
            }
            let [left, right] = members((*clause).args) else {
                return None;
            };
            let (left, right) = (node(left), node(right));
            let is_of_table = |side| pg_sys::contain_var_clause(side);
            let (own, value) = match (is_of_table(left), is_of_table(right)) {
                (true, false) => (left, right),
                (false, true) => (right, left),
                _ => return None,
            };
            let number = column(own)?.varattno;
            let entry = *root.simple_rte_array.add(table.relid as usize);
            let name = pg_sys::get_rte_attribute_name(entry, number);
            Some(Self {
                column: CStr::from_ptr(name),
                value,
            })
        }
    }

    fn is_alike(&self, other: &Self) -> bool {
        // SAFETY: expressions of the query.
        self.column == other.column
            && unsafe { pg_sys::equal(self.value.cast(), other.value.cast()) }
    }
}
