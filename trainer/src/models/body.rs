//! The part of a model between token ids and dense layers.

use std::ops::Range;

use laser_model::config::{Architecture, BilstmConfig, MeanPooling};

use super::parameters::{Parameters, random};
use super::residual::{self, ResidualSaved};
use super::transformer::{self, TransformerSaved};
use super::{Model, ModelError, Regularization};
use crate::data::Ragged;
use crate::ops::dropout::dropout;
use crate::ops::lstm::{self, LstmStack, StackSaved};
use crate::ops::lstm_device::DeviceSaved;
use crate::ops::pool::{self, Occurrences};

/// What the backward pass of the body needs.
#[derive(Debug)]
pub(super) enum BodySaved {
    Mean { factors: Vec<f32>, pooled: Vec<f32> },
    Bilstm(LstmSaved),
    Residual(Box<ResidualSaved>),
    Transformer(TransformerSaved),
}

/// What the backward pass of an LSTM needs, wherever it runs.
#[derive(Debug)]
pub(super) enum LstmSaved {
    Here(Box<StackSaved>),
    OnDevice(Box<DeviceSaved>),
}

/// Adds the parameters of an architecture, with the embedding table first.
pub(super) fn initialise(
    architecture: &Architecture,
    vocabulary: usize,
    parameters: &mut Parameters,
    seed: u64,
) {
    let width = architecture.embedding_size();
    let bound = (3.0 / width as f32).sqrt();
    let table = random(vocabulary * width, bound, seed, 0);
    parameters.push_sparse("embed_tokens.weight", &[vocabulary, width], table);
    match architecture {
        Architecture::Mean(c) => {
            if c.pooling == MeanPooling::Weighted {
                parameters.push_sparse("token_weight", &[vocabulary], vec![0.0; vocabulary]);
            }
        }
        Architecture::Bilstm(c) => initialise_lstm(c, parameters, seed),
        Architecture::ResidualBilstm(c) => {
            if c.pooling == MeanPooling::Weighted {
                parameters.push_sparse("token_weight", &[vocabulary], vec![0.0; vocabulary]);
            }
            initialise_lstm(&c.bilstm(), parameters, seed);
            residual::initialise(c, parameters, seed);
        }
        Architecture::Transformer(c) => transformer::initialise(c, parameters, seed),
    }
}

/// Adds the parameters of a stack of LSTM layers, drawn as in PyTorch.
fn initialise_lstm(c: &BilstmConfig, parameters: &mut Parameters, seed: u64) {
    let bound = 1.0 / (c.hidden_size as f32).sqrt();
    for layer in 0..c.layers {
        let input = if layer == 0 {
            c.embedding_size
        } else {
            2 * c.hidden_size
        };
        for suffix in ["", "_reverse"] {
            let gates = 4 * c.hidden_size;
            let mut add = |kind: &str, shape: &[usize]| {
                let name = format!("lstm.{kind}_l{layer}{suffix}");
                parameters.uniform(&name, shape, bound, seed);
            };
            add("weight_ih", &[gates, input]);
            add("weight_hh", &[gates, c.hidden_size]);
            add("bias_ih", &[gates]);
            add("bias_hh", &[gates]);
        }
    }
}

fn stack<'a>(model: &'a Model, config: &BilstmConfig) -> LstmStack<'a> {
    let first = model.parameters.sparse();
    let directions = (0..2 * config.layers)
        .map(|d| {
            let value = |i: usize| model.parameters.value(first + 4 * d + i);
            lstm::Weights {
                input: value(0),
                recurrent: value(1),
                bias_input: value(2),
                bias_recurrent: value(3),
            }
        })
        .collect();
    LstmStack {
        input_size: config.embedding_size,
        hidden_size: config.hidden_size,
        pooling: config.pooling,
        directions,
        arithmetic: model.arithmetic,
        frozen_input: model.parameters.frozen() > 0,
    }
}

