//! The part of a model between token ids and dense layers.

use laser_kernels::training::dropout::dropout;
use laser_model::config::{Architecture, MeanPooling};

use super::error::ModelError;
use super::lstm::{self, LstmSaved};
use super::parameters::{Parameters, random};
use super::pass::Pass;
use super::residual::{self, ResidualSaved};
use super::transformer::{self, TransformerSaved};
use crate::data::Ragged;
use crate::ops::pool::{self, Occurrences};

/// Why an architecture has nothing here.
const NOT_TRAINED: &str = "Model::new refuses it";

/// What the backward pass of the body needs.
#[derive(Debug)]
pub(super) enum BodySaved {
    Mean { factors: Vec<f32>, pooled: Vec<f32> },
    Bilstm(LstmSaved),
    Residual(Box<ResidualSaved>),
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
        Architecture::Bilstm(c) => lstm::initialise(c, parameters, seed),
        Architecture::ResidualBilstm(c) => {
            if c.pooling == MeanPooling::Weighted {
                parameters.push_sparse("token_weight", &[vocabulary], vec![0.0; vocabulary]);
            }
            lstm::initialise(&c.bilstm(), parameters, seed);
            residual::initialise(c, parameters, seed);
        }
        Architecture::Transformer(c) => transformer::initialise(c, parameters, seed),
        Architecture::RotaryTransformer(_) => unreachable!("{NOT_TRAINED}"),
    }
}

/// Pooled output [sentences, width] of the sentences of a pass. Fails where a device does.
pub(super) fn forward(
    architecture: &Architecture,
    pass: &Pass<'_>,
) -> Result<(Vec<f32>, BodySaved), ModelError> {
    let table = pass.parameters.value(0);
    let (batch, sentences, regularization) =
        (pass.batch, pass.sentences.clone(), pass.regularization);
    Ok(match architecture {
        Architecture::Mean(c) => {
            let width = c.embedding_size;
            let mut pooled = vec![0f32; sentences.len() * width];
            let weighted = c.pooling == MeanPooling::Weighted;
            let weights = weighted.then(|| pass.parameters.value(1));
            let factors = pool::forward(table, weights, batch, sentences, width, &mut pooled);
            let mut out = pooled.clone();
            dropout(&mut out, regularization.embedding, regularization.seed);
            (out, BodySaved::Mean { factors, pooled })
        }
        Architecture::Bilstm(c) => {
            let (out, saved) = lstm::forward(pass, c, table, batch, sentences)?;
            (out, BodySaved::Bilstm(saved))
        }
        Architecture::ResidualBilstm(c) => {
            let (out, saved) = residual::forward(pass, c)?;
            (out, BodySaved::Residual(Box::new(saved)))
        }
        Architecture::Transformer(c) => {
            let (out, saved) = transformer::forward(pass, c, None);
            (out, BodySaved::Transformer(saved))
        }
        Architecture::RotaryTransformer(_) => unreachable!("{NOT_TRAINED}"),
    })
}

/// States [places, width] of the sentences of a pass at `places`; `None` for architectures that have no states to
/// predict masked tokens from.
pub(super) fn forward_places(
    architecture: &Architecture,
    pass: &Pass<'_>,
    places: &Ragged,
) -> Option<(Vec<f32>, BodySaved)> {
    let Architecture::Transformer(c) = architecture else {
        return None;
    };
    let (x, saved) = transformer::forward(pass, c, Some(places));
    Some((x, BodySaved::Transformer(saved)))
}

/// Gradient of the embedding table; those of dense parameters are added to `dense`. Fails where a
/// device does.
pub(super) fn backward(
    architecture: &Architecture,
    pass: &Pass<'_>,
    saved: BodySaved,
    mut dx: Vec<f32>,
    dense: &mut [Vec<f32>],
) -> Result<Occurrences, ModelError> {
    Ok(match (architecture, saved) {
        (Architecture::Mean(c), BodySaved::Mean { factors, pooled }) => {
            let regularization = pass.regularization;
            dropout(&mut dx, regularization.embedding, regularization.seed);
            let weighted = c.pooling == MeanPooling::Weighted;
            pool::backward(
                pass.batch,
                pass.sentences.clone(),
                c.embedding_size,
                factors,
                &pooled,
                dx,
                weighted,
            )
        }
        (Architecture::Bilstm(c), BodySaved::Bilstm(saved)) => {
            lstm::backward(pass, c, saved, &dx, dense)?
        }
        (Architecture::ResidualBilstm(c), BodySaved::Residual(saved)) => {
            residual::backward(pass, c, *saved, dx, dense)?
        }
        (Architecture::Transformer(c), BodySaved::Transformer(saved)) => {
            transformer::backward(pass, c, saved, &dx, &mut dense[pass.dense.clone()])
        }
        _ => unreachable!("the saved values belong to the architecture"),
    })
}
