//! What transformers that run on a device have in common: one batch after the other, from token ids to rows that come back.

use candle_core::Tensor;

use super::shape::Shape;
use super::{Model, budget_on, check_positions, with_tokens};
use crate::EncoderError;
use crate::batch::Budget;

/// A transformer on a device.
pub(super) trait OnDevice: Send + Sync {
    /// [tokens, hidden].
    fn table(&self) -> &Tensor;

    fn shape(&self) -> Shape;

    /// Whether sequences are padded, as candle's operations need them, and not packed.
    fn is_padded(&self) -> bool;

    /// Pools sequences, longest first and none of them empty.
    fn forward(&self, sequences: &[&[u32]]) -> candle_core::Result<Vec<f32>>;
}

impl<T: OnDevice> Model for T {
    fn vocabulary(&self) -> usize {
        self.table().dims()[0]
    }

    fn width(&self) -> usize {
        self.table().dims()[1]
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        _parallel: bool,
    ) -> Result<(), EncoderError> {
        let (sequences, out) = with_tokens(sequences, out, self.width());
        if sequences.is_empty() {
            return Ok(());
        }
        check_positions(self.shape().positions, sequences)?;
        out.copy_from_slice(&self.forward(sequences)?);
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        self.shape().flops_per_token()
    }

    fn lanes(&self, _threads: usize) -> usize {
        // The device takes one batch after the other.
        1
    }

    fn padded(&self) -> bool {
        self.is_padded()
    }

    fn budget(&self) -> Budget {
        match self.is_padded() {
            true => budget_on(self.table().device()),
            false => Budget::GPU,
        }
    }

    fn bytes(&self) -> usize {
        match self.is_padded() && self.table().device().is_cpu() {
            true => self.flops_per_token() * 2,
            false => 0,
        }
    }
}
