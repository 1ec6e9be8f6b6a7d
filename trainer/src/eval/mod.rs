//! What an encoder is worth: translation retrieval, bitext mining and similarity of meaning.
//!
//! Nothing here runs an encoder but [`embed`]; the measures take embeddings, so that a training
//! run can call them with the model it is training.

pub mod bucc;
pub mod embed;
pub mod mixed;
pub mod order;
pub mod set;
pub mod similarity;
pub mod sts;
pub mod tables;

pub use set::{EvalSet, Selection};
pub use similarity::{Metric, PairResult, SetResult, evaluate};

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
