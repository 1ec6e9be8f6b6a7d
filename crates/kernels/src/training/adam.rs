//! Adam (Kingma & Ba, 2015) with decoupled weight decay (Loshchilov & Hutter, 2019), element by element.

use laser_cpu::simd;

/// Factors of one update.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The learning rate, corrected for the first moment's bias: `η / (1 − β₁ᵗ)`.
    pub rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// `1 / sqrt(1 − β₂ᵗ)`.
    pub root_correction: f32,
    /// Factor of the gradient, from clipping.
    pub scale: f32,
    /// Share of a weight that an update takes away: the rate times the weight decay.
    pub decay: f32,
}

simd! {
    /// Updates weights `w` and their moments `m`, `v` by a gradient `g`, all of one length.
    pub fn adam(w: &mut [f32], m: &mut [f32], v: &mut [f32], g: &[f32], step: Step) {
        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
            let g = g * step.scale;
            *m = step.beta1 * *m + (1.0 - step.beta1) * g;
            *v = step.beta2 * *v + (1.0 - step.beta2) * (g * g);
            *w -= step.decay * *w
                + step.rate * *m / (v.sqrt() * step.root_correction + step.epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::values;

    #[test]
    fn an_update_is_that_of_the_papers() {
        let (beta1, beta2, epsilon) = (0.9f64, 0.99f64, 1e-3);
        let (rate, decay, clip) = (0.05, 0.02, 0.5);
        let mut w = values(37, 1);
        let (mut m, mut v) = (vec![0.0; 37], vec![0.0; 37]);
        let mut expected: Vec<[f64; 3]> = w.iter().map(|w| [f64::from(*w), 0.0, 0.0]).collect();
        for t in 1..=3 {
            let g = values(37, 1 + t);
            let (first, second) = (1.0 - beta1.powi(t as i32), 1.0 - beta2.powi(t as i32));
            let step = Step {
                rate: (rate / first) as f32,
                beta1: beta1 as f32,
                beta2: beta2 as f32,
                epsilon: epsilon as f32,
                root_correction: (1.0 / second.sqrt()) as f32,
                scale: clip as f32,
                decay: (rate * decay) as f32,
            };
            adam(&mut w, &mut m, &mut v, &g, step);
            for ([w, m, v], g) in expected.iter_mut().zip(&g) {
                let g = clip * f64::from(*g);
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                let direction = (*m / first) / ((*v / second).sqrt() + epsilon);
                *w -= rate * (direction + decay * *w);
            }
        }
        for (w, expected) in w.iter().zip(&expected) {
            assert!(
                (f64::from(*w) - expected[0]).abs() < 1e-5,
                "{w} {expected:?}"
            );
        }
    }
}
