//! Plans that sort by the distance of texts embed each of them.
//!
//! Where a query's tables are all restricted to the same tenant, the server takes far fewer rows to be left than there are
//! ([`super::shared`]), and so fewer texts to be embedded. Its estimate of the rows cannot be changed; what the texts cost that it
//! misses is added to the plans that embed them.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;

use pgrx::pg_sys::{self, NodeTag, UpperRelationKind};

use super::planned::{PerQuery, of_query};
use crate::pg::lists::members;

thread_local! {
    static NEXT_HOOK: Cell<pg_sys::create_upper_paths_hook_type> = const { Cell::new(None) };
    /// What embedding the texts of a table, by its number in the query, costs besides what the server takes it for, if it has an
    /// index that does without.
    static COSTS: RefCell<PerQuery<HashMap<pg_sys::Index, f64>>> = RefCell::default();
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_HOOK.set(pg_sys::create_upper_paths_hook);
        pg_sys::create_upper_paths_hook = Some(upper_paths);
    }
}

/// Notes that to sort a query's rows costs so much more than the server thinks, for those of one of its tables, or partitions.
///
/// # Safety
/// The planner's structures of a query.
pub unsafe fn add(root: *mut pg_sys::PlannerInfo, table: pg_sys::Index, cost: f64) {
    if cost > 0.0 {
        // SAFETY: by contract.
        unsafe {
            of_query(&COSTS, root, |known| {
                // Each of its indexes says so.
                let known = known.entry(table).or_default();
                *known = known.max(cost);
            });
        }
    }
}

/// `create_upper_paths_hook`. Errors of other hooks pass over it as over a function in C, so that nothing here may need to be
/// dropped then.
unsafe extern "C-unwind" fn upper_paths(
    root: *mut pg_sys::PlannerInfo,
    stage: UpperRelationKind::Type,
    input: *mut pg_sys::RelOptInfo,
    output: *mut pg_sys::RelOptInfo,
    extra: *mut c_void,
) {
    // SAFETY: called by the server, whose arguments are passed on.
    unsafe {
        if let Some(next) = NEXT_HOOK.get() {
            next(root, stage, input, output, extra);
        }
        if stage == UpperRelationKind::UPPERREL_ORDERED {
            let known = |known: &PerQuery<HashMap<_, f64>>| {
                let costs = known.get(&root.cast_const())?.values();
                Some(costs.sum::<f64>())
            };
            if let Some(cost) = COSTS.with_borrow(known) {
                for cell in members((*output).pathlist) {
                    let path = cell.ptr_value.cast::<pg_sys::Path>();
                    if is_sorted(path) {
                        (*path).startup_cost += cost;
                        (*path).total_cost += cost;
                    }
                }
            }
        }
    }
}

/// Whether a path of sorted rows sorts them.
///
/// # Safety
/// A path of the planner.
unsafe fn is_sorted(path: *mut pg_sys::Path) -> bool {
    // SAFETY: by contract: nodes are what their tags say.
    unsafe {
        match (*path).type_ {
            NodeTag::T_SortPath => true,
            // By what else, among rows that are in the order of distances.
            NodeTag::T_IncrementalSortPath => {
                is_sorted((*path.cast::<pg_sys::IncrementalSortPath>()).spath.subpath)
            }
            NodeTag::T_WindowAggPath => is_sorted((*path.cast::<pg_sys::WindowAggPath>()).subpath),
            NodeTag::T_GatherMergePath => {
                is_sorted((*path.cast::<pg_sys::GatherMergePath>()).subpath)
            }
            NodeTag::T_ProjectionPath => {
                is_sorted((*path.cast::<pg_sys::ProjectionPath>()).subpath)
            }
            _ => false,
        }
    }
}
