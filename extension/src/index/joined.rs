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

use pgrx::pg_sys::{self, JoinType, NodeTag, RelOptKind};

use super::planned::{PerQuery, of_query};
use super::shared;
use crate::pg::interrupts::pause;
use crate::pg::lists::{members, node};

/// Tables of a query beyond which joins are taken to leave all rows: each is compared with each.
const MOST_TABLES: usize = 16;
/// The least share that is believed to be left by what must have no partner: a difference of two estimates, which are no more
/// exact.
const LEAST_WITHOUT: f64 = 0.005;

thread_local! {
    /// What is known of tables, by their numbers in their query, and for searches of texts or of others.
    static KNOWN: RefCell<PerQuery<HashMap<(pg_sys::Index, bool), Left>>> = RefCell::default();
}

/// The shares of a table's rows that joins leave, estimated.
#[derive(Debug, Clone, Copy)]
pub struct Left {
    /// By what must have partners.
    pub with: f64,
    /// By what must have none, such as `NOT EXISTS`.
    pub without: f64,
    /// By all, where conditions that both tables of a join have count twice: that is what the server takes the joins to leave.
    pub counted_twice: f64,
}

impl Left {
    const ALL: Self = Self {
        with: 1.0,
        without: 1.0,
        counted_twice: 1.0,
    };
}

/// What is known of a table of a query, or else what `estimate` says.
///
/// # Safety
/// As [`left`].
unsafe fn once(
    root: *mut pg_sys::PlannerInfo,
    table: (pg_sys::Index, bool),
    estimate: impl FnOnce() -> Left,
) -> Left {
    // SAFETY: by contract.
    unsafe {
        let known = of_query(&KNOWN, root, |known| known.get(&table).copied());
        known.unwrap_or_else(|| {
            let left = estimate();
            of_query(&KNOWN, root, |known| known.insert(table, left));
            left
        })
    }
}

/// What the tables that a table is joined with leave of its rows. Where its texts are searched, conditions that both tables of a join
/// have are taken for those of a tenant, however many rows each leaves: otherwise all texts of one that has few users might be embedded.
///
/// # Safety
/// The planner's structures, of a query whose scans are being planned, and of one of its tables.
pub unsafe fn left(
    root: *mut pg_sys::PlannerInfo,
    rel: &pg_sys::RelOptInfo,
    is_text: bool,
) -> Left {
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
            return Left::ALL;
        };
        if others.len() >= MOST_TABLES {
            return Left::ALL;
        }
        once(root, ((*own).relid, is_text), || {
            others.retain(|other| (***other).tuples > 0.0);
            let others: Vec<_> = others.into_iter().copied().collect();
            let of = |shared| of(root, own, &mut others.clone(), shared);
            let least = |share: f64| share.max(f64::MIN_POSITIVE);
            let twice = of(Shared::Twice);
            let once = match twice.has_shared {
                true if is_text => of(Shared::Once),
                true => of(Shared::Larger),
                false => twice,
            };
            Left {
                with: least(once.with),
                without: once.without.max(LEAST_WITHOUT),
                counted_twice: least(twice.with * twice.without * twice.by_tests),
            }
        })
    }
}

/// How often conditions count that both tables of a join have ([`shared::rows`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    Once,
    /// Once, and as the larger of the shares that they leave of both tables.
    Larger,
    Twice,
}

/// The shares that tables leave, as [`Left`] has them.
#[derive(Debug, Clone, Copy)]
struct Shares {
    with: f64,
    without: f64,
    /// What the server takes tests for null to leave of outer joins, beyond what the joins themselves leave.
    by_tests: f64,
    /// Whether two tables of a join have a condition alike.
    has_shared: bool,
}

/// The shares that those of `others` leave of a table's rows that it is joined with, which are taken from there, and the rest of
/// theirs.
///
/// # Safety
/// As [`left`].
unsafe fn of(
    root: *mut pg_sys::PlannerInfo,
    table: *mut pg_sys::RelOptInfo,
    others: &mut Vec<*mut pg_sys::RelOptInfo>,
    shared: Shared,
) -> Shares {
    // SAFETY: by contract.
    unsafe {
        let mut joined = Vec::new();
        others.retain(|&other| {
            let Some(partners) = Partners::of(root, &*table, &*other) else {
                return true;
            };
            let conditions = Conditions::of(root, table, other);
            let is_joined = !conditions.equalities.is_null();
            if is_joined {
                joined.push((other, partners, conditions));
            }
            !is_joined
        });
        let mut left = Shares {
            with: 1.0,
            without: 1.0,
            by_tests: 1.0,
            has_shared: false,
        };
        for (other, partners, conditions) in joined {
            // Statistics of ten thousand common values take a second.
            pause();
            // What is planned hereafter finds it as it was.
            let rows = (*other).rows;
            let is_larger = shared == Shared::Larger;
            let once = shared::rows(root, &*table, &*other, conditions.equalities, is_larger);
            let its = of(root, other, others, shared);
            left.has_shared |= its.has_shared || once > rows;
            let passing = match shared {
                Shared::Twice => rows,
                Shared::Once | Shared::Larger => once,
            };
            (*other).rows = (passing * its.with * its.without).max(1.0);
            let estimate = |conditions| semijoin(root, table, other, conditions);
            match partners {
                Partners::Needed => {
                    left.with *= estimate(conditions.equalities);
                    left.by_tests *= its.by_tests;
                }
                // By equality alone a row would be its own partner, where versions of a document are compared.
                Partners::Excluded => {
                    left.without *= (1.0 - estimate(conditions.all)).max(0.0);
                }
                Partners::Null(share) => {
                    let without = (1.0 - estimate(conditions.all)).max(0.0);
                    let left_over = (without + (1.0 - without) * share).max(LEAST_WITHOUT);
                    left.without *= left_over;
                    // The server takes the test to be one of the other table's rows, and rounds up to a row.
                    left.by_tests *= share.max(1.0 / (*table).rows.max(1.0)) / left_over;
                }
            }
            (*other).rows = rows;
        }
        left
    }
}

