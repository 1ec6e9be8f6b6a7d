//! What embedding texts gives.

/// Embeddings of a list of texts.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedded {
    /// Dimensions of each embedding.
    pub dimensions: usize,
    /// Row-major, one row per text, in the order of the texts.
    pub data: Vec<f32>,
    /// Fingerprint of the model that made them (all zeros if there was no text).
    pub fingerprint: [u8; 32],
}

impl Embedded {
    /// The embedding of text `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.dimensions..(i + 1) * self.dimensions]
    }
}

/// How many texts were longer than the model reads.
pub type Cut = usize;

/// What other modules need to know of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Its name; the resolved one where the default was asked for.
    pub name: String,
    /// Dimensions of its embeddings.
    pub dimensions: usize,
    /// Whether it scores pairs, and embeds none.
    pub reranker: bool,
    /// Tokens beyond which a text is cut.
    pub max_tokens: usize,
    /// Hash of its files: another model, or another version of it, has another one.
    pub fingerprint: [u8; 32],
}
