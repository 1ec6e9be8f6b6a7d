//! Kernels for AVX-512.

use std::arch::x86_64::*;

/// The instruction multiplies unsigned by signed bytes: `(a + 128) · b - 128 · b` is `a · b`.
///
/// # Safety
/// The CPU has AVX-512 F, BW and VNNI, the slices have the same length.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
pub unsafe fn dot_i8(a: &[i8], b: &[i8]) -> i32 {
    let n = a.len();
    let (pa, pb) = (a.as_ptr(), b.as_ptr());
    let bias = _mm512_set1_epi8(-128);
    let mut sums = [_mm512_setzero_si512(); 2];
    let mut biased = [_mm512_setzero_si512(); 2];
    let mut add = |k: usize, a: __m512i, b: __m512i| {
        sums[k] = _mm512_dpbusd_epi32(sums[k], _mm512_xor_si512(a, bias), b);
        biased[k] = _mm512_dpbusd_epi32(biased[k], bias, b);
    };
    let mut i = 0;
    // SAFETY: every load stays below n.
    unsafe {
        while i + 128 <= n {
            for k in 0..2 {
                let o = i + 64 * k;
                add(
                    k,
                    _mm512_loadu_si512(pa.add(o).cast()),
                    _mm512_loadu_si512(pb.add(o).cast()),
                );
            }
            i += 128;
        }
        while i < n {
            let mask = u64::MAX >> (64 - (n - i).min(64));
            add(
                0,
                _mm512_maskz_loadu_epi8(mask, pa.add(i)),
                _mm512_maskz_loadu_epi8(mask, pb.add(i)),
            );
            i += 64;
        }
    }
    let sum = _mm512_add_epi32(sums[0], sums[1]);
    let bias = _mm512_add_epi32(biased[0], biased[1]);
    _mm512_reduce_add_epi32(_mm512_sub_epi32(sum, bias))
}

/// # Safety
/// The CPU has AVX-512 F; `a` and `c` have the same length, a multiple of 16, and `f` half
/// of it.
#[target_feature(enable = "avx512f")]
pub unsafe fn dot_f32_i12(a: &[f32], c: &[i8], f: &[u8]) -> f32 {
    let n = a.len();
    let (pa, pc, pf) = (a.as_ptr(), c.as_ptr(), f.as_ptr());
    let low = _mm_set1_epi8(15);
    let mut acc = [_mm512_setzero_ps(); 4];
    // SAFETY: every load stays within the slices, see above.
    unsafe {
        let add = |acc: &mut __m512, i: usize| {
            let bytes = _mm_loadl_epi64(pf.add(i / 2).cast());
            let halves = _mm_unpacklo_epi64(
                _mm_and_si128(bytes, low),
                _mm_and_si128(_mm_srli_epi16::<4>(bytes), low),
            );
            let coarse = _mm512_cvtepi8_epi32(_mm_loadu_si128(pc.add(i).cast()));
            let value =
                _mm512_or_si512(_mm512_slli_epi32::<4>(coarse), _mm512_cvtepu8_epi32(halves));
            let a = _mm512_loadu_ps(pa.add(i));
            *acc = _mm512_fmadd_ps(a, _mm512_cvtepi32_ps(value), *acc);
        };
        let mut i = 0;
        while i + 64 <= n {
            for (k, acc) in acc.iter_mut().enumerate() {
                add(acc, i + 16 * k);
            }
            i += 64;
        }
        while i < n {
            add(&mut acc[0], i);
            i += 16;
        }
    }
    let sums = _mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3]));
    _mm512_reduce_add_ps(sums)
}
