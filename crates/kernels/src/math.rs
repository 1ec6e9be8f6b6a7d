//! The functions of the portable kernels and of dense layers, and of single rows, as exact as their type.

use crate::Activation;
use crate::slices::dot_f64;

/// Logistic function.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Applies an activation in place.
pub fn activate(activation: Activation, values: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::Tanh => values.iter_mut().for_each(|x| *x = x.tanh()),
        Activation::Relu => values.iter_mut().for_each(|x| *x = x.max(0.0)),
        Activation::Gelu => values.iter_mut().for_each(|x| {
            let v = f64::from(*x);
            *x = (0.5 * v * (1.0 + libm::erf(v * std::f64::consts::FRAC_1_SQRT_2))) as f32;
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
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64;
    normalize(row, mean, weight, bias, eps);
}

/// RMS normalisation of one row in place, and a shift; statistics in f64.
pub fn rms_norm(row: &mut [f32], weight: &[f32], bias: &[f32], eps: f64) {
    normalize(row, 0.0, weight, bias, eps);
}

/// Divides the distances of a row from `middle` by the root of the mean of their squares.
fn normalize(row: &mut [f32], middle: f64, weight: &[f32], bias: &[f32], eps: f64) {
    let squares = row.iter().map(|&x| (f64::from(x) - middle).powi(2));
    let variance = squares.sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (variance + eps).sqrt();
    for ((x, w), b) in row.iter_mut().zip(weight).zip(bias) {
        *x = ((f64::from(*x) - middle) * scale) as f32 * w + b;
    }
}

/// Cosine of two rows of one length, in f64; NaN where one is zero.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    dot_f64(a, b) / (dot_f64(a, a) * dot_f64(b, b)).sqrt()
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
