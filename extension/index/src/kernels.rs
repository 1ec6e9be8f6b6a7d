//! Kernels on integer codes; those on floats are [`laser_vector::kernels`]. Each has one portable
//! definition and, on x86-64 with AVX2 and FMA, a vector one that gives the same number up to
//! rounding (between integers: exactly the same).
#![allow(unsafe_code)]

/// Whether the vector kernels can run on this machine.
#[inline]
fn vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// An inner product of two vectors of the same length with components in -127..=127.
pub type DotI8 = fn(&[i8], &[i8]) -> i32;

/// The fastest inner product of integer codes on this machine: the walk over a graph calls it for
/// every vector that it sees, and does not want to ask each time what the CPU can do.
pub fn dot_i8() -> DotI8 {
    #[cfg(target_arch = "x86_64")]
    if vectors() {
        return |a, b| {
            assert_eq!(a.len(), b.len());
            // SAFETY: the CPU has AVX2, the lengths are equal.
            unsafe { avx2::dot_i8(a, b) }
        };
    }
    |a, b| {
        a.iter()
            .zip(b)
            .map(|(&x, &y)| i32::from(x) * i32::from(y))
            .sum()
    }
}

/// Asks for the bytes to be loaded into the cache, all at once.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        // SAFETY: a hint, which does not even read the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Rounds `x * factor` to the nearest of -127..=127.
#[inline]
pub fn round_i8(x: &[f32], factor: f32, out: &mut [i8]) {
    // Adding and taking away 1.5 * 2^23 rounds to an integer, ties to even, without a call.
    const MAGIC: f32 = 12_582_912.0;
    for (out, &x) in out.iter_mut().zip(x) {
        let rounded = (x * factor).clamp(-127.0, 127.0) + MAGIC - MAGIC;
        *out = rounded as i32 as i8;
    }
}

/// Inner product of a float vector with integer codes.
#[inline]
pub fn dot_f32_i8(a: &[f32], b: &[i8]) -> f32 {
    assert_eq!(a.len(), b.len());
    #[cfg(target_arch = "x86_64")]
    if vectors() {
        // SAFETY: the CPU has AVX2 and FMA, the lengths are equal.
        return unsafe { avx2::dot_f32_i8(a, b) };
    }
    a.iter().zip(b).map(|(x, &y)| x * f32::from(y)).sum()
}

/// Inner product of a float vector with twelve-bit components `16 * coarse + nibble`. Sixteen
/// components share eight bytes of `fine`: component `i < 8` of a group is the low half of byte `i`,
/// component `i + 8` its high half.
#[inline]
pub fn dot_f32_i12(a: &[f32], coarse: &[i8], fine: &[u8]) -> f32 {
    assert_eq!(a.len(), coarse.len());
    assert_eq!(fine.len(), a.len().div_ceil(16) * 8);
    let whole = a.len() / 16 * 16;
    #[allow(unused_mut)]
    let mut sum = 0.0f32;
    #[allow(unused_mut)]
    let mut from = 0;
    #[cfg(target_arch = "x86_64")]
    if vectors() {
        // SAFETY: the CPU has AVX2 and FMA; `whole` is a multiple of 16 within all three slices.
        sum = unsafe { avx2::dot_f32_i12(&a[..whole], &coarse[..whole], &fine[..whole / 2]) };
        from = whole;
    }
    for i in from..a.len() {
        sum += a[i] * f32::from(i16::from(coarse[i]) * 16 + i16::from(nibble(fine, i)));
    }
    sum
}

/// Component `i` of the packed half bytes.
#[inline]
pub fn nibble(fine: &[u8], i: usize) -> u8 {
    let byte = fine[i / 16 * 8 + i % 8];
    if i % 16 < 8 { byte & 15 } else { byte >> 4 }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
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
                let hi =
                    _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(c)));
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
                let v =
                    _mm256_add_epi16(_mm256_slli_epi16::<4>(coarse), _mm256_cvtepu8_epi16(halves));
                let lo = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(v)));
                let hi =
                    _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(v)));
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agree_with_plain_sums(
            pairs in proptest::collection::vec((-1.0f32..1.0, -127i8..=127, -127i8..=127), 0..200)
        ) {
            let a: Vec<f32> = pairs.iter().map(|p| p.0).collect();
            let c: Vec<i8> = pairs.iter().map(|p| p.1).collect();
            let d: Vec<i8> = pairs.iter().map(|p| p.2).collect();
            let fine: Vec<u8> = (0..a.len().div_ceil(16) * 8).map(|i| (i * 37 + 11) as u8).collect();
            let ints: i32 = c.iter().zip(&d).map(|(x, y)| i32::from(*x) * i32::from(*y)).sum();
            prop_assert_eq!(dot_i8()(&c, &d), ints);
            let mixed: f64 = a.iter().zip(&c).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            prop_assert!((f64::from(dot_f32_i8(&a, &c)) - mixed).abs() < 1e-2);
            let twelve: f64 = (0..a.len())
                .map(|i| f64::from(a[i]) * f64::from(i32::from(c[i]) * 16 + i32::from(nibble(&fine, i))))
                .sum();
            prop_assert!((f64::from(dot_f32_i12(&a, &c, &fine)) - twelve).abs() < 0.2);
        }
    }
}
