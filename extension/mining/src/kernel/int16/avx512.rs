//! The register block for AVX-512 VNNI.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Block, SCALE, TARGET_STRIPE, Units};

/// Source rows of a register block.
pub(super) const MR: usize = 12;
/// Target rows of a register block: two vectors of sixteen lanes.
pub(super) const NR: usize = 32;
/// Pairs of dimensions in one sweep: NR rows of them take half of a 48 KiB first-level cache.
pub(super) const DEPTH: usize = 192;

pub(super) fn block(block: Block<'_>) {
    debug_assert!(Units::Avx512Vnni.exist());
    // SAFETY: panels for these units are made only where they were detected.
    unsafe { block_vnni(block) }
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn block_vnni(block: Block<'_>) {
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
    let mut sums = [[_mm512_setzero_si512(); 2]; MR];
    if !first {
        for (row, sums) in sums.iter_mut().enumerate() {
            for (half, sum) in sums.iter_mut().enumerate() {
                // SAFETY: within the block, whose length was asserted.
                *sum = unsafe { _mm512_loadu_si512(c.add(row * TARGET_STRIPE + half * 16).cast()) };
            }
        }
    }
    for (a, b) in a.iter().zip(b) {
        // SAFETY: NR pairs of four bytes are two vectors.
        let (low, high) = unsafe {
            let b = b.as_ptr().cast::<__m512i>();
            (_mm512_loadu_si512(b), _mm512_loadu_si512(b.add(1)))
        };
        for (pair, sums) in a.iter().zip(&mut sums) {
            let pair = _mm512_set1_epi32(bytemuck::cast(*pair));
            sums[0] = _mm512_dpwssd_epi32(sums[0], pair, low);
            sums[1] = _mm512_dpwssd_epi32(sums[1], pair, high);
        }
    }
    let scale = _mm512_set1_ps((1.0 / (SCALE * SCALE)) as f32);
    for (row, sums) in sums.iter().enumerate() {
        for (half, &sum) in sums.iter().enumerate() {
            // SAFETY: within the block, whose length was asserted.
            unsafe {
                let to = c.add(row * TARGET_STRIPE + half * 16);
                if last {
                    _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale));
                } else {
                    _mm512_storeu_si512(to.cast(), sum);
                }
            }
        }
    }
}
