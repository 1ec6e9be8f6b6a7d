//! The kernels for AVX2's `vpmaddwd` and for AVX-VNNI: tiles of 16 columns.
#![allow(unsafe_code)]

use crate::int8;

/// Quantises to 16 bits, of which as many are used as sums of the row's length have room for. Returns
/// the row's factor.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn quantize_words(row: &[f32], out: &mut [u32]) -> f32 {
    let out: &mut [i16] = bytemuck::cast_slice_mut(out);
    out[row.len()..].fill(0);
    // Sums of products with weights up to 127 stay below 2^31.
    let steps = (16_000_000 / row.len().max(1)).clamp(127, 32_767) as f32;
    let largest = int8::largest(row);
    let inverse = if largest > 0.0 { steps / largest } else { 0.0 };
    for (y, x) in out.iter_mut().zip(row) {
        // As in `int8::quantize`.
        *y = (x * inverse + 12_582_912.0).to_bits() as i16;
    }
    largest / steps
}

/// Quantises to unsigned bytes. Returns the row's factor and the step of zero.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn quantize_bytes(row: &[f32], out: &mut [u32]) -> (f32, f32) {
    let out: &mut [u8] = bytemuck::cast_slice_mut(out);
    out[row.len()..].fill(0);
    int8::quantize_affine(row, out)
}

pub(super) mod words {
    use std::arch::x86_64::{
        __m256i as Integers, _mm256_add_epi32, _mm256_cvtepi32_ps as to_float,
        _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as load, _mm256_loadu_si256 as load_integers,
        _mm256_madd_epi16, _mm256_mul_ps as mul, _mm256_set1_epi32 as spread_integer,
        _mm256_set1_ps as spread, _mm256_setzero_si256 as zero, _mm256_storeu_ps as store,
    };

    #[inline]
    #[target_feature(enable = "avx2")]
    fn dot(sum: Integers, a: Integers, b: Integers) -> Integers {
        _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
    }

    integer_tile!("avx2,fma", 8, 2);
}

pub(super) mod vnni {
    use std::arch::x86_64::{
        __m256i as Integers, _mm256_cvtepi32_ps as to_float, _mm256_dpbusd_avx_epi32 as dot,
        _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as load, _mm256_loadu_si256 as load_integers,
        _mm256_mul_ps as mul, _mm256_set1_epi32 as spread_integer, _mm256_set1_ps as spread,
        _mm256_setzero_si256 as zero, _mm256_storeu_ps as store,
    };

    integer_tile!("avx2,fma,avxvnni", 8, 2);
}
