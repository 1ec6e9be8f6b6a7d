//! A linear map as the last layer of a model.

use laser_model::config::{Activation, Dense};

use crate::export::Model;

/// Appends `x → W x` with W [output, dimensions] behind the last layer; lengths are normalised afterwards
/// where the model does so.
///
/// # Panics
/// If W does not have the width of the model's embeddings.
pub fn append(model: &mut Model, w: Vec<f32>) {
    let input = model.config.dimensions;
    let output = w.len() / input;
    assert_eq!(w.len(), input * output, "the width of the model");
    let i = model.config.dense.len();
    model.config.dense.push(Dense {
        input,
        output,
        activation: Activation::None,
        residual: false,
        layer_norm: false,
    });
    model.config.dimensions = output;
    let mut insert = |part: &str, shape: Vec<usize>, values: Vec<f32>| {
        let name = format!("dense.{i}.{part}");
        model.tensors.insert(name, (shape, values));
    };
    insert("weight", vec![output, input], w);
    insert("bias", vec![output], vec![0.0; output]);
}
