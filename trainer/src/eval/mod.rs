//! What an encoder is worth: translation retrieval, bitext mining and similarity of meaning.
//!
//! Nothing here runs an encoder but [`embed`] and [`cache`]; the measures take embeddings, so that a training
//! run can call them with the model it is training.

pub mod bucc;
pub mod cache;
pub mod classifier;
pub mod classify;
pub mod embed;
mod error;
pub mod folds;
pub mod mixed;
pub mod order;
pub mod senteval;
pub mod set;
pub mod similarity;
pub mod sts;
pub mod tables;
pub mod words;

pub use error::EvalError;
pub use set::{EvalSet, Selection};
pub use similarity::{Metric, PairResult, SetResult, evaluate};
