//! Quantisation of a row to eight bits.
//!
//! Weights are symmetric: the largest magnitude becomes 127. What they are multiplied by may be affine,
//! from the smallest value (0 if that is more) to the largest in 254 steps: behind GELU nearly all values
//! lie on one side, and one more bit halves the error.

/// The factor from values to int8 and the one back, both 0 for a row of zeros.
#[inline(always)]
pub fn factors(largest: f32) -> (f32, f32) {
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    (inverse, largest / 127.0)
}

/// The largest magnitude of a row.
#[inline(always)]
pub fn largest(row: &[f32]) -> f32 {
    row.iter().fold(0f32, |m, x| m.max(x.abs()))
}

/// Quantises a row into the first elements of `out`; `low` takes an element from the low bits of the
/// nearest integer. Returns the factor back. Compiled for the instructions of the caller.
#[inline(always)]
pub fn quantize<T>(row: &[f32], out: &mut [T], low: impl Fn(u32) -> T) -> f32 {
    let (inverse, back) = factors(largest(row));
    for (y, x) in out.iter_mut().zip(row) {
        // Adding 1.5 * 2^23 rounds to the nearest integer in the low mantissa bits, and
        // vectorises, which `f32::round` does not.
        *y = low((x * inverse + 12_582_912.0).to_bits());
    }
    back
}

/// The factor from values to steps, the one back, and the step of zero, for values from `low` to
/// `high`. Zero is exact. Steps are 0 to 255 however products are rounded, for there is room for one
/// more than are needed.
#[inline(always)]
pub fn affine(low: f32, high: f32) -> (f32, f32, f32) {
    let (low, high) = (low.min(0.0), high.max(0.0));
    let range = (high - low).min(f32::MAX);
    let inverse = if range > f32::MIN_POSITIVE {
        254.0 / range
    } else {
        0.0
    };
    (inverse, range / 254.0, (-low * inverse).ceil())
}

/// Quantises a row into the first elements of `out`. Returns the factor back and the step of zero.
/// Compiled for the instructions of the caller.
#[inline(always)]
pub fn quantize_affine(row: &[f32], out: &mut [u8]) -> (f32, f32) {
    let (low, high) = row
        .iter()
        .fold((0f32, 0f32), |(low, high), x| (low.min(*x), high.max(*x)));
    let (inverse, back, zero) = affine(low, high);
    for (y, x) in out.iter_mut().zip(row) {
        // As in `quantize`.
        *y = (x * inverse + (zero + 12_582_912.0)).to_bits() as u8;
    }
    (back, zero)
}
