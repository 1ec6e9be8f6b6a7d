//! Units for products of short numbers that NumKong knows of: AMX, for which the system has to be asked as
//! well, and Arm's.

use std::cell::Cell;

use numkong::cap;

/// Capabilities with AMX.
const MATRIX: u64 = cap::SAPPHIREAMX | cap::GRANITEAMX;

/// Whether processor and system multiply tiles of matrices (AMX), which nothing else on it equals.
pub fn has_matrix_unit() -> bool {
    numkong::available() & MATRIX != 0
}

/// Whether bf16 products have a unit of their own; else they take as long as f32, or longer.
pub fn has_bf16_unit() -> bool {
    const UNITS: u64 =
        MATRIX | cap::GENOA | cap::DIAMOND | cap::NEONBFDOT | cap::SVEBFDOT | cap::SME;
    numkong::available() & UNITS != 0
}

/// Asks the operating system for AMX's tiles, once a thread.
pub fn configure_thread() {
    thread_local! {
        static CONFIGURED: Cell<bool> = const { Cell::new(false) };
    }
    if !CONFIGURED.replace(true) {
        numkong::configure_thread();
    }
}
