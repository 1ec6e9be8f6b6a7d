//! The mean with a gated BiLSTM in candle, for GPUs: table and weights resident on the device.

use candle_core::{DType, Device, Result, Tensor};

use super::Model;
use super::bilstm_candle::LayersCandle;
use super::residual_bilstm::{StepList, gated_projection};
use crate::EncoderError;
use crate::batch::Budget;
use laser_model::config::ResidualBilstmConfig;
use laser_model::folder::Weights;
use laser_model::mean::token_weights;

pub(crate) struct ResidualBilstmCandle {
    device: Device,
    config: ResidualBilstmConfig,
    /// [V, E] in f32: the sums of a mean are not rounded.
    table: Tensor,
    /// As in [`laser_model::mean::Mean`].
    weights: Vec<f32>,
    pub(super) layers: LayersCandle,
    /// [2H, E] and [E] in f32, with the gate in them.
    projection: Tensor,
    bias: Tensor,
}

impl ResidualBilstmCandle {
    /// Copies the weights to `device`, those of the BiLSTM as `dtype`.
    pub fn load(
        config: &ResidualBilstmConfig,
        weights: &Weights,
        device: &Device,
        dtype: DType,
    ) -> std::result::Result<Self, EncoderError> {
        let rows = weights.rows("embed_tokens.weight")?;
        let (output, input) = (config.embedding_size, 2 * config.hidden_size);
        let table = weights
            .matrix("embed_tokens.weight", rows, output)?
            .to_f32();
        let (matrix, bias) = gated_projection(config, weights)?;
        let projection = Tensor::from_vec(matrix, (output, input), device)?;
        Ok(Self {
            device: device.clone(),
            table: Tensor::from_vec(table, (rows, output), device)?,
            weights: token_weights(&config.mean(), weights, rows)?,
            layers: LayersCandle::load(&config.bilstm(), weights, device, dtype)?,
            projection: projection.t()?.contiguous()?,
            bias: Tensor::from_vec(bias, output, device)?,
            config: config.clone(),
        })
    }

    /// Rows of `shares` times `table` summed by `targets`: [count, E].
    fn sums(
        &self,
        table: &Tensor,
        rows: Vec<u32>,
        shares: Vec<f32>,
        targets: Vec<u32>,
        count: usize,
    ) -> Result<Tensor> {
        let n = rows.len();
        let rows = Tensor::from_vec(rows, n, &self.device)?;
        let shares = Tensor::from_vec(shares, (n, 1), &self.device)?;
        let targets = Tensor::from_vec(targets, n, &self.device)?;
        let values = table.index_select(&rows, 0)?.broadcast_mul(&shares)?;
        let sums = Tensor::zeros((count, table.dim(1)?), DType::F32, &self.device)?;
        sums.index_add(&targets, &values, 0)
    }

    /// Outputs in the order of `list`, [sequences, E].
    fn forward(&self, list: &StepList) -> Result<Vec<f32>> {
        let weight = |id: &u32| self.weights.get(*id as usize).copied().unwrap_or(1.0);
        let steps = list.starts.len() - 1;
        let (mut shares, mut of_step) = (Vec::new(), Vec::new());
        let mut totals = vec![0f32; steps];
        for step in 0..steps as u32 {
            let tokens = list.tokens(step);
            let total: f32 = tokens.iter().map(weight).sum();
            totals[step as usize] = total;
            shares.extend(
                tokens
                    .iter()
                    .map(|id| weight(id) / total.max(f32::MIN_POSITIVE)),
            );
            of_step.resize(of_step.len() + tokens.len(), step);
        }
        let inputs = self.sums(&self.table, list.ids.clone(), shares, of_step, steps)?;
        let (mut rows, mut shares, mut of_sequence) = (Vec::new(), Vec::new(), Vec::new());
        for (place, sequence) in list.sequences.iter().enumerate() {
            let total: f32 = sequence.iter().map(|s| totals[*s as usize]).sum();
            for step in sequence {
                rows.push(*step);
                shares.push(totals[*step as usize] / total.max(f32::MIN_POSITIVE));
                of_sequence.push(place as u32);
            }
        }
        let count = list.sequences.len();
        let mean = self.sums(&inputs, rows, shares, of_sequence, count)?;
        let sequences: Vec<&[u32]> = list.sequences.iter().map(Vec::as_slice).collect();
        let mut pooled = vec![0f32; count * 2 * self.config.hidden_size];
        self.layers.encode(&inputs, &sequences, &mut pooled)?;
        let pooled = Tensor::from_vec(pooled, (count, 2 * self.config.hidden_size), &self.device)?;
        let residual = pooled.matmul(&self.projection)?;
        (mean + residual.broadcast_add(&self.bias)?)?
            .flatten_all()?
            .to_vec1()
    }
}

impl Model for ResidualBilstmCandle {
    fn vocabulary(&self) -> usize {
        self.table.dims()[0]
    }

    fn width(&self) -> usize {
        self.config.embedding_size
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        _parallel: bool,
    ) -> std::result::Result<(), EncoderError> {
        let width = self.width();
        let (sequences, out) = super::with_tokens(sequences, out, width);
        if sequences.is_empty() {
            return Ok(());
        }
        let list = StepList::new(&self.config, sequences);
        let rows = self.forward(&list)?;
        for (place, row) in list.order.iter().zip(rows.chunks_exact(width)) {
            out[place * width..(place + 1) * width].copy_from_slice(row);
        }
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        2 * self.width() + self.layers.flops_per_token()
    }

    fn lanes(&self, _threads: usize) -> usize {
        // The device takes one batch after the other.
        1
    }

    fn budget(&self) -> Budget {
        self.layers.budget()
    }

    fn bytes(&self) -> usize {
        self.weights.len() * 4 + self.layers.bytes()
    }
}
