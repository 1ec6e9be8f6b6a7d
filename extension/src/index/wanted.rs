//! How many rows a query wants of a scan, by what the planner knows (`preprocess_limit` and `grouping_planner` in
//! `src/backend/optimizer/plan/planner.c`).
#![allow(unsafe_code)]

use std::ffi::c_void;

use laser_index::scan::AtOnce;
use pgrx::FromDatum;
use pgrx::pg_sys::{self, NodeTag};

use crate::pg::lists::{members, node};
use crate::pg::unguarded::expression_tree_walker;

/// Rows that a `LIMIT` is taken for whose number the planner does not know: more than those that people write, and
/// few enough for an index. A scan goes on for as long as it is asked, so more rows cost time and are not lost.
const UNKNOWN_LIMIT: f64 = 1000.0;
/// What the server takes such a `LIMIT` for, and so what it takes of the cost of all rows, as a share of them
/// (`preprocess_limit`, `adjust_limit_rows_costs`).
const UNKNOWN_SHARE: f64 = 0.1;

/// How many more rows than estimated are asked.
pub const UNLIKE_ESTIMATE: f64 = 1.5;
/// Rows that a scan keeps at most before it gives the first, where it is no harm that one comes late: who ends earlier than the
/// limit says shall not wait for thousands.
const MOST_KEPT: usize = 1000;
/// Filters that let less than one row in this many pass are taken for ones that do, where a search is to be wider for them:
/// estimates of filters are often far too low, and where they are not, too few rows pass the first search, and a wider one
/// follows.
const BELIEVED: f64 = 10.0;

/// What a scan is asked for at once by a limit of `limit` rows, where filters let one row in `refused` pass: by what the
/// executor knows when it runs ([`super::runs`]), and by what the planner expects ([`limit`]).
pub fn at_once(limit: usize, refused: f64) -> AtOnce {
    let rows = limit.min(MOST_KEPT);
    AtOnce {
        rows,
        rank: (rows as f64 * refused.clamp(1.0, BELIEVED)) as usize,
        asked: likely(limit, refused),
        then_all: false,
    }
}

/// Rows that are asked until `rows` have passed.
pub fn likely(rows: usize, refused: f64) -> usize {
    (rows as f64 * refused * UNLIKE_ESTIMATE) as usize
}

/// Rows that a query wants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Wanted {
    /// All, or how many is not known.
    All,
    /// `LIMIT` and `OFFSET` together.
    Rows(f64),
    /// Those of a `LIMIT` that is known when the query runs.
    Unknown,
}

impl Wanted {
    /// Rows that a scan is expected to give, of `entries` in the index of which `passing` pass the filters, until
    /// the query has what it wants, if the order of the rows and the filters have nothing to do with each other;
    /// and how much the server takes of the cost of giving all rows, as a share.
    pub fn of(self, entries: f64, passing: f64) -> (f64, f64) {
        if passing <= 0.0 {
            return (entries, 1.0);
        }
        let visited = |rows: f64| (rows * (entries / passing).max(1.0)).min(entries);
        match self {
            Self::All => (entries, 1.0),
            Self::Rows(rows) => {
                let visited = visited(rows);
                (visited, (visited / entries.max(1.0)).clamp(1e-9, 1.0))
            }
            Self::Unknown => {
                let rows = (UNKNOWN_SHARE * passing).clamp(1.0, UNKNOWN_LIMIT);
                (visited(rows), UNKNOWN_SHARE)
            }
        }
    }
}

/// Rows that a query wants, of those that its filters let pass.
///
/// `tuple_fraction` is the number that the query wants (`LIMIT` and `OFFSET` together), a share of all where that
/// is not known (cursors, `LIMIT $1` in a generic plan), or zero for all. Of a cursor some may be fetched now and the
/// rest later, so a share that no `LIMIT` stands for counts as all.
///
/// # Safety
/// `root` is the planner's, of a query whose scans are being planned.
pub unsafe fn rows(root: *mut pg_sys::PlannerInfo) -> Wanted {
    // SAFETY: by contract.
    unsafe {
        let query = &*(*root).parse;
        // There the limit counts groups, not rows.
        let grouped = !query.groupClause.is_null()
            || !query.groupingSets.is_null()
            || !query.distinctClause.is_null()
            || !query.havingQual.is_null()
            || query.hasAggs
            || query.hasWindowFuncs && !has_streaming_windows(root);
        // Nobody knows how many rows tie with the last one.
        let ties = query.limitOption == pg_sys::LimitOption::LIMIT_OPTION_WITH_TIES;
        if grouped || ties {
            return Wanted::All;
        }
        // What passes the conditions above is not known; the query's own limit is.
        if (*root).tuple_fraction >= 1.0 && !is_filtered_above(&*root) {
            return Wanted::Rows((*root).tuple_fraction);
        }
        own_limit(root)
    }
}

