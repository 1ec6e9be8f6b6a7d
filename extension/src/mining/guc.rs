//! The settings of mining.
#![allow(unsafe_code)]

use std::cell::Cell;

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
static MEMORY_LIMIT: GucSetting<i32> = GucSetting::<i32>::new(0);
static THREADS: GucSetting<i32> = GucSetting::<i32>::new(0);
static RECALL: GucSetting<f64> = GucSetting::<f64>::new(0.99);

/// What to do where `laser.mining_memory` is too little.
pub const MORE_MEMORY: &str =
    "Mine in smaller parts, or raise laser.mining_memory, up to laser.mining_memory_limit.";

thread_local! {
    /// Mining functions that run, each in a query of the one before.
    static RUNNING: Cell<u32> = const { Cell::new(0) };
}

/// A mining function that runs, until this is dropped.
pub struct Running(());

impl Running {
    pub fn begin() -> Self {
        RUNNING.set(RUNNING.get() + 1);
        Self(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(RUNNING.get() - 1);
    }
}

/// Bytes that a mining function may use for embeddings and tiles: what its user asks for, but no
/// more than a superuser allows; and half of that of the function in whose query it runs, so that all of a
/// session's have less than twice as much.
pub fn memory() -> usize {
    let all = (MEMORY.get() as usize * 1024).min(memory_limit());
    all.checked_shr(RUNNING.get().saturating_sub(1))
        .unwrap_or(0)
}

/// `laser.mining_memory_limit`; a quarter of the machine's memory unless it is set.
fn memory_limit() -> usize {
    if MEMORY_LIMIT.get() > 0 {
        return MEMORY_LIMIT.get() as usize * 1024;
    }
    // SAFETY: queries of constants.
    let (pages, size) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    let bytes = usize::try_from(pages).unwrap_or(0) * usize::try_from(size).unwrap_or(0);
    (bytes / 4).max(LEAST_LIMIT)
}

/// A limit that nobody has set is at least this: the default of `laser.mining_memory`.
const LEAST_LIMIT: usize = 256 << 20;

/// Where to search.
pub fn place() -> Place {
    PLACE.get()
}

/// Share of the neighbours that approximate searches are to find.
pub fn recall() -> f64 {
    RECALL.get()
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
    GucRegistry::define_int_guc(
        c"laser.mining_memory_limit",
        c"The most that laser.mining_memory counts for.",
        c"0: a quarter of the machine's memory.",
        &MEMORY_LIMIT,
        0,
        i32::MAX,
        GucContext::Suset,
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
    GucRegistry::define_float_guc(
        c"laser.mining_recall",
        c"Share of the neighbours that mining with method => 'approximate' finds.",
        c"How much is compared for it is measured on a sample of the rows. 1 compares all.",
        &RECALL,
        0.5,
        1.0,
        GucContext::Userset,
        GucFlags::default(),
    );
}
