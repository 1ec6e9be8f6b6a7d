//! Kernels for AVX2 and FMA.

use std::arch::x86_64::*;

#[target_feature(enable = "avx2,fma")]
fn sum8(v: __m256) -> f32 {
    let s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)))
}

/// Products of |a| and sign(a) b in pairs stay within 2 * 127 * 127 < 2^15, so that the
/// saturating multiply-add never saturates.
///
/// # Safety
/// The CPU has AVX2, the slices have the same length, no component is -128.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn dot_i8(a: &[i8], b: &[i8]) -> i32 {
    let n = a.len();
    let (pa, pb) = (a.as_ptr(), b.as_ptr());
    let ones = _mm256_set1_epi16(1);
    let mut acc = [_mm256_setzero_si256(); 2];
    let mut i = 0;
    // SAFETY: every load stays below n.
    unsafe {
        while i + 64 <= n {
            for (k, acc) in acc.iter_mut().enumerate() {
                let o = i + 32 * k;
                let va = _mm256_loadu_si256(pa.add(o).cast());
                let vb = _mm256_loadu_si256(pb.add(o).cast());
                let p = _mm256_maddubs_epi16(_mm256_abs_epi8(va), _mm256_sign_epi8(vb, va));
                *acc = _mm256_add_epi32(*acc, _mm256_madd_epi16(p, ones));
            }
            i += 64;
        }
    }
    let v = _mm256_add_epi32(acc[0], acc[1]);
    let s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b01_00_11_10>(s));
    let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b10_11_00_01>(s));
    let mut sum = _mm_cvtsi128_si32(s);
    for k in i..n {
        sum += i32::from(a[k]) * i32::from(b[k]);
    }
    sum
}

/// # Safety
/// The CPU has AVX2 and FMA, and the slices have the same length.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn dot_f32_i8(a: &[f32], b: &[i8]) -> f32 {
    let n = a.len();
    let (pa, pb) = (a.as_ptr(), b.as_ptr());
    let mut acc = [_mm256_setzero_ps(); 2];
    let mut i = 0;
    // SAFETY: every load stays below n.
    unsafe {
        while i + 16 <= n {
            let c = _mm256_cvtepi8_epi16(_mm_loadu_si128(pb.add(i).cast()));
            let lo = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(c)));
            let hi = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(c)));
            acc[0] = _mm256_fmadd_ps(_mm256_loadu_ps(pa.add(i)), lo, acc[0]);
            acc[1] = _mm256_fmadd_ps(_mm256_loadu_ps(pa.add(i + 8)), hi, acc[1]);
            i += 16;
        }
    }
    let mut sum = sum8(_mm256_add_ps(acc[0], acc[1]));
    for k in i..n {
        sum += a[k] * f32::from(b[k]);
    }
    sum
}

/// # Safety
/// The CPU has AVX2 and FMA; `a` and `c` have the same length, a multiple of 16, and `f` half
/// of it.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn dot_f32_i12(a: &[f32], c: &[i8], f: &[u8]) -> f32 {
    let n = a.len();
    let (pa, pc, pf) = (a.as_ptr(), c.as_ptr(), f.as_ptr());
    let low = _mm_set1_epi8(15);
    let mut acc = [_mm256_setzero_ps(); 4];
    let mut i = 0;
    // SAFETY: every load stays within the slices, see above.
    unsafe {
        while i < n {
            let bytes = _mm_loadl_epi64(pf.add(i / 2).cast());
            let halves = _mm_unpacklo_epi64(
                _mm_and_si128(bytes, low),
                _mm_and_si128(_mm_srli_epi16::<4>(bytes), low),
            );
            let coarse = _mm256_cvtepi8_epi16(_mm_loadu_si128(pc.add(i).cast()));
            let v = _mm256_add_epi16(_mm256_slli_epi16::<4>(coarse), _mm256_cvtepu8_epi16(halves));
            let lo = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(v)));
            let hi = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(v)));
            let k = (i / 16 % 2) * 2;
            acc[k] = _mm256_fmadd_ps(_mm256_loadu_ps(pa.add(i)), lo, acc[k]);
            acc[k + 1] = _mm256_fmadd_ps(_mm256_loadu_ps(pa.add(i + 8)), hi, acc[k + 1]);
            i += 16;
        }
    }
    sum8(_mm256_add_ps(
        _mm256_add_ps(acc[0], acc[1]),
        _mm256_add_ps(acc[2], acc[3]),
    ))
}