/// The conditions on rows of two tables and of no others.
#[derive(Debug, Clone, Copy)]
struct Conditions {
    /// That something of both is equal.
    equalities: *mut pg_sys::List,
    all: *mut pg_sys::List,
}

impl Conditions {
    /// # Safety
    /// As [`left`].
    unsafe fn of(
        root: *mut pg_sys::PlannerInfo,
        table: *mut pg_sys::RelOptInfo,
        other: *mut pg_sys::RelOptInfo,
    ) -> Self {
        let mut found = Self {
            equalities: std::ptr::null_mut(),
            all: std::ptr::null_mut(),
        };
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
            for cell in conditions {
                let condition = &*cell.ptr_value.cast::<pg_sys::RestrictInfo>();
                if !pg_sys::bms_equal(condition.required_relids, both) {
                    continue;
                }
                let is_equality = !condition.mergeopfamilies.is_null()
                    || condition.hashjoinoperator != pg_sys::InvalidOid;
                // What is asked of rows of an outer join is no condition of it.
                if !is_equality && condition.is_pushed_down {
                    continue;
                }
                // Without the frame, in which the server would keep what it estimates of it here.
                let clause = condition.clause.cast();
                found.all = pg_sys::lappend(found.all, clause);
                if is_equality {
                    found.equalities = pg_sys::lappend(found.equalities, clause);
                }
            }
        }
        found
    }
}

/// The share of a table's rows that have a partner in another one by some conditions.
///
/// # Safety
/// As [`left`].
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
#[derive(Debug, Clone, Copy)]
enum Partners {
    /// Those without a partner there.
    Needed,
    /// Those that have one: `NOT EXISTS`, and outer joins of which only what has no partner is wanted.
    Excluded,
    /// Those that have one in an outer join whose partners must be null in a column that they are not joined by. The server makes no
    /// anti-join of it. The share of the other table's rows in which the column is null.
    Null(f64),
}

impl Partners {
    /// `None` where all rows are kept: the other table is on the optional side of an outer join.
    ///
    /// # Safety
    /// As [`left`].
    unsafe fn of(
        root: *mut pg_sys::PlannerInfo,
        table: &pg_sys::RelOptInfo,
        other: &pg_sys::RelOptInfo,
    ) -> Option<Self> {
        let mut partners = Self::Needed;
        // SAFETY: by contract: a list of descriptions of joins.
        unsafe {
            for cell in members((*root).join_info_list) {
                let join = &*node(cell).cast::<pg_sys::SpecialJoinInfo>();
                let sides = |relid: pg_sys::Index| {
                    (
                        pg_sys::bms_is_member(relid as i32, join.syn_lefthand),
                        pg_sys::bms_is_member(relid as i32, join.syn_righthand),
                    )
                };
                let ((own_left, own_right), (left, right)) =
                    (sides(table.relid), sides(other.relid));
                let is_between = right && !own_right;
                match join.jointype {
                    JoinType::JOIN_FULL if is_between || left && !own_left => return None,
                    JoinType::JOIN_SEMI | JoinType::JOIN_FULL => {}
                    JoinType::JOIN_ANTI if is_between && own_left => partners = Self::Excluded,
                    _ if is_between && own_left => partners = Self::Null(nulls(root, other)?),
                    _ if is_between => return None,
                    _ => {}
                }
            }
        }
        Some(partners)
    }
}

/// The share of a table's rows that a test for null of one of its columns leaves, which is asked of the rows of outer joins; `None`
/// without such a test.
///
/// # Safety
/// As [`left`].
unsafe fn nulls(root: *mut pg_sys::PlannerInfo, table: &pg_sys::RelOptInfo) -> Option<f64> {
    // SAFETY: by contract: a list of conditions, whose nodes are what their tags say.
    unsafe {
        let tests = members(table.joininfo).iter().filter_map(|cell| {
            let condition = &*cell.ptr_value.cast::<pg_sys::RestrictInfo>();
            let test = condition.clause.cast::<pg_sys::NullTest>();
            let is_test = condition.is_pushed_down
                && (*test.cast::<pg_sys::Node>()).type_ == NodeTag::T_NullTest
                && (*test).nulltesttype == pg_sys::NullTestType::IS_NULL
                && (*(*test).arg.cast::<pg_sys::Node>()).type_ == NodeTag::T_Var;
            (is_test && (*(*test).arg.cast::<pg_sys::Var>()).varno as pg_sys::Index == table.relid)
                .then_some(test)
        });
        let share = |test: *mut pg_sys::NullTest| {
            let relid = table.relid as i32;
            pg_sys::clause_selectivity(
                root,
                test.cast(),
                relid,
                JoinType::JOIN_INNER,
                std::ptr::null_mut(),
            )
        };
        tests.map(share).reduce(f64::min)
    }
}
