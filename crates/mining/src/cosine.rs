//! Exact cosines: in `f64`, rounded so that equal ones compare equal.

use laser_kernels::slices::dot_f64;

/// Cosines are multiples of this, far above the noise of `f64` sums (near 1e-15) and far below any
/// difference that matters: so equal rows have a cosine of exactly 1, equal cosines are recognised
/// as such, and sums of cosines are exact in any order.
pub(crate) const COSINE_QUANTUM: f64 = 1.0 / (1u64 << 40) as f64;

/// Cosine of two rows with the given inverse norms, computed in `f64` and rounded to a multiple of
/// [`COSINE_QUANTUM`]. Symmetric to the last bit.
pub(crate) fn cosine(a: &[f32], a_inverse: f64, b: &[f32], b_inverse: f64) -> f64 {
    let cosine = dot_f64(a, b) * (a_inverse * b_inverse);
    (cosine / COSINE_QUANTUM).round_ties_even() * COSINE_QUANTUM
}

/// Sum of squares in `f64`, as [`dot_f64`] of a row with itself.
pub(crate) fn square(row: &[f32]) -> f64 {
    dot_f64(row, row)
}
