//! One serialized graph of several, whose edges are those that each of them has.
//!
//! A graph grows in memory; where there is no memory for all nodes, it is made in parts, which are serialized one after
//! the other. What is made of them here has all nodes, and no edges from part to part but those to a vector that is in
//! more than one: [`crate::refine`] looks for the others, in what is mapped. Nodes that usearch has not linked have none at all
//! until then.

use crate::codec::Codec;
use crate::error::{IndexError, Result};
use crate::graph::{DENSE_HEAD, Layout, NODE_HEAD, level_at, u32_at, u64_at};
use crate::shape::Shape;
use crate::table::{Place, Table};

/// Nodes between two pauses.
const PAUSE: usize = 1 << 12;

/// What becomes of some graphs.
pub(crate) struct Join<'a> {
    parts: Vec<(&'a [u8], Layout<'a>)>,
    /// The node that each node of each part becomes, one part behind the other: those that are new are numbered in this
    /// order, others have become one of these before.
    nodes: Table<u32>,
    shape: Shape,
    /// Levels above the lowest of all new nodes together.
    levels: usize,
}

impl<'a> Join<'a> {
    /// Looks at the graphs. Nodes of equal vectors become one, with the edges of the first of them; so those of the first
    /// graph keep their numbers, if no two of its vectors are equal. Room for edges is as in the last one.
    ///
    /// # Errors
    /// Damage, no memory, no room on the disk.
    pub(crate) fn of(
        codec: &Codec,
        parts: &[&'a [u8]],
        place: Place<'_>,
        pause: &dyn Fn(),
    ) -> Result<Self> {
        let parse = |bytes: &&'a [u8]| Ok((*bytes, Layout::parse(codec, bytes)?));
        let parts = parts.iter().map(parse).collect::<Result<Vec<_>>>()?;
        let room = parts.last().map(|(_, last)| (last.base_edges, last.edges));
        let (base_edges, edges) = room.unwrap_or_default();
        let columns = parts.first().map_or(0, |(_, first)| first.columns);
        let mut join = Self {
            nodes: firsts(&parts, place, pause)?,
            parts,
            shape: Shape {
                nodes: 0,
                columns,
                base_edges,
                edges,
            },
            levels: 0,
        };
        let mut node = 0;
        for (_, layout) in &join.parts {
            for slot in 0..layout.rows() {
                let first = join.nodes[node] as usize;
                if first == node {
                    join.levels += layout.level(slot);
                    join.nodes[node] = join.shape.nodes as u32;
                    join.shape.nodes += 1;
                } else {
                    join.nodes[node] = join.nodes[first];
                }
                node += 1;
            }
            pause();
        }
        Ok(join)
    }

    /// Nodes of the new graph.
    pub(crate) fn count(&self) -> usize {
        self.shape.nodes
    }

    /// Bytes of the new graph.
    pub(crate) fn len(&self) -> usize {
        self.shape.len(self.levels)
    }

    /// Tells of every node of every part by its key which one it becomes.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn by_key(&self, mut tell: impl FnMut(u64, u32) -> Result<()>) -> Result<()> {
        let mut before = 0;
        for (bytes, layout) in &self.parts {
            layout.nodes(|slot, at, _| {
                let key = u64_at(bytes, at).expect("within the node");
                tell(key, self.nodes[before + slot])
            })?;
            before += layout.rows();
        }
        Ok(())
    }

    /// Writes the graph into exactly [`Self::len`] bytes. Keys are the numbers of the nodes. Edges that lead to no node of
    /// their level are left out.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn write(&self, out: &mut [u8], pause: &dyn Fn()) -> Result<()> {
        let Some((bytes, layout)) = self.parts.first() else {
            return Ok(());
        };
        let shape = self.shape;
        let head = &bytes[layout.vector_at(layout.rows())..][..DENSE_HEAD];
        let (mut before, mut next, mut top, mut entry) = (0, 0, 0, 0);
        for (bytes, layout) in &self.parts {
            for slot in 0..layout.rows() {
                if slot % PAUSE == 0 {
                    pause();
                }
                if self.nodes[before + slot] as usize != next {
                    continue;
                }
                let (from, level) = (layout.vector_at(slot), layout.level(slot));
                let vector = &bytes[from..from + shape.columns];
                out[shape.vector_at(next)..][..shape.columns].copy_from_slice(vector);
                shape.write_level(out, next, level);
                if level > top {
                    (top, entry) = (level, next);
                }
                next += 1;
            }
            before += layout.rows();
        }
        shape.write_heads(out, head, top, entry);

