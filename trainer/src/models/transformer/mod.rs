//! Transformer encoders.
//!
//! The processor computes them here ([`forward`], [`backward`]): tokens of all sentences lie one behind the
//! other, so that padding is never computed, and every layer has its own backward pass. In a build for GPUs
//! candle's autograd does it there ([`graph`]), which is also the reference of the tests.

mod backward;
mod blocks;
mod forward;
pub(super) mod graph;
mod layout;
#[cfg(test)]
mod tests;
mod tokens;

use laser_model::config::{NormPosition, TransformerConfig};

use super::parameters::Parameters;
use super::pass::Pass;
use crate::data::Ragged;
use crate::ops::pool::Occurrences;

/// Adds the dense parameters of a transformer.
pub(super) fn initialise(c: &TransformerConfig, parameters: &mut Parameters, seed: u64) {
    let (d, f) = (c.hidden_size, c.intermediate_size);
    let small = 0.02 * 3f32.sqrt();
    parameters.uniform("embed_positions.weight", &[c.max_positions, d], small, seed);
    if c.type_vocab_size > 0 {
        parameters.uniform("embed_types.weight", &[c.type_vocab_size, d], small, seed);
    }
    let norm = |p: &mut Parameters, name: &str| {
        p.constant(&format!("{name}.weight"), &[d], 1.0);
        p.constant(&format!("{name}.bias"), &[d], 0.0);
    };
    if let Some(relative) = c.relative_positions {
        let shape = [relative.buckets, c.heads];
        parameters.uniform("relative_positions.weight", &shape, small, seed);
    }
    if c.embedding_norm {
        norm(parameters, "embed_norm");
    }
    for l in 0..c.layers {
        let linear = |p: &mut Parameters, name: &str, rows: usize, columns: usize| {
            let bound = (6.0 / (rows + columns) as f32).sqrt();
            p.uniform(
                &format!("layers.{l}.{name}.weight"),
                &[rows, columns],
                bound,
                seed,
            );
            p.constant(&format!("layers.{l}.{name}.bias"), &[rows], 0.0);
        };
        for name in ["query", "key", "value", "output"] {
            linear(parameters, &format!("attention.{name}"), d, d);
        }
        norm(parameters, &format!("layers.{l}.attention_norm"));
        linear(parameters, "feed_forward.up", f, d);
        linear(parameters, "feed_forward.down", d, f);
        norm(parameters, &format!("layers.{l}.feed_forward_norm"));
    }
    if c.norm == NormPosition::Pre {
        norm(parameters, "final_norm");
    }
}

/// What the backward pass needs, wherever it runs.
#[derive(Debug)]
pub(super) enum TransformerSaved {
    Here(blocks::Saved),
    Graph(graph::GraphSaved),
}

/// Pooled outputs [sentences, D] of the sentences of a pass, zeros for those without tokens; or the states
/// [places, D] at places of each sentence, zeros for those behind the last position.
pub(super) fn forward(
    pass: &Pass<'_>,
    c: &TransformerConfig,
    places: Option<&Ragged>,
) -> (Vec<f32>, TransformerSaved) {
    if candle_core::utils::cuda_is_available() {
        let (out, saved) = graph::forward(
            c,
            pass.parameters,
            pass.dense.len(),
            pass.batch,
            pass.sentences.clone(),
            places,
            pass.regularization,
        );
        (out, TransformerSaved::Graph(saved))
    } else {
        let (out, saved) = forward::forward(pass, c, places);
        (out, TransformerSaved::Here(saved))
    }
}

/// Gradient of the token embeddings from that of what [`forward`] gave; adds those of the dense
/// parameters to `gradients`.
pub(super) fn backward(
    pass: &Pass<'_>,
    c: &TransformerConfig,
    saved: TransformerSaved,
    dy: &[f32],
    gradients: &mut [Vec<f32>],
) -> Occurrences {
    match saved {
        TransformerSaved::Here(saved) => backward::backward(pass, c, saved, dy, gradients),
        TransformerSaved::Graph(saved) => graph::backward(c, saved, dy, gradients),
    }
}
