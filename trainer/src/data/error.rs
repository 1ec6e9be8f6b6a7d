//! What can fail.

/// Failures of reading, packing and sampling.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file could not be read or written.
    #[error("could not access \"{path}\": {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line or element that does not follow its format.
    #[error("{path}:{line}: {message}")]
    Malformed {
        /// Path of the file.
        path: String,
        /// Line number, from 1.
        line: u64,
        /// What is wrong with it.
        message: String,
    },
    /// A packed corpus that is damaged or of another version.
    #[error("\"{path}\" is not a usable packed corpus: {message}")]
    Packed {
        /// Path of the file.
        path: String,
        /// What is wrong with it.
        message: String,
    },
    /// Options that contradict each other or the data.
    #[error("{0}")]
    Config(String),
    /// The tokenizer could not be loaded or failed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
}

impl DataError {
    /// Wraps an I/O error with the path it concerns.
    pub fn io(path: impl AsRef<std::path::Path>, source: std::io::Error) -> Self {
        Self::Io {
            path: path.as_ref().display().to_string(),
            source,
        }
    }
}

/// Result of data functions.
pub type Result<T, E = DataError> = std::result::Result<T, E>;