        let (mut before, mut next, mut at) = (0, 0, shape.lists_at());
        let mut edges: Vec<u32> = Vec::new();
        for (bytes, layout) in &self.parts {
            layout.nodes(|slot, mut from, level| {
                if slot % PAUSE == 0 {
                    pause();
                }
                if self.nodes[before + slot] as usize != next {
                    return Ok(());
                }
                Shape::write_node_head(out, at, next as u64, level);
                (at, from) = (at + NODE_HEAD, from + NODE_HEAD);
                for own in 0..=level {
                    let here = shape.room(own);
                    let there = match own {
                        0 => layout.base_edges,
                        _ => layout.edges,
                    };
                    let found = u32_at(bytes, from).map_or(0, |found| (found as usize).min(there));
                    edges.clear();
                    for edge in 0..found {
                        let to = u32_at(bytes, from + 4 + 4 * edge).expect("within the node");
                        if to as usize >= layout.rows() {
                            continue;
                        }
                        let to = self.nodes[before + to as usize];
                        let is_there =
                            own == 0 || level_at(out, shape.levels_at(), to as usize) >= own;
                        if is_there && to as usize != next && !edges.contains(&to) {
                            edges.push(to);
                        }
                    }
                    edges.truncate(here);
                    out[at..at + 4].copy_from_slice(&(edges.len() as u32).to_le_bytes());
                    let list = &mut out[at + 4..at + 4 + 4 * here];
                    list.fill(0);
                    for (place, to) in list.chunks_exact_mut(4).zip(&edges) {
                        place.copy_from_slice(&to.to_le_bytes());
                    }
                    (at, from) = (at + 4 + 4 * here, from + 4 + 4 * there);
                }
                next += 1;
                Ok(())
            })?;
            before += layout.rows();
        }
        Ok(())
    }
}

