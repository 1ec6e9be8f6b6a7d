//! Representation transfer: embeddings are drawn to those of a frozen teacher (Aldarmaki and
//! Diab, NAACL 2019, section 3.2; Reimers and Gurevych, EMNLP 2020).

use serde::{Deserialize, Serialize};

use laser_kernels::slices::{dot, sum_of_squares};

/// Distance between student and teacher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distance {
    /// Sum of absolute differences.
    L1,
    /// Sum of squared differences.
    #[default]
    L2,
    /// One minus the cosine.
    Cosine,
}

/// Mean distance over the rows of `x` and `teacher` [rows, width], and its gradient by `x`.
pub fn transfer(distance: Distance, x: &[f32], teacher: &[f32], width: usize) -> (f64, Vec<f32>) {
    let rows = (x.len() / width).max(1) as f32;
    let mut dx = vec![0f32; x.len()];
    let mut loss = 0f64;
    for ((x, t), d) in x
        .chunks_exact(width)
        .zip(teacher.chunks_exact(width))
        .zip(dx.chunks_exact_mut(width))
    {
        match distance {
            Distance::L1 => {
                for ((d, x), t) in d.iter_mut().zip(x).zip(t) {
                    loss += f64::from((x - t).abs());
                    *d = if x > t {
                        1.0
                    } else if x < t {
                        -1.0
                    } else {
                        0.0
                    } / rows;
                }
            }
            Distance::L2 => {
                for ((d, x), t) in d.iter_mut().zip(x).zip(t) {
                    loss += f64::from((x - t) * (x - t));
                    *d = 2.0 * (x - t) / rows;
                }
            }
            Distance::Cosine => {
                let (xn, tn) = (sum_of_squares(x).sqrt(), sum_of_squares(t).sqrt());
                let (xn, tn) = (xn.max(1e-6), tn.max(1e-6));
                let cosine = dot(x, t) / (xn * tn);
                loss += f64::from(1.0 - cosine);
                for ((d, x), t) in d.iter_mut().zip(x).zip(t) {
                    *d = (cosine * x / xn - t / tn) / (xn * rows);
                }
            }
        }
    }
    (loss / f64::from(rows), dx)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;

    #[test]
    fn gradients_match_finite_differences() {
        let width = 4;
        let teacher = random(12, 1.0, 1, 1);
        for distance in [Distance::L1, Distance::L2, Distance::Cosine] {
            let mut x = random(12, 1.0, 1, 2);
            let (loss, dx) = transfer(distance, &x, &teacher, width);
            assert!(loss > 0.0);
            for k in 0..x.len() {
                let (value, h) = (x[k], 1e-3);
                x[k] = value + h;
                let up = transfer(distance, &x, &teacher, width).0;
                x[k] = value - h;
                let down = transfer(distance, &x, &teacher, width).0;
                x[k] = value;
                let slope = (up - down) / (2.0 * f64::from(h));
                assert!(
                    (f64::from(dx[k]) - slope).abs() < 2e-3,
                    "{distance:?} {} {slope}",
                    dx[k]
                );
            }
            let (same, _) = transfer(distance, &teacher, &teacher, width);
            assert!(same.abs() < 1e-6);
        }
    }
}
