//! What a build or a merge may take, by the server's settings.
#![allow(unsafe_code)]

use laser_index::builder::BuildOptions;
use laser_index::meta::Parameters;
use pgrx::pg_sys;

use super::cache;
use crate::pg::temp_files;

/// Bytes of files that a build may go through at random: half of what the server is told that the system's cache is,
/// and no more than a session may write to temporary files, of which these are the ones.
///
/// # Safety
/// Called on the session's thread.
pub unsafe fn file_cache() -> usize {
    // SAFETY: a plain variable of this process.
    let cached = unsafe { pg_sys::effective_cache_size as usize * pg_sys::BLCKSZ as usize / 2 };
    let limit = temp_files::limit().map_or(usize::MAX, |limit| limit as usize);
    cached.min(limit)
}

/// Threads and memory as the server's settings allow them.
pub fn build_options(parameters: &Parameters, expected: usize) -> BuildOptions {
    // SAFETY: settings are plain variables of this process.
    let (workers, mut memory, cache) = unsafe {
        let mut memory = pg_sys::maintenance_work_mem;
        if pg_sys::MyBackendType == pg_sys::BackendType::B_AUTOVAC_WORKER {
            // The variable itself is in no header that the bindings cover.
            let text = pg_sys::GetConfigOption(c"autovacuum_work_mem".as_ptr(), true, false);
            if !text.is_null()
                && let Ok(own @ 0..) = std::ffi::CStr::from_ptr(text).to_string_lossy().parse()
            {
                memory = own;
            }
        }
        let workers = pg_sys::max_parallel_maintenance_workers;
        (workers, memory as usize, file_cache())
    };
    memory *= 1024;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    BuildOptions {
        parameters: parameters.clone(),
        // As many as a parallel build has processes: the workers and the session itself.
        threads: (workers as usize + 1).min(cores).max(1),
        memory,
        cache,
        expected,
        folder: cache::folder(),
    }
}
