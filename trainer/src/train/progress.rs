//! How far a run has come.

use serde::{Deserialize, Serialize};

use crate::data::{SamplerState, SentenceId};

/// A batch that was drawn and waits for its turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pending {
    /// Source and target sentence of every pair.
    pub pairs: Vec<(SentenceId, SentenceId)>,
    /// Additional candidates.
    pub negatives: Vec<SentenceId>,
}

/// What an update did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Mean loss of its batches.
    pub loss: f64,
    /// Gradient norm before clipping.
    pub norm: f64,
    /// Sentence pairs in its batches.
    pub pairs: u64,
    /// Tokens of both sides.
    pub tokens: u64,
}

/// Everything but tensors that a run needs to go on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Updates made.
    pub step: u64,
    /// Pairs seen.
    pub pairs: u64,
    /// Tokens seen, both sides.
    pub tokens: u64,
    /// Seconds the run has taken.
    pub seconds: f64,
    /// Best figure on the dev sets, with its step.
    pub best: Option<(f64, u64)>,
    /// Evaluations since the best.
    pub stale: usize,
    /// How often the learning rate was lowered because the dev figure stalled.
    #[serde(default)]
    pub stalls: u32,
    /// Where the sampler stands.
    pub sampler: SamplerState,
    /// Batches that were drawn already.
    pub pending: Vec<Pending>,
}
