//! Mean of token embeddings plus a gated BiLSTM over them
//! ([`laser_model::config::ResidualBilstmConfig`]).
//!
//! With the mean m, pooled states r, projection P, b and gate g the output is `y = m + g (P r + b)`.

use std::ops::Range;

use laser_model::config::{MeanPooling, ResidualBilstmConfig};
use rayon::prelude::*;

use super::error::ModelError;
use super::lstm::{self, LstmSaved};
use super::parameters::Parameters;
use super::pass::Pass;
use crate::data::Ragged;
use crate::ops::pool::{self, Occurrences};
use laser_kernels::slices::{add, axpy, dot};
use laser_kernels::training::pool::combine;

/// What the backward pass needs.
#[derive(Debug)]
pub(super) struct ResidualSaved {
    mean: Vec<f32>,
    /// Factors of tokens in the mean.
    factors: Vec<f32>,
    /// Tokens of each step, and those tokens' factors in it.
    steps: Ragged,
    step_factors: Vec<f32>,
    /// Inputs of the LSTM, [steps, E].
    inputs: Vec<f32>,
    /// Pooled states, [sentences, 2H].
    states: Vec<f32>,
    /// P r + b, [sentences, E].
    residual: Vec<f32>,
    lstm: LstmSaved,
}

/// Parts in which the steps' inputs are made where one thread makes all of them.
const PARTS: usize = 64;

/// Adds gate, projection and its bias. The gate is zero: the model begins as the mean.
pub(super) fn initialise(c: &ResidualBilstmConfig, parameters: &mut Parameters, seed: u64) {
    let (output, input) = (c.embedding_size, 2 * c.hidden_size);
    let bound = (6.0 / (output + input) as f32).sqrt();
    parameters.constant("gate", &[1], 0.0);
    parameters.uniform("projection.weight", &[output, input], bound, seed);
    parameters.constant("projection.bias", &[output], 0.0);
}

/// Position of the gate; projection and bias follow.
fn gate_at(pass: &Pass<'_>, c: &ResidualBilstmConfig) -> usize {
    pass.dense.start + 8 * c.layers
}

/// The tokens of each step, and the steps of each sentence.
fn split(c: &ResidualBilstmConfig, batch: &Ragged, sentences: Range<usize>) -> (Ragged, Ragged) {
    let (mut steps, mut of_sentences) = (Ragged::new(), Ragged::new());
    for s in sentences {
        let row = batch.row(s);
        let mut begin = 0;
        for position in 1..=row.len() {
            if position == row.len() || c.begins_step(position, row[position]) {
                of_sentences.ids.push(steps.len() as u32);
                steps.push(&row[begin..position]);
                begin = position;
            }
        }
        of_sentences.starts.push(of_sentences.ids.len());
    }
    (steps, of_sentences)
}

/// The weighted mean of every sentence, [sentences, E], and the factor of each of its tokens. The
/// mean is that of its steps, so that the table is read once.
fn mean_of_steps(
    weights: Option<&[f32]>,
    steps: &Ragged,
    of_sentences: &Ragged,
    inputs: &[f32],
    width: usize,
    parallel: bool,
) -> (Vec<f32>, Vec<f32>) {
    let weight = |id: &u32| weights.map_or(1.0, |w| w[*id as usize].exp());
    let mut factors: Vec<f32> = steps.ids.iter().map(weight).collect();
    let tokens = |step: &u32| steps.starts[*step as usize]..steps.starts[*step as usize + 1];
    for s in 0..of_sentences.len() {
        let own = of_sentences.row(s);
        if let (Some(first), Some(last)) = (own.first(), own.last()) {
            let all = tokens(first).start..tokens(last).end;
            let total: f32 = factors[all.clone()].iter().sum();
            factors[all].iter_mut().for_each(|f| *f /= total);
        }
    }
    let mut mean = vec![0f32; of_sentences.len() * width];
    let make = |(s, mean): (usize, &mut [f32])| {
        let own = of_sentences.row(s).iter();
        let shares: Vec<f32> = own
            .clone()
            .map(|s| factors[tokens(s)].iter().sum())
            .collect();
        let rows: Vec<&[f32]> = own
            .map(|s| &inputs[*s as usize * width..][..width])
            .collect();
        combine(&rows, &shares, mean);
    };
    if parallel {
        mean.par_chunks_mut(width).enumerate().for_each(make);
    } else {
        mean.chunks_mut(width).enumerate().for_each(make);
    }
    (mean, factors)
}

