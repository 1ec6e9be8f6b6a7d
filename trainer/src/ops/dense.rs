//! Dense layers: `y = activation(W x + b)`, optionally `+ x`, optionally layer-normalised.

use laser_kernels::slices::add;
use laser_kernels::training::Arithmetic;
use laser_kernels::training::activation::{activate, activate_backward};
use laser_kernels::training::layer_norm::{self, Normalised};

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
    /// If layer-normalised.
    norm: Option<Normalised>,
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
    let norm = parameters.norm.map(|affine| {
        let mut normal = output.clone();
        let inverse = layer_norm::forward(affine, NORM_EPSILON, &mut normal, &mut output);
        Normalised { normal, inverse }
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
    if let (Some(normalised), Some((gain, _)), Some(gradients)) =
        (&saved.norm, parameters.norm, gradients.norm)
    {
        layer_norm::backward(normalised, gain, &mut dy, gradients);
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