/// For every node of every part the first one of all that has the same vector.
fn firsts(parts: &[(&[u8], Layout<'_>)], place: Place<'_>, pause: &dyn Fn()) -> Result<Table<u32>> {
    let all: usize = parts.iter().map(|(_, layout)| layout.rows()).sum();
    if all >= u32::MAX as usize {
        return Err(IndexError::Graph("too many nodes for one graph".into()));
    }
    let vector = |node: u64| {
        let mut slot = node as usize;
        for (bytes, layout) in parts {
            if slot < layout.rows() {
                return &bytes[layout.vector_at(slot)..][..layout.columns];
            }
            slot -= layout.rows();
        }
        unreachable!("nodes lie in a part")
    };
    // Sorted by fingerprints equal vectors are beside each other, the first one first.
    let mut prints = Table::<[u64; 2]>::zeroed(all, place)?;
    for (node, print) in (0u64..).zip(prints.iter_mut()) {
        if node % PAUSE as u64 == 0 {
            pause();
        }
        let hash = blake3::hash(vector(node));
        let hash = *hash.as_bytes().first_chunk().expect("32 bytes");
        *print = [u64::from_le_bytes(hash), node];
    }
    pause();
    prints.sort_unstable();
    pause();
    let mut firsts = Table::<u32>::zeroed(all, place)?;
    for same in prints.chunk_by(|a, b| a[0] == b[0]) {
        let first = same[0][1];
        for &[_, node] in same {
            let is_equal = node == first || vector(node) == vector(first);
            firsts[node as usize] = if is_equal { first } else { node } as u32;
        }
    }
    Ok(firsts)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::{Graph, raw};
    use crate::kernels::dot_i8;
    use crate::metric::Metric;
    use crate::quantization::Quantization;
    use crate::query::Probe;
    use crate::reach::link;
    use crate::refine::{Form, Passes, Widths, refine};
    use crate::walk::Walk;

    const DIMS: usize = 12;

    fn points(seed: u64, count: usize) -> Vec<Vec<f32>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut point = || (0..DIMS).map(|_| rng.random_range(-1.0..1.0)).collect();
        (0..count).map(|_| point()).collect()
    }

    fn joined(codec: &Codec, parts: &[Vec<u8>], place: Place<'_>) -> (Vec<u8>, Vec<u32>) {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let join = Join::of(codec, &parts, place, &|| ()).unwrap();
        let mut bytes = vec![0xAA; join.len()];
        join.write(&mut bytes, &|| ()).unwrap();
        let mut becomes = Vec::new();
        join.by_key(|_, node| {
            becomes.push(node);
            Ok(())
        })
        .unwrap();
        Layout::parse(codec, &bytes)
            .unwrap()
            .verify(&|| ())
            .unwrap();
        assert_eq!(Layout::parse(codec, &bytes).unwrap().rows(), join.count());
        (bytes, becomes)
    }

    #[test]
    fn all_vectors_are_there_once() {
        let folder = tempfile::tempdir().unwrap();
        for quantization in [Quantization::F32, Quantization::I8, Quantization::B1] {
            let codec = Codec::new(DIMS, Metric::L2, quantization);
            let mut sets = [points(1, 700), points(2, 300), points(3, 1), points(4, 500)];
            let shared = sets[0][..200].to_vec();
            sets[3].splice(100..100, shared);
            let parts: Vec<Vec<u8>> = sets.iter().map(|set| raw(codec, 4, set)).collect();
            let places = [Place::Memory, Place::Folder(folder.path())];
            let [one, other] = places.map(|place| joined(&codec, &parts, place));
            assert!(one == other);
            let (bytes, becomes) = one;
            let walk = Walk::new(&Layout::parse(&codec, &bytes).unwrap()).unwrap();
            let mut of: HashMap<&[u8], u32> = HashMap::new();
            let mut next = 0;
            let vectors = parts.iter().flat_map(|part| {
                let layout = Layout::parse(&codec, part).unwrap();
                (0..layout.rows())
                    .map(move |slot| &part[layout.vector_at(slot)..][..codec.graph_len()])
            });
            for (vector, &node) in vectors.zip(&becomes) {
                assert_eq!(walk.vector(&bytes, node), vector);
                let first = *of.entry(vector).or_insert(next);
                assert_eq!(node, first);
                next += u32::from(first == next);
            }
            assert_eq!(of.len(), walk.nodes);
            // usearch itself takes the graph for one of its own.
            assert_eq!(Graph::load(codec, 4, 16, &bytes).unwrap().len(), walk.nodes);
        }
    }

    /// As much is found as in a graph that was made in one part, with few candidates as with many.
    #[test]
    fn parts_find_each_other() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::F32);
        let all = points(7, 6000);
        let whole = raw(codec, 8, &all);
        let parts: Vec<Vec<u8>> = all.chunks(500).map(|part| raw(codec, 8, part)).collect();
        let (many, _) = joined(&codec, &parts, Place::Memory);
        let folder = tempfile::tempdir().unwrap();
        let found = [(whole, None), (many, Some(folder.path()))].map(|(mut bytes, folder)| {
            let form = Form {
                folder,
                is_joined: folder.is_some(),
                ..Form::of(&codec)
            };
            refine(
                form,
                &mut bytes,
                0,
                Widths::of_pass(80),
                2,
                &Passes::default(),
                &|| (),
            )
            .unwrap();
            link(&codec, &mut bytes, &|| ()).unwrap();
            let walk = Walk::new(&Layout::parse(&codec, &bytes).unwrap()).unwrap();
            [10, 40].map(|ef| {
                let (dot, mut scratch, mut found) = (dot_i8(), Vec::new(), 0);
                for query in points(8, 200) {
                    let mut stored = vec![0; codec.len()];
                    codec.encode(&query, 0.0, &mut stored);
                    let probe = Probe::at(&codec, &stored[..codec.graph_len()]);
                    let mut distance =
                        |vector: &[u8]| probe.graph_distance(&codec, vector, dot, &mut scratch);
                    let mut exact: Vec<f32> = (0..walk.nodes as u32)
                        .map(|node| distance(walk.vector(&bytes, node)))
                        .collect();
                    let tenth = *exact.select_nth_unstable_by(9, f32::total_cmp).1;
                    let hits = walk.search(&bytes, ef, &mut distance);
                    let distances = hits.iter().map(|&node| distance(walk.vector(&bytes, node)));
                    found += distances.filter(|&distance| distance <= tenth).count();
                }
                found
            })
        });
        let [whole, parts] = found;
        for (whole, parts) in whole.into_iter().zip(parts) {
            assert!(
                100 * parts >= 99 * whole,
                "{parts} of 2000, in one part {whole}"
            );
        }
    }

    #[test]
    fn parts_that_are_damaged_are_told() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::F32);
        let sound = raw(codec, 4, &points(9, 60));
        for cut in [0, 7, 100, sound.len() - 1] {
            let parts = [&sound[..], &sound[..cut]];
            let join = Join::of(&codec, &parts, Place::Memory, &|| ());
            let is_told = match join {
                Ok(join) => join.write(&mut vec![0; join.len()], &|| ()).is_err(),
                Err(_) => true,
            };
            assert!(is_told, "{cut}");
        }
    }
}
