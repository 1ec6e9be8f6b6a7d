//! Mean of token embeddings, summed straight from the mapped table.

use laser_model::mean::Mean;

use super::Model;
use crate::EncoderError;

impl Model for Mean {
    fn vocabulary(&self) -> usize {
        Mean::vocabulary(self)
    }

    fn width(&self) -> usize {
        Mean::width(self)
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        _parallel: bool,
    ) -> Result<(), EncoderError> {
        for (ids, out) in sequences.iter().zip(out.chunks_exact_mut(self.width())) {
            Mean::encode(self, ids, out);
        }
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        2 * Mean::width(self)
    }

    fn bytes(&self) -> usize {
        Mean::bytes(self)
    }
}
