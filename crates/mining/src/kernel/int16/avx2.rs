//! The register block for AVX2, and the rounding of rows.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m256i as Vector, _mm256_add_epi32, _mm256_cvtepi32_ps, _mm256_loadu_si256 as load,
    _mm256_madd_epi16, _mm256_mul_ps, _mm256_set1_epi32 as spread, _mm256_set1_ps,
    _mm256_setzero_si256 as zero, _mm256_storeu_ps, _mm256_storeu_si256 as store,
};

use super::block::{Block, SCALE, Units};
use crate::kernel::stripe::TARGET_STRIPE;

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
    unsafe { block_units(block) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn multiply_add(sum: Vector, a: Vector, b: Vector) -> Vector {
    _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
}

/// # Safety
/// `to` holds eight values.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_scaled(to: *mut f32, sum: Vector, scale: f32) {
    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(scale));
    // SAFETY: the caller vouches for `to`.
    unsafe { _mm256_storeu_ps(to, scaled) }
}

register_block!("avx2", 8);
