//! What a serialized graph is to be like, for who writes one without usearch ([`crate::graph::Layout`] has the format).

use crate::graph::{COUNT_PRESENT, DENSE_HEAD, GRAPH_HEAD, NODE_HEAD};

/// Counts of a graph, by which everything has its place.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shape {
    pub nodes: usize,
    /// Bytes of a vector.
    pub columns: usize,
    /// Room for edges on the lowest level of a node.
    pub base_edges: usize,
    /// The same on each level above.
    pub edges: usize,
}

impl Shape {
    /// Bytes of the graph, whose nodes have this many levels above the lowest together.
    pub fn len(&self, above: usize) -> usize {
        self.lists_at() + self.nodes * self.node_len(0) + above * self.list_len(1)
    }

    /// Room for edges of a node on a level.
    pub fn room(&self, level: usize) -> usize {
        if level == 0 {
            self.base_edges
        } else {
            self.edges
        }
    }

    /// Bytes of a node's list of edges on a level.
    pub fn list_len(&self, level: usize) -> usize {
        4 + 4 * self.room(level)
    }

    /// Bytes of a node whose highest level is this one.
    pub fn node_len(&self, level: usize) -> usize {
        NODE_HEAD + self.list_len(0) + level * self.list_len(1)
    }

    /// Where the vector of a node is.
    pub fn vector_at(&self, node: usize) -> usize {
        8 + node * self.columns
    }

    /// Where the levels of the nodes begin, two bytes each.
    pub fn levels_at(&self) -> usize {
        self.vector_at(self.nodes) + DENSE_HEAD + GRAPH_HEAD
    }

    /// Where the first node is, behind which the others are.
    pub fn lists_at(&self) -> usize {
        self.levels_at() + 2 * self.nodes
    }

    /// Writes what is in front of the vectors and of the levels. `dense` is usearch's own header as any graph of this codec
    /// has it; `entry` is the node from which walks begin, of the highest level, `top`.
    pub fn write_heads(&self, out: &mut [u8], dense: &[u8], top: usize, entry: usize) {
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.nodes as u32).to_le_bytes());
        put(4, &(self.columns as u32).to_le_bytes());
        let at = self.vector_at(self.nodes);
        put(at, dense);
        put(at + COUNT_PRESENT, &(self.nodes as u64).to_le_bytes());
        let counts = [self.nodes, self.edges, self.base_edges, top, entry];
        for (i, count) in counts.into_iter().enumerate() {
            put(at + DENSE_HEAD + 8 * i, &(count as u64).to_le_bytes());
        }
    }

    /// Writes the highest level of a node among those of all.
    pub fn write_level(&self, out: &mut [u8], node: usize, level: usize) {
        let at = self.levels_at() + 2 * node;
        out[at..at + 2].copy_from_slice(&(level as i16).to_le_bytes());
    }

    /// Writes the head of a node at `at`, behind which its lists are.
    pub fn write_node_head(out: &mut [u8], at: usize, key: u64, level: usize) {
        out[at..at + 8].copy_from_slice(&key.to_le_bytes());
        out[at + 8..at + NODE_HEAD].copy_from_slice(&(level as i16).to_le_bytes());
    }
}
