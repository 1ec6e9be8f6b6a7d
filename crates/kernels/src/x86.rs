//! Vectors of floats on AVX2 and AVX-512 under common names, for kernels that are written once.
#![allow(unsafe_code)]

/// The polynomial of degree 5, highest power first, with the smallest relative error (1e-7) of
/// 2^f on ±1/2; it is 1 at 0.
#[allow(clippy::approx_constant)] // The linear term is near ln 2.
const POWER_OF_TWO: [f32; 6] = [
    1.326_472_7e-3,
    9.671_513e-3,
    5.550_733_6e-2,
    2.402_224_2e-1,
    6.931_47e-1,
    1.0,
];

/// Functions in terms of intrinsics that the module names.
macro_rules! functions {
    ($features:literal, $lanes:literal) => {
        /// Floats of a vector.
        pub const LANES: usize = $lanes;

        /// e^(x s) for s = `scale` / log2 e, relative error below 3e-7 near 0. It is cut off at
        /// 2^±40, so that products of three are finite, and 1 + e^x is the same as ever.
        #[inline]
        #[target_feature(enable = $features)]
        pub fn exp(x: Vector, scale: f32) -> Vector {
            let power = max(min(mul(x, set1(scale)), set1(40.0)), set1(-40.0));
            let whole = round(power);
            let f = sub(power, whole);
            let mut p = set1(super::POWER_OF_TWO[0]);
            for coefficient in &super::POWER_OF_TWO[1..] {
                p = fmadd(p, f, set1(*coefficient));
            }
            scale_by_power(p, whole)
        }

        /// The values of a vector.
        #[inline]
        #[target_feature(enable = $features)]
        fn values(x: Vector) -> [f32; $lanes] {
            let mut out = [0.0; $lanes];
            // SAFETY: `out` holds a vector.
            unsafe { store(out.as_mut_ptr(), x) };
            out
        }

        /// The sum of a vector, by halves.
        #[inline]
        #[target_feature(enable = $features)]
        pub fn sum(x: Vector) -> f32 {
            let mut values = values(x);
            let mut half = $lanes / 2;
            while half > 0 {
                for i in 0..half {
                    values[i] += values[i + half];
                }
                half /= 2;
            }
            values[0]
        }

        /// The largest value of a vector.
        #[inline]
        #[target_feature(enable = $features)]
        pub fn largest(x: Vector) -> f32 {
            values(x).into_iter().fold(f32::NEG_INFINITY, f32::max)
        }

        /// The first values of a slice of fewer than a vector, then `fill`.
        #[inline]
        #[target_feature(enable = $features)]
        pub fn load_part(from: &[f32], fill: f32) -> Vector {
            let mut part = [fill; $lanes];
            part[..from.len()].copy_from_slice(from);
            // SAFETY: `part` holds a vector.
            unsafe { load(part.as_ptr()) }
        }

        /// Writes the first values of a vector.
        #[inline]
        #[target_feature(enable = $features)]
        pub fn store_part(to: &mut [f32], x: Vector) {
            to.copy_from_slice(&values(x)[..to.len()]);
        }
    };
}

pub mod avx2 {
    pub use std::arch::x86_64::{
        __m256 as Vector, _mm256_add_ps as add, _mm256_div_ps as div, _mm256_fmadd_ps as fmadd,
        _mm256_loadu_ps as load, _mm256_max_ps as max, _mm256_min_ps as min, _mm256_mul_ps as mul,
        _mm256_set1_ps as set1, _mm256_storeu_ps as store, _mm256_sub_ps as sub,
    };
    use std::arch::x86_64::{
        _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm256_add_epi32, _mm256_castsi256_ps,
        _mm256_cvtps_epi32, _mm256_round_ps, _mm256_set1_epi32, _mm256_slli_epi32,
    };

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn round(x: Vector) -> Vector {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
    }

    /// x 2^power for a whole power between -126 and 127.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn scale_by_power(x: Vector, power: Vector) -> Vector {
        let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
        mul(x, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
    }

    functions!("avx2,fma", 8);
}

pub mod avx512 {
    pub use std::arch::x86_64::{
        __m512 as Vector, _mm512_add_ps as add, _mm512_div_ps as div, _mm512_fmadd_ps as fmadd,
        _mm512_loadu_ps as load, _mm512_max_ps as max, _mm512_min_ps as min, _mm512_mul_ps as mul,
        _mm512_set1_ps as set1, _mm512_storeu_ps as store, _mm512_sub_ps as sub,
    };
    use std::arch::x86_64::{_mm512_roundscale_ps, _mm512_scalef_ps as scale_by_power};

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn round(x: Vector) -> Vector {
        _mm512_roundscale_ps::<0>(x)
    }

    functions!("avx512f", 16);
}
