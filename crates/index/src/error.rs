//! What can go wrong in the storage of an index.

use std::io;

use crate::quantization::Quantization;

/// An error of the index storage. The messages follow PostgreSQL's style: lower case, no period.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// A page, segment or file does not hold what its references say.
    #[error("block {block} of the index is damaged: {what}")]
    Corrupt {
        /// Block number within the index.
        block: u32,
        /// What was expected and what was found.
        what: String,
    },
    /// A segment's content fails its checks.
    #[error("segment {nonce:016x} of the index is damaged: {what}")]
    Segment {
        /// Identity of the segment.
        nonce: u64,
        /// What was expected and what was found.
        what: String,
    },
    /// A page was given to somebody else between reading its reference and reading the page. The
    /// reader starts again from the metapage. The extension does so up to 100 times for one call; a
    /// reference that is outdated even then is damage.
    #[error("block {block} of the index no longer belongs to {owner:016x}")]
    Moved {
        /// Block number within the index.
        block: u32,
        /// The owner that the reader expected.
        owner: u64,
    },
    /// The metapage is not one of this access method.
    #[error("the relation is not a laser index")]
    NotAnIndex,
    /// The index was written by another version of the format.
    #[error("the index has format version {found}, this laser reads version {supported}")]
    Version {
        /// Version on the metapage.
        found: u32,
        /// Version of this code.
        supported: u32,
    },
    /// A vector has the wrong number of dimensions.
    #[error("expected {expected} dimensions, not {found}")]
    Dimensions {
        /// Dimensions of the index.
        expected: usize,
        /// Dimensions of the vector.
        found: usize,
    },
    /// A vector holds NaN or an infinity.
    #[error("a vector with NaN or infinity cannot be indexed")]
    NotFinite,
    /// An entry would not fit on a page.
    #[error(
        "cannot index {dims} dimensions with quantization {}: the limit is {limit}",
        .quantization.name()
    )]
    TooWide {
        /// Dimensions asked for.
        dims: usize,
        /// Largest number of dimensions for this quantization.
        limit: usize,
        /// How the vector would be stored.
        quantization: Quantization,
    },
    /// The directory on the metapage is full.
    #[error("the index would have more than {0} segments, which is the limit")]
    TooManySegments(usize),
    /// There was no memory.
    #[error(transparent)]
    OutOfMemory(#[from] laser_memory::OutOfMemory),
    /// usearch had no memory.
    #[error("out of memory while a graph was made")]
    GraphMemory,
    /// The system gave no thread.
    #[error("could not start a thread: {0}")]
    Thread(io::Error),
    /// usearch refused.
    #[error("graph: {0}")]
    Graph(String),
    /// A file operation failed.
    #[error("could not {action} \"{path}\": {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Path of the file.
        path: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl IndexError {
    pub(crate) fn corrupt(block: u32, what: impl Into<String>) -> Self {
        Self::Corrupt {
            block,
            what: what.into(),
        }
    }

    /// A change leads to one page from two places.
    pub fn named_twice(block: u32) -> Self {
        Self::corrupt(block, "two places of the index lead to it")
    }

    /// Whether there was no memory, or no room on the disk.
    pub(crate) fn is_lack(&self) -> bool {
        match self {
            Self::OutOfMemory(_) | Self::GraphMemory => true,
            Self::Io { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::StorageFull
                    | io::ErrorKind::OutOfMemory
                    | io::ErrorKind::QuotaExceeded
            ),
            _ => false,
        }
    }

    pub(crate) fn segment(nonce: u64, what: impl Into<String>) -> Self {
        Self::Segment {
            nonce,
            what: what.into(),
        }
    }

    /// Wraps an error of the file system.
    pub fn io(action: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.display().to_string(),
            source,
        }
    }
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, IndexError>;
