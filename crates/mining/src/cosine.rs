//! Exact cosines: in `f64`, rounded so that equal ones compare equal.

use laser_cpu::simd;

/// Cosines are multiples of this, far above the noise of `f64` sums (near 1e-15) and far below any
/// difference that matters: so equal rows have a cosine of exactly 1, equal cosines are recognised
/// as such, and sums of cosines are exact in any order.
pub(crate) const COSINE_QUANTUM: f64 = 1.0 / (1u64 << 40) as f64;

/// Cosine of two rows with the given inverse norms, computed in `f64` and rounded to a multiple of
/// [`COSINE_QUANTUM`]. Symmetric to the last bit.
pub(crate) fn cosine(a: &[f32], a_inverse: f64, b: &[f32], b_inverse: f64) -> f64 {
    let cosine = dot(a, b) * (a_inverse * b_inverse);
    (cosine / COSINE_QUANTUM).round_ties_even() * COSINE_QUANTUM
}

simd! {
    /// Dot product in `f64`; products of two `f32` are exact there. Sixteen sums side by side, for the compiler
    /// to keep in vectors; the order of additions is fixed, so equal rows give equal sums on every processor.
    pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
        let mut sums = [0.0f64; 16];
        let (a, a_rest) = a.as_chunks::<16>();
        let (b, b_rest) = b.as_chunks::<16>();
        for (a, b) in a.iter().zip(b) {
            for lane in 0..16 {
                sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
            }
        }
        let rest: f64 = a_rest
            .iter()
            .zip(b_rest)
            .map(|(&a, &b)| f64::from(a) * f64::from(b))
            .sum();
        sums.iter().sum::<f64>() + rest
    }
}

/// Sum of squares in `f64`, as [`dot`] of a row with itself.
pub(crate) fn square(row: &[f32]) -> f64 {
    dot(row, row)
}
