//! Rows of the table, as a scan looks at them before it gives their addresses.
//!
//! The executor fetches what an index gives it, computes its distance, holds it back until no other can be nearer
//! (`IndexNextWithReorder` in PostgreSQL's `nodeIndexscan.c`), with all its columns, and only then asks the filter.
//! Where few rows pass, that is most of a search: of texts and of vectors that are stored out of line, the distance
//! costs many times what the filter does. A scan that knows its plan's node does the same in a better order: filter,
//! distance, and of what waits the address alone. The executor then fetches what it is given, and has nothing to
//! wait for.
//!
//! Invariants:
//! - A row is fetched by the scan's snapshot, in the node's own slot and context, which are free while the index
//!   is asked for a row.
//! - Filters are evaluated in the plan's order, from the first one on, which is what keeps those of views and
//!   policies before others. What comes behind one that cannot be evaluated here is not either; the executor asks
//!   all of them again.
#![allow(unsafe_code)]

use pgrx::{PgMemoryContexts, pg_sys};

use super::expression::evaluate;
use crate::pg::lists::{members, node};
use crate::pg::unguarded::MemoryContextReset;

/// The rows of a scan's table.
#[derive(Debug)]
pub struct Rows {
    scan: *mut pg_sys::IndexScanState,
    /// Null where every row passes.
    filter: *mut pg_sys::ExprState,
    distance: *mut pg_sys::ExprState,
    /// Whether the executor asks nothing that is not asked here.
    is_all: bool,
}

/// What a row was found to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowCheck {
    /// The snapshot does not see it.
    Unseen,
    /// No snapshot does.
    Dead,
    /// A filter does not let it pass.
    Filtered,
    /// It is a row of the query, as far as is known; its distance, where that was asked for and is not NULL.
    Passes(Option<f64>),
}

impl Rows {
    /// Those of a node.
    ///
    /// # Safety
    /// A node of a run, with an order by a distance.
    pub unsafe fn of(scan: *mut pg_sys::IndexScanState) -> Option<Self> {
        // SAFETY: by contract; what is made lives as long as the run.
        unsafe {
            let state = &raw mut (*scan).ss.ps;
            let distance = members((*scan).indexorderbyorig).first()?;
            let filters = members((*(*state).plan).qual);
            let simple = |cell: &&pg_sys::ListCell| {
                let filter = node(cell);
                // Subplans have a state that is the node's own.
                !pg_sys::contain_subplans(filter) && !pg_sys::contain_volatile_functions(filter)
            };
            let first = filters.iter().take_while(simple).count();
            let mut filter = std::ptr::null_mut();
            if first > 0 {
                let query = (*(*state).state).es_query_cxt;
                PgMemoryContexts::For(query).switch_to(|_| {
                    let mut list = std::ptr::null_mut();
                    for cell in &filters[..first] {
                        list = pg_sys::lappend(list, cell.ptr_value);
                    }
                    filter = pg_sys::ExecInitQual(list, state);
                });
            }
            Some(Self {
                scan,
                filter,
                distance: distance.ptr_value.cast(),
                is_all: first == filters.len(),
            })
        }
    }

    /// Whether there is nothing to look at but distances.
    pub fn all_pass(&self) -> bool {
        self.filter.is_null()
    }

    /// Whether a row that passes is one of the query's.
    pub fn are_final(&self) -> bool {
        self.is_all
    }

    /// Looks at the row with an address. Filters and distances run functions of users: their errors pass over this, and
    /// over its caller, with all of their fields.
    ///
    /// # Safety
    /// The run goes on; the descriptor is that of the node, which asks for a row.
    pub unsafe fn check_row(
        &self,
        descriptor: pg_sys::IndexScanDesc,
        mut tid: pg_sys::ItemPointerData,
        wants_distance: bool,
    ) -> RowCheck {
        // SAFETY: by contract. Nothing here is to be dropped, and nothing panics.
        unsafe {
            let state = &raw mut (*self.scan).ss;
            let (slot, context) = ((*state).ss_ScanTupleSlot, (*state).ps.ps_ExprContext);
            let fetch = (*descriptor).xs_heapfetch;
            let Some(fetch_tuple) = (*(*(*fetch).rel).rd_tableam).index_fetch_tuple else {
                return RowCheck::Unseen;
            };
            let (mut again, mut dead) = (false, false);
            let found = fetch_tuple(
                fetch,
                &raw mut tid,
                (*descriptor).xs_snapshot,
                slot,
                &raw mut again,
                &raw mut dead,
            );
            if !found {
                return if dead {
                    RowCheck::Dead
                } else {
                    RowCheck::Unseen
                };
            }
            (*context).ecxt_scantuple = slot;
            MemoryContextReset((*context).ecxt_per_tuple_memory);
            if !self.filter.is_null() {
                let (passes, is_null) = evaluate(self.filter, context);
                if is_null || passes.value() == 0 {
                    if let Some(instrument) = (*state).ps.instrument.as_mut() {
                        // For EXPLAIN (ANALYZE), as InstrCountFiltered1 of `execnodes.h` does.
                        instrument.nfiltered1 += 1.0;
                    }
                    return RowCheck::Filtered;
                }
            }
            if !wants_distance {
                return RowCheck::Passes(None);
            }
            let (distance, is_null) = evaluate(self.distance, context);
            RowCheck::Passes((!is_null).then(|| f64::from_bits(distance.value() as u64)))
        }
    }
}
