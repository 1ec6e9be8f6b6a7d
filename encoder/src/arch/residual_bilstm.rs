//! Mean of token embeddings plus a gated BiLSTM over them.

use super::Model;
use super::bilstm::Layers;
use laser_model::ModelError;
use laser_model::mean::token_weights;

use crate::EncoderError;
use laser_kernels::Precision;
use laser_kernels::arena::Arena;
use laser_kernels::gemm::{Packed, Start, Storage, matmul};
use laser_kernels::{Isa, gather};
use laser_model::config::ResidualBilstmConfig;
use laser_model::folder::{Matrix, Weights};

pub(crate) struct ResidualBilstm {
    isa: Isa,
    config: ResidualBilstmConfig,
    table: Matrix,
    /// As in [`laser_model::mean::Mean`].
    weights: Vec<f32>,
    layers: Layers,
    /// [E, 2H] and [E], with the gate in them.
    projection: Packed,
    bias: Vec<f32>,
}

/// The projection and its bias times the gate, both row-major.
pub(super) fn gated_projection(
    config: &ResidualBilstmConfig,
    weights: &Weights,
) -> Result<(Vec<f32>, Vec<f32>), EncoderError> {
    let (output, input) = (config.embedding_size, 2 * config.hidden_size);
    let gate = weights.vector("gate", 1)?[0];
    if !gate.is_finite() {
        let message = "it is not a finite number";
        return Err(ModelError::tensor(weights.path(), "gate", message).into());
    }
    let mut matrix = weights.matrix("projection.weight", output, input)?.to_f32();
    let mut bias = weights.vector("projection.bias", output)?;
    matrix.iter_mut().chain(&mut bias).for_each(|x| *x *= gate);
    Ok((matrix, bias))
}

/// The steps of some sequences: their tokens, and which steps are whose.
pub(super) struct StepList {
    /// Tokens of step s are `ids[starts[s]..starts[s + 1]]`.
    pub ids: Vec<u32>,
    pub starts: Vec<usize>,
    /// Steps of each sequence, `0..steps` taken apart; sequences with most steps first.
    pub sequences: Vec<Vec<u32>>,
    /// Place of each of these among the sequences that were given.
    pub order: Vec<usize>,
}

impl StepList {
    /// Of sequences that have tokens.
    pub fn new(config: &ResidualBilstmConfig, sequences: &[&[u32]]) -> Self {
        let mut ids = Vec::new();
        let mut starts = Vec::new();
        let mut listed = Vec::with_capacity(sequences.len());
        for (place, sequence) in sequences.iter().enumerate() {
            let first = starts.len() as u32;
            for (position, &id) in sequence.iter().enumerate() {
                if config.begins_step(position, id) {
                    starts.push(ids.len());
                }
                ids.push(id);
            }
            listed.push((place, (first..starts.len() as u32).collect::<Vec<u32>>()));
        }
        starts.push(ids.len());
        listed.sort_by_key(|(_, steps)| std::cmp::Reverse(steps.len()));
        let (order, sequences) = listed.into_iter().unzip();
        Self {
            ids,
            starts,
            sequences,
            order,
        }
    }

    /// Ids of the token that begins a step and of the n-grams behind it.
    pub fn tokens(&self, step: u32) -> &[u32] {
        &self.ids[self.starts[step as usize]..self.starts[step as usize + 1]]
    }
}

impl ResidualBilstm {
    /// Packs the weights, on all threads of the pool it runs in if `parallel`.
    pub fn load(
        isa: Isa,
        config: &ResidualBilstmConfig,
        weights: &Weights,
        precision: Precision,
        parallel: bool,
    ) -> Result<Self, EncoderError> {
        let rows = weights.rows("embed_tokens.weight")?;
        let (output, input) = (config.embedding_size, 2 * config.hidden_size);
        let (matrix, bias) = gated_projection(config, weights)?;
        let projection = Packed::new(&Arena::default(), output, input, Storage::F32, |j, row| {
            row.copy_from_slice(&matrix[j * input..(j + 1) * input]);
            true
        })?;
        Ok(Self {
            isa,
            table: weights.matrix("embed_tokens.weight", rows, output)?,
            weights: token_weights(&config.mean(), weights, rows)?,
            layers: Layers::load(isa, &config.bilstm(), weights, precision, parallel)?,
            projection,
            bias,
            config: config.clone(),
        })
    }

    fn weight(&self, id: u32) -> f32 {
        self.weights.get(id as usize).copied().unwrap_or(1.0)
    }
}

impl Model for ResidualBilstm {
    fn vocabulary(&self) -> usize {
        self.table.rows()
    }

    fn width(&self) -> usize {
        self.config.embedding_size
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        parallel: bool,
    ) -> Result<(), EncoderError> {
        let (width, states) = (self.width(), 2 * self.config.hidden_size);
        let (sequences, out) = super::with_tokens(sequences, out, width);
        if sequences.is_empty() {
            return Ok(());
        }
        let list = StepList::new(&self.config, sequences);
        // Inputs of the BiLSTM; the mean is that of the inputs, weighted by their tokens' weights.
        let count = list.starts.len() - 1;
        let mut inputs = vec![0f32; count * width];
        let mut totals = vec![0f32; count];
        for (step, (row, total)) in inputs.chunks_exact_mut(width).zip(&mut totals).enumerate() {
            let ids = list.tokens(step as u32);
            let weight = |id: usize| self.weights.get(id).copied().unwrap_or(1.0);
            gather::sum_rows(self.isa, self.table.table(), ids, weight, row);
            *total = ids.iter().map(|&id| self.weight(id)).sum();
            let scale = 1.0 / total.max(f32::MIN_POSITIVE);
            row.iter_mut().for_each(|x| *x *= scale);
        }
        let rows: Vec<&[u32]> = list.sequences.iter().map(Vec::as_slice).collect();
        let mut pooled = vec![0f32; sequences.len() * states];
        let embed = |step: u32, row: &mut [f32]| {
            row.copy_from_slice(&inputs[step as usize * width..][..width]);
        };
        self.layers.encode(&rows, embed, &mut pooled, parallel);
        let mut residual = vec![0f32; sequences.len() * width];
        matmul(
            self.isa,
            sequences.len(),
            &pooled,
            states,
            &self.projection,
            Start::Bias(&self.bias),
            &mut residual,
            width,
        );
        for ((steps, place), residual) in rows
            .iter()
            .zip(&list.order)
            .zip(residual.chunks_exact(width))
        {
            let out = &mut out[place * width..(place + 1) * width];
            out.copy_from_slice(residual);
            let total: f32 = steps.iter().map(|&s| totals[s as usize]).sum();
            for &step in *steps {
                let share = totals[step as usize] / total.max(f32::MIN_POSITIVE);
                let row = &inputs[step as usize * width..][..width];
                out.iter_mut().zip(row).for_each(|(y, x)| *y += share * x);
            }
        }
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        2 * self.width() + self.layers.flops_per_token()
    }

    fn lanes(&self, threads: usize) -> usize {
        self.layers.lanes(threads)
    }

    fn bytes(&self) -> usize {
        self.weights.len() * 4 + self.layers.bytes() + self.projection.bytes() + self.bias.len() * 4
    }
}
