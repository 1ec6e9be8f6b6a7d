//! Maintenance in the background: a worker of the database merges what inserts have left in pending lists.
//!
//! ```text
//!  state    what the worker and sessions tell each other, in files
//!  backlog  how much a writer is slowed down whose list grows faster than merges
//!  request  what an insert does that has made a list too long
//!  worker   the process
//!  status   laser_index_maintenance
//! ```

mod backlog;
mod request;
mod state;
mod status;
mod worker;

pub use backlog::pages_of;
pub use request::{MergeOwner, request_merge, slow_down};