/// The `LIMIT` and `OFFSET` of a query itself, where they count rows of its tables.
///
/// # Safety
/// As [`rows`].
pub unsafe fn own_limit(root: *mut pg_sys::PlannerInfo) -> Wanted {
    // SAFETY: by contract; the expressions have been prepared for planning.
    unsafe {
        let query = &*(*root).parse;
        if query.hasTargetSRFs {
            return Wanted::All;
        }
        match (
            number(root, query.limitCount),
            number(root, query.limitOffset),
        ) {
            (Some(None), _) => Wanted::All,
            (Some(Some(count)), Some(offset)) => {
                Wanted::Rows(count.max(1) as f64 + offset.unwrap_or(0).max(0) as f64)
            }
            _ => Wanted::Unknown,
        }
    }
}

/// Rows that a scan of this table is asked for at once, where the limit of a query is all that is above it when the query runs
/// ([`super::runs`]), and `wanted` is what [`rows`] says. Those of an `OFFSET` are not among them. A limit whose number is not
/// known yet is left out of the price, though a scan is as wide for it.
///
/// # Safety
/// As [`rows`]; a table of the query.
pub unsafe fn limit(
    root: *mut pg_sys::PlannerInfo,
    table: &pg_sys::RelOptInfo,
    wanted: Wanted,
) -> Option<usize> {
    let Wanted::Rows(wanted) = wanted else {
        return None;
    };
    // SAFETY: by contract.
    unsafe {
        let query = &*(*root).parse;
        // Rows are locked, numbered or sorted on between the scan and the limit.
        let is_between = !(*root).rowMarks.is_null()
            || query.hasWindowFuncs
            || members((*root).sort_pathkeys).len() > 1;
        let is_alone =
            pg_sys::bms_membership((*root).all_baserels) == pg_sys::BMS_Membership::BMS_SINGLETON;
        if is_between || !is_alone || !is_only_part(root, table) {
            return None;
        }
        let own = number(root, query.limitCount).flatten();
        Some(own.map_or(wanted, |own| wanted.min(own.max(0) as f64)) as usize)
    }
}

/// Whether a table is a query's own, or the only part of one that is left to be read: the plan has no node for it then.
///
/// # Safety
/// As [`limit`].
unsafe fn is_only_part(root: *mut pg_sys::PlannerInfo, table: &pg_sys::RelOptInfo) -> bool {
    let mut table = table;
    // SAFETY: by contract; a member of an append relation has an entry in the array of these, and its parent is a relation. What
    // is partitioned has an array of its parts, with null for those that nobody reads; inheritance and UNION ALL have none.
    unsafe {
        while table.reloptkind == pg_sys::RelOptKind::RELOPT_OTHER_MEMBER_REL {
            let member = *(*root).append_rel_array.add(table.relid as usize);
            let Some(member) = member.as_ref() else {
                return false;
            };
            table = &**(*root).simple_rel_array.add(member.parent_relid as usize);
            if table.part_rels.is_null() {
                return false;
            }
            let parts = std::slice::from_raw_parts(table.part_rels, table.nparts.max(0) as usize);
            if parts.iter().filter(|part| !part.is_null()).take(2).count() != 1 {
                return false;
            }
        }
    }
    table.reloptkind == pg_sys::RelOptKind::RELOPT_BASEREL
}

/// What a `LIMIT` or an `OFFSET` is: a number, one of none for NULL or where it is missing, or nothing where it is not known.
///
/// # Safety
/// As [`rows`]; an expression of the query, prepared for planning, or null.
unsafe fn number(
    root: *mut pg_sys::PlannerInfo,
    expression: *mut pg_sys::Node,
) -> Option<Option<i64>> {
    if expression.is_null() {
        return Some(None);
    }
    // SAFETY: by contract; a node is what its tag says.
    unsafe {
        let known = pg_sys::estimate_expression_value(root, expression);
        let known = (!known.is_null() && (*known).type_ == NodeTag::T_Const)
            .then(|| &*known.cast::<pg_sys::Const>())?;
        Some(i64::from_datum(known.constvalue, known.constisnull))
    }
}

