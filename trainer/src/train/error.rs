//! What can fail.

use std::path::Path;

/// Failures of a training run.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A file could not be read or written.
    #[error("could not access \"{path}\": {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The configuration contradicts itself or the data.
    #[error("{0}")]
    Config(String),
    /// A checkpoint is damaged or belongs to another run.
    #[error("checkpoint \"{path}\": {message}")]
    Checkpoint {
        /// Path of the file.
        path: String,
        /// What is wrong with it.
        message: String,
    },
    /// The loss or the gradient is not a number any more.
    #[error(
        "the {what} became {value} at step {step} (learning rate {rate:.3e}); lower the learning \
         rate, set optimizer.clip_norm, or resume from the last checkpoint"
    )]
    Diverged {
        /// "loss" or "gradient norm".
        what: &'static str,
        /// What it became: NaN or an infinity.
        value: f64,
        /// The update that was not made.
        step: u64,
        /// Learning rate of that update.
        rate: f64,
    },
    /// The corpus or a dev set could not be used.
    #[error(transparent)]
    Data(#[from] crate::data::DataError),
    /// The teacher could not be loaded or failed.
    #[error("teacher: {0}")]
    Teacher(#[from] laser_encoder::EncoderError),
    /// The student's tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] laser_model::ModelError),
    /// The model could not be made.
    #[error(transparent)]
    Model(#[from] crate::models::ModelError),
}

impl TrainError {
    pub(crate) fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io {
            path: path.as_ref().display().to_string(),
            source,
        }
    }
}
