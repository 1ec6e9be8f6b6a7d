//! What a model is trained for. Every objective turns sentence embeddings into a loss and its
//! gradient; a configuration sums several with weights.

pub mod contrastive;
pub mod mlm;
pub mod nli;
pub mod nmt;
mod sampled;
pub mod transfer;
