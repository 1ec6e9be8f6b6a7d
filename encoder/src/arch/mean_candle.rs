//! Mean of token embeddings in candle, for GPUs: the table resident on the device.

use candle_core::{DType, Device, Tensor};

use super::Model;
use crate::EncoderError;
use laser_model::config::MeanConfig;
use laser_model::folder::Weights;
use laser_model::mean::token_weights;

pub(crate) struct MeanCandle {
    device: Device,
    dtype: DType,
    table: Tensor,
    /// As in [`laser_model::mean::Mean`].
    weights: Vec<f32>,
}

impl MeanCandle {
    /// Copies the table to `device` as `dtype`.
    pub fn load(
        config: &MeanConfig,
        weights: &Weights,
        device: &Device,
        dtype: DType,
    ) -> Result<Self, EncoderError> {
        let rows = weights.rows("embed_tokens.weight")?;
        let size = config.embedding_size;
        let table = weights.matrix("embed_tokens.weight", rows, size)?.to_f32();
        Ok(Self {
            device: device.clone(),
            dtype,
            table: Tensor::from_vec(table, (rows, size), device)?.to_dtype(dtype)?,
            weights: token_weights(config, weights, rows)?,
        })
    }

    /// Means of padded rows: [batch, 1, steps] shares times [batch, steps, E] embeddings.
    fn forward(&self, sequences: &[&[u32]]) -> candle_core::Result<Vec<f32>> {
        let (batch, steps) = (sequences.len(), sequences[0].len());
        let mut ids = vec![0u32; batch * steps];
        let mut shares = vec![0f32; batch * steps];
        for (row, sequence) in sequences.iter().enumerate() {
            let at = row * steps..row * steps + sequence.len();
            ids[at.clone()].copy_from_slice(sequence);
            let shares = &mut shares[at];
            for (share, &id) in shares.iter_mut().zip(*sequence) {
                *share = self.weights.get(id as usize).copied().unwrap_or(1.0);
            }
            let total: f32 = shares.iter().sum();
            shares.iter_mut().for_each(|share| *share /= total);
        }
        let ids = Tensor::from_vec(ids, batch * steps, &self.device)?;
        let shares = Tensor::from_vec(shares, (batch, 1, steps), &self.device)?;
        let embedded = self.table.index_select(&ids, 0)?;
        shares
            .to_dtype(self.dtype)?
            .matmul(&embedded.reshape((batch, steps, ()))?)?
            .to_dtype(DType::F32)?
            .flatten_all()?
            .to_vec1()
    }
}

impl Model for MeanCandle {
    fn vocabulary(&self) -> usize {
        self.table.dims()[0]
    }

    fn width(&self) -> usize {
        self.table.dims()[1]
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        _parallel: bool,
    ) -> Result<(), EncoderError> {
        let (sequences, out) = super::with_tokens(sequences, out, self.width());
        if !sequences.is_empty() {
            out.copy_from_slice(&self.forward(sequences)?);
        }
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        2 * self.width()
    }

    fn lanes(&self, _threads: usize) -> usize {
        1
    }

    fn padded(&self) -> bool {
        true
    }

    fn bytes(&self) -> usize {
        self.weights.len() * 4
    }
}
