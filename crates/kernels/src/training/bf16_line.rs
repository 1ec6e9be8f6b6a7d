//! What the units for bf16 multiply by: lines of pairs of neighbours along the inner dimension.

/// Columns of a panel: two registers.
pub(super) const COLUMNS: usize = 32;

/// One pair of each column of a panel.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Line(pub [u32; COLUMNS]);
