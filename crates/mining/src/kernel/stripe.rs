//! How many rows are compared at a time.

/// Rows of a source stripe: a multiple of the register block of every kernel.
pub(crate) const SOURCE_STRIPE: usize = 192;
/// Rows of a target stripe: a multiple of the register block of every kernel.
pub(crate) const TARGET_STRIPE: usize = 512;
