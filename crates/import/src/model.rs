//! A checkpoint in the terms of a model folder.

use laser_model::Config;
use laser_model::folder::Tensors;

/// The table of token embeddings.
pub(crate) const EMBEDDINGS: &str = "embed_tokens.weight";

/// A model ready to be written.
pub(crate) struct Model {
    pub config: Config,
    pub tokenizer: serde_json::Value,
    pub tensors: Tensors,
    pub dictionary: Option<Vec<u8>>,
    pub notes: Vec<String>,
}
