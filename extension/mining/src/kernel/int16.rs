//! The 16-bit integer kernel for AVX2.
//!
//! Unit rows are scaled by [`SCALE`] and rounded to `i16`. `vpmaddwd` multiplies 16 pairs of them
//! and adds neighbours into eight 32-bit lanes: twice the products of an `f32` FMA per
//! instruction, while the rounding error stays near `sqrt(d / 3) / SCALE`. Sums never overflow:
//! by the Cauchy-Schwarz inequality every partial sum of a dot product is at most
//! `(SCALE * (1 + r))²`, below 2³¹ while `r < 0.4`.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Packed, SOURCE_STRIPE, TARGET_STRIPE, residual};

/// Value of a component of 1. Its square, with room for rounding, fits into 31 bits, and
/// components fit into 15.
const SCALE: f64 = 32000.0;
/// Source rows of a register block.
const MR: usize = 6;
/// Target rows of a register block: two vectors of eight lanes.
const NR: usize = 16;
/// Pairs of dimensions in one sweep: NR rows of them take half of a 32 KiB first-level cache.
const DEPTH: usize = 256;

/// Rows in panels of MR or NR rows; within a panel, for each pair of dimensions, that pair of
/// each row. Rows that are missing in the last panel are zero.
pub(crate) struct Panels {
    /// Pairs of dimensions.
    depth: usize,
    panels: usize,
    pairs: Vec<[i16; 2]>,
}

pub(super) fn pack(
    rows: &[f32],
    inverse: &[f64],
    dimensions: usize,
    target: bool,
) -> (Packed, f64) {
    let width = if target { NR } else { MR };
    let depth = dimensions.div_ceil(2);
    let panels = inverse.len().div_ceil(width);
    let mut pairs = vec![[0i16; 2]; panels * width * depth];
    let mut rounded = vec![0i16; depth * 2];
    let mut worst = 0.0f64;
    for (at, (row, &inverse)) in rows.chunks_exact(dimensions).zip(inverse).enumerate() {
        // SAFETY: this kernel is chosen only where AVX2 was detected.
        unsafe { round(row, inverse * SCALE, &mut rounded) };
        let exact = rounded[..dimensions]
            .iter()
            .map(|&value| f64::from(value) / SCALE);
        worst = worst.max(residual(row, inverse, exact));
        let panel = &mut pairs[(at / width) * width * depth..][..width * depth];
        for (pair, values) in rounded.chunks_exact(2).enumerate() {
            panel[pair * width + at % width] = [values[0], values[1]];
        }
    }
    (
        Packed::Int16(Panels {
            depth,
            panels,
            pairs,
        }),
        worst,
    )
}

/// Scales a row and rounds it; with AVX2, since without it rounding is a call for each value.
#[target_feature(enable = "avx2")]
fn round(row: &[f32], scale: f64, rounded: &mut [i16]) {
    for (to, &value) in rounded.iter_mut().zip(row) {
        // In range, since no component of a unit row exceeds 1; the cast saturates anyway, and
        // the residual sees what it lost.
        *to = (f64::from(value) * scale).round_ties_even() as i16;
    }
}

pub(super) fn tile(source: &Panels, target: &Panels, out: &mut [f32]) {
    assert_eq!(source.depth, target.depth);
    assert!(source.panels * MR <= SOURCE_STRIPE && target.panels * NR <= TARGET_STRIPE);
    assert_eq!(out.len(), SOURCE_STRIPE * TARGET_STRIPE);
    let sweeps = source.depth.div_ceil(DEPTH).max(1);
    let step = source.depth.div_ceil(sweeps);
    for sweep in 0..sweeps {
        let from = sweep * step;
        let depth = step.min(source.depth - from);
        let (first, last) = (sweep == 0, sweep + 1 == sweeps);
        for column in 0..target.panels {
            let b = &target.pairs[(column * target.depth + from) * NR..][..depth * NR];
            for row in 0..source.panels {
                let a = &source.pairs[(row * source.depth + from) * MR..][..depth * MR];
                let c = &mut out[row * MR * TARGET_STRIPE + column * NR..];
                // SAFETY: this kernel is chosen only where AVX2 was detected; `a` and `b` hold
                // `depth` steps of a panel, and the MR rows of NR values of the block lie within
                // `out`, as asserted above.
                unsafe { block(a.as_ptr(), b.as_ptr(), depth, c.as_mut_ptr(), first, last) };
            }
        }
    }
}

/// Adds the products of one source panel and one target panel to a block of `out`, which holds
/// the bits of `i32` sums until the last sweep turns them into `f32` cosines.
///
/// # Safety
/// AVX2; `a` points to `depth * MR` pairs, `b` to `depth * NR` pairs, `c` to MR rows of NR values
/// with a stride of TARGET_STRIPE.
#[target_feature(enable = "avx2")]
unsafe fn block(
    a: *const [i16; 2],
    b: *const [i16; 2],
    depth: usize,
    c: *mut f32,
    first: bool,
    last: bool,
) {
    let mut sums = [[_mm256_setzero_si256(); 2]; MR];
    if !first {
        for (row, sums) in sums.iter_mut().enumerate() {
            for (half, sum) in sums.iter_mut().enumerate() {
                // SAFETY: within the block, see above.
                *sum = unsafe { _mm256_loadu_si256(c.add(row * TARGET_STRIPE + half * 8).cast()) };
            }
        }
    }
    for step in 0..depth {
        // SAFETY: NR pairs from step * NR, see above.
        let (low, high) = unsafe {
            let at = b.add(step * NR);
            (
                _mm256_loadu_si256(at.cast()),
                _mm256_loadu_si256(at.add(8).cast()),
            )
        };
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the pair of row `row`, see above.
            let pair = unsafe { a.add(step * MR + row).cast::<i32>().read_unaligned() };
            let pair = _mm256_set1_epi32(pair);
            sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(pair, low));
            sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(pair, high));
        }
    }
    let scale = _mm256_set1_ps((1.0 / (SCALE * SCALE)) as f32);
    for (row, sums) in sums.iter().enumerate() {
        for (half, &sum) in sums.iter().enumerate() {
            // SAFETY: within the block, see above.
            unsafe {
                let to = c.add(row * TARGET_STRIPE + half * 8);
                if last {
                    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale));
                } else {
                    _mm256_storeu_si256(to.cast(), sum);
                }
            }
        }
    }
}
