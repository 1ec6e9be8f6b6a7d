//! What a model is trained for. Every objective turns sentence embeddings into a loss and its
//! gradient.

pub mod contrastive;
