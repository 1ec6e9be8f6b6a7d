//! Softmax with cross-entropy over rows of logits.

use laser_cpu::simd;

use crate::slices::{exp_in_place, largest, scale, shift};

/// Turns each row of `logits` [rows, classes] into probabilities.
pub fn softmax(logits: &mut [f32], classes: usize) {
    for row in logits.chunks_exact_mut(classes) {
        shift(-largest(row), row);
        let sum = exp_in_place(row);
        scale(1.0 / sum, row);
    }
}

/// Cross-entropy in nats of one row of logits with its label; `weight` times its gradient in their place:
/// `weight · (softmax − one-hot)`.
///
/// # Panics
/// If the label is not below the number of logits.
pub fn row_cross_entropy(logits: &mut [f32], label: usize, weight: f32) -> f64 {
    let own = f64::from(logits[label]);
    let top = largest(logits);
    shift(-top, logits);
    let sum = exp_in_place(logits);
    scale(weight / sum, logits);
    logits[label] -= weight;
    f64::from(top) + f64::from(sum).ln() - own
}

/// Mean cross-entropy of the rows of `logits` [rows, classes] with one label a row, and its gradient in their
/// place.
///
/// # Panics
/// If a label is not below `classes`, or there are fewer labels than rows.
pub fn cross_entropy(logits: &mut [f32], classes: usize, labels: &[u32]) -> f64 {
    let rows = logits.len() / classes;
    let weight = 1.0 / rows as f32;
    let pairs = logits.chunks_exact_mut(classes).zip(labels);
    let losses = pairs.map(|(row, label)| row_cross_entropy(row, *label as usize, weight));
    losses.sum::<f64>() / rows as f64
}

simd! {
    /// `g = factor · g · (row + columns)`, elementwise over one row. Of a row of exponentials, with the inverse of its sum and those of the
    /// sums of the columns, it makes the sum of its probabilities along both, times a factor.
    pub fn weigh(g: &mut [f32], row: f32, columns: &[f32], factor: f32) {
        for (g, c) in g.iter_mut().zip(columns) {
            *g = factor * *g * (row + c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::values;

    #[test]
    fn a_row_is_weighed_by_itself_and_by_its_columns() {
        let mut g: Vec<f32> = (1..=37).map(|i| i as f32).collect();
        let columns: Vec<f32> = (0..37).map(|i| i as f32 / 4.0).collect();
        weigh(&mut g, 0.5, &columns, 2.0);
        for (i, g) in g.iter().enumerate() {
            assert_eq!(*g, 2.0 * (i + 1) as f32 * (0.5 + i as f32 / 4.0));
        }
    }

    #[test]
    fn the_gradient_matches_finite_differences() {
        let (classes, labels) = (3, [2, 0, 1, 1]);
        let mut x: Vec<f32> = values(12, 3).iter().map(|x| 2.0 * x).collect();
        let mut gradient = x.clone();
        let loss = cross_entropy(&mut gradient, classes, &labels);
        assert!(loss > 0.0);
        for k in 0..x.len() {
            let (value, h) = (x[k], 1e-2);
            let mut at = |offset: f32| {
                x[k] = value + offset;
                cross_entropy(&mut x.clone(), classes, &labels)
            };
            let slope = (at(h) - at(-h)) / (2.0 * f64::from(h));
            x[k] = value;
            let wrong = (f64::from(gradient[k]) - slope).abs();
            assert!(wrong < 1e-4, "{} {slope}", gradient[k]);
        }
        // Large logits stay finite.
        let mut x = [1e4, -1e4, 0.0];
        assert!(cross_entropy(&mut x, 3, &[1]).is_finite());
        assert!(x[0] == 1.0 && x[1] == -1.0 && x[2].abs() < 1e-30, "{x:?}");
        assert!(cross_entropy(&mut [f32::NAN, 0.0], 2, &[1]).is_nan());
    }
}
