//! The nodes of a graph that has no edges yet, as they come, and the serialized graph of them. It does not depend on the threads that
//! add them, except for which of some equal vectors is the one that has a node.

use std::sync::Mutex;

use laser_sampling::SplitMix64;

use crate::codec::Codec;
use crate::error::{IndexError, Result};
use crate::graph::{DENSE_HEAD, Graph};
use crate::shape::Shape;

/// Vectors are kept in blocks of about this many bytes.
const BLOCK: usize = 1 << 20;
/// The highest level that a node may have.
const HIGHEST: usize = 31;

/// Keys and vectors, to which several threads add.
#[derive(Debug)]
pub(crate) struct Nodes {
    codec: Codec,
    m: usize,
    before: usize,
    added: Mutex<Added>,
}

#[derive(Debug, Default)]
struct Added {
    keys: Vec<u32>,
    /// Graph parts in the order of the keys, in blocks of which all but the last are full.
    blocks: Vec<Vec<u8>>,
}

impl Nodes {
    /// None yet. A graph of them has `m` edges on each level of a node, and twice as many on the lowest. It may be a part of one, with
    /// `before` entries in the parts before.
    pub(crate) fn new(codec: Codec, m: usize, before: usize) -> Self {
        Self {
            codec,
            m,
            before,
            added: Mutex::default(),
        }
    }

    fn per_block(&self) -> usize {
        (BLOCK / self.codec.graph_len().max(1)).max(1)
    }

    fn with<T>(&self, look: impl FnOnce(&mut Added) -> T) -> T {
        look(&mut self.added.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.with(|added| added.keys.len())
    }

    /// Bytes of keys and vectors.
    pub(crate) fn memory(&self) -> usize {
        let block = self.per_block() * self.codec.graph_len();
        self.with(|added| 4 * added.keys.capacity() + block * added.blocks.len())
    }

    /// Adds a node. Several threads may do so at once.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn add(&self, key: u32, graph: &[u8]) -> Result<()> {
        let per_block = self.per_block();
        self.with(|added| {
            if added.keys.len().is_multiple_of(per_block) {
                let block = laser_memory::with_capacity(per_block * graph.len())?;
                laser_memory::push(&mut added.blocks, block)?;
            }
            laser_memory::push(&mut added.keys, key)?;
            let block = added.blocks.last_mut().expect("one was pushed");
            block.extend_from_slice(graph);
            Ok(())
        })
    }

