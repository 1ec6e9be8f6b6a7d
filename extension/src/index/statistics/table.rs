//! What the scans and merges of each index have done, in memory that all sessions share: what
//! `pg_stat_laser_indexes` shows.
//!
//! The memory is a mapping that the postmaster makes when it preloads the library, since only then all processes
//! have the same one; otherwise nothing is counted. It is a hash table of a fixed size with open addressing. A scan
//! looks its index up once, at its beginning, and adds what it has counted once, at its end, by relaxed atomic numbers: it waits
//! for nobody. A process that is killed leaves nothing half done, for a place is taken by one number, the key. Counts begin
//! at zero with the server.
//!
//! An index gets its place once the transaction that made it has committed, and gives it up when it is dropped. Places of those
//! that went otherwise, with their database, by two phases or in a crash, are taken over by others when there is no free one nearby; who finds none is not counted.
//! An index that gets the OID of one that was dropped begins at zero ([`forget`]).
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use laser_model::shared::Shared;
use pgrx::pg_sys;
use pgrx::pg_sys::SysCacheIdentifier::{DATABASEOID, RELOID};

use crate::pg::catalogs;

/// Places for indexes.
const PLACES: usize = 2048;
/// Numbers of a place: its key, the time of its reset, and the counters; two cache lines.
const WIDTH: usize = 16;
/// Places among which one is looked for.
const PROBES: usize = 64;
/// Where in a place the time of its reset is, as a `timestamptz`, and where counters begin.
const RESET: usize = 1;
const COUNTERS: usize = 2;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Scans that have begun.
    Searches,
    /// Stored vectors that were compared with what was searched for.
    Visited,
    /// Rows of the table that were fetched for filters or exact distances.
    Reranked,
    /// Searches that followed within a scan, wider than the one before.
    Widened,
    /// Scans that `laser.max_scan_tuples` has ended.
    Cut,
    /// Merges that succeeded.
    Merges,
    /// What they took, in microseconds.
    MergeMicroseconds,
    /// Files of segments that sessions have opened.
    FilesOpened,
    /// Files of segments that were written.
    FilesMade,
}

/// Counters of an index.
pub const COUNTED: usize = Counter::FilesMade as usize + 1;
const _: () = assert!(COUNTERS + COUNTED <= WIDTH);

static TABLE: OnceLock<Shared> = OnceLock::new();

/// Makes the table, if the postmaster is loading the library.
pub fn init() {
    // SAFETY: a plain variable of the server.
    if !unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        return;
    }
    match Shared::new(PLACES * WIDTH) {
        Ok(table) => drop(TABLE.set(table)),
        Err(error) => pgrx::warning!("could not set up statistics of laser indexes: {error}"),
    }
}

/// Whether anything is counted.
pub fn is_on() -> bool {
    TABLE.get().is_some()
}

