//! What can go wrong between a model folder and an embedding.

use laser_model::ModelError;

/// Error of this crate. Messages follow PostgreSQL's style (lower case, no final period) because
/// the SQL user reads them.
#[derive(Debug, thiserror::Error)]
pub enum EncoderError {
    /// The model folder, its tokenizer or a text.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device asked for is not there.
    #[error("{0}")]
    Device(String),
    /// The arithmetic failed (candle, threads).
    #[error("could not compute embeddings: {0}")]
    Compute(String),
}

impl From<candle_core::Error> for EncoderError {
    fn from(error: candle_core::Error) -> Self {
        Self::Compute(error.to_string())
    }
}
