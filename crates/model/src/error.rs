//! What can go wrong with a model folder and its texts.

use std::path::{Path, PathBuf};

/// Error of this crate. Messages follow PostgreSQL's style (lower case, no final period) because
/// the SQL user reads them.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be read or written.
    #[error("could not access \"{path}\": {reason}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's reason.
        reason: std::io::Error,
    },
    /// A file of a model folder holds something else than it should.
    #[error("invalid \"{path}\": {message}")]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// A tensor is missing, or has another shape or type than the configuration asks for.
    #[error("invalid tensor \"{tensor}\" in \"{path}\": {message}")]
    Tensor {
        /// Path of the file.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// What is wrong, with the expected and the actual shape.
        message: String,
    },
    /// The configuration contradicts itself.
    #[error("invalid model configuration: {0}")]
    Config(String),
    /// The tokenizer refused a text.
    #[error("could not tokenize text: {0}")]
    Tokenizer(String),
    /// A token id beyond the vocabulary.
    #[error("token id {id} is out of range for a vocabulary of {vocabulary}")]
    TokenId {
        /// The token's id.
        id: u32,
        /// Rows of the embedding table.
        vocabulary: usize,
    },
    /// It is not known whether a text is a query or a passage, which the model embeds differently.
    #[error(
        "the model embeds queries and passages differently, and the role of the text is not known"
    )]
    Undecided,
    /// The model scores pairs, and is asked to embed.
    #[error("the model scores pairs of a query and a text, it does not embed")]
    Reranker,
    /// The model embeds, and is asked to score pairs.
    #[error("the model embeds texts, it does not score pairs")]
    NoReranker,
    /// A checkpoint could not be imported.
    #[error("could not import \"{path}\": {message}")]
    Import {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, with the key or tensor concerned.
        message: String,
    },
}

impl ModelError {
    /// An input or output error on `path`.
    pub fn io(path: impl AsRef<Path>, reason: std::io::Error) -> Self {
        Self::Io {
            path: path.as_ref().to_owned(),
            reason,
        }
    }

    /// A malformed file.
    pub fn format(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::Format {
            path: path.as_ref().to_owned(),
            message: message.into(),
        }
    }

    /// A wrong tensor.
    pub fn tensor(
        path: impl AsRef<Path>,
        tensor: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self::Tensor {
            path: path.as_ref().to_owned(),
            tensor: tensor.into(),
            message: message.into(),
        }
    }

    /// A checkpoint that cannot be imported.
    pub fn import(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::Import {
            path: path.as_ref().to_owned(),
            message: message.into(),
        }
    }
}
