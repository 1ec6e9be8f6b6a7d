//! The part of a model between token ids and dense layers.

use std::ops::Range;

use laser_encoder::config::{Architecture, BilstmConfig, MeanPooling};

use super::parameters::{Parameters, random};
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
    Bilstm(Box<StackSaved>),
    BilstmOnDevice(Box<DeviceSaved>),
    Transformer(TransformerSaved),
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
        Architecture::Bilstm(c) => {
            let bound = 1.0 / (c.hidden_size as f32).sqrt();
            for layer in 0..c.layers {
                let input = if layer == 0 { width } else { 2 * c.hidden_size };
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
        Architecture::Transformer(c) => transformer::initialise(c, parameters, seed),
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
            let (stack, seed) = (stack(model, c), regularization.seed);
            let dropouts = (regularization.embedding, regularization.hidden);
            match &model.device {
                None => {
                    let (out, saved) = stack.forward(table, batch, sentences, dropouts, seed);
                    (out, BodySaved::Bilstm(Box::new(saved)))
                }
                Some(on) => {
                    let (out, saved) =
                        stack.forward_on(on, table, batch, sentences, dropouts, seed)?;
                    (out, BodySaved::BilstmOnDevice(Box::new(saved)))
                }
            }
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
            let first = model.parameters.sparse();
            stack(model, c).backward(
                *saved,
                &dx,
                &mut dense[first..first + 8 * c.layers],
                (regularization.embedding, regularization.hidden),
                regularization.seed,
            )
        }
        (Architecture::Bilstm(c), BodySaved::BilstmOnDevice(saved)) => {
            let Some(on) = &model.device else {
                unreachable!("it was saved on a device")
            };
            let first = model.parameters.sparse();
            stack(model, c).backward_on(
                on,
                *saved,
                &dx,
                &mut dense[first..first + 8 * c.layers],
                (regularization.embedding, regularization.hidden),
                regularization.seed,
            )?
        }
        (Architecture::Transformer(c), BodySaved::Transformer(saved)) => {
            let variables = model.parameters.sparse()..model.dense_begin;
            transformer::backward(c, saved, &dx, &mut dense[variables])
        }
        _ => unreachable!("the saved values belong to the architecture"),
    })
}
