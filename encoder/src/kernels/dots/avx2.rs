//! The kernels for AVX2's `vpmaddwd` and for AVX-VNNI: tiles of 16 columns.
#![allow(unsafe_code)]

use bytemuck::{AnyBitPattern, NoUninit};

/// Largest magnitude becomes 127; 0 becomes `zero`. Returns the row's factor.
#[inline]
#[target_feature(enable = "avx2")]
fn quantize<T: AnyBitPattern + NoUninit>(
    row: &[f32],
    out: &mut [u32],
    zero: T,
    low: impl Fn(u32) -> T,
) -> f32 {
    let largest = row.iter().fold(0f32, |m, x| m.max(x.abs()));
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let out: &mut [T] = bytemuck::cast_slice_mut(out);
    for (y, x) in out.iter_mut().zip(row) {
        // Adding 1.5 * 2^23 rounds to the nearest integer in the low mantissa bits.
        *y = low((x * inverse + 12_582_912.0).to_bits());
    }
    out[row.len()..].fill(zero);
    largest / 127.0
}

/// To 16 bits.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn quantize_words(row: &[f32], out: &mut [u32]) -> f32 {
    quantize(row, out, 0, |bits| bits as i16)
}

/// To bytes with 128 added.
///
/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn quantize_bytes(row: &[f32], out: &mut [u32]) -> f32 {
    quantize(row, out, 128, |bits| (bits as u8).wrapping_add(128))
}

pub(super) mod words {
    use std::arch::x86_64::{
        __m256i as Integers, _mm256_add_epi32, _mm256_cvtepi32_ps as to_float,
        _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as load, _mm256_loadu_si256 as load_integers,
        _mm256_madd_epi16, _mm256_mul_ps as mul, _mm256_set1_epi32 as spread_integer,
        _mm256_set1_ps as spread, _mm256_storeu_ps as store,
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
        _mm256_storeu_ps as store,
    };

    integer_tile!("avx2,fma,avxvnni", 8, 2);
}
