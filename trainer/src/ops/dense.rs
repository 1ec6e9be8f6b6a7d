//! Dense layers (`y = activation(W x + b)`, optionally `+ x`, optionally layer-normalised) and L2
//! normalisation.

use laser_model::config::Activation;

use laser_cpu::simd;
use laser_kernels::approximate::{erf, exp, tanh};
use laser_kernels::slices::{add, dot, sum_of_squares};
use laser_kernels::training::Arithmetic;

/// Added to the variance in layer normalisation, as in the encoder.
pub const NORM_EPSILON: f32 = 1e-5;

/// Shape and kind of one dense layer.
pub use laser_model::config::Dense;

/// Parameters of a dense layer: weight [out, in], bias [out] and, if it is layer-normalised, gain
/// and shift [out].
#[derive(Clone, Copy, Debug)]
pub struct DenseParameters<'a> {
    /// [out, in].
    pub weight: &'a [f32],
    /// [out].
    pub bias: &'a [f32],
    /// Gain and shift [out] of the layer normalisation.
    pub norm: Option<(&'a [f32], &'a [f32])>,
}

/// Gradients, shaped as [`DenseParameters`]; the backward pass adds to them.
#[derive(Debug)]
pub struct DenseGradients<'a> {
    /// [out, in].
    pub weight: &'a mut [f32],
    /// [out].
    pub bias: &'a mut [f32],
    /// Gain and shift [out].
    pub norm: Option<(&'a mut [f32], &'a mut [f32])>,
}

/// What the backward pass of a dense layer needs.
#[derive(Debug)]
pub struct DenseSaved {
    input: Vec<f32>,
    /// `W x + b`.
    linear: Vec<f32>,
    /// Normalised values and inverse deviation of each row, if layer-normalised.
    norm: Option<(Vec<f32>, Vec<f32>)>,
}

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
fn activate_backward(activation: Activation, x: &[f32], dy: &mut [f32]) {
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

/// Applies a dense layer to `input` [rows, in]; the result is [rows, out].
pub fn forward(
    shape: &Dense,
    parameters: DenseParameters<'_>,
    input: Vec<f32>,
    arithmetic: Arithmetic,
) -> (Vec<f32>, DenseSaved) {
    let rows = input.len() / shape.input;
    let mut linear = Vec::with_capacity(rows * shape.output);
    for _ in 0..rows {
        linear.extend_from_slice(parameters.bias);
    }
    let sizes = (rows, shape.output, shape.input);
    arithmetic.nt(sizes, &input, parameters.weight, &mut linear, true);
    let mut output = linear.clone();
    activate(shape.activation, &mut output);
    if shape.residual {
        add(&input, &mut output);
    }
    let norm = parameters.norm.map(|(gain, shift)| {
        let mut inverse = Vec::with_capacity(rows);
        let mut normal = output.clone();
        for (row, out) in normal
            .chunks_exact_mut(shape.output)
            .zip(output.chunks_exact_mut(shape.output))
        {
            let mean = row.iter().sum::<f32>() / row.len() as f32;
            row.iter_mut().for_each(|v| *v -= mean);
            let variance = sum_of_squares(row) / row.len() as f32;
            let factor = 1.0 / (variance + NORM_EPSILON).sqrt();
            inverse.push(factor);
            for ((v, o), (g, s)) in row.iter_mut().zip(out).zip(gain.iter().zip(shift)) {
                *v *= factor;
                *o = *v * g + s;
            }
        }
        (normal, inverse)
    });
    (
        output,
        DenseSaved {
            input,
            linear,
            norm,
        },
    )
}

/// Turns the gradient of the output [rows, out] into the gradient of the input [rows, in] and adds
/// those of the parameters.
pub fn backward(
    shape: &Dense,
    parameters: DenseParameters<'_>,
    saved: DenseSaved,
    mut dy: Vec<f32>,
    gradients: DenseGradients<'_>,
    arithmetic: Arithmetic,
) -> Vec<f32> {
    let width = shape.output;
    let rows = dy.len() / width;
    if let (Some((normal, inverse)), Some((gain, _)), Some((d_gain, d_shift))) =
        (&saved.norm, parameters.norm, gradients.norm)
    {
        for ((d, n), inverse) in dy
            .chunks_exact_mut(width)
            .zip(normal.chunks_exact(width))
            .zip(inverse)
        {
            for i in 0..width {
                d_gain[i] += d[i] * n[i];
                d_shift[i] += d[i];
                d[i] *= gain[i];
            }
            let mean = d.iter().sum::<f32>() / width as f32;
            let slope = dot(d, n) / width as f32;
            for i in 0..width {
                d[i] = inverse * (d[i] - mean - n[i] * slope);
            }
        }
    }
    let mut dx = if shape.residual {
        dy.clone()
    } else {
        vec![0.0; rows * shape.input]
    };
    activate_backward(shape.activation, &saved.linear, &mut dy);
    for d in dy.chunks_exact(width) {
        add(d, gradients.bias);
    }
    arithmetic.tn(
        (width, shape.input, rows),
        &dy,
        &saved.input,
        gradients.weight,
        true,
    );
    let sizes = (rows, shape.input, width);
    arithmetic.nn(sizes, &dy, parameters.weight, &mut dx, shape.residual);
    dx
}

/// Brings each row of [rows, width] to unit L2 norm; returns the norms. Rows shorter than 1e-6
/// are divided by 1e-6.
pub fn normalize(x: &mut [f32], width: usize) -> Vec<f32> {
    x.chunks_exact_mut(width)
        .map(|row| {
            let norm = sum_of_squares(row).sqrt().max(1e-6);
            laser_kernels::slices::scale(1.0 / norm, row);
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
