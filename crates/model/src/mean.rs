//! Mean of token embeddings, summed straight from the mapped table.

use laser_kernels::{Isa, gather};

use crate::config::{MeanConfig, MeanPooling};
use crate::{Matrix, ModelError, Weights};

/// A mean of token embeddings, on its caller's thread.
pub struct Mean {
    isa: Isa,
    table: Matrix,
    /// exp(token_weight), empty for a plain mean.
    weights: Vec<f32>,
}

impl Mean {
    /// Reads table and weights.
    ///
    /// # Errors
    /// Tensors that are missing, have another shape or weights that are not finite.
    pub fn load(config: &MeanConfig, weights: &Weights) -> Result<Self, ModelError> {
        let rows = weights.rows("embed_tokens.weight")?;
        let table = weights.matrix("embed_tokens.weight", rows, config.embedding_size)?;
        Ok(Self {
            isa: Isa::detect(),
            table,
            weights: token_weights(config, weights, rows)?,
        })
    }

    /// Rows of the table.
    pub fn vocabulary(&self) -> usize {
        self.table.rows()
    }

    /// Columns of the table.
    pub fn width(&self) -> usize {
        self.table.columns()
    }

    /// Asks for the rows of some of the ids of a text while others are not known yet: they lie all over a table that is
    /// larger than caches. Ids without a row are ignored.
    pub fn prefetch(&self, ids: &[u32]) {
        gather::prefetch_rows(self.table.table(), ids);
    }

    /// Writes the mean of the rows `ids` to `out`, zeros where there are none.
    ///
    /// # Panics
    /// If an id is not below [`Self::vocabulary`] or `out` is shorter than [`Self::width`].
    pub fn encode(&self, ids: &[u32], out: &mut [f32]) {
        let weight = |id: usize| self.weights.get(id).copied().unwrap_or(1.0);
        gather::sum_rows(self.isa, self.table.table(), ids, weight, out);
        let total: f32 = ids.iter().map(|&id| weight(id as usize)).sum();
        if total > 0.0 {
            let scale = 1.0 / total;
            out.iter_mut().for_each(|x| *x *= scale);
        }
    }

    /// Bytes besides the table.
    pub fn bytes(&self) -> usize {
        self.weights.len() * 4
    }
}

/// exp(token_weight) up to a common factor, empty for a plain mean.
///
/// # Errors
/// A tensor `token_weight` that is missing, has another shape or values that are not finite.
pub fn token_weights(
    config: &MeanConfig,
    weights: &Weights,
    rows: usize,
) -> Result<Vec<f32>, ModelError> {
    match config.pooling {
        MeanPooling::Mean => Ok(Vec::new()),
        MeanPooling::Weighted => {
            // A common factor cancels: shifting by the maximum keeps exp finite.
            let mut w = weights.vector("token_weight", rows)?;
            if w.iter().any(|x| !x.is_finite()) {
                return Err(ModelError::tensor(
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