/// The counters of an index.
#[derive(Debug, Clone, Copy)]
pub struct Place(&'static [AtomicU64]);

impl Place {
    /// Adds `n` to a counter, atomically and without a lock; all sessions see the sum.
    pub fn add(self, counter: Counter, n: u64) {
        if n > 0 {
            self.0[COUNTERS + counter as usize].fetch_add(n, Ordering::Relaxed);
        }
    }

    /// A merge that has succeeded.
    pub fn add_merge(self, took: Duration) {
        self.add(Counter::Merges, 1);
        self.add(Counter::MergeMicroseconds, took.as_micros() as u64);
    }

    /// All counts, by [`Counter`], and the time of the last reset.
    pub fn read(self) -> ([u64; COUNTED], i64) {
        let read = |at: usize| self.0[at].load(Ordering::Relaxed);
        let counts = std::array::from_fn(|counter| read(COUNTERS + counter));
        (counts, read(RESET).cast_signed())
    }

    /// Begins at zero. What others add meanwhile may count or not.
    pub fn reset(self) {
        // SAFETY: asks for the time.
        let now = unsafe { pg_sys::GetCurrentTimestamp() };
        for counter in &self.0[COUNTERS..] {
            counter.store(0, Ordering::Relaxed);
        }
        self.0[RESET].store(now.cast_unsigned(), Ordering::Relaxed);
    }
}

/// Names an index of this database in all of them; never 0.
pub fn key(index: pg_sys::Oid) -> u64 {
    // SAFETY: a plain variable of the session.
    let database = unsafe { pg_sys::MyDatabaseId };
    u64::from(database.to_u32()) << 32 | u64::from(index.to_u32())
}

/// The places where one with this key may be.
fn candidates(key: u64) -> impl Iterator<Item = &'static [AtomicU64]> {
    // Fibonacci hashing: the upper bits of a product with 2^64 divided by the golden ratio.
    let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    let table = TABLE.get().map(|table| &table[..]).unwrap_or_default();
    let probes = if table.is_empty() { 0 } else { PROBES };
    (0..probes).map(move |probe| {
        let at = (first + probe) % PLACES * WIDTH;
        &table[at..at + WIDTH]
    })
}

/// The place of an index of this database, if anything of it was counted.
pub fn find(index: pg_sys::Oid) -> Option<Place> {
    let key = key(index);
    candidates(key)
        .find(|place| place[0].load(Ordering::Acquire) == key)
        .map(Place)
}

/// The place of an index of this database, which it gets now if it has none. One that this transaction has made gets
/// none: others cannot see it, and would not hear of it where the transaction is rolled back.
///
/// # Safety
/// The index is open.
pub unsafe fn of(index: pg_sys::Relation) -> Option<Place> {
    if !is_on() {
        return None;
    }
    // SAFETY: by contract.
    let (index, made_here) = unsafe { ((*index).rd_id, (*index).rd_createSubid != 0) };
    let key = key(index);
    if let Some(place) = find(index) {
        return Some(place);
    }
    if made_here {
        return None;
    }
    let take = |place: &'static [AtomicU64], from: u64| {
        let taken = place[0].compare_exchange(from, key, Ordering::AcqRel, Ordering::Acquire);
        match taken {
            Ok(_) => {
                Place(place).reset();
                Some(Place(place))
            }
            // Another session was faster, with the same index perhaps.
            Err(now) => (now == key).then_some(Place(place)),
        }
    };
    let free = candidates(key).find_map(|place| take(place, 0));
    free.or_else(|| {
        candidates(key).find_map(|place| {
            let other = place[0].load(Ordering::Acquire);
            is_gone(other).then(|| take(place, other)).flatten()
        })
    })
}

/// Whether an index of this database that has no place may get one.
pub fn may_count(index: pg_sys::Oid) -> bool {
    candidates(key(index)).any(|place| {
        let other = place[0].load(Ordering::Acquire);
        other == 0 || is_gone(other)
    })
}

/// Whether anything of an index of this database was counted.
pub fn is_counted(index: pg_sys::Oid) -> bool {
    find(index).is_some()
}

/// Gives up the place of an index that is gone.
pub fn release(index: pg_sys::Oid) {
    if let Some(place) = find(index) {
        place.0[0].store(0, Ordering::Release);
    }
}

/// Whether an index, or its database, does not exist any more.
pub fn is_gone(key: u64) -> bool {
    let database = pg_sys::Oid::from((key >> 32) as u32);
    let index = pg_sys::Oid::from(key as u32);
    // SAFETY: a plain variable of the session.
    let own = unsafe { pg_sys::MyDatabaseId };
    if database == own {
        !catalogs::is_cached(RELOID, index)
    } else {
        !catalogs::is_cached(DATABASEOID, database)
    }
}

/// Begins at zero for an index.
pub fn forget(index: pg_sys::Oid) {
    if let Some(place) = find(index) {
        place.reset();
    }
}
