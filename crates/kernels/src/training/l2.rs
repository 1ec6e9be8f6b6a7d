//! L2 normalisation with its gradient, row by row.

use crate::slices::{dot, scale, sum_of_squares};

/// Brings each row of [rows, width] to unit L2 norm; returns the norms. Rows shorter than 1e-6
/// are divided by 1e-6.
pub fn normalize(x: &mut [f32], width: usize) -> Vec<f32> {
    x.chunks_exact_mut(width)
        .map(|row| {
            let norm = sum_of_squares(row).sqrt().max(1e-6);
            scale(1.0 / norm, row);
            norm
        })
        .collect()
}

/// Gradient of [`normalize`] in place of `dy`: `(dy − y (y · dy)) / norm`.
pub fn normalize_backward(y: &[f32], norms: &[f32], dy: &mut [f32], width: usize) {
    for ((y, dy), norm) in y
        .chunks_exact(width)
        .zip(dy.chunks_exact_mut(width))
        .zip(norms)
    {
        let along = dot(y, dy);
        let inverse = 1.0 / norm;
        for (d, y) in dy.iter_mut().zip(y) {
            *d = (*d - y * along) * inverse;
        }
    }
}