/// Whether a query above has a condition on the rows of this one that it could not hand down. The
/// planner takes the number of rows that are wanted there for the number that is wanted here.
///
/// # Safety
/// `root` is the planner's, of a query that is being planned.
unsafe fn is_filtered_above(root: &pg_sys::PlannerInfo) -> bool {
    // SAFETY: the planner's structures of the queries above live as long as this one's. Entry 0 of the
    // array is unused, and others may be null.
    unsafe {
        let mut above = root.parent_root.as_ref();
        while let Some(query) = above {
            let rels = 1..query.simple_rel_array_size.max(1) as usize;
            let filtered = |at: usize| {
                let rel = (*query.simple_rel_array.add(at)).as_ref();
                rel.is_some_and(|rel| {
                    rel.rtekind == pg_sys::RTEKind::RTE_SUBQUERY && !rel.baserestrictinfo.is_null()
                })
            };
            if !query.simple_rel_array.is_null() && rels.into_iter().any(filtered) {
                return true;
            }
            above = query.parent_root.as_ref();
        }
        false
    }
}

/// Whether each window function of a query needs no more rows than it has given, in the order that the query has
/// anyhow: then its limit counts rows.
///
/// # Safety
/// As [`rows`].
unsafe fn has_streaming_windows(root: *mut pg_sys::PlannerInfo) -> bool {
    // SAFETY: by contract; the list is of windows.
    unsafe {
        let windows = members((*(*root).parse).windowClause);
        let window = |at: usize| &*node(&windows[at]).cast::<pg_sys::WindowClause>();
        let one_order = (0..windows.len()).all(|at| {
            let order = window(at).orderClause;
            window(at).partitionClause.is_null()
                && !order.is_null()
                && pg_sys::equal(order.cast(), window(0).orderClause.cast())
        });
        // The order of the first one is all that the planner says, by expressions as it has simplified them.
        one_order
            && pg_sys::pathkeys_contained_in((*root).sort_pathkeys, (*root).window_pathkeys)
            && !pg_sys::ffi::pg_guard_ffi_boundary(|| {
                needs_later_rows((*(*root).parse).targetList.cast(), std::ptr::null_mut())
            })
    }
}

/// Whether an expression, or one of a list, has a window function that needs rows behind its own. Errors of the server
/// (of its limit of stack) pass over this function, which has nothing to be dropped.
unsafe extern "C-unwind" fn needs_later_rows(
    expression: *mut pg_sys::Node,
    context: *mut c_void,
) -> bool {
    // SAFETY: an expression of the query, a list of some, or null; a node is what its tag says.
    unsafe {
        if expression.is_null() {
            return false;
        }
        if (*expression).type_ == NodeTag::T_WindowFunc {
            let call = &*expression.cast::<pg_sys::WindowFunc>();
            let streams = match call.winfnoid.to_u32() {
                pg_sys::F_ROW_NUMBER
                | pg_sys::F_RANK_
                | pg_sys::F_DENSE_RANK_
                | pg_sys::F_LAG_ANYELEMENT => true,
                // With a negative number it is `lead`.
                pg_sys::F_LAG_ANYELEMENT_INT4 | pg_sys::F_LAG_ANYCOMPATIBLE_INT4_ANYCOMPATIBLE => {
                    members(call.args)
                        .get(1)
                        .is_some_and(|cell| is_natural(node(cell)))
                }
                _ => false,
            };
            if !streams {
                return true;
            }
        }
        expression_tree_walker(expression, needs_later_rows, context)
    }
}

/// Whether it is a constant of type `integer` that is not negative.
///
/// # Safety
/// An expression.
unsafe fn is_natural(expression: *mut pg_sys::Node) -> bool {
    // SAFETY: by contract; a node is what its tag says.
    unsafe {
        if (*expression).type_ != NodeTag::T_Const {
            return false;
        }
        let constant = &*expression.cast::<pg_sys::Const>();
        // Passed by value, in the lower half.
        !constant.constisnull && constant.constvalue.value() as i32 >= 0
    }
}
