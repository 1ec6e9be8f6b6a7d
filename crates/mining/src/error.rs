//! Errors of the crate.

use std::fmt;

/// Which of the two sets of embeddings an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The rows that are translated.
    Source,
    /// The rows that translations are sought in.
    Target,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Target => "target",
        })
    }
}

/// What can go wrong in a search.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `k` was zero.
    #[error("k must be at least 1")]
    ZeroK,
    /// The number of dimensions was zero.
    #[error("embeddings must have at least one dimension")]
    ZeroDimensions,
    /// A slice does not hold whole rows, or a row has another length.
    #[error("{side} has {values} values, which are not rows of {dimensions} dimensions")]
    Shape {
        /// Which of the two sets.
        side: Side,
        /// Number of values given.
        values: usize,
        /// Number of dimensions expected.
        dimensions: usize,
    },
    /// Too many rows: positions are 32-bit.
    #[error("{side} has {rows} rows, more than the limit of {limit}")]
    TooManyRows {
        /// Which of the two sets.
        side: Side,
        /// Number of rows given.
        rows: usize,
        /// Most rows that a side may have.
        limit: usize,
    },
    /// A row with a NaN or an infinity, or whose norm is neither.
    #[error("{side} row {row} is not finite")]
    NotFinite {
        /// Which of the two sets.
        side: Side,
        /// Position of the row, from 0.
        row: usize,
    },
    /// A row without a direction.
    #[error("{side} row {row} is a zero vector, which has no cosine")]
    ZeroVector {
        /// Which of the two sets.
        side: Side,
        /// Position of the row, from 0.
        row: usize,
    },
    /// Lists of neighbours that do not belong to the given rows.
    #[error("the stored neighbourhoods do not fit the {side} rows")]
    Mismatch {
        /// Which of the two sets.
        side: Side,
    },
    /// The caller asked the search to stop.
    #[error("the search was cancelled")]
    Cancelled,
    /// There was no memory.
    #[error(transparent)]
    OutOfMemory(#[from] laser_memory::OutOfMemory),
    /// The device that multiplies failed (for example: out of memory).
    #[error("could not search with a device: {0}")]
    Device(String),
    /// A temporary file could not be made, written or read (for example: no space left).
    #[error("could not use a temporary file for mining: {0}")]
    Spill(#[from] std::io::Error),
}
