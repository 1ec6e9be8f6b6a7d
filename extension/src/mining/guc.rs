//! The settings of mining.
#![allow(unsafe_code)]

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use pgrx::pg_sys;

/// Where mining searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum Place {
    /// On the GPU of the encoder process for large searches if it has one, else in the session.
    #[name = c"auto"]
    Auto,
    /// In the session, on the processor.
    #[name = c"session"]
    Session,
    /// In the encoder process, on its GPU if it has one.
    #[name = c"encoder"]
    Encoder,
}

static PLACE: GucSetting<Place> = GucSetting::<Place>::new(Place::Auto);
static MEMORY: GucSetting<i32> = GucSetting::<i32>::new(256 * 1024);
static THREADS: GucSetting<i32> = GucSetting::<i32>::new(0);

/// Bytes that a mining function may use for embeddings and tiles.
pub fn memory() -> usize {
    MEMORY.get() as usize * 1024
}

/// Where to search.
pub fn place() -> Place {
    PLACE.get()
}

/// Threads of a search.
pub fn threads() -> usize {
    match THREADS.get() {
        0 => {
            // SAFETY: an integer setting of the server, read on its only thread.
            let allowed = unsafe { pg_sys::max_parallel_workers }.max(1) as usize;
            std::thread::available_parallelism()
                .map_or(1, usize::from)
                .min(allowed)
        }
        threads => threads as usize,
    }
}

/// Bytes that a session may write to temporary files; `None` without a limit.
pub fn temp_file_limit() -> Option<u64> {
    // SAFETY: an integer setting of the server, read on its only thread.
    let kilobytes = unsafe { pg_sys::temp_file_limit };
    u64::try_from(kilobytes)
        .ok()
        .map(|kilobytes| kilobytes * 1024)
}

/// Defines all settings of this module.
pub fn define() {
    GucRegistry::define_int_guc(
        c"laser.mining_memory",
        c"Memory of one mining function for embeddings and tiles.",
        c"Embeddings beyond it go to temporary files. The lists of neighbours, 12 bytes for each \
          row and neighbour, come on top.",
        &MEMORY,
        1024,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_KB,
    );
    GucRegistry::define_enum_guc(
        c"laser.mining_place",
        c"Where mining searches for neighbours.",
        c"auto: large searches in the encoder process if that has a GPU, others in the session; \
          session; encoder.",
        &PLACE,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"laser.mining_threads",
        c"Threads of one mining function.",
        c"0: one for each core, at most max_parallel_workers.",
        &THREADS,
        0,
        1024,
        GucContext::Userset,
        GucFlags::default(),
    );
}
