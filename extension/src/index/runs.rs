//! The scans of the plans that run, and what they cannot know by themselves: an access method is told the keys
//! of a scan, and not the plan that it is a part of.
//!
//! When a run begins, the scans of its plan are written down here, with a place for their distances ([`super::distance_param`])
//! and a cutoff ([`super::cutoff`]) where they have one, and with what they need to look at rows ([`super::rows`]);
//! a scan that is asked for its first row looks itself up. What is written down of a run goes with the memory
//! context of that run, before the run's own memory does, after errors as well.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::rc::Rc;

use laser_index::scan;
use pgrx::PgMemoryContexts;
use pgrx::pg_sys::{self, NodeTag};

use super::build;
use super::cutoff::Cutoff;
use super::distance_param::{self, DistanceParam};
use super::rewrite;
use super::rows::Rows;
use super::wanted;
#[cfg(not(any(feature = "pg14", feature = "pg15")))]
use crate::pg::lists::members;
use crate::pg::unguarded::standard_ExecutorStart;

/// A scan of a run.
struct Scan {
    /// The run's memory context (`es_query_cxt`).
    run: pg_sys::MemoryContext,
    node: *const pg_sys::IndexScanState,
    query: *const pg_sys::QueryDesc,
    place: Option<DistanceParam>,
    /// Whether nothing reads that.
    is_unread: bool,
    cutoff: Option<Rc<Cutoff>>,
    rows: Option<Rc<Rows>>,
    above: Above,
}

/// Rows that are to be had from a scan before one may come late.
#[derive(Debug, Clone, Copy)]
pub struct AtOnce {
    /// Those of the query.
    pub rows: usize,
    /// Those that are searched for.
    pub searched: scan::AtOnce,
}

impl Scan {
    /// What is wanted of it at once, where a limit ends it.
    ///
    /// # Safety
    /// The run goes on.
    unsafe fn at_once(&self) -> Option<AtOnce> {
        let limit = self.above.limit.filter(|_| self.above.is_limited)?;
        // SAFETY: by contract.
        unsafe {
            let state = &(*self.node).ss;
            let plan = &*state.ps.plan;
            let (given, passed_over) = limit.wanted()?;
            let ended = self.above.outer.and_then(|outer| outer.wanted());
            let given = ended.map_or(given, |(rows, before)| {
                given.min(rows.saturating_add(before))
            });
            // An index that has a condition does not have all. A number that is not known yet is -1, of an index 0.
            let relations = [state.ss_currentRelation, (*self.node).iss_RelationDesc];
            let tuples = relations.map(|relation| f64::from((*(*relation).rd_rel).reltuples));
            let known = tuples.into_iter().filter(|tuples| *tuples > 0.0);
            let refused = match known.reduce(f64::min) {
                Some(entries) if !plan.qual.is_null() => {
                    (entries / plan.plan_rows.max(1.0)).max(1.0)
                }
                _ => 1.0,
            };
            if !self.above.is_in_runs {
                // Each of many parts has few of them. What is passed over does not count: a page is to go on where the one
                // before it has ended, and so the search goes as it went for that.
                let searched = (!self.above.is_merged).then(|| wanted::at_once(given, refused))?;
                return Some(AtOnce {
                    rows: searched.rows,
                    searched,
                });
            }
            // Who cannot ask all filters does not know which rows are the query's.
            if !plan.qual.is_null() && !self.rows.as_ref().is_some_and(|rows| rows.are_final()) {
                return None;
            }
            let rows = given
                .saturating_add(passed_over)
                .saturating_add(self.above.reads_ahead);
            let likely = wanted::likely(rows, refused);
            let searched = scan::AtOnce {
                rows: likely,
                // All vectors are compared after it.
                rank: 0,
                asked: likely,
                then_all: true,
            };
            Some(AtOnce { rows, searched })
        }
    }
}

thread_local! {
    static NEXT_HOOK: Cell<pg_sys::ExecutorStart_hook_type> = const { Cell::new(None) };
    static SCANS: RefCell<Vec<Scan>> = const { RefCell::new(Vec::new()) };
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_HOOK.set(pg_sys::ExecutorStart_hook);
        pg_sys::ExecutorStart_hook = Some(start);
    }
}

