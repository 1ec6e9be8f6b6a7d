//! What the training loop drives.

use std::path::Path;

use super::TrainError;
use super::checkpoint::Checkpoint;
use super::config::TrainConfig;
use super::dev::{Accuracy, Dev};
use super::progress::{Outcome, Pending, Progress};
use crate::data::{PackedCorpus, SamplerState};

/// Encoders with their optimisers, sampler and objectives.
pub trait TrainingTarget {
    /// Copies what fits of a model folder, or of a run's, into the parameters; returns the names of the tensors.
    ///
    /// # Errors
    /// Of [`super::checkpoint::initialise_from`].
    fn initialise(&mut self, config: &TrainConfig, from: &Path) -> Result<Vec<String>, TrainError>;

    /// Whether some tensors keep their values; these are in no checkpoint.
    fn has_frozen(&self) -> bool;

    /// Makes update `step` with the given factor of the learning rate.
    ///
    /// # Errors
    /// [`TrainError::Diverged`] if the loss or the gradient is not finite; the parameters are then
    /// as before.
    fn step(
        &mut self,
        config: &TrainConfig,
        corpus: &PackedCorpus,
        step: u64,
        rate_factor: f64,
    ) -> Result<Outcome, TrainError>;

    /// Whether sentences of a language can be embedded.
    fn embeds(&self, language: &str) -> bool;

    /// Retrieval on dev sets, by the averaged weights where they are kept.
    ///
    /// # Errors
    /// [`TrainError::Model`].
    fn measure(&self, dev: &[Dev]) -> Result<Vec<Accuracy>, TrainError>;

    /// Writes what can be used of it, by the averaged weights where they are kept.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    fn write(&self, folder: &Path, config: &TrainConfig) -> Result<(), TrainError>;

    /// Saves a checkpoint.
    ///
    /// # Errors
    /// [`TrainError::Io`].
    fn save(&self, folder: &Path, progress: &Progress) -> Result<(), TrainError>;

    /// Goes on from a checkpoint.
    ///
    /// # Errors
    /// [`TrainError::Checkpoint`] if it belongs to another run.
    fn restore(&mut self, saved: &Checkpoint) -> Result<(), TrainError>;

    /// Where the sampler stands, and what it has drawn that waits for its turn.
    fn drawn(&self) -> (SamplerState, Vec<Pending>);

    /// What it is, in words: parameters, threads, anchors.
    fn describe(&self) -> String;
}
