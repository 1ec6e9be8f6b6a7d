//! What joins leave of a table's rows, when it is planned in which order they are read.
//!
//! Joins are planned after scans, so that their own estimates are not there yet. That a row has a partner in another table is as
//! likely as for a semijoin with what conditions, and joins with further tables, leave of that (`eqjoinsel_semi` in
//! `src/backend/utils/adt/selfuncs.c`). What both are joined by may be a constant: then it is a condition of both already.
//! Subqueries, `VALUES` and functions are tables here as others are.
//!
//! An estimate compares the common values of both tables with each other, and every index of every partition wants it: it is made
//! once for a table of a query.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;

use pgrx::PgMemoryContexts;
use pgrx::pg_sys::{self, JoinType, RelOptKind};

use crate::pg::lists::{members, node};

/// Tables of a query beyond which joins are taken to leave all rows: each is compared with each.
const MOST_TABLES: usize = 16;

thread_local! {
    /// What is known of tables, by their queries and their numbers there.
    static KNOWN: RefCell<HashMap<(Planned, pg_sys::Index), f64>> = RefCell::default();
}

/// A query that is being planned. Its structures stay where they are until their memory goes.
type Planned = *const pg_sys::PlannerInfo;

/// Dropped with the memory of a query's structures: others may come to lie there.
struct Forget(Planned);

impl Drop for Forget {
    fn drop(&mut self) {
        KNOWN.with_borrow_mut(|known| known.retain(|(query, _), _| *query != self.0));
    }
}

/// What is known of a table of a query, or else what `estimate` says.
///
/// # Safety
/// As [`share`].
unsafe fn once(root: Planned, table: pg_sys::Index, estimate: impl FnOnce() -> f64) -> f64 {
    if let Some(known) = KNOWN.with_borrow(|known| known.get(&(root, table)).copied()) {
        return known;
    }
    let estimate = estimate();
    let is_new = KNOWN.with_borrow(|known| !known.keys().any(|(query, _)| *query == root));
    if is_new {
        // SAFETY: by contract. `subquery_planner` makes both in the same memory context.
        unsafe { PgMemoryContexts::For((*root).planner_cxt).leak_and_drop_on_delete(Forget(root)) };
    }
    KNOWN.with_borrow_mut(|known| known.insert((root, table), estimate));
    estimate
}

/// The share of a table's rows that have partners in the tables that they are joined with, estimated.
///
/// # Safety
/// The planner's structures, of a query whose scans are being planned, and of one of its tables.
pub unsafe fn share(root: *mut pg_sys::PlannerInfo, rel: &pg_sys::RelOptInfo) -> f64 {
    // SAFETY: by contract. Entry 0 of the array is unused, and others may be null.
    unsafe {
        let rels = std::slice::from_raw_parts(
            (*root).simple_rel_array,
            (*root).simple_rel_array_size.max(1) as usize,
        );
        // Conditions are on the parents of partitions.
        let is_it = |table: &pg_sys::RelOptInfo| {
            table.relid == rel.relid
                || pg_sys::bms_is_member(table.relid as i32, rel.top_parent_relids)
        };
        let tables = rels[1..].iter().filter(|table| {
            table.as_ref().is_some_and(|table| {
                table.reloptkind == RelOptKind::RELOPT_BASEREL
                    && (table.has_eclass_joins || !table.joininfo.is_null())
            })
        });
        let (own, mut others): (Vec<_>, Vec<_>) = tables.partition(|table| is_it(&***table));
        let Some(&&own) = own.first() else {
            return 1.0;
        };
        if others.len() >= MOST_TABLES {
            return 1.0;
        }
        once(root, (*own).relid, || {
            others.retain(|other| (***other).tuples > 0.0);
            let mut others = others.into_iter().copied().collect();
            with_partners(root, own, &mut others).max(f64::MIN_POSITIVE)
        })
    }
}

