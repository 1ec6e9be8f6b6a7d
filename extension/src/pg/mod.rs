//! What the server is to the rest of this crate: its calls, memory, errors, interrupts, catalogs and locks. Nothing
//! here knows of embeddings, models or indexes.

pub mod arrays;
pub mod backtraces;
pub mod calls;
pub mod catalogs;
pub mod encoding;
pub mod errors;
pub mod file_lock;
pub mod fmgr;
pub mod interrupts;
pub mod lists;
pub mod memory;
pub mod statement;
pub mod statistics;
pub mod temp_files;
pub mod tid;
pub mod trust;
pub mod unguarded;
pub mod waits;
