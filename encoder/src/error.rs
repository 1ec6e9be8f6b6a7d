//! What can go wrong between a model folder and an embedding.

use std::io;

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
    /// The system has no memory for the weights.
    #[error(transparent)]
    Memory(#[from] laser_memory::OutOfMemory),
    /// The arithmetic failed (candle, threads).
    #[error("could not compute embeddings: {0}")]
    Compute(String),
}

impl EncoderError {
    /// Whether the system had no memory left: it says nothing about the model's files.
    pub fn is_lack_of_memory(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Model(ModelError::Io { reason, .. }) => {
                reason.kind() == io::ErrorKind::OutOfMemory
            }
            _ => false,
        }
    }

    /// Whether a GPU had no memory left: with less at once it may be enough.
    pub(crate) fn is_lack_of_device_memory(&self) -> bool {
        // candle gives the driver's, and cuBLAS's, name of the error as text.
        matches!(self, Self::Compute(reason)
            if reason.contains("CUDA_ERROR_OUT_OF_MEMORY") || reason.contains("CUBLAS_STATUS_ALLOC_FAILED"))
    }
}

impl From<candle_core::Error> for EncoderError {
    fn from(error: candle_core::Error) -> Self {
        Self::Compute(error.to_string())
    }
}
