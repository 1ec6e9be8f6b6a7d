//! Parallel text: readers, filters, the packed corpus on disk, and the sampler that draws batches.
//!
//! Text of any format is read as *groups*: sentences under one key that are translations of each
//! other, in two or more languages. A bitext is a corpus whose groups have two sentences.
//! [`pack`] tokenises groups once into a file that is memory-mapped afterwards
//! ([`PackedCorpus`]), and [`Sampler`] draws batches of sentence pairs from it.

pub mod config;
pub mod dedup;
pub mod filter;
pub mod input;
pub mod lexmix;
pub mod manifest;
pub mod pack;
pub mod packed;
pub mod permutation;
pub mod perturb;
pub mod pipeline;
pub mod readers;
pub mod report;
pub mod sampler;
mod temporary;

pub use packed::{LanguageId, PackedCorpus, Ragged, SentenceId, SourceId};
pub use sampler::{Batch, Pair, Sampler, SamplerOptions, SamplerState};

/// One sentence of a group: language code and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Language code as the corpus writes it, `de` or `ckb` or `roa-tara`.
    pub language: String,
    /// One sentence, without line breaks.
    pub text: String,
}

/// Sentences that are translations of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Key within the source; a line number where the format has no keys.
    pub key: String,
    /// At least one sentence; a language may occur more than once.
    pub rows: Vec<Row>,
}

/// Failures of reading, packing and sampling.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file could not be read or written.
    #[error("could not access \"{path}\": {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line or element that does not follow its format.
    #[error("{path}:{line}: {message}")]
    Malformed {
        /// The file.
        path: String,
        /// Line number, from 1.
        line: u64,
        /// What is wrong with it.
        message: String,
    },
    /// A packed corpus that is damaged or of another version.
    #[error("\"{path}\" is not a usable packed corpus: {message}")]
    Packed {
        /// The file.
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

/// 64-bit hash of a byte string; stable across versions and machines.
#[must_use]
pub fn hash64(bytes: &[u8]) -> u64 {
    let digest = blake3::hash(bytes);
    let mut word = [0u8; 8];
    word.copy_from_slice(&digest.as_bytes()[..8]);
    u64::from_le_bytes(word)
}

/// Text reduced to what makes two sentences the same: lower-case letters and digits only.
///
/// A sentence without letters or digits is kept as it is.
#[must_use]
pub fn canonical(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    out.extend(letters(text));
    if out.is_empty() { text.to_owned() } else { out }
}

/// The letters and digits of a text in lower case.
fn letters(text: &str) -> impl Iterator<Item = char> {
    text.chars()
        .filter(|c| c.is_alphanumeric() || is_mark(*c))
        .flat_map(char::to_lowercase)
}

/// Whether two texts are the same without case, punctuation and white space.
#[must_use]
pub fn same_text(a: &str, b: &str) -> bool {
    let mut left = letters(a).peekable();
    let mut right = letters(b).peekable();
    if left.peek().is_none() || right.peek().is_none() {
        return a == b;
    }
    left.eq(right)
}

/// Combining marks carry meaning in Indic and Semitic scripts, so they count as letters.
fn is_mark(c: char) -> bool {
    !c.is_ascii() && unicode_normalization::char::is_combining_mark(c)
}

/// Hash of [`canonical`] text: equal for sentences that differ in case, punctuation or spacing.
#[must_use]
pub fn text_hash(text: &str) -> u64 {
    hash64(canonical(text).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_ignores_case_punctuation_and_space() {
        assert_eq!(text_hash("Hello, World!"), text_hash("hello world"));
        assert_ne!(text_hash("hello world"), text_hash("hello word"));
        assert_ne!(text_hash("?"), text_hash("!"));
        assert_ne!(canonical("कि"), canonical("की"));
        for (a, b) in [
            ("Hello, World!", "hello world"),
            ("?", "!"),
            ("?", "a"),
            ("a", "ab"),
        ] {
            assert_eq!(same_text(a, b), canonical(a) == canonical(b), "{a} {b}");
        }
    }
}
