//! What the access method can do (`struct IndexAmRoutine` in `src/include/access/amapi.h`).
#![allow(unsafe_code)]

use std::ffi::c_char;

use pgrx::pg_sys::{self, Datum};

use super::{build, cost, insert, options, scan, unlogged, vacuum, validate};

#[unsafe(no_mangle)]
#[doc(hidden)]
pub extern "C" fn pg_finfo_laser_handler() -> &'static pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

/// `laser_handler(internal) -> index_am_handler`
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn laser_handler(_fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a new node in the current memory context, all fields of which are zero.
    let routine = unsafe {
        let size = size_of::<pg_sys::IndexAmRoutine>();
        let node = pg_sys::palloc0(size).cast::<pg_sys::IndexAmRoutine>();
        (*node).type_ = pg_sys::NodeTag::T_IndexAmRoutine;
        &mut *node
    };
    routine.amsupport = super::element::KIND_PROCEDURE;
    routine.amcanorderbyop = true;
    routine.amoptionalkey = true;
    routine.amusemaintenanceworkmem = true;
    routine.amparallelvacuumoptions = pg_sys::VACUUM_OPTION_NO_PARALLEL as u8;
    routine.amkeytype = pg_sys::InvalidOid;
    routine.ambuild = Some(build::build);
    routine.ambuildempty = Some(unlogged::build_empty);
    routine.ambuildphasename = Some(build::phase_name);
    routine.aminsert = Some(insert::insert);
    routine.ambulkdelete = Some(vacuum::bulk_delete);
    routine.amvacuumcleanup = Some(vacuum::cleanup);
    routine.amcostestimate = Some(cost::estimate);
    routine.amoptions = Some(options::parse);
    routine.amvalidate = Some(validate::validate);
    routine.ambeginscan = Some(scan::begin);
    routine.amrescan = Some(scan::rescan);
    routine.amgettuple = Some(scan::next);
    routine.amendscan = Some(scan::end);
    Datum::from(std::ptr::from_mut(routine).cast::<c_char>())
}
