//! Pairs of bf16, neighbours along the inner dimension, and their products by AVX-512's VDPBF16PS: twice the
//! products of f32 in the same time.
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_load_si512,
    _mm512_loadu_ps, _mm512_mask_storeu_epi32, _mm512_maskz_loadu_ps, _mm512_set1_epi32,
    _mm512_storeu_si512,
};

/// Rounds a row to pairs, `row.len()` halved and rounded up; what a last pair lacks is zero.
///
/// # Safety
/// The processor has AVX-512 BF16.
///
/// # Panics
/// If `to` has no room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) unsafe fn round(row: &[f32], to: &mut [u32]) {
    let pairs = row.len().div_ceil(2);
    assert!(to.len() >= pairs, "room for pairs");
    let whole = row.len() / 32;
    // SAFETY: whole vectors exist; what masks leave out is not touched; a register of bf16 has the size of one
    // of integers.
    unsafe {
        for i in 0..whole {
            let low = _mm512_loadu_ps(row.as_ptr().add(32 * i));
            let high = _mm512_loadu_ps(row.as_ptr().add(32 * i + 16));
            let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_storeu_si512(to.as_mut_ptr().add(16 * i).cast(), both);
        }
        let rest = row.len() - 32 * whole;
        if rest > 0 {
            let from = row.as_ptr().add(32 * whole);
            let mask = (1u64 << rest) - 1;
            let low = _mm512_maskz_loadu_ps(mask as u16, from);
            let high = _mm512_maskz_loadu_ps((mask >> 16) as u16, from.wrapping_add(16));
            let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            let mask = (1u32 << (pairs - 16 * whole)) - 1;
            _mm512_mask_storeu_epi32(to.as_mut_ptr().add(16 * whole).cast(), mask as u16, both);
        }
    }
}

/// `sums[r][v] += Σ_g a[r, g] · b[g, v]`, both products of a pair in the lane of its column, for R rows and V vectors
/// of 16 columns, which stay in registers.
///
/// # Safety
/// The processor has AVX-512 BF16. Pair g of row r of `a` lies at `r * row + g * group`; `b` holds V vectors for each
/// of the `groups`, aligned to 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) unsafe fn multiply_add<const R: usize, const V: usize>(
    sums: &mut [[__m512; V]; R],
    groups: usize,
    (a, row, group): (*const u32, usize, usize),
    b: *const u8,
) {
    for g in 0..groups {
        // SAFETY: the caller vouches for the pointers; `__m512bh` and `__m512i` are the same bits.
        unsafe {
            let line: [__m512bh; V] = std::array::from_fn(|v| {
                std::mem::transmute(_mm512_load_si512(b.add((g * V + v) * 64).cast()))
            });
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(*a.add(r * row + g * group) as i32);
                let x = std::mem::transmute::<__m512i, __m512bh>(x);
                for v in 0..V {
                    sums[v] = _mm512_dpbf16_ps(sums[v], x, line[v]);
                }
            }
        }
    }
}