/// The share of a table's rows that have partners in those of `others` that it is joined with, which are taken from there,
/// and they in the rest.
///
/// # Safety
/// As [`share`].
unsafe fn with_partners(
    root: *mut pg_sys::PlannerInfo,
    table: *mut pg_sys::RelOptInfo,
    others: &mut Vec<*mut pg_sys::RelOptInfo>,
) -> f64 {
    // SAFETY: by contract.
    unsafe {
        let mut joined = Vec::new();
        others.retain(|&other| {
            let Some(partners) = Partners::of(&*root, (*table).relid, (*other).relid) else {
                return true;
            };
            let conditions = equalities(root, table, other);
            let is_joined = !conditions.is_null();
            if is_joined {
                joined.push((other, partners, conditions));
            }
            !is_joined
        });
        let mut share = 1.0;
        for (other, partners, conditions) in joined {
            // What is planned hereafter finds it as it was.
            let rows = (*other).rows;
            (*other).rows = (rows * with_partners(root, other, others)).max(1.0);
            let with = semijoin(root, table, other, conditions);
            share *= match partners {
                Partners::Needed => with,
                Partners::Excluded => (1.0 - with).max(0.0),
            };
            (*other).rows = rows;
        }
        share
    }
}

/// The conditions that something of two tables is equal.
///
/// # Safety
/// As [`share`].
unsafe fn equalities(
    root: *mut pg_sys::PlannerInfo,
    table: *mut pg_sys::RelOptInfo,
    other: *mut pg_sys::RelOptInfo,
) -> *mut pg_sys::List {
    // SAFETY: by contract: lists of conditions.
    unsafe {
        let both = pg_sys::bms_union((*table).relids, (*other).relids);
        let implied = pg_sys::generate_join_implied_equalities(
            root,
            both,
            (*table).relids,
            other,
            #[cfg(not(any(feature = "pg14", feature = "pg15")))]
            std::ptr::null_mut(),
        );
        let conditions = members(implied).iter().chain(members((*other).joininfo));
        let mut found = std::ptr::null_mut();
        for cell in conditions {
            let condition = &*cell.ptr_value.cast::<pg_sys::RestrictInfo>();
            let is_equality = !condition.mergeopfamilies.is_null()
                || condition.hashjoinoperator != pg_sys::InvalidOid;
            if is_equality && pg_sys::bms_equal(condition.required_relids, both) {
                // Without the frame, in which the server would keep what it estimates of it here.
                found = pg_sys::lappend(found, condition.clause.cast());
            }
        }
        found
    }
}

/// The share of a table's rows that have a partner in another one by some conditions.
///
/// # Safety
/// As [`share`].
unsafe fn semijoin(
    root: *mut pg_sys::PlannerInfo,
    table: *mut pg_sys::RelOptInfo,
    other: *mut pg_sys::RelOptInfo,
    conditions: *mut pg_sys::List,
) -> f64 {
    // SAFETY: by contract.
    unsafe {
        let mut join = pg_sys::SpecialJoinInfo {
            type_: pg_sys::NodeTag::T_SpecialJoinInfo,
            jointype: JoinType::JOIN_SEMI,
            min_lefthand: (*table).relids,
            min_righthand: (*other).relids,
            syn_lefthand: (*table).relids,
            syn_righthand: (*other).relids,
            ..Default::default()
        };
        pg_sys::clauselist_selectivity(root, conditions, 0, JoinType::JOIN_SEMI, &raw mut join)
    }
}

/// Which rows of a table a join with another one leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Partners {
    /// Those without a partner there.
    Needed,
    /// Those that have one: `NOT EXISTS`, and outer joins of which only what has no partner is wanted.
    Excluded,
}

impl Partners {
    /// `None` where all rows are kept: the other table is on the optional side of an outer join.
    ///
    /// # Safety
    /// As [`share`]; the numbers of two tables.
    unsafe fn of(
        root: &pg_sys::PlannerInfo,
        table: pg_sys::Index,
        other: pg_sys::Index,
    ) -> Option<Self> {
        let mut partners = Self::Needed;
        // SAFETY: by contract: a list of descriptions of joins.
        unsafe {
            for cell in members(root.join_info_list) {
                let join = &*node(cell).cast::<pg_sys::SpecialJoinInfo>();
                let sides = |relid: pg_sys::Index| {
                    (
                        pg_sys::bms_is_member(relid as i32, join.syn_lefthand),
                        pg_sys::bms_is_member(relid as i32, join.syn_righthand),
                    )
                };
                let ((own_left, own_right), (left, right)) = (sides(table), sides(other));
                let is_between = right && !own_right;
                match join.jointype {
                    JoinType::JOIN_FULL if is_between || left && !own_left => return None,
                    JoinType::JOIN_SEMI | JoinType::JOIN_FULL => {}
                    JoinType::JOIN_ANTI if is_between && own_left => partners = Self::Excluded,
                    _ if is_between => return None,
                    _ => {}
                }
            }
        }
        Some(partners)
    }
}
