//! What rounding loses: of a row, and of a sum of products.

/// Norm of the difference between a unit row and its rounded values.
pub(super) fn residual(row: &[f32], inverse: f64, rounded: impl Iterator<Item = f64>) -> f64 {
    row.iter()
        .zip(rounded)
        .map(|(&value, rounded)| {
            let difference = f64::from(value) * inverse - rounded;
            difference * difference
        })
        .sum::<f64>()
        .sqrt()
}

/// Unit roundoff of `f32`.
pub(super) const UNIT_ROUNDOFF: f64 = f32::EPSILON as f64 / 2.0;

/// Error of a sum of `f32` products of two unit rows: `γ_d` with doubled unit roundoff, for any
/// order of summation and for units that truncate; the last term stands for flushed subnormals.
pub(super) fn error_of_sums(dimensions: usize) -> f64 {
    let n = (dimensions + 2) as f64 * 2.0 * UNIT_ROUNDOFF;
    n / (1.0 - n.min(0.5)) + (dimensions as f64) * 2.0 * f64::from(f32::MIN_POSITIVE)
}