/// Pooled output [sentences, width] of some sentences. Fails where a device does.
pub(super) fn forward(
    model: &Model,
    batch: &Ragged,
    sentences: Range<usize>,
    regularization: Regularization,
) -> Result<(Vec<f32>, BodySaved), ModelError> {
    let table = model.parameters.value(0);
    Ok(match &model.config.encoder {
        Architecture::Mean(c) => {
            let width = c.embedding_size;
            let mut pooled = vec![0f32; sentences.len() * width];
            let weights = (c.pooling == MeanPooling::Weighted).then(|| model.parameters.value(1));
            let factors = pool::forward(table, weights, batch, sentences, width, &mut pooled);
            let mut out = pooled.clone();
            dropout(&mut out, regularization.embedding, regularization.seed);
            (out, BodySaved::Mean { factors, pooled })
        }
        Architecture::Bilstm(c) => {
            let (out, saved) = lstm_forward(model, c, table, batch, sentences, regularization)?;
            (out, BodySaved::Bilstm(saved))
        }
        Architecture::ResidualBilstm(c) => {
            let (out, saved) = residual::forward(model, c, batch, sentences, regularization)?;
            (out, BodySaved::Residual(Box::new(saved)))
        }
        Architecture::Transformer(c) => {
            let parameters = &model.parameters;
            let variables = model.dense_begin - parameters.sparse();
            let (out, saved) =
                transformer::forward(c, parameters, variables, batch, sentences, regularization);
            (out, BodySaved::Transformer(saved))
        }
    })
}

/// Pooled states [sentences, 2H] of some sentences, whose ids are rows of `table`.
pub(super) fn lstm_forward(
    model: &Model,
    config: &BilstmConfig,
    table: &[f32],
    batch: &Ragged,
    sentences: Range<usize>,
    regularization: Regularization,
) -> Result<(Vec<f32>, LstmSaved), ModelError> {
    let (stack, seed) = (stack(model, config), regularization.seed);
    let dropouts = (regularization.embedding, regularization.hidden);
    Ok(match &model.device {
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

/// Gradient of the table of [`lstm_forward`]; those of its parameters are added to `dense`.
pub(super) fn lstm_backward(
    model: &Model,
    config: &BilstmConfig,
    saved: LstmSaved,
    dx: &[f32],
    dense: &mut [Vec<f32>],
    regularization: Regularization,
) -> Result<Occurrences, ModelError> {
    let first = model.parameters.sparse();
    let gradients = &mut dense[first..first + 8 * config.layers];
    let (stack, seed) = (stack(model, config), regularization.seed);
    let dropouts = (regularization.embedding, regularization.hidden);
    Ok(match (saved, &model.device) {
        (LstmSaved::Here(saved), _) => stack.backward(*saved, dx, gradients, dropouts, seed),
        (LstmSaved::OnDevice(saved), Some(on)) => {
            stack.backward_on(on, *saved, dx, gradients, dropouts, seed)?
        }
        (LstmSaved::OnDevice(_), None) => unreachable!("it was saved on a device"),
    })
}

/// Gradient of the embedding table; those of dense parameters are added to `dense`. Fails where a
/// device does.
pub(super) fn backward(
    model: &Model,
    batch: &Ragged,
    sentences: Range<usize>,
    saved: BodySaved,
    mut dx: Vec<f32>,
    dense: &mut [Vec<f32>],
    regularization: Regularization,
) -> Result<Occurrences, ModelError> {
    Ok(match (&model.config.encoder, saved) {
        (Architecture::Mean(c), BodySaved::Mean { factors, pooled }) => {
            dropout(&mut dx, regularization.embedding, regularization.seed);
            let weighted = c.pooling == MeanPooling::Weighted;
            pool::backward(
                batch,
                sentences,
                c.embedding_size,
                factors,
                &pooled,
                dx,
                weighted,
            )
        }
        (Architecture::Bilstm(c), BodySaved::Bilstm(saved)) => {
            lstm_backward(model, c, saved, &dx, dense, regularization)?
        }
        (Architecture::ResidualBilstm(c), BodySaved::Residual(saved)) => residual::backward(
            model,
            c,
            batch,
            sentences,
            *saved,
            dx,
            dense,
            regularization,
        )?,
        (Architecture::Transformer(c), BodySaved::Transformer(saved)) => {
            let variables = model.parameters.sparse()..model.dense_begin;
            transformer::backward(c, saved, &dx, &mut dense[variables])
        }
        _ => unreachable!("the saved values belong to the architecture"),
    })
}
