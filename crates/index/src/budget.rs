//! What builds and merges may take, and how many vectors a segment has by that.

use crate::codec::Codec;
use crate::graph::{bytes_per_vector, serialized_len};
use crate::growing::{LINKED_PARTS, by_leaves};
use crate::metric::Metric;
use crate::refine::leaves;

/// Vectors handed to a thread at once.
pub(crate) const BATCH: usize = 64;
/// Memory for what is neither graph nor vectors: tables of the threads, stacks, batches on their
/// way, before there is a single vector.
const FIXED_MEMORY: usize = 1 << 20;
/// Parts of a graph at most: each is a file of its own until they are joined.
const PARTS: usize = 256;
/// Bytes of memory for each node while parts are joined, beside what is in files: the sums of their levels ([`crate::walk`]), and lists
/// of some of them, as of those on higher levels and those that walks miss.
const JOINING: usize = 4;
/// Threads that have a byte for each node there together: each has a bit in its walk, and as much again to spare.
const THREADS_PER_BYTE: usize = 4;
/// Bytes of the address of an entry without a vector, also while their list becomes twice as long.
const ADDRESS: usize = 16;

/// What a build may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of memory.
    pub memory: usize,
    /// Bytes of files that the system keeps in memory besides.
    pub cache: usize,
    /// Threads.
    pub threads: usize,
}

impl Budget {
    /// Vectors of one segment, at least a few: more than [`capacity`] where the graph can be made in parts.
    pub fn most(&self, codec: &Codec, m: usize) -> usize {
        let whole = capacity(codec, m, self.memory);
        // Graphs of the longer nodes are made in memory ([`crate::refine`]).
        if codec.metric == Metric::InnerProduct && !codec.walks_by_products() {
            return whole;
        }
        let each = JOINING + self.threads.div_ceil(THREADS_PER_BYTE);
        let joined = (self.cache / cached_bytes(codec, m)).min(self.memory / each);
        let parts = if by_leaves(codec, false) {
            PARTS
        } else {
            LINKED_PARTS
        };
        joined.min(parts * whole).max(whole)
    }

    /// What entries take of the room for `most` vectors: those with a place in the graph, and addresses alone, which are in memory
    /// until a segment ends, also where the graph is in files.
    pub(crate) fn weight(&self, most: usize, placed: usize, addresses: usize) -> usize {
        let memory = (self.memory.saturating_sub(FIXED_MEMORY))
            .max(self.memory / 2)
            .max(1);
        // An address alone takes little; a billion of them do not.
        let share = addresses as f64 * ADDRESS as f64 / memory as f64;
        placed + (share * most as f64) as usize
    }
}

/// Bytes that addresses take ([`Budget::weight`]).
pub(crate) fn address_bytes(addresses: usize) -> usize {
    ADDRESS * addresses
}

/// Bytes of memory for each vector while its node is collected or usearch adds it, and while it is linked.
pub(crate) fn bytes(codec: &Codec, m: usize) -> usize {
    let added = bytes_per_vector(codec, m);
    if by_leaves(codec, false) {
        added.max(leaves::bytes_per_node(m))
    } else {
        added
    }
}

/// Vectors whose graph fits into a memory budget, at least a few.
pub fn capacity(codec: &Codec, m: usize, memory: usize) -> usize {
    let each = bytes(codec, m);
    (memory.saturating_sub(needed(codec, m, 0)) / each).max(BATCH)
}

/// The memory budget into which `vectors` vectors fit.
pub fn needed(codec: &Codec, m: usize, vectors: usize) -> usize {
    let moving = 8 * BATCH * (4 * codec.dims + codec.len());
    vectors * bytes(codec, m) + FIXED_MEMORY + moving
}

/// Bytes of files that joining parts goes through at one time, for each vector: the graph, its lists, and what leads to each node. Fine
/// parts are put in their places when the tables are gone.
pub(crate) fn cached_bytes(codec: &Codec, m: usize) -> usize {
    const MANY: usize = 1 << 16;
    let tables = (2 * (4 + 8 * m) + 16).max(leaves::bytes_per_node(m));
    serialized_len(codec, m, MANY).div_ceil(MANY) + tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantization::Quantization;

    fn budget(memory: usize, threads: usize) -> Budget {
        Budget {
            memory,
            cache: usize::MAX,
            threads,
        }
    }

    /// Threads have bits of all nodes, which are as many as leave room for those.
    #[test]
    fn more_threads_have_fewer_nodes() {
        let codec = Codec::new(384, Metric::Cosine, Quantization::I8);
        let most = |threads| budget(64 << 20, threads).most(&codec, 16);
        assert!(most(2) > 10_000_000);
        assert_eq!((most(1), most(64)), (most(4), (64 << 20) / 20));
    }

    /// What is full of both takes no more memory than there is.
    #[test]
    fn addresses_weigh_what_they_take() {
        let codec = Codec::new(384, Metric::Cosine, Quantization::I8);
        for memory in [1 << 20, 16 << 20, 1 << 30] {
            let budget = budget(memory, 2);
            let most = budget.most(&codec, 16);
            for placed in [0, most / 3, most - 1] {
                let mut addresses = 0;
                while budget.weight(most, placed, addresses) < most {
                    addresses += 1 + most / 1000;
                }
                let bytes = (JOINING + 1) * placed + ADDRESS * addresses;
                assert!(bytes <= memory + memory / 100, "{bytes} of {memory}");
            }
            assert_eq!(budget.weight(most, most, 0), most);
        }
    }
}
