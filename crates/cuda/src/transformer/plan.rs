//! How the kernels of `kernels/transformer.cu` are launched.

use super::Sentences;

/// Threads of a block.
pub const THREADS: usize = 128;
const WARPS: usize = THREADS / 32;
/// Queries of a block of the attention, and keys that they meet at a time.
const TILE: usize = 64;
/// Elements between rows in shared memory.
const PAD: usize = 8;
/// Elements that a thread has of an activation.
const VECTOR: usize = 8;

/// Lengths of a query, a key or a value that there is a kernel for.
pub const SIZES: [usize; 3] = [32, 64, 128];
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
        let tiles = 3 * TILE * (size + PAD) * 2;
        let scores = TILE * (TILE + 4) * size_of::<f32>();
        let shares = TILE * (TILE + PAD) * 2;
        Self {
            grid: [sentences.longest().div_ceil(TILE), heads, sentences.len()],
            shared: tiles + scores + shares,
        }
    }

    /// Of an activation of this number of elements.
    pub fn activate(elements: usize) -> Self {
        Self {
            grid: [elements.div_ceil(VECTOR * THREADS), 1, 1],
            shared: 0,
        }
    }

    /// Of a layer normalisation.
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
