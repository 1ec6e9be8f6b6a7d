//! The encoder architectures, one file each.

pub(crate) mod bilstm;
pub(crate) mod dense;
pub(crate) mod mean;
pub(crate) mod transformer;

use crate::EncoderError;

/// From token ids to pooled states.
pub(crate) trait Model: Send + Sync {
    /// Rows of the embedding table; every id must be below it.
    fn vocabulary(&self) -> usize;

    /// Width of a pooled state.
    fn width(&self) -> usize;

    /// Pools each sequence into its row of `out` (`sequences.len()` x `width()`). Sequences are
    /// sorted by descending length; their ids have been checked. `parallel` says that the call
    /// runs on a thread of the encoder's pool and may fork there. A sequence of length zero gives
    /// zeros.
    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        parallel: bool,
    ) -> Result<(), EncoderError>;

    /// Floating point operations for each token, roughly; decides whether a pool is worth its
    /// hand-over.
    fn flops_per_token(&self) -> usize;

    /// Batches that can run at the same time on `threads` threads.
    fn lanes(&self, threads: usize) -> usize {
        threads
    }

    /// Whether a batch costs its longest sentence times its rows.
    fn padded(&self) -> bool {
        false
    }

    /// Bytes of packed weights on top of the mapped file.
    fn bytes(&self) -> usize;
}