/// What a scan knows of the plan that it is a part of; empty for a scan without one, as for a constraint.
#[derive(Debug, Default)]
pub struct ScanContext {
    /// Where it leaves the distances of its rows, if its plan reads them.
    pub place: Option<DistanceParam>,
    /// Beyond which distance no row is wanted, if there is a limit.
    pub cutoff: Option<Rc<Cutoff>>,
    /// The rows of its table. Without them the executor looks at each by itself.
    pub rows: Option<Rc<Rows>>,
    /// Whether every vector is to be compared before the first row: its `LIMIT` proves to be so large that a plan of known
    /// numbers would not have had the scan, or nodes above it go wrong where a row comes late.
    pub wants_all: bool,
    /// How many rows it keeps before it gives the first, so that what a wider search finds comes in its place; below windows a
    /// late row would have the number of those that came meanwhile.
    pub at_once: Option<AtOnce>,
}

/// The context of a scan that begins to return rows.
pub fn scan_context(scan: pg_sys::IndexScanDesc) -> ScanContext {
    SCANS.with_borrow(|scans| {
        // SAFETY: nodes and the query live as long as the run, and with that what is written down of them.
        // Where its rows go is known once it runs. The number of a worker is set when it starts.
        unsafe {
            let own = |entry: &&Scan| std::ptr::eq((*entry.node).iss_ScanDesc, scan);
            let Some(own) = scans.iter().rev().find(own) else {
                return ScanContext::default();
            };
            let at_once = own.at_once();
            let reads = pg_sys::ParallelWorkerNumber < 0
                && (own.is_unread || distance_param::goes_to_client(own.query));
            ScanContext {
                place: own.place.filter(|_| reads),
                cutoff: own.cutoff.clone(),
                rows: own.rows.clone(),
                wants_all: own.above.is_in_runs && at_once.is_none()
                    || (own.above.limit)
                        .is_some_and(|limit| limit.is_most_of((*own.node).ss.ps.plan)),
                at_once,
            }
        }
    })
}

/// Forgets a run when its memory goes.
struct Run(pg_sys::MemoryContext);

impl Drop for Run {
    fn drop(&mut self) {
        // When the session ends, thread-locals may be gone before the last contexts.
        let _ = SCANS.try_with(|scans| {
            // It is borrowed where memory has run out while a run was written down.
            if let Ok(mut scans) = scans.try_borrow_mut() {
                scans.retain(|scan| scan.run != self.0);
            }
        });
    }
}

/// The executor's errors pass over this function as over one in C, for the reasons that
/// [`crate::pg::unguarded`] has.
unsafe extern "C-unwind" fn start(query: *mut pg_sys::QueryDesc, flags: i32) {
    // SAFETY: called by the server with a query; afterwards it has a state, and nodes if it is to run.
    unsafe {
        // A guard costs something, and all statements but one of a session need none here.
        if rewrite::is_late() {
            look_at_plan(query);
        }
        match NEXT_HOOK.get() {
            Some(next) => next(query, flags),
            None => standard_ExecutorStart(query, flags),
        }
        write_down(query);
    }
}

/// See [`rewrite::rewrite_if_planned_before`].
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn look_at_plan(query: *mut pg_sys::QueryDesc) {
    // SAFETY: the server is about to begin this query.
    unsafe { rewrite::rewrite_if_planned_before(query) }
}

/// Writes down the scans of a run.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn write_down(query: *mut pg_sys::QueryDesc) {
    // SAFETY: the server has just made ready to run this query.
    unsafe {
        let (state, nodes) = ((*query).estate, (*query).planstate);
        if state.is_null() || nodes.is_null() {
            return;
        }
        let mut walk = Walk {
            found: Vec::new(),
            above: Above::default(),
            parent: std::ptr::null_mut(),
        };
        pg_sys::ffi::pg_guard_ffi_boundary(|| visit(nodes, (&raw mut walk).cast()));
        if walk.found.is_empty() {
            return;
        }
        let (first, end) = distance_param::parameters(&*(*query).plannedstmt);
        for parameter in first..end {
            (*(*state).es_param_exec_vals.add(parameter)).isnull = true;
        }
        let run = (*state).es_query_cxt;
        let mut scans = Vec::new();
        for (node, above) in walk.found {
            let own = distance_param::parameter(&*(*node).ss.ps.plan, first);
            let place = own.and_then(|own| DistanceParam::of(&*state, own));
            scans.push(Scan {
                run,
                node,
                query,
                place,
                is_unread: own
                    .is_some_and(|own| distance_param::is_unread(&*(*query).plannedstmt, own)),
                cutoff: Cutoff::of(&*node, own).map(Rc::new),
                rows: Rows::of(node).map(Rc::new),
                above,
            });
        }
        PgMemoryContexts::For(run).leak_and_drop_on_delete(Run(run));
        SCANS.with_borrow_mut(|all| all.append(&mut scans));
    }
}

