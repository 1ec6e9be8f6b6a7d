//! The register block for AVX2, and the rounding of rows.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Block, SCALE, TARGET_STRIPE, Units};

/// Source rows of a register block.
pub(super) const MR: usize = 6;
/// Target rows of a register block: two vectors of eight lanes.
pub(super) const NR: usize = 16;
/// Pairs of dimensions in one sweep: NR rows of them take half of a 32 KiB first-level cache.
pub(super) const DEPTH: usize = 256;

/// Scales a row and rounds it; with AVX2, since without it rounding is a call for each value.
pub(super) fn round(row: &[f32], scale: f64, rounded: &mut [i16]) {
    debug_assert!(Units::Avx2.exist());
    // SAFETY: every kernel of integers is chosen only where AVX2 was detected.
    unsafe { round_avx2(row, scale, rounded) }
}

#[target_feature(enable = "avx2")]
fn round_avx2(row: &[f32], scale: f64, rounded: &mut [i16]) {
    for (to, &value) in rounded.iter_mut().zip(row) {
        // In range, since no component of a unit row exceeds 1; the cast saturates anyway, and
        // the residual sees what it lost.
        *to = (f64::from(value) * scale).round_ties_even() as i16;
    }
}

pub(super) fn block(block: Block<'_>) {
    debug_assert!(Units::Avx2.exist());
    // SAFETY: panels for these units are made only where AVX2 was detected.
    unsafe { block_avx2(block) }
}

#[target_feature(enable = "avx2")]
fn block_avx2(block: Block<'_>) {
    let Block {
        a,
        b,
        c,
        first,
        last,
    } = block;
    let (a, b) = (a.as_chunks::<MR>().0, b.as_chunks::<NR>().0);
    assert!(c.len() >= (MR - 1) * TARGET_STRIPE + NR);
    let c = c.as_mut_ptr();
    let mut sums = [[_mm256_setzero_si256(); 2]; MR];
    if !first {
        for (row, sums) in sums.iter_mut().enumerate() {
            for (half, sum) in sums.iter_mut().enumerate() {
                // SAFETY: within the block, whose length was asserted.
                *sum = unsafe { _mm256_loadu_si256(c.add(row * TARGET_STRIPE + half * 8).cast()) };
            }
        }
    }
    for (a, b) in a.iter().zip(b) {
        // SAFETY: NR pairs of four bytes are two vectors.
        let (low, high) = unsafe {
            let b = b.as_ptr().cast::<__m256i>();
            (_mm256_loadu_si256(b), _mm256_loadu_si256(b.add(1)))
        };
        for (pair, sums) in a.iter().zip(&mut sums) {
            let pair = _mm256_set1_epi32(bytemuck::cast(*pair));
            sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(pair, low));
            sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(pair, high));
        }
    }
    let scale = _mm256_set1_ps((1.0 / (SCALE * SCALE)) as f32);
    for (row, sums) in sums.iter().enumerate() {
        for (half, &sum) in sums.iter().enumerate() {
            // SAFETY: within the block, whose length was asserted.
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
