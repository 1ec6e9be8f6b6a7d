//! The loops, compiled once per instruction set and chosen when first used.
//!
//! One loop body serves every instruction set: 32 independent partial sums, which the compiler
//! keeps in vector registers of the width that the function's target features allow. Partial
//! sums of that number also bound the rounding error: a sum of `n` products carries that of `n/32`
//! additions plus five. Sums are in `f32`, as pgvector's.
//!
//! Slices of different lengths are a caller's bug and panic.
#![allow(unsafe_code)]

use ::half::f16;
use std::sync::LazyLock;

use laser_cpu::Isa;

/// Partial sums of a kernel.
const LANES: usize = 32;

/// Adds the partial sums in a tree.
#[inline(always)]
fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
fn fused(x: f32, y: f32, sum: f32) -> f32 {
    x.mul_add(y, sum)
}

#[inline(always)]
fn plain(x: f32, y: f32, sum: f32) -> f32 {
    x * y + sum
}

/// The loop of one kernel: `$step` adds the products of elements `x` and `y` to `sums[..][lane]`.
macro_rules! kernel {
    (
        $(#[$attribute:meta])*
        $name:ident($element:ty) -> $sums:literal, $load:ident,
        |$sum:ident, $lane:ident, $x:ident, $y:ident| $step:expr
    ) => {
        $(#[$attribute])*
        pub fn $name(a: &[$element], b: &[$element]) -> [f32; $sums] {
            assert_eq!(a.len(), b.len());
            let mut sums = [[0.0f32; LANES]; $sums];
            let (a, a_rest) = a.as_chunks::<LANES>();
            let (b, b_rest) = b.as_chunks::<LANES>();
            for (x, y) in a.iter().zip(b) {
                let (x, y) = ($load(x), $load(y));
                for $lane in 0..LANES {
                    let ($sum, $x, $y) = (&mut sums, x[$lane], y[$lane]);
                    $step;
                }
            }
            if !a_rest.is_empty() {
                // Zeros add nothing to any of the sums.
                let mut x = [<$element>::default(); LANES];
                let mut y = [<$element>::default(); LANES];
                x[..a_rest.len()].copy_from_slice(a_rest);
                y[..b_rest.len()].copy_from_slice(b_rest);
                let (x, y) = ($load(&x), $load(&y));
                for $lane in 0..LANES {
                    let ($sum, $x, $y) = (&mut sums, x[$lane], y[$lane]);
                    $step;
                }
            }
            sums.map(total)
        }
    };
}

/// All kernels for one element type and instruction set.
macro_rules! kernels {
    ($set:ident, $element:ty, $load:ident, $add:ident $(, $feature:literal)?) => {
        pub(in crate::kernels::loops) mod $set {
            use super::*;
            kernel! { $(#[target_feature(enable = $feature)])? dot($element) -> 1, $load,
                |sums, i, x, y| sums[0][i] = $add(x, y, sums[0][i]) }
            kernel! { $(#[target_feature(enable = $feature)])? l2_squared($element) -> 1, $load,
                |sums, i, x, y| { let d = x - y; sums[0][i] = $add(d, d, sums[0][i]) } }
            kernel! { $(#[target_feature(enable = $feature)])? cosine($element) -> 3, $load,
                |sums, i, x, y| {
                    sums[0][i] = $add(x, y, sums[0][i]);
                    sums[1][i] = $add(x, x, sums[1][i]);
                    sums[2][i] = $add(y, y, sums[2][i]);
                } }
            kernel! { $(#[target_feature(enable = $feature)])? l1($element) -> 1, $load,
                |sums, i, x, y| sums[0][i] += (x - y).abs() }
        }
    };
}

#[inline(always)]
fn same(x: &[f32; LANES]) -> [f32; LANES] {
    *x
}

#[inline(always)]
fn widen(x: &[f16; LANES]) -> [f32; LANES] {
    x.map(f16::to_f32)
}

kernels!(single_plain, f32, same, plain);
kernels!(half_plain, f16, widen, plain);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::*;
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx,f16c")]
    fn widen_f16c(x: &[f16; LANES]) -> [f32; LANES] {
        let mut out = [0.0f32; LANES];
        for i in 0..LANES / 8 {
            // SAFETY: 8 of 32 elements of 16 bits are read, and 8 of 32 of 32 bits written, at
            // i * 8 with i < 4; neither access needs alignment.
            unsafe {
                let half = _mm_loadu_si128(x.as_ptr().add(i * 8).cast());
                _mm256_storeu_ps(out.as_mut_ptr().add(i * 8), _mm256_cvtph_ps(half));
            }
        }
        out
    }

    #[target_feature(enable = "avx,f16c")]
    pub fn widen_all(halves: &[f16], out: &mut [f32]) {
        let (whole, rest) = halves.as_chunks::<LANES>();
        let (wide, wide_rest) = out.as_chunks_mut::<LANES>();
        for (halves, out) in whole.iter().zip(wide) {
            *out = widen_f16c(halves);
        }
        for (half, out) in rest.iter().zip(wide_rest) {
            *out = half.to_f32();
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn widen_avx512(x: &[f16; LANES]) -> [f32; LANES] {
        let mut out = [0.0f32; LANES];
        for i in 0..LANES / 16 {
            // SAFETY: 16 of 32 elements are read and written at i * 16 with i < 2; neither
            // access needs alignment.
            unsafe {
                let half = _mm256_loadu_si256(x.as_ptr().add(i * 16).cast());
                _mm512_storeu_ps(out.as_mut_ptr().add(i * 16), _mm512_cvtph_ps(half));
            }
        }
        out
    }

    pub mod avx2 {
        use super::*;
        kernels!(single, f32, same, fused, "avx2,fma");
        kernels!(half, f16, widen_f16c, fused, "avx2,fma,f16c");
    }

    pub mod avx512 {
        use super::*;
        kernels!(single, f32, same, fused, "avx512f,avx512vl,fma");
        kernels!(half, f16, widen_avx512, fused, "avx512f,avx512vl,fma,f16c");
    }
}

static SET: LazyLock<Isa> = LazyLock::new(Isa::detect);

macro_rules! dispatch {
    ($set:expr, $module:ident, $plain:ident, $kernel:ident, $a:expr, $b:expr) => {
        match $set {
            // SAFETY: `Isa::detect` found the features.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { x86::avx2::$module::$kernel($a, $b) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { x86::avx512::$module::$kernel($a, $b) },
            _ => $plain::$kernel($a, $b),
        }
    };
}

macro_rules! public {
    ($($name:ident, $element:ty, $module:ident, $plain:ident, $kernel:ident, $out:ty, $pick:expr, $doc:literal;)*) => {$(
        #[doc = $doc]
        pub fn $name(a: &[$element], b: &[$element]) -> $out {
            let sums = dispatch!(*SET, $module, $plain, $kernel, a, b);
            $pick(sums)
        }
    )*};
}

/// The only sum of a kernel that has one.
fn first(sums: [f32; 1]) -> f32 {
    sums[0]
}

public! {
    f32_dot, f32, single, single_plain, dot, f32, first, "The inner product.";
    f32_l2_squared, f32, single, single_plain, l2_squared, f32, first, "The squared Euclidean distance.";
    f32_l1, f32, single, single_plain, l1, f32, first, "The sum of absolute differences.";
    f32_cosine_sums, f32, single, single_plain, cosine, [f32; 3], std::convert::identity, "`[a·b, a·a, b·b]`.";
    f16_dot, f16, half, half_plain, dot, f32, first, "The inner product.";
    f16_l2_squared, f16, half, half_plain, l2_squared, f32, first, "The squared Euclidean distance.";
    f16_l1, f16, half, half_plain, l1, f32, first, "The sum of absolute differences.";
    f16_cosine_sums, f16, half, half_plain, cosine, [f32; 3], std::convert::identity, "`[a·b, a·a, b·b]`.";
}

/// The components as floats.
///
/// # Panics
/// If `out` has another length.
pub fn f16_widen(halves: &[f16], out: &mut [f32]) {
    assert_eq!(halves.len(), out.len());
    match *SET {
        // SAFETY: `Isa::detect` found the features, which those of AVX-512 have as well.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => unsafe { x86::widen_all(halves, out) },
        _ => {
            for (half, out) in halves.iter().zip(out) {
                *out = half.to_f32();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn random<E: Element>(rng: &mut ChaCha8Rng, n: usize) -> Vec<E> {
        (0..n)
            .map(|_| E::from_f32(rng.random_range(-1.0..1.0)))
            .collect()
    }

    /// Sums in f64: a·b, a·a, b·b, |a-b|², Σ|a-b|, and Σ|a·b| for the error bound.
    fn reference<E: Element>(a: &[E], b: &[E]) -> [f64; 5] {
        let mut sums = [0.0; 5];
        for (x, y) in a.iter().zip(b) {
            let (x, y) = (f64::from(x.to_f32()), f64::from(y.to_f32()));
            sums[0] += x * y;
            sums[1] += x * x;
            sums[2] += y * y;
            sums[3] += (x - y).powi(2);
            sums[4] += (x - y).abs();
        }
        sums
    }

    #[test]
    fn every_half_is_widened() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for n in [0, 1, 31, 33, 70, halves.len()] {
            let mut out = vec![0.0; n];
            f16_widen(&halves[..n], &mut out);
            for (half, out) in halves.iter().zip(&out) {
                let same = half.to_f32() == *out || half.is_nan() && out.is_nan();
                assert!(same, "{half:?} is not {out}");
            }
        }
    }

    macro_rules! agree {
        ($test:ident, $element:ty, $module:ident, $plain:ident) => {
            #[test]
            fn $test() {
                let mut rng = ChaCha8Rng::seed_from_u64(7);
                for n in (0..140).chain([255, 256, 257, 1024, 1023, 4096, 16_000]) {
                    let a = random::<$element>(&mut rng, n);
                    let b = random::<$element>(&mut rng, n);
                    let expected = reference(&a, &b);
                    // Every product is below 4; a sum of n/32 + 5 roundings of size 2^-24.
                    let bound = 4.0 * n as f64 * (n as f64 / 32.0 + 8.0) * 2f64.powi(-24) + 1e-30;
                    for &set in Isa::all() {
                        let [dot] = dispatch!(set, $module, $plain, dot, &a, &b);
                        let [l2] = dispatch!(set, $module, $plain, l2_squared, &a, &b);
                        let [l1] = dispatch!(set, $module, $plain, l1, &a, &b);
                        let [ab, aa, bb] = dispatch!(set, $module, $plain, cosine, &a, &b);
                        for (got, wanted) in [
                            (dot, expected[0]),
                            (ab, expected[0]),
                            (aa, expected[1]),
                            (bb, expected[2]),
                            (l2, expected[3]),
                            (l1, expected[4]),
                        ] {
                            let error = (f64::from(got) - wanted).abs();
                            assert!(error <= bound, "{set:?} n={n}: {got} != {wanted}");
                        }
                    }
                }
            }
        };
    }

    agree!(f32_kernels_agree_with_f64, f32, single, single_plain);
    agree!(f16_kernels_agree_with_f64, f16, half, half_plain);

    #[test]
    fn every_half_widens_exactly() {
        // All 65,536 patterns but NaN, through the kernel that this processor uses.
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits);
            if !x.is_nan() {
                assert_eq!(f16_dot(&[x], &[f16::ONE]), x.to_f32(), "{bits:#06x}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn different_lengths_panic() {
        f32_dot(&[1.0], &[1.0, 2.0]);
    }
}
