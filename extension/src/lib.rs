//! laser: multilingual meaning in PostgreSQL.
//!
//! This crate is the only one that touches PostgreSQL. The numerics live in the crates below it:
//! the encoder runs in a process of its own, `laser-index` holds pages, segments and search,
//! `laser-mining` the exact nearest neighbours and margins.

pgrx::pg_module_magic!();

mod encode;
mod index;
mod mining;
mod pg;
mod types;

/// Called by the server when the library is loaded: at start-up with `shared_preload_libraries`,
/// else at the first call in a session.
#[pgrx::pg_guard]
pub extern "C-unwind" fn _PG_init() {
    pg::backtraces::off();
    // Before others have something to say about errors.
    pg::statement::init(c"laser", c"model", index::check_altered);
    pg::memory::init();
    encode::init();
    index::init();
    mining::init();
    pg::trust::init();
    // After all modules have defined theirs: unknown settings of the prefix are mistakes from now on.
    encode::reserve_settings();
}