/// Outputs [sentences, E] of the sentences of a pass. Fails where a device does.
pub(super) fn forward(
    pass: &Pass<'_>,
    c: &ResidualBilstmConfig,
) -> Result<(Vec<f32>, ResidualSaved), ModelError> {
    let (width, count) = (c.embedding_size, pass.sentences.len());
    let table = pass.parameters.value(0);
    let weights = (c.pooling == MeanPooling::Weighted).then(|| pass.parameters.value(1));
    let (steps, of_sentences) = split(c, pass.batch, pass.sentences.clone());
    let mut inputs = vec![0f32; steps.len() * width];
    // A device takes all sentences at once, so that no other thread is at work on them.
    let parallel = pass.device.is_some();
    let parts = if parallel { PARTS } else { 1 };
    let block = steps.len().div_ceil(parts).max(1);
    let make = |(i, inputs): (usize, &mut [f32])| {
        let range = i * block..steps.len().min((i + 1) * block);
        pool::forward(table, weights, &steps, range, width, inputs)
    };
    let step_factors: Vec<Vec<f32>> = if parallel {
        let blocks = inputs.par_chunks_mut(block * width).enumerate();
        blocks.map(make).collect()
    } else {
        let blocks = inputs.chunks_mut(block * width).enumerate();
        blocks.map(make).collect()
    };
    let step_factors = step_factors.concat();
    let (mean, factors) = mean_of_steps(weights, &steps, &of_sentences, &inputs, width, parallel);
    let bilstm = c.bilstm();
    let (states, lstm) = lstm::forward(pass, &bilstm, &inputs, &of_sentences, 0..count)?;
    let at = gate_at(pass, c);
    let [gate, projection, bias] = [0, 1, 2].map(|i| pass.parameters.value(at + i));
    let mut residual = bias.repeat(count);
    let sizes = (count, width, 2 * c.hidden_size);
    pass.arithmetic
        .nt(sizes, &states, projection, &mut residual, true);
    let mut out = mean.clone();
    axpy(gate[0], &residual, &mut out);
    let saved = ResidualSaved {
        mean,
        factors,
        steps,
        step_factors,
        inputs,
        states,
        residual,
        lstm,
    };
    Ok((out, saved))
}

/// Gradient of the embedding table; those of dense parameters are added to `dense`. Fails where a
/// device does.
pub(super) fn backward(
    pass: &Pass<'_>,
    c: &ResidualBilstmConfig,
    saved: ResidualSaved,
    dy: Vec<f32>,
    dense: &mut [Vec<f32>],
) -> Result<Occurrences, ModelError> {
    let (width, states) = (c.embedding_size, 2 * c.hidden_size);
    let (batch, sentences) = (pass.batch, pass.sentences.clone());
    let count = sentences.len();
    let at = gate_at(pass, c);
    let gate = pass.parameters.value(at)[0];
    dense[at][0] += dot(&dy, &saved.residual);
    let mut d_residual = vec![0f32; dy.len()];
    axpy(gate, &dy, &mut d_residual);
    let arithmetic = pass.arithmetic;
    arithmetic.tn(
        (width, states, count),
        &d_residual,
        &saved.states,
        &mut dense[at + 1],
        true,
    );
    for row in d_residual.chunks_exact(width) {
        add(row, &mut dense[at + 2]);
    }
    let mut d_states = vec![0f32; count * states];
    let projection = pass.parameters.value(at + 1);
    let sizes = (count, states, width);
    arithmetic.nn(sizes, &d_residual, projection, &mut d_states, false);
    let of_inputs = lstm::backward(pass, &c.bilstm(), saved.lstm, &d_states, dense)?;
    if pass.parameters.frozen() > 0 {
        return Ok(Occurrences::default());
    }
    let mut d_inputs = vec![0f32; saved.inputs.len()];
    for (step, row) in of_inputs.ids.iter().zip(&of_inputs.rows) {
        let from = *row as usize * width;
        d_inputs[*step as usize * width..][..width]
            .copy_from_slice(&of_inputs.source[from..from + width]);
    }
    // The table is read twice: by the mean of the sentence and by those of the steps.
    let weighted = c.pooling == MeanPooling::Weighted;
    let ResidualSaved {
        mean,
        factors,
        steps,
        step_factors,
        inputs,
        ..
    } = saved;
    let mut total = pool::backward(batch, sentences, width, factors, &mean, dy, weighted);
    let all = 0..steps.len();
    let of_steps = pool::backward(
        &steps,
        all,
        width,
        step_factors,
        &inputs,
        d_inputs,
        weighted,
    );
    let shift = count as u32;
    total.ids.extend(of_steps.ids);
    total
        .rows
        .extend(of_steps.rows.iter().map(|row| row + shift));
    total.factors.extend(of_steps.factors);
    total.source.extend(of_steps.source);
    total.inner.extend(of_steps.inner);
    Ok(total)
}
