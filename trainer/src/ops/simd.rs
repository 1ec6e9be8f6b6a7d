//! Kernels over slices, compiled for several instruction sets and chosen at run time.
//!
//! The bodies are plain loops that LLVM vectorises; [`simd!`] compiles each body again with the
//! wider registers enabled, so that a portable binary still uses AVX2 or AVX-512 where it runs.
//! A kernel gives the same result on every call on one machine; it may differ in the last bit
//! between machines with different registers.

/// Defines a function whose body is compiled for the baseline, for AVX2 + FMA and for AVX-512.
macro_rules! simd {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(unsafe_code)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: the processor has every feature the function enables.
                    return unsafe { avx512($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has every feature the function enables.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(crate) use simd;

/// `e^x`, relative error below 3e-7 for |x| < 87; saturates outside. Straight-line arithmetic
/// (Cephes polynomial), so that loops over it are vectorised.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5.0e-1;
    let y = p * r * r + r + 1.0;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    y * f32::from_bits((exponent.wrapping_add(127) as u32) << 23)
}

/// Logistic function.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent, absolute error below 2e-7.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    2.0 / (1.0 + exp(-2.0 * x)) - 1.0
}

simd! {
    /// `Σ aᵢ bᵢ`, summed in 32 lanes.
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        const LANES: usize = 32;
        let n = a.len().min(b.len());
        let (a, b) = (&a[..n], &b[..n]);
        let mut sums = [0f32; LANES];
        let (ca, cb) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
        let rest: f32 = ca.remainder().iter().zip(cb.remainder()).map(|(x, y)| x * y).sum();
        for (x, y) in ca.zip(cb) {
            for l in 0..LANES {
                sums[l] += x[l] * y[l];
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for l in 0..width {
                sums[l] += sums[l + width];
            }
            width /= 2;
        }
        sums[0] + rest
    }
}

/// `Σ aᵢ²`.
pub fn sum_of_squares(a: &[f32]) -> f32 {
    dot(a, a)
}

simd! {
    /// `y += α x`.
    pub fn axpy(alpha: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += alpha * x;
        }
    }
}

simd! {
    /// `y += x`.
    pub fn add(x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

simd! {
    /// `y *= α`.
    pub fn scale(alpha: f32, y: &mut [f32]) {
        for y in y {
            *y *= alpha;
        }
    }
}

simd! {
    /// `average = decay · average + (1 − decay) · value`.
    pub fn average(decay: f32, value: &[f32], average: &mut [f32]) {
        for (a, v) in average.iter_mut().zip(value) {
            *a += (1.0 - decay) * (v - *a);
        }
    }
}

simd! {
    /// `x = e^x`, in place; returns the sum of the results.
    pub fn exp_in_place(x: &mut [f32]) -> f32 {
        const LANES: usize = 16;
        let mut sums = [0f32; LANES];
        let mut chunks = x.chunks_exact_mut(LANES);
        for chunk in &mut chunks {
            for l in 0..LANES {
                let e = exp(chunk[l]);
                chunk[l] = e;
                sums[l] += e;
            }
        }
        let mut rest = 0.0;
        for v in chunks.into_remainder() {
            *v = exp(*v);
            rest += *v;
        }
        sums.iter().sum::<f32>() + rest
    }
}

simd! {
    /// The largest element; -infinity of none.
    pub fn largest(x: &[f32]) -> f32 {
        const LANES: usize = 16;
        let mut best = [f32::NEG_INFINITY; LANES];
        let chunks = x.chunks_exact(LANES);
        let rest = chunks.remainder().iter().fold(f32::NEG_INFINITY, |b, v| b.max(*v));
        for chunk in chunks {
            for l in 0..LANES {
                best[l] = if chunk[l] > best[l] { chunk[l] } else { best[l] };
            }
        }
        best.iter().fold(rest, |b, v| b.max(*v))
    }
}

simd! {
    /// `x += value`, elementwise with one number.
    pub fn shift(value: f32, x: &mut [f32]) {
        for x in x {
            *x += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_library() {
        let mut worst = 0f64;
        for i in -8600..8600 {
            let x = i as f32 * 0.01;
            let expected = f64::from(x).exp();
            worst = worst.max(((f64::from(exp(x)) - expected) / expected).abs());
        }
        assert!(worst < 3e-7, "{worst}");
        assert!(exp(f32::NEG_INFINITY) < 2e-38);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_and_sigmoid_are_close() {
        for i in -200..200 {
            let x = i as f32 * 0.1;
            assert!((tanh(x) - x.tanh()).abs() < 3e-7, "{x}");
            assert!((sigmoid(x) - 1.0 / (1.0 + (-x).exp())).abs() < 3e-7, "{x}");
        }
    }

    #[test]
    fn dot_matches_a_plain_sum() {
        for n in [0, 1, 31, 32, 33, 100] {
            let a: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
            let b: Vec<f32> = (0..n).map(|i| (i % 5) as f32).collect();
            let plain: f32 = a.iter().zip(&b).map(|(x, y)| x * y).sum();
            assert_eq!(dot(&a, &b), plain);
        }
    }

    #[test]
    fn exp_in_place_sums_what_it_writes() {
        let mut x: Vec<f32> = (0..37).map(|i| i as f32 * 0.1 - 2.0).collect();
        let sum = exp_in_place(&mut x);
        assert!((sum - x.iter().sum::<f32>()).abs() < 1e-3);
    }
}
