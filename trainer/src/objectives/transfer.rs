//! Representation transfer: embeddings are drawn to those of a frozen teacher (Aldarmaki and
//! Diab, NAACL 2019, section 3.2; Reimers and Gurevych, EMNLP 2020).

use serde::{Deserialize, Serialize};

use laser_kernels::slices::{axpy, dot, sum_of_squares};

/// Distance between student and teacher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distance {
    /// Sum of absolute differences.
    L1,
    /// Sum of squared differences.
    #[default]
    L2,
    /// Root of the sum of squared differences.
    Euclidean,
    /// One minus the cosine.
    Cosine,
}

/// Distance with negatives (Conneau et al., EMNLP 2018): the mean over the rows of
/// `d(x, y) − λ (d(x', y) + d(x, y'))` for embeddings `x`, those of the teacher `y`, and both of another pair `x'`, `y'`, which is
/// the one `shift` rows further on (0 < shift < rows). Returns it with its gradient by `x`.
pub fn alignment(
    distance: Distance,
    x: &[f32],
    teacher: &[f32],
    width: usize,
    (lambda, shift): (f32, usize),
) -> (f64, Vec<f32>) {
    let (mut loss, mut dx) = transfer(distance, x, teacher, width);
    let rows = x.len() / width;
    if lambda == 0.0 || rows < 2 {
        return (loss, dx);
    }
    // d(x, y') takes the teacher's rows from further on, d(x', y) those from before.
    for shift in [shift, rows - shift] {
        let mut others = teacher.to_vec();
        others.rotate_left(shift * width);
        let (value, slope) = transfer(distance, x, &others, width);
        loss -= f64::from(lambda) * value;
        axpy(-lambda, &slope, &mut dx);
    }
    (loss, dx)
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
            Distance::Euclidean => {
                let squares = x.iter().zip(t).map(|(x, t)| (x - t) * (x - t));
                let length = squares.sum::<f32>().sqrt();
                loss += f64::from(length);
                for ((d, x), t) in d.iter_mut().zip(x).zip(t) {
                    *d = (x - t) / (length.max(1e-6) * rows);
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

    const ALL: [Distance; 4] = [
        Distance::L1,
        Distance::L2,
        Distance::Euclidean,
        Distance::Cosine,
    ];

    #[test]
    fn negatives_are_those_of_the_equation() {
        let width = 4;
        let (rows, shift, lambda) = (5, 2, 0.25);
        let teacher = random(rows * width, 1.0, 1, 1);
        let mut x = random(rows * width, 1.0, 1, 2);
        for distance in ALL {
            let row = |all: &[f32], i: usize| all[i % rows * width..][..width].to_vec();
            let d = |x: Vec<f32>, y: Vec<f32>| transfer(distance, &x, &y, width).0;
            let wanted: f64 = (0..rows)
                .map(|i| {
                    let (own, y) = (row(&x, i), row(&teacher, i));
                    let (other, negative) = (row(&x, i + shift), row(&teacher, i + shift));
                    d(own.clone(), y.clone()) - f64::from(lambda) * (d(other, y) + d(own, negative))
                })
                .sum::<f64>()
                / rows as f64;
            let value = |x: &[f32]| alignment(distance, x, &teacher, width, (lambda, shift));
            let (loss, dx) = value(&x);
            assert!((loss - wanted).abs() < 1e-6, "{distance:?} {loss} {wanted}");
            for k in 0..x.len() {
                let (at, h) = (x[k], 1e-3);
                x[k] = at + h;
                let up = value(&x).0;
                x[k] = at - h;
                let slope = (up - value(&x).0) / (2.0 * f64::from(h));
                x[k] = at;
                let wrong = (f64::from(dx[k]) - slope).abs();
                assert!(wrong < 2e-3, "{distance:?} {} {slope}", dx[k]);
            }
            let without = alignment(distance, &x, &teacher, width, (0.0, shift));
            assert_eq!(without, transfer(distance, &x, &teacher, width));
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        let width = 4;
        let teacher = random(12, 1.0, 1, 1);
        for distance in ALL {
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
