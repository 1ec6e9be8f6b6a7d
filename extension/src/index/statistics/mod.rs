//! What the scans and merges of indexes have done since the server was started, and what was searched for.
//!
//! ```text
//!  table    the counters, in memory that all sessions share
//!  queries  a sample of queries, in such memory
//!  status   pg_stat_laser_indexes
//! ```

pub mod queries;
mod status;
mod table;

use pgrx::pg_sys::Oid;

pub use table::{Counter, Place, of};

/// Makes the memory, if the postmaster is loading the library.
pub fn init() {
    table::init();
    queries::init();
}

/// Whether anything is kept of an index of this database.
pub fn are_kept(index: Oid) -> bool {
    table::is_counted(index) || queries::are_kept(index)
}

/// Begins at zero, without queries, for an index that is being made: one that is gone may have had its OID.
pub fn forget(index: Oid) {
    table::forget(index);
    queries::forget(index);
}

/// Gives up what is kept of an index that this transaction has dropped, once it has committed: sessions of other
/// databases could not see that it is gone.
pub fn release(index: Oid) {
    table::release(index);
    queries::release(index);
}
