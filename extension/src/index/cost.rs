//! What a scan costs.
#![allow(unsafe_code)]

use pgrx::pg_sys;

/// `amcostestimate`
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn estimate(
    root: *mut pg_sys::PlannerInfo,
    path: *mut pg_sys::IndexPath,
    loop_count: f64,
    startup: *mut pg_sys::Cost,
    total: *mut pg_sys::Cost,
    selectivity: *mut pg_sys::Selectivity,
    correlation: *mut f64,
    pages: *mut f64,
) {
    // SAFETY: the server passes its planner's structures.
    unsafe {
        if (*path).indexorderbys.is_null() {
            // The access method can only order; without ORDER BY this path must never win.
            *startup = f64::MAX;
            *total = f64::MAX;
            *selectivity = 0.0;
            *correlation = 0.0;
            *pages = 0.0;
            return;
        }
        let mut costs = pg_sys::GenericCosts::default();
        let tuples = (*(*path).indexinfo).tuples.max(1.0);
        let ef = super::options::ef_search() as f64;
        costs.numIndexTuples = (ef * tuples.ln().max(1.0)).min(tuples);
        pg_sys::genericcostestimate(root, path, loop_count, &mut costs);
        *startup = costs.indexTotalCost;
        *total = costs.indexTotalCost;
        *selectivity = costs.indexSelectivity;
        *correlation = costs.indexCorrelation;
        *pages = costs.numIndexPages;
    }
}
