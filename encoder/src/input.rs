//! What a model is asked about a text.

use std::sync::Arc;

use laser_protocol::Role;

/// What a model is asked about a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// Its embedding, as what it is.
    Embed(Role),
    /// How well it answers this query.
    Rerank(Arc<str>),
}

impl Purpose {
    /// Bytes that are read with each text besides its own.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Embed(_) => 0,
            Self::Rerank(query) => query.len(),
        }
    }
}
