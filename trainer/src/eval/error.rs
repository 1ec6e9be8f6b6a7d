//! What can fail.

/// Failures of an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    /// A file could not be read.
    #[error(transparent)]
    Data(#[from] crate::data::DataError),
    /// The encoder could not be loaded or failed.
    #[error(transparent)]
    Encoder(#[from] laser_encoder::EncoderError),
    /// Embeddings that cannot be searched, for example with a NaN.
    #[error("the embeddings of {set} cannot be compared: {source}")]
    Mining {
        /// The evaluation set.
        set: String,
        /// What is wrong with them.
        source: laser_mining::Error,
    },
    /// Files that do not fit each other.
    #[error("{0}")]
    Config(String),
}
