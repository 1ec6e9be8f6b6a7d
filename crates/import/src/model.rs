//! A checkpoint in the terms of a model folder.

use laser_model::Config;
use laser_model::config::{Architecture, FORMAT, TextConfig};
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

impl Model {
    /// A model without a name and without what is only in some checkpoints: layers behind the pooling, normalisation,
    /// prefixes.
    pub fn new(
        encoder: Architecture,
        max_tokens: usize,
        text: TextConfig,
        tokenizer: serde_json::Value,
        tensors: Tensors,
    ) -> Self {
        let config = Config {
            format: FORMAT,
            name: String::new(),
            dimensions: encoder.output_size(),
            max_tokens,
            normalize: false,
            text,
            encoder,
            dense: vec![],
            checks: vec![],
            base: None,
            prefixes: Default::default(),
            task: Default::default(),
        };
        Self {
            config,
            tokenizer,
            tensors,
            dictionary: None,
            notes: vec![],
        }
    }
}
