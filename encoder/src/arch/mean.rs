//! Mean of token embeddings, summed straight from the mapped table.

use super::Model;
use crate::EncoderError;
use crate::config::{MeanConfig, MeanPooling};
use crate::folder::{Matrix, Weights};
use crate::kernels::{Isa, gather};

pub(crate) struct Mean {
    isa: Isa,
    table: Matrix,
    /// exp(token_weight), empty for a plain mean.
    weights: Vec<f32>,
}

impl Mean {
    pub fn load(config: &MeanConfig, weights: &Weights) -> Result<Self, EncoderError> {
        let rows = weights.rows("embed_tokens.weight")?;
        let table = weights.matrix("embed_tokens.weight", rows, config.embedding_size)?;
        Ok(Self {
            isa: Isa::detect(),
            table,
            weights: token_weights(config, weights, rows)?,
        })
    }
}

/// exp(token_weight) up to a common factor, empty for a plain mean.
pub(super) fn token_weights(
    config: &MeanConfig,
    weights: &Weights,
    rows: usize,
) -> Result<Vec<f32>, EncoderError> {
    match config.pooling {
        MeanPooling::Mean => Ok(Vec::new()),
        MeanPooling::Weighted => {
            // A common factor cancels: shifting by the maximum keeps exp finite.
            let mut w = weights.vector("token_weight", rows)?;
            if w.iter().any(|x| !x.is_finite()) {
                return Err(EncoderError::tensor(
                    weights.path(),
                    "token_weight",
                    "it contains a value that is not finite",
                ));
            }
            let largest = w.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            w.iter_mut()
                .for_each(|x| *x = (*x - largest).max(-60.0).exp());
            Ok(w)
        }
    }
}

impl Model for Mean {
    fn vocabulary(&self) -> usize {
        self.table.rows()
    }

    fn width(&self) -> usize {
        self.table.columns()
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        _parallel: bool,
    ) -> Result<(), EncoderError> {
        for (ids, out) in sequences.iter().zip(out.chunks_exact_mut(self.width())) {
            let weight = |id: usize| self.weights.get(id).copied().unwrap_or(1.0);
            gather::sum_rows(self.isa, &self.table, ids, weight, out);
            let total: f32 = ids.iter().map(|&id| weight(id as usize)).sum();
            if total > 0.0 {
                let scale = 1.0 / total;
                out.iter_mut().for_each(|x| *x *= scale);
            }
        }
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        2 * self.width()
    }

    fn bytes(&self) -> usize {
        self.weights.len() * 4
    }
}