unsafe extern "C-unwind" {
    /// `src/backend/nodes/nodeFuncs.c`
    #[cfg_attr(
        not(any(feature = "pg14", feature = "pg15")),
        link_name = "planstate_tree_walker_impl"
    )]
    fn planstate_tree_walker(
        state: *mut pg_sys::PlanState,
        walker: unsafe extern "C-unwind" fn(*mut pg_sys::PlanState, *mut c_void) -> bool,
        context: *mut c_void,
    ) -> bool;
}

/// The node of a `LIMIT`, which knows its number once it runs.
#[derive(Debug, Clone, Copy)]
struct Limit(*const pg_sys::LimitState);

impl Limit {
    /// Rows that it gives, and those that it passes over before; `None` where that is not known, or it is without an end.
    ///
    /// # Safety
    /// The run goes on.
    unsafe fn wanted(self) -> Option<(usize, usize)> {
        // SAFETY: by contract.
        let limit = unsafe { &*self.0 };
        let known = limit.lstate != pg_sys::LimitStateCond::LIMIT_INITIAL && !limit.noCount;
        known.then(|| (limit.count.max(0) as usize, limit.offset.max(0) as usize))
    }

    /// Whether it wants most of the rows that a scan is expected to give: the condition by which a plan has no such scan
    /// where the number is known ([`super::cost`]), which is not so of a plan for all parameters.
    ///
    /// # Safety
    /// The run goes on, the plan is that of a scan below the node.
    unsafe fn is_most_of(self, scan: *const pg_sys::Plan) -> bool {
        // SAFETY: by contract.
        unsafe {
            let limit = &*self.0;
            let wanted = limit.count as f64 + limit.offset as f64;
            limit.lstate != pg_sys::LimitStateCond::LIMIT_INITIAL
                && (limit.noCount || wanted * 2.0 > (*scan).plan_rows)
        }
    }
}

/// What is above a node.
#[derive(Debug, Default, Clone, Copy)]
struct Above {
    /// The nearest `LIMIT`, and the one above it that ends what is taken from that.
    limit: Option<Limit>,
    outer: Option<Limit>,
    /// Whether it ends what is taken from the node, but for a few rows: what is between takes no more than it gives.
    is_limited: bool,
    /// How many those are at most.
    reads_ahead: usize,
    /// Whether there are others beside it, whose rows come in between.
    is_merged: bool,
    /// Whether a node takes rows in runs of equal ones, or numbers them, and nothing sorts them on the way: a merge join,
    /// groups, windows.
    is_in_runs: bool,
}

/// Rows that an incremental sort takes before it gives the first that it is asked for, at most
/// (`DEFAULT_MAX_FULL_SORT_GROUP_SIZE` in `nodeIncrementalSort.c`), unless more are equal.
const SORTED_AT_ONCE: usize = 64;

/// What is collected of the nodes of a run.
struct Walk {
    found: Vec<(*mut pg_sys::IndexScanState, Above)>,
    /// Of the node that is visited, and the one above it.
    above: Above,
    parent: *mut pg_sys::PlanState,
}

/// Whether an aggregate of a node takes its rows to be sorted already, as `count(DISTINCT …)` does that compares each
/// with the one before.
///
/// # Safety
/// A node that is ready to run.
#[cfg(not(any(feature = "pg14", feature = "pg15")))]
unsafe fn takes_sorted(node: *const pg_sys::AggState) -> bool {
    // SAFETY: by contract: a list of aggregates.
    unsafe {
        let aggregates = members((*node).aggs).iter();
        aggregates
            .map(|cell| cell.ptr_value.cast::<pg_sys::Aggref>())
            .any(|aggregate| (*aggregate).aggpresorted)
    }
}

/// Before PostgreSQL 16 each sorts its rows itself.
#[cfg(any(feature = "pg14", feature = "pg15"))]
unsafe fn takes_sorted(_node: *const pg_sys::AggState) -> bool {
    false
}

