//! The register block for AVX-512 VNNI.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512i as Vector, _mm512_cvtepi32_ps, _mm512_dpwssd_epi32 as multiply_add,
    _mm512_loadu_si512 as load, _mm512_mul_ps, _mm512_set1_epi32 as spread, _mm512_set1_ps,
    _mm512_setzero_si512 as zero, _mm512_storeu_ps, _mm512_storeu_si512 as store,
};

use super::block::{Block, SCALE, Units};
use crate::kernel::stripe::TARGET_STRIPE;

/// Source rows of a register block.
pub(super) const MR: usize = 12;
/// Target rows of a register block: two vectors of sixteen lanes.
pub(super) const NR: usize = 32;
/// Pairs of dimensions in one sweep: NR rows of them take half of a 48 KiB first-level cache.
pub(super) const DEPTH: usize = 192;

pub(super) fn block(block: Block<'_>) {
    debug_assert!(Units::Avx512Vnni.exist());
    // SAFETY: panels for these units are made only where they were detected.
    unsafe { block_units(block) }
}

/// # Safety
/// `to` holds sixteen values.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_scaled(to: *mut f32, sum: Vector, scale: f32) {
    let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale));
    // SAFETY: the caller vouches for `to`.
    unsafe { _mm512_storeu_ps(to, scaled) }
}

register_block!("avx512f,avx512vnni", 16);
