//! Scalar activation functions of the portable kernels and of dense layers.

use crate::Activation;

/// Logistic function.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Error function by W. J. Cody's rational approximations as used in C libraries would be exact to
/// the last bit; the series and continued fraction here are accurate to 1e-15 in f64.
pub fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 2.5 {
        // Maclaurin series: erf(x) = 2/sqrt(pi) sum (-1)^n x^(2n+1) / (n! (2n+1))
        let (mut term, mut sum, square) = (a, a, a * a);
        for n in 1..60 {
            term *= -square / f64::from(n);
            let add = term / f64::from(2 * n + 1);
            sum += add;
            if add.abs() < 1e-17 {
                break;
            }
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if a < 6.0 {
        // Continued fraction of erfc: exp(-x²)/sqrt(pi) / (x + 1/2/(x + 2/2/(x + 3/2/(x + …)))
        let mut tail = a;
        for n in (1..=60).rev() {
            tail = a + f64::from(n) / 2.0 / tail;
        }
        1.0 - (-a * a).exp() * 0.5 * std::f64::consts::FRAC_2_SQRT_PI / tail
    } else {
        1.0
    };
    value.copysign(x)
}

/// Applies an activation in place.
pub fn activate(activation: Activation, values: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::Tanh => values.iter_mut().for_each(|x| *x = x.tanh()),
        Activation::Relu => values.iter_mut().for_each(|x| *x = x.max(0.0)),
        Activation::Gelu => values.iter_mut().for_each(|x| {
            let v = f64::from(*x);
            *x = (0.5 * v * (1.0 + erf(v * std::f64::consts::FRAC_1_SQRT_2))) as f32;
        }),
        Activation::GeluTanh => values.iter_mut().for_each(|x| {
            let v = *x;
            let inner = 0.797_884_6 * (v + 0.044_715 * v * v * v);
            *x = 0.5 * v * (1.0 + inner.tanh());
        }),
    }
}

/// Layer normalisation of one row in place; statistics in f64.
pub fn layer_norm(row: &mut [f32], weight: &[f32], bias: &[f32], eps: f64) {
    let n = row.len() as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = row
        .iter()
        .map(|&x| (f64::from(x) - mean).powi(2))
        .sum::<f64>()
        / n;
    let scale = 1.0 / (variance + eps).sqrt();
    for ((x, w), b) in row.iter_mut().zip(weight).zip(bias) {
        *x = ((f64::from(*x) - mean) * scale) as f32 * w + b;
    }
}

/// Scales one row to unit L2 norm; a row of zeros stays.
pub fn l2_normalize(row: &mut [f32]) {
    // Several sums at once, since an addition has to wait for the one before.
    let mut sums = [0f64; 8];
    let (whole, rest) = row.as_chunks::<8>();
    for chunk in whole {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(x) * f64::from(x);
        }
    }
    for (sum, &x) in sums.iter_mut().zip(rest) {
        *sum += f64::from(x) * f64::from(x);
    }
    let norm = sums.iter().sum::<f64>().sqrt();
    if norm > 0.0 {
        let scale = (1.0 / norm) as f32;
        row.iter_mut().for_each(|x| *x *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_known_values() {
        for (x, y) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (-2.0, -0.995_322_265_018_952_7),
            (2.4, 0.999_311_486_103_354_9),
            (2.6, 0.999_763_965_583_470_7),
            (4.0, 0.999_999_984_582_742_1),
        ] {
            assert!((erf(x) - y).abs() < 1e-13, "{x}: {}", erf(x));
        }
    }
}
