//! Rounding to bf16, in straight-line arithmetic, so that loops over it are vectorised.

/// The bits of the nearest bf16, ties to even. NaN stays NaN.
#[inline(always)]
pub(super) fn bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        quiet
    } else {
        rounded
    }
}
