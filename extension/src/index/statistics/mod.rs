//! What the scans and merges of indexes have done since the server was started.
//!
//! ```text
//!  table    the counters, in memory that all sessions share
//!  status   pg_stat_laser_indexes
//! ```

mod status;
mod table;

pub use table::{Counter, Place, forget, init, is_counted, of, release};
