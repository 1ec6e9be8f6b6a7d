//! How the kernels of `kernels/transformer.cu` are launched.

use super::Sentences;

/// Threads of a block.
pub const THREADS: usize = 128;
const WARPS: usize = THREADS / 32;
/// Queries of a block of the attention.
const QUERIES: usize = 16 * WARPS;
/// Elements between rows in shared memory.
const PAD: usize = 8;
/// Elements that a thread has of an activation.
const VECTOR: usize = 8;

/// Lengths of a query, a key or a value that there is a kernel for.
pub const SIZES: [usize; 4] = [32, 64, 128, 256];
/// The widest row that a warp keeps in shared memory: what a block has on any GPU, 48 KiB.
pub const WIDEST: usize = (48 << 10) / (WARPS * size_of::<f32>());

/// A grid of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Blocks.
    pub grid: [usize; 3],
    /// Bytes of shared memory of a block.
    pub shared: usize,
}

impl Plan {
    /// Of the attention with heads of `size`.
    pub fn attention(sentences: &Sentences, heads: usize, size: usize) -> Self {
        let keys = if size > 128 { 32 } else { 64 };
        Self {
            grid: [
                sentences.longest().div_ceil(QUERIES),
                heads,
                sentences.len(),
            ],
            shared: (QUERIES + 2 * keys) * (size + PAD) * 2,
        }
    }

    /// Of the turns of tokens with this many heads, of queries, keys and values.
    pub fn turn(sentences: &Sentences, heads: usize) -> Self {
        let units = sentences.longest() * heads;
        Self {
            grid: [units.div_ceil(WARPS), sentences.len(), 1],
            shared: 0,
        }
    }

    /// Of an activation or a gate of this number of elements.
    pub fn activate(elements: usize) -> Self {
        Self {
            grid: [elements.div_ceil(VECTOR * THREADS), 1, 1],
            shared: 0,
        }
    }

    /// Of a normalisation.
    pub fn normalize(rows: usize, width: usize) -> Self {
        Self {
            grid: [rows.div_ceil(WARPS), 1, 1],
            shared: WARPS * width * size_of::<f32>(),
        }
    }

    /// Of the pooling.
    pub fn pool(sentences: &Sentences, width: usize) -> Self {
        Self {
            grid: [width.div_ceil(THREADS), sentences.len(), 1],
            shared: 0,
        }
    }
}
