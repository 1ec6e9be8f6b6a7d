//! The stack of LSTM layers in a body.

use std::ops::Range;

use laser_model::config::BilstmConfig;

use super::error::ModelError;
use super::parameters::Parameters;
use super::pass::Pass;
use crate::data::Ragged;
use crate::ops::lstm::{LstmStack, StackSaved, Weights};
use crate::ops::lstm_device::DeviceSaved;
use crate::ops::pool::Occurrences;

/// What the backward pass of an LSTM needs, wherever it runs.
#[derive(Debug)]
pub(super) enum LstmSaved {
    Here(Box<StackSaved>),
    OnDevice(Box<DeviceSaved>),
}

/// Adds the parameters of a stack of LSTM layers, drawn as in PyTorch.
pub(super) fn initialise(c: &BilstmConfig, parameters: &mut Parameters, seed: u64) {
    let bound = 1.0 / (c.hidden_size as f32).sqrt();
    for layer in 0..c.layers {
        for suffix in c.suffixes() {
            let gates = 4 * c.hidden_size;
            let mut add = |kind: &str, shape: &[usize]| {
                let name = format!("lstm.{kind}_l{layer}{suffix}");
                parameters.uniform(&name, shape, bound, seed);
            };
            add("weight_ih", &[gates, c.input_size(layer)]);
            add("weight_hh", &[gates, c.hidden_size]);
            add("bias_ih", &[gates]);
            add("bias_hh", &[gates]);
        }
    }
}

fn stack<'a>(pass: &Pass<'a>, config: &BilstmConfig) -> LstmStack<'a> {
    let parameters = pass.parameters;
    let weights = |d: usize| {
        let value = |i: usize| parameters.value(pass.dense.start + 4 * d + i);
        Weights {
            input: value(0),
            recurrent: value(1),
            bias_input: value(2),
            bias_recurrent: value(3),
        }
    };
    let directions = config.directions();
    let layer = |l: usize| {
        (l * directions..(l + 1) * directions)
            .map(weights)
            .collect()
    };
    LstmStack {
        input_size: config.embedding_size,
        hidden_size: config.hidden_size,
        pooling: config.pooling,
        layers: (0..config.layers).map(layer).collect(),
        arithmetic: pass.arithmetic,
        frozen_input: parameters.frozen() > 0,
    }
}

/// Pooled states [sentences, DH] of some sentences of `batch`, whose ids are rows of `table`.
pub(super) fn forward(
    pass: &Pass<'_>,
    config: &BilstmConfig,
    table: &[f32],
    batch: &Ragged,
    sentences: Range<usize>,
) -> Result<(Vec<f32>, LstmSaved), ModelError> {
    let regularization = pass.regularization;
    let (stack, seed) = (stack(pass, config), regularization.seed);
    let dropouts = (regularization.embedding, regularization.hidden);
    Ok(match pass.device {
        None => {
            let (out, saved) = stack.forward(table, batch, sentences, dropouts, seed);
            (out, LstmSaved::Here(Box::new(saved)))
        }
        Some(on) => {
            let (out, saved) = stack.forward_on(on, table, batch, sentences, dropouts, seed)?;
            (out, LstmSaved::OnDevice(Box::new(saved)))
        }
    })
}

/// Gradient of the table of [`forward`]; those of its parameters are added to `dense`.
pub(super) fn backward(
    pass: &Pass<'_>,
    config: &BilstmConfig,
    saved: LstmSaved,
    dx: &[f32],
    dense: &mut [Vec<f32>],
) -> Result<Occurrences, ModelError> {
    let first = pass.dense.start;
    let count = 4 * config.directions() * config.layers;
    let gradients = &mut dense[first..first + count];
    let regularization = pass.regularization;
    let (stack, seed) = (stack(pass, config), regularization.seed);
    let dropouts = (regularization.embedding, regularization.hidden);
    Ok(match (saved, pass.device) {
        (LstmSaved::Here(saved), _) => stack.backward(*saved, dx, gradients, dropouts, seed),
        (LstmSaved::OnDevice(saved), Some(on)) => {
            stack.backward_on(on, *saved, dx, gradients, dropouts, seed)?
        }
        (LstmSaved::OnDevice(_), None) => unreachable!("it was saved on a device"),
    })
}
