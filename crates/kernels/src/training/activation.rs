//! Activation functions with their derivatives.

use laser_cpu::simd;

use crate::Activation;
use crate::approximate::{erf, exp, tanh};

const SQRT_2_OVER_PI: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

simd! {
    fn gelu(x: &mut [f32]) {
        for v in x {
            *v = 0.5 * *v * (1.0 + erf(*v * std::f32::consts::FRAC_1_SQRT_2));
        }
    }
}

simd! {
    fn gelu_backward(x: &[f32], dy: &mut [f32]) {
        for (d, x) in dy.iter_mut().zip(x) {
            let cdf = 0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2));
            let density = 0.398_942_3 * exp(-0.5 * x * x);
            *d *= cdf + x * density;
        }
    }
}

simd! {
    fn gelu_tanh(x: &mut [f32]) {
        for v in x {
            let inner = SQRT_2_OVER_PI * (*v + CUBIC * *v * *v * *v);
            *v = 0.5 * *v * (1.0 + tanh(inner));
        }
    }
}

simd! {
    fn gelu_tanh_backward(x: &[f32], dy: &mut [f32]) {
        for (d, x) in dy.iter_mut().zip(x) {
            let t = tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
            let slope = SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
            *d *= 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope;
        }
    }
}

simd! {
    fn tanh_in_place(x: &mut [f32]) {
        for v in x {
            *v = tanh(*v);
        }
    }
}

simd! {
    fn tanh_backward(x: &[f32], dy: &mut [f32]) {
        for (d, x) in dy.iter_mut().zip(x) {
            let t = tanh(*x);
            *d *= 1.0 - t * t;
        }
    }
}

/// Applies the activation in place.
pub fn activate(activation: Activation, x: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::Tanh => tanh_in_place(x),
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::Relu => x.iter_mut().for_each(|v| *v = v.max(0.0)),
    }
}

/// Multiplies `dy` by the derivative of the activation at `x`.
pub fn activate_backward(activation: Activation, x: &[f32], dy: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::Tanh => tanh_backward(x, dy),
        Activation::Gelu => gelu_backward(x, dy),
        Activation::GeluTanh => gelu_tanh_backward(x, dy),
        Activation::Relu => {
            for (d, x) in dy.iter_mut().zip(x) {
                if *x <= 0.0 {
                    *d = 0.0;
                }
            }
        }
    }
}

simd! {
    /// GELU in place of `x`, its derivative times `dy` in place of `dy`: both need the same exponential.
    fn gelu_both(x: &mut [f32], dy: &mut [f32]) {
        for (d, x) in dy.iter_mut().zip(x) {
            let cdf = 0.5 * (1.0 + erf(*x * std::f32::consts::FRAC_1_SQRT_2));
            let density = 0.398_942_3 * exp(-0.5 * *x * *x);
            *d *= cdf + *x * density;
            *x *= cdf;
        }
    }
}

simd! {
    fn gelu_tanh_both(x: &mut [f32], dy: &mut [f32]) {
        for (d, x) in dy.iter_mut().zip(x) {
            let v = *x;
            let t = tanh(SQRT_2_OVER_PI * (v + CUBIC * v * v * v));
            let slope = SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * v * v);
            *d *= 0.5 * (1.0 + t) + 0.5 * v * (1.0 - t * t) * slope;
            *x = 0.5 * v * (1.0 + t);
        }
    }
}

/// [`activate_backward`] at `x`, then [`activate`] of `x`, in one pass where both share work.
pub fn activate_both(activation: Activation, x: &mut [f32], dy: &mut [f32]) {
    match activation {
        Activation::Gelu => gelu_both(x, dy),
        Activation::GeluTanh => gelu_tanh_both(x, dy),
        Activation::None | Activation::Tanh | Activation::Relu => {
            activate_backward(activation, x, dy);
            activate(activation, x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::values;

    #[test]
    fn derivatives_match_finite_differences() {
        let all = [
            Activation::None,
            Activation::Tanh,
            Activation::Gelu,
            Activation::GeluTanh,
            Activation::Relu,
        ];
        for activation in all {
            let mut x: Vec<f32> = values(101, 1).iter().map(|x| 4.0 * x).collect();
            // Away from the corner of ReLU.
            x.retain(|v| v.abs() > 0.02);
            let value = |h: f32| {
                let mut y: Vec<f32> = x.iter().map(|v| v + h).collect();
                activate(activation, &mut y);
                y
            };
            let (h, mut slopes) = (1e-2, vec![1.0; x.len()]);
            let (up, down, here) = (value(h), value(-h), value(0.0));
            activate_backward(activation, &x, &mut slopes);
            for ((up, down), slope) in up.iter().zip(&down).zip(&slopes) {
                assert!(
                    ((up - down) / (2.0 * h) - slope).abs() < 1e-3,
                    "{activation:?}"
                );
            }
            let (mut both, mut d) = (x.clone(), vec![1.0; x.len()]);
            activate_both(activation, &mut both, &mut d);
            for (a, b) in both.iter().zip(&here).chain(d.iter().zip(&slopes)) {
                assert!((a - b).abs() < 1e-6, "{activation:?} {a} {b}");
            }
        }
    }
}