/// Whether the rows of a node come to whatever is above its parent as they are, and in their order: not those of plans in
/// expressions, of CTEs, and of the inner side of a nested loop, each run of which is between two rows of the outer side.
///
/// # Safety
/// A node that is ready to run, and one below it; or the first one, below none.
unsafe fn hands_on_order(parent: *const pg_sys::PlanState, state: *mut pg_sys::PlanState) -> bool {
    // SAFETY: by contract.
    unsafe {
        let Some(node) = parent.as_ref() else {
            return true;
        };
        match node.type_ {
            NodeTag::T_SubqueryScanState
            | NodeTag::T_AppendState
            | NodeTag::T_MergeAppendState
            | NodeTag::T_ModifyTableState
            | NodeTag::T_CustomScanState => true,
            NodeTag::T_NestLoopState => state == node.lefttree,
            _ => state == node.lefttree || state == node.righttree,
        }
    }
}

/// Collects the scans of indexes of ours that are ordered. Every statement's plan is walked, so that a level of
/// it costs little: errors of the server (of its limit of stack) pass over this function, which has nothing to be
/// dropped, and [`write_down`] has the guard.
unsafe extern "C-unwind" fn visit(state: *mut pg_sys::PlanState, context: *mut c_void) -> bool {
    // SAFETY: a state of the executor's, or null; the context is the walk, which nobody else uses meanwhile.
    unsafe {
        if state.is_null() {
            return false;
        }
        let walk = context.cast::<Walk>();
        let (around, parent) = ((*walk).above, (*walk).parent);
        if !hands_on_order(parent, state) {
            (*walk).above = Above::default();
        }
        let above = (*walk).above;
        match (*state).type_ {
            NodeTag::T_LimitState => {
                let limit = state.cast::<pg_sys::LimitState>();
                (*walk).above.outer = above.limit.filter(|_| above.is_limited);
                (*walk).above.limit = Some(Limit(limit));
                (*walk).above.is_limited = true;
                // One tells that there are no more ties, or that a frame has ended.
                ((*walk).above.reads_ahead, (*walk).above.is_merged) = (1, false);
                // It ends with the first row that is no tie.
                (*walk).above.is_in_runs |=
                    (*limit).limitOption == pg_sys::LimitOption::LIMIT_OPTION_WITH_TIES;
            }
            NodeTag::T_MergeJoinState
            | NodeTag::T_GroupState
            | NodeTag::T_UniqueState
            | NodeTag::T_WindowAggState => (*walk).above.is_in_runs = true,
            NodeTag::T_IncrementalSortState => {
                (*walk).above.is_in_runs = true;
                (*walk).above.reads_ahead += SORTED_AT_ONCE;
            }
            NodeTag::T_SetOpState => {
                let strategy = (*(*state).plan.cast::<pg_sys::SetOp>()).strategy;
                (*walk).above.is_in_runs |= strategy == pg_sys::SetOpStrategy::SETOP_SORTED;
            }
            NodeTag::T_AggState => {
                let strategy = (*(*state).plan.cast::<pg_sys::Agg>()).aggstrategy;
                // What only hashes has no order to hand on, whatever is above.
                (*walk).above.is_in_runs = strategy == pg_sys::AggStrategy::AGG_SORTED
                    || strategy == pg_sys::AggStrategy::AGG_MIXED
                    || takes_sorted(state.cast());
            }
            NodeTag::T_MergeAppendState => (*walk).above.is_merged = true,
            NodeTag::T_SortState | NodeTag::T_HashState => (*walk).above.is_in_runs = false,
            _ => {}
        }
        (*walk).above.is_limited &= match (*state).type_ {
            NodeTag::T_LimitState
            | NodeTag::T_WindowAggState
            | NodeTag::T_IncrementalSortState
            | NodeTag::T_MergeAppendState
            | NodeTag::T_ProjectSetState => true,
            NodeTag::T_SubqueryScanState | NodeTag::T_ResultState => {
                (*(*state).plan).qual.is_null()
            }
            _ => false,
        };
        if (*state).type_ == NodeTag::T_IndexScanState {
            let scan = state.cast::<pg_sys::IndexScanState>();
            let index = (*scan).iss_RelationDesc;
            // EXPLAIN without ANALYZE opens no index.
            if (*scan).iss_NumOrderByKeys > 0 && !index.is_null() && build::is_laser(index) {
                (*walk).found.push((scan, above));
            }
        }
        (*walk).parent = state;
        let ended = planstate_tree_walker(state, visit, context);
        ((*walk).above, (*walk).parent) = (around, parent);
        ended
    }
}
