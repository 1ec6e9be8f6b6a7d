//! Quantisation of a row to int8: the largest magnitude becomes 127.

/// The factor from values to int8 and the one back, both 0 for a row of zeros.
#[inline(always)]
pub(crate) fn factors(largest: f32) -> (f32, f32) {
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    (inverse, largest / 127.0)
}

/// The largest magnitude of a row.
#[inline(always)]
pub(crate) fn largest(row: &[f32]) -> f32 {
    row.iter().fold(0f32, |m, x| m.max(x.abs()))
}

/// Quantises a row into the first elements of `out`; `low` takes an element from the low bits of the
/// nearest integer. Returns the factor back. Compiled for the instructions of the caller.
#[inline(always)]
pub(crate) fn quantize<T>(row: &[f32], out: &mut [T], low: impl Fn(u32) -> T) -> f32 {
    let (inverse, back) = factors(largest(row));
    for (y, x) in out.iter_mut().zip(row) {
        // Adding 1.5 * 2^23 rounds to the nearest integer in the low mantissa bits, and
        // vectorises, which `f32::round` does not.
        *y = low((x * inverse + 12_582_912.0).to_bits());
    }
    back
}
