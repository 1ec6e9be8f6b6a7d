//! Layer normalisation (Ba et al., 2016): `y = g (x − mean) / √(variance + ε) + b`, row by row.

use laser_cpu::simd;

use crate::slices::{dot, sum, sum_of_squares};

/// What the backward pass needs of some rows.
#[derive(Debug, Default)]
pub struct Normalised {
    /// `(x − mean) / √(variance + ε)`, [rows, width].
    pub normal: Vec<f32>,
    /// `1 / √(variance + ε)` of each row.
    pub inverse: Vec<f32>,
}

simd! {
    fn centre(x: &mut [f32], mean: f32) {
        for x in x {
            *x -= mean;
        }
    }
}

simd! {
    fn finish(x: &mut [f32], factor: f32, gain: &[f32], shift: &[f32], y: &mut [f32]) {
        for (((x, y), g), s) in x.iter_mut().zip(y).zip(gain).zip(shift) {
            *x *= factor;
            *y = *x * g + s;
        }
    }
}

/// Writes the result for `x` [rows, width] to `y`; `x` becomes [`Normalised::normal`]. Returns
/// [`Normalised::inverse`].
pub fn forward(
    (gain, shift): (&[f32], &[f32]),
    epsilon: f32,
    x: &mut [f32],
    y: &mut [f32],
) -> Vec<f32> {
    let width = gain.len();
    let rows = x.chunks_exact_mut(width).zip(y.chunks_exact_mut(width));
    rows.map(|(x, y)| {
        centre(x, sum(x) / width as f32);
        let variance = sum_of_squares(x) / width as f32;
        let factor = 1.0 / (variance + epsilon).sqrt();
        finish(x, factor, gain, shift, y);
        factor
    })
    .collect()
}

simd! {
    fn affine_backward(
        dy: &mut [f32],
        normal: &[f32],
        gain: &[f32],
        d_gain: &mut [f32],
        d_shift: &mut [f32],
    ) {
        let n = dy.len();
        let (normal, gain) = (&normal[..n], &gain[..n]);
        let (d_gain, d_shift) = (&mut d_gain[..n], &mut d_shift[..n]);
        for i in 0..n {
            d_gain[i] += dy[i] * normal[i];
            d_shift[i] += dy[i];
            dy[i] *= gain[i];
        }
    }
}

simd! {
    fn normal_backward(d: &mut [f32], normal: &[f32], mean: f32, slope: f32, inverse: f32) {
        for (d, n) in d.iter_mut().zip(normal) {
            *d = inverse * (*d - mean - n * slope);
        }
    }
}

/// Turns the gradient `dy` [rows, width] of the result into that of the input; adds those of gain and shift.
pub fn backward(
    saved: &Normalised,
    gain: &[f32],
    dy: &mut [f32],
    (d_gain, d_shift): (&mut [f32], &mut [f32]),
) {
    let width = gain.len();
    let rows = dy
        .chunks_exact_mut(width)
        .zip(saved.normal.chunks_exact(width));
    for ((dy, normal), inverse) in rows.zip(&saved.inverse) {
        affine_backward(dy, normal, gain, d_gain, d_shift);
        let mean = sum(dy) / width as f32;
        let slope = dot(dy, normal) / width as f32;
        normal_backward(dy, normal, mean, slope, *inverse);
    }
}
