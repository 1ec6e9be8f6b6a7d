//! Bitext mining in SQL: queries in, pairs out. The numerics are in `laser-mining`, the
//! declarations in `sql/mining.sql`.
//!
//! A function that mines
//!
//! 1. runs its queries through SPI cursors, in the rights and in the snapshot of the caller
//!    (`query`, `row`), and collects their rows, embedding texts on the way (`load`);
//! 2. searches in threads that know nothing of the server, while the session's own thread waits,
//!    looks for interrupts and reports progress (`work`, `progress`, `forecast`), or in the encoder process
//!    (`remote`), or has laser indexes propose candidates (`index`);
//! 3. selects pairs (`pairs`) and returns rows (`functions`, `shards`, `measures`), or writes
//!    neighbourhoods that can be updated (`state`).
//!
//! `call` begins and ends each of them, `lists` has neighbours as ids, `guc` the settings, `errors` the SQL errors.

mod call;
mod errors;
mod forecast;
mod functions;
mod guc;
mod index;
mod lists;
mod load;
mod measures;
mod pairs;
mod progress;
mod query;
mod remote;
mod row;
mod shards;
mod state;
mod work;

/// Defines the settings.
pub fn init() {
    guc::define();
}
