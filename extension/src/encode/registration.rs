//! Registers the background worker (`worker.rs`) with the postmaster.
#![allow(unsafe_code)]

use std::time::Duration;

use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::pg_sys;

use super::guc::{self, InBackend};

/// Name in the process title and the log. (The view pg_stat_activity shows workers of databases only.)
const NAME: &str = "laser encoder";

fn builder() -> BackgroundWorkerBuilder {
    BackgroundWorkerBuilder::new(NAME)
        .set_library("laser")
        .set_function("laser_encoder_worker")
        .set_start_time(BgWorkerStartTime::PostmasterStart)
}

/// Registers the worker if the library is being preloaded, and anybody may need it.
pub fn register_at_start() {
    // SAFETY: reads a variable of the postmaster.
    let preload = unsafe { pg_sys::process_shared_preload_libraries_in_progress };
    if preload && guc::in_backend() != InBackend::Always {
        builder()
            .set_restart_time(Some(Duration::from_secs(1)))
            .load();
    }
}

/// Starts a worker now. Returns whether the server has room for one.
pub fn start() -> bool {
    builder().set_restart_time(None).load_dynamic().is_ok()
}
