//! How much a writer is slowed down whose list grows faster than merges make it shorter.
//!
//! Up to twice its limit a list costs nobody anything: it is about what comes while the worker merges. Above,
//! every row of a writer costs it a pause that doubles with each further limit's worth of rows, so that writers and
//! merges meet somewhere: a list of five times its limit takes 0.8 ms a row, of eight times 6 ms.

use std::time::Duration;

use laser_index::page::PAGE;

/// Pages to which a list may grow at least before anybody waits: merging fewer of them at a time costs
/// more than it saves.
const LEAST: u64 = 128;
/// Lengths, in limits, at which pauses begin.
const FREE: f64 = 2.0;
/// The pause there.
const FIRST: f64 = 100e-6;
/// The longest one: a writer is never stopped.
const LONGEST: f64 = 10e-3;

/// The pause for one row, where a list has `pages` pages.
pub fn pause(pages: u64, limit: u64) -> Duration {
    let times = pages as f64 / limit.max(LEAST) as f64 - FREE;
    if times <= 0.0 {
        return Duration::ZERO;
    }
    Duration::from_secs_f64((FIRST * times.min(32.0).exp2()).min(LONGEST))
}

/// Pages of a list of `bytes` bytes.
pub fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE as u64)
}
