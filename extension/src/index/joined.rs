//! What joins leave of a table's rows, when it is planned in which order they are read.
//!
//! Joins are planned after scans, so that their own estimates are not there yet. What a condition on another table leaves of
//! that is taken for what it leaves of the rows that refer to it, as it does where each refers to one of its rows.
#![allow(unsafe_code)]

use pgrx::pg_sys::{self, JoinType, RTEKind, RelOptKind};

use crate::pg::lists::{members, node};

/// The share of a table's rows that have partners in the tables that they are joined with, estimated.
///
/// # Safety
/// The planner's structures, of a query whose scans are being planned, and of one of its tables.
pub unsafe fn share(root: &pg_sys::PlannerInfo, rel: &pg_sys::RelOptInfo) -> f64 {
    // SAFETY: by contract. Entry 0 of the array is unused, and others may be null.
    unsafe {
        let others = (1..root.simple_rel_array_size.max(1) as usize)
            .filter_map(|at| (*root.simple_rel_array.add(at)).as_ref())
            .filter(|other| {
                let is_own = std::ptr::eq(*other, rel)
                    || pg_sys::bms_is_member(other.relid as i32, rel.top_parent_relids);
                let is_joined = other.has_eclass_joins || !other.joininfo.is_null();
                other.reloptkind == RelOptKind::RELOPT_BASEREL
                    && other.rtekind == RTEKind::RTE_RELATION
                    && !is_own
                    && is_joined
                    && other.tuples > 0.0
                    && refuses(root, other.relid)
            });
        others
            .map(|other| {
                // Of rows that are referred to, each may have several partners.
                let partners = other.rows / other.tuples.min(rel.tuples).max(1.0);
                partners.min(1.0)
            })
            .product::<f64>()
            .max(f64::MIN_POSITIVE)
    }
}

/// Whether rows without a partner in a table are left out: not by the optional side of an outer join, nor where those are wanted.
///
/// # Safety
/// As [`share`].
unsafe fn refuses(root: &pg_sys::PlannerInfo, relid: pg_sys::Index) -> bool {
    // SAFETY: by contract: a list of descriptions of joins.
    unsafe {
        members(root.join_info_list).iter().all(|cell| {
            let join = &*node(cell).cast::<pg_sys::SpecialJoinInfo>();
            let is_within = |relids| pg_sys::bms_is_member(relid as i32, relids);
            match join.jointype {
                JoinType::JOIN_SEMI => true,
                JoinType::JOIN_FULL => {
                    !is_within(join.syn_lefthand) && !is_within(join.syn_righthand)
                }
                _ => !is_within(join.syn_righthand),
            }
        })
    }
}
