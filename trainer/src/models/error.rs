//! What can fail.

/// Failures of making and loading models.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The configuration contradicts itself or asks for something that is not there.
    #[error("{0}")]
    Config(String),
    /// The device that the model is trained on failed.
    #[error("device: {0}")]
    Device(#[from] candle_core::Error),
    /// A checkpoint lacks a tensor or has one of another shape.
    #[error("checkpoint \"{path}\": {message}")]
    Checkpoint {
        /// Path of the file.
        path: String,
        /// What is wrong with it.
        message: String,
    },
}
