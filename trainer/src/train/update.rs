//! What the batches of one update add up to.

use super::TrainError;
use super::config::TrainConfig;
use super::progress::Outcome;

/// An update that is not made yet.
pub(super) struct Update {
    step: u64,
    rate: f64,
    batches: usize,
    outcome: Outcome,
}

impl Update {
    /// Update `step` with the given factor of the learning rate, of none of its batches so far.
    pub fn new(config: &TrainConfig, step: u64, rate_factor: f64) -> Self {
        Self {
            step,
            rate: config.optimizer.learning_rate * rate_factor,
            batches: config.run.accumulate,
            outcome: Outcome::default(),
        }
    }

    /// Adds a batch with its mean loss, sentence pairs and tokens.
    ///
    /// # Errors
    /// [`TrainError::Diverged`] if the loss is not finite.
    pub fn add(&mut self, loss: f64, pairs: u64, tokens: u64) -> Result<(), TrainError> {
        if !loss.is_finite() {
            return Err(self.diverged("loss", loss));
        }
        self.outcome.loss += loss / self.batches as f64;
        self.outcome.pairs += pairs;
        self.outcome.tokens += tokens;
        Ok(())
    }

    /// The error for a loss or a gradient norm that is not finite.
    pub fn diverged(&self, what: &'static str, value: f64) -> TrainError {
        TrainError::Diverged {
            what,
            value,
            step: self.step,
            rate: self.rate,
        }
    }

    /// What it did, once it is made with this gradient norm before clipping.
    pub fn finish(self, norm: f64) -> Outcome {
        Outcome {
            norm,
            ..self.outcome
        }
    }
}