    /// The highest level of each node: a chance of one in `m` for each one more (Malkov & Yashunin 2016, section 4), the same ones
    /// every time, but others in each part of a graph: with the same ones, rows that come in turn from as many sources as a part has
    /// nodes would be on the upper levels for a few of the sources alone, and walks would come to no other.
    fn levels(&self, nodes: usize) -> impl Iterator<Item = usize> {
        let mut random = SplitMix64::new((self.before as u64) << 32 | nodes as u64);
        let m = self.m.max(2) as f64;
        (0..nodes).map(move |_| {
            // From 0, exclusive, to 1.
            let chance = ((random.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64;
            ((-chance.ln() / m.ln()) as usize).min(HIGHEST)
        })
    }

    /// Bytes of the graph.
    pub(crate) fn serialized_len(&self) -> usize {
        let nodes = self.len();
        self.shape(nodes).len(self.levels(nodes).sum())
    }

    fn shape(&self, nodes: usize) -> Shape {
        Shape {
            nodes,
            columns: self.codec.graph_len(),
            base_edges: 2 * self.m,
            edges: self.m,
        }
    }

    /// Writes the graph into exactly [`Self::serialized_len`] bytes, as [`crate::graph::Layout`] describes it: nodes in the order
    /// of their keys, whose lists are empty.
    ///
    /// # Errors
    /// When usearch makes no graph.
    pub(crate) fn save(&self, out: &mut [u8]) -> Result<()> {
        let empty = Graph::new(self.codec, self.m, 1)?;
        let mut head = laser_memory::filled(0, empty.serialized_len())?;
        empty.save(&mut head)?;
        let per_block = self.per_block();
        let Some(head) = head.get(8..8 + DENSE_HEAD) else {
            return Err(IndexError::Graph("an empty graph has no header".into()));
        };
        self.with(|added| {
            let shape = self.shape(added.keys.len());
            let Shape { nodes, columns, .. } = shape;
            let mut order = laser_memory::collect(added.keys.iter().copied().zip(0usize..))?;
            order.sort_unstable();
            let vectors = &mut out[shape.vector_at(0)..shape.vector_at(nodes)];
            for (&(_, from), to) in order.iter().zip(vectors.chunks_exact_mut(columns)) {
                let block = &added.blocks[from / per_block];
                to.copy_from_slice(&block[from % per_block * columns..][..columns]);
            }
            let (mut at, mut top, mut entry) = (shape.lists_at(), 0, 0);
            out[at..].fill(0);
            for (slot, (&(key, _), level)) in order.iter().zip(self.levels(nodes)).enumerate() {
                shape.write_level(out, slot, level);
                Shape::write_node_head(out, at, u64::from(key), level);
                at += shape.node_len(level);
                if level > top {
                    (top, entry) = (level, slot);
                }
            }
            shape.write_heads(out, head, top, entry);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::Layout;
    use crate::metric::Metric;
    use crate::quantization::Quantization;
    use crate::walk::Walk;

    /// What usearch reads as a graph of its own, whatever the order in which nodes came.
    #[test]
    fn a_graph_without_edges_is_one() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for quantization in 0..5 {
            let quantization = Quantization::from_u8(quantization).unwrap();
            let codec = Codec::new(9, Metric::L2, quantization);
            for count in [1u32, 2, 700] {
                let nodes = Nodes::new(codec, 4, 0);
                let vectors: Vec<Vec<u8>> = (0..count)
                    .map(|_| {
                        let x: Vec<f32> = (0..9).map(|_| rng.random_range(-1.0..1.0)).collect();
                        let mut stored = vec![0; codec.graph_len()];
                        codec.encode_graph(&x, &mut stored);
                        stored
                    })
                    .collect();
                let mut keys: Vec<u32> = (0..count).collect();
                keys.shuffle(&mut rng);
                for &key in &keys {
                    nodes.add(key, &vectors[key as usize]).unwrap();
                }
                assert_eq!(nodes.len(), count as usize);
                let mut bytes = vec![0xAA; nodes.serialized_len()];
                nodes.save(&mut bytes).unwrap();
                let layout = Layout::parse(&codec, &bytes).unwrap();
                layout.verify(&|| ()).unwrap();
                let walk = Walk::new(&layout).unwrap();
                assert_eq!(walk.nodes, count as usize);
                for node in 0..count {
                    assert_eq!(walk.vector(&bytes, node), vectors[node as usize]);
                    assert_eq!(walk.neighbours(&bytes, node, 0).count(), 0);
                }
                assert_eq!(
                    Graph::load(codec, 4, 16, &bytes).unwrap().len(),
                    count as usize
                );
            }
        }
    }

    /// A sixteenth of the nodes of a level are on the one above it.
    #[test]
    fn levels_are_by_chance() {
        let nodes = Nodes::new(Codec::new(2, Metric::L2, Quantization::F32), 16, 0);
        let mut counts = [0; 8];
        for level in nodes.levels(1 << 20) {
            counts[..=level].iter_mut().for_each(|count| *count += 1);
        }
        for (level, expected) in [1 << 20, 1 << 16, 1 << 12, 1 << 8].into_iter().enumerate() {
            let off = (f64::from(counts[level]) / f64::from(expected) - 1.0).abs();
            assert!(off < 0.25, "{counts:?}");
        }
    }

    /// Parts with as many nodes have other ones on the upper levels.
    #[test]
    fn levels_of_parts_are_independent() {
        let levels = |before| {
            let nodes = Nodes::new(Codec::new(2, Metric::L2, Quantization::F32), 4, before);
            nodes.levels(64).map(|level| level > 0).collect::<Vec<_>>()
        };
        let parts: Vec<Vec<bool>> = (0..100).map(|part| levels(64 * part)).collect();
        let above = |node: usize| parts.iter().filter(|levels| levels[node]).count();
        // A quarter of them, each of the nodes as likely as another.
        assert!((0..64).all(|node| (5..60).contains(&above(node))));
    }
}
