//! What a build or a merge may take, by the server's settings.
#![allow(unsafe_code)]

use laser_index::budget::Budget;
use laser_index::builder::BuildOptions;
use laser_index::meta::Parameters;
use pgrx::pg_sys;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use super::cache;
use crate::pg::temp_files;

/// `effective_cache_size` of a server that is not told it, in pages (`optimizer/cost.h`).
const UNTOLD: i32 = 524_288;

/// Bytes of files that a build may go through at random: half of what the server is told that the system's cache is, or where it is
/// not told, of the memory that the system has for that, and no more than a session may write to temporary files, of which these
/// are the ones.
fn file_cache() -> usize {
    // SAFETY: a plain variable of this process.
    let told = unsafe { pg_sys::effective_cache_size };
    let mut cached = told as usize * pg_sys::BLCKSZ as usize;
    if told == UNTOLD {
        cached = cached.max(available());
    }
    let limit = temp_files::limit().map_or(usize::MAX, |limit| limit as usize);
    (cached / 2).min(limit)
}

/// Bytes of memory that processes could still get, most of which are caches of files: of the system or of the container.
fn available() -> usize {
    let ram = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let Ok(system) = System::new_with_specifics(ram) else {
        return 0;
    };
    let contained = system.cgroup_limits();
    let contained = contained.map_or(u64::MAX, |c| c.total_memory.saturating_sub(c.rss));
    system.available_memory().min(contained) as usize
}

/// What the server's settings let a session take that builds, or a worker of autovacuum.
pub fn budget() -> Budget {
    // SAFETY: settings are plain variables of this process.
    let (workers, memory) = unsafe {
        (
            pg_sys::max_parallel_maintenance_workers,
            pg_sys::maintenance_work_mem as usize * 1024,
        )
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    Budget {
        memory: autovacuum_memory().unwrap_or(memory),
        cache: file_cache(),
        // As many as a parallel build has processes: the workers and the session itself.
        threads: (workers as usize + 1).min(cores).max(1),
    }
}

/// Threads and memory as the server's settings allow them.
pub fn build_options(parameters: &Parameters, expected: usize) -> BuildOptions {
    let budget = budget();
    BuildOptions {
        parameters: parameters.clone(),
        threads: budget.threads,
        memory: budget.memory,
        cache: budget.cache,
        expected,
        folder: cache::folder(),
    }
}

/// Bytes of `autovacuum_work_mem`, where that is set and this is a worker of autovacuum.
fn autovacuum_memory() -> Option<usize> {
    // SAFETY: a plain variable, and a setting's text, which is read at once. The setting's variable is in no header that the
    // bindings cover.
    let text = unsafe {
        if pg_sys::MyBackendType != pg_sys::BackendType::B_AUTOVAC_WORKER {
            return None;
        }
        let text = pg_sys::GetConfigOption(c"autovacuum_work_mem".as_ptr(), true, false);
        if text.is_null() {
            return None;
        }
        std::ffi::CStr::from_ptr(text).to_string_lossy()
    };
    let kilobytes: i32 = text.parse().ok()?;
    usize::try_from(kilobytes).ok().map(|own| own * 1024)
}
