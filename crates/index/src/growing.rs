//! A graph, or a part of one, to which the threads of a build add.

use crate::codec::Codec;
use crate::error::Result;
use crate::graph::Graph;
use crate::meta::Parameters;
use crate::metric::Metric;
use crate::nodes::Nodes;
use crate::refine::Widths;

/// Parts of a graph that usearch has made, at most: a walk for the neighbours of a node has to begin in each.
pub(crate) const LINKED_PARTS: usize = 16;

/// What the nodes that are added get edges from.
#[derive(Debug)]
pub(crate) enum Growing {
    /// usearch, which links each to those before it.
    Linked(Graph),
    /// The second pass, which links all of them by leaves first ([`crate::refine`]).
    Collected(Nodes),
}

/// Whether the nodes of a graph are linked by leaves. Where the graph of a segment is gone on with, usearch adds to it: leaves would
/// be those of all its nodes. A graph for inner products leads to the longer nodes because usearch does.
pub(crate) fn by_leaves(codec: &Codec, goes_on: bool) -> bool {
    codec.metric != Metric::InnerProduct && !goes_on
}

/// Whether a graph of this number of nodes is gone on with, rather than that a new one is made for `all` that there will be: to link a
/// node by leaves, and once more, takes half of the time in which usearch adds one, and walks find its neighbours. Nor is it where the
/// others are more parts, of `capacity` nodes each, than walks can begin in.
pub(crate) fn is_worth_going_on(codec: &Codec, nodes: usize, all: usize, capacity: usize) -> bool {
    let parts = 1 + all.saturating_sub(nodes).div_ceil(capacity.max(1));
    (2 * nodes >= all && parts <= LINKED_PARTS) || !by_leaves(codec, false)
}

/// Candidates for the edges of such nodes, and of those that are added to a graph.
pub(crate) fn widths(p: &Parameters, by_leaves: bool) -> Widths {
    if by_leaves {
        Widths::of_leaves(p.m, p.ef_construction)
    } else {
        Widths::of_added(p.m, p.ef_construction)
    }
}

impl Growing {
    /// An empty one, of a graph whose nodes are linked by leaves or are not ([`by_leaves`]), which has `before` entries in the parts
    /// before.
    ///
    /// # Errors
    /// When usearch refuses the parameters.
    pub(crate) fn new(
        codec: Codec,
        p: &Parameters,
        by_leaves: bool,
        before: usize,
    ) -> Result<Self> {
        Ok(if by_leaves {
            Self::Collected(Nodes::new(codec, p.m, before))
        } else {
            Self::Linked(Graph::new(codec, p.m, widths(p, false).adding)?)
        })
    }

    /// Makes room, as [`Graph::reserve`].
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn reserve(&self, capacity: usize, threads: usize) -> Result<()> {
        match self {
            Self::Linked(graph) => graph.reserve(capacity, threads),
            // Blocks are made as they are wanted.
            Self::Collected(_) => Ok(()),
        }
    }

    /// Nodes so far.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Linked(graph) => graph.len(),
            Self::Collected(nodes) => nodes.len(),
        }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of what it has.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Linked(graph) => graph.memory(),
            Self::Collected(nodes) => nodes.memory(),
        }
    }

    /// Adds a node. Several threads may do so at once.
    ///
    /// # Errors
    /// No room.
    pub(crate) fn add(&self, key: u32, graph: &[u8], scratch: &mut Vec<f32>) -> Result<()> {
        match self {
            Self::Linked(linked) => linked.add(u64::from(key), graph, scratch),
            Self::Collected(nodes) => nodes.add(key, graph),
        }
    }

    /// Bytes of the serialized graph.
    pub(crate) fn serialized_len(&self) -> usize {
        match self {
            Self::Linked(graph) => graph.serialized_len(),
            Self::Collected(nodes) => nodes.serialized_len(),
        }
    }

    /// Serializes it into exactly that many bytes.
    ///
    /// # Errors
    /// When usearch fails.
    pub(crate) fn save(&self, out: &mut [u8]) -> Result<()> {
        match self {
            Self::Linked(graph) => graph.save(out),
            Self::Collected(nodes) => nodes.save(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantization::Quantization;

    #[test]
    fn what_is_less_than_half_is_made_anew() {
        let of = |metric| Codec::new(8, metric, Quantization::I8);
        let goes_on =
            |metric, nodes, capacity| is_worth_going_on(&of(metric), nodes, 1000, capacity);
        for metric in [Metric::L2, Metric::Cosine] {
            assert!(goes_on(metric, 999, 1000) && goes_on(metric, 500, 1000));
            assert!(!goes_on(metric, 499, 1000) && !goes_on(metric, 0, 1000));
            assert!(goes_on(metric, 700, 20) && !goes_on(metric, 699, 20));
        }
        assert!(goes_on(Metric::InnerProduct, 1, 1000));
    }
}
