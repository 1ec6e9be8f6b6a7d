//! Which tokens of a batch a transformer sees, and the seeds of their dropout masks.

use std::ops::Range;

use laser_model::config::TransformerConfig;

use crate::data::Ragged;

/// Seed of a dropout mask: number 0 belongs to the embeddings, 1 + 2 l to the attention of layer l, 2 + 2 l to
/// its feed-forward part. Masks go by a token's place among those of all sentences of a pass.
pub(super) fn mask_seed(seed: u64, number: usize) -> u64 {
    seed.wrapping_add((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// Tokens of each sentence that have a position.
pub(super) fn lengths<'a>(
    c: &TransformerConfig,
    batch: &'a Ragged,
    sentences: Range<usize>,
) -> impl Iterator<Item = usize> + 'a {
    let limit = c.max_positions - c.position_offset;
    sentences.map(move |s| batch.row(s).len().min(limit))
}
