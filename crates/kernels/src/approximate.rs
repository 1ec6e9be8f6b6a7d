//! Functions of f32 in straight-line arithmetic, so that loops over them are vectorised. [`crate::math`] has
//! exact ones.
#![allow(
    clippy::excessive_precision,
    reason = "coefficients stand as published"
)]

/// erf(x) = 1 - (a1 t + … + a5 t^5) e^(-x²), t = 1 / (1 + p x), for x >= 0, with an error of
/// 1.5e-7 (Abramowitz & Stegun, 7.1.26): p, and the coefficients from a5 to a1.
pub(crate) const ERF: (f32, [f32; 5]) = (
    0.327_591_1,
    [
        1.061_405_4,
        -1.453_152_1,
        1.421_413_7,
        -0.284_496_74,
        0.254_829_6,
    ],
);

/// `e^x`, relative error below 3e-7 for |x| < 87; saturates outside. Straight-line arithmetic
/// (Cephes polynomial), so that loops over it are vectorised.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
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
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent, absolute error below 2e-7.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    2.0 / (1.0 + exp(-2.0 * x)) - 1.0
}

/// Error function, absolute error below 2e-7.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / (1.0 + ERF.0 * a);
    let mut p = ERF.1[0];
    for coefficient in &ERF.1[1..] {
        p = p * t + coefficient;
    }
    (1.0 - p * t * exp(-a * a)).copysign(x)
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
    fn erf_is_close() {
        for i in -600..600 {
            let x = i as f32 * 0.01;
            let exact = libm::erf(f64::from(x));
            assert!((f64::from(erf(x)) - exact).abs() < 4e-7, "{x}");
        }
    }
}
