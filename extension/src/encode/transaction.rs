//! Whether a procedure may commit.
#![allow(unsafe_code)]

use pgrx::pg_sys;
use pgrx::prelude::*;

/// Whether the session is inside a transaction block, an implicit one of several statements
/// included: the condition under which `CALL` lets no procedure commit.
#[pg_extern(sql = "")]
fn laser_in_transaction_block() -> bool {
    // SAFETY: reads a state of this backend.
    unsafe { pg_sys::IsTransactionBlock() }
}
