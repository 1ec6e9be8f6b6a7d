//! The kernels for VNNI and BF16: tiles of 64 columns.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use crate::bf16_pairs::multiply_add;
use crate::int8;

/// The lanes below `len`, at most 16.
fn lanes(len: usize) -> __mmask16 {
    if len >= 16 { !0 } else { (1 << len) - 1 }
}

/// Quantises to unsigned bytes. Returns the row's factor and the step of zero.
///
/// # Safety
/// The processor has AVX-512 F, BW; `out` holds the row's bytes in whole groups.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn quantize(row: &[f32], out: &mut [u32]) -> (f32, f32) {
    debug_assert!(out.len() * 4 >= row.len());
    // Whole vectors without masks, then the rest.
    let whole = row.len() / 16 * 16;
    let to: *mut i8 = out.as_mut_ptr().cast();
    // SAFETY: whole vectors and masks keep loads inside the row and stores inside `out`.
    unsafe {
        let load = |p: usize| _mm512_loadu_ps(row.as_ptr().add(p));
        let rest = _mm512_maskz_loadu_ps(lanes(row.len() - whole), row.as_ptr().add(whole));
        // Several at once hide the time each takes.
        let (mut low, mut high) = ([rest; 4], [rest; 4]);
        for (i, p) in (0..whole).step_by(16).enumerate() {
            low[i % 4] = _mm512_min_ps(low[i % 4], load(p));
            high[i % 4] = _mm512_max_ps(high[i % 4], load(p));
        }
        let low = _mm512_min_ps(_mm512_min_ps(low[0], low[1]), _mm512_min_ps(low[2], low[3]));
        let high = _mm512_max_ps(
            _mm512_max_ps(high[0], high[1]),
            _mm512_max_ps(high[2], high[3]),
        );
        let (low, high) = (_mm512_reduce_min_ps(low), _mm512_reduce_max_ps(high));
        let (inverse, back, zero) = int8::affine(low, high);
        let (inverse, shift) = (_mm512_set1_ps(inverse), _mm512_set1_ps(zero));
        let bytes = |x| {
            let scaled = _mm512_cvtps_epi32(_mm512_fmadd_ps(x, inverse, shift));
            _mm512_cvtepi32_epi8(scaled)
        };
        for p in (0..whole).step_by(16) {
            _mm_storeu_si128(to.add(p).cast(), bytes(load(p)));
        }
        _mm_mask_storeu_epi8(to.add(whole), lanes(out.len() * 4 - whole), bytes(rest));
        (back, zero)
    }
}

/// # Safety
/// As [`vnni::tile`], with AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn tile_bf16<const R: usize>(
    groups: usize,
    a: *const u32,
    b: *const u8,
    init: *const f32,
    ldi: usize,
    out: *mut f32,
    ldo: usize,
) {
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); 4]; R];
        if !init.is_null() {
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = std::array::from_fn(|p| _mm512_loadu_ps(init.add(r * ldi + 16 * p)));
            }
        }
        multiply_add(&mut acc, groups, (a, groups, 1), b);
        for (r, acc) in acc.iter().enumerate() {
            for (p, acc) in acc.iter().enumerate() {
                _mm512_storeu_ps(out.add(r * ldo + 16 * p), *acc);
            }
        }
    }
}

pub(super) mod vnni {
    use std::arch::x86_64::{
        __m512i as Integers, _mm512_cvtepi32_ps as to_float, _mm512_dpbusd_epi32 as dot,
        _mm512_fmadd_ps as fmadd, _mm512_loadu_ps as load, _mm512_loadu_si512 as load_integers,
        _mm512_mul_ps as mul, _mm512_set1_epi32 as spread_integer, _mm512_set1_ps as spread,
        _mm512_setzero_si512 as zero, _mm512_storeu_ps as store,
    };

    integer_tile!("avx512f,avx512vnni", 16, 4);
}
