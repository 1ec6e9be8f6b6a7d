//! The order of the nodes in a segment: neighbours beside each other.
//!
//! A walk goes from neighbour to neighbour, and what it has read of one page of memory, or of the disk, is not read again. So nodes
//! that it meets one after the other lie together (Coleman, Segarra, Smola & Shrivastava 2021, "Graph Reordering for Cache-Efficient
//! Near Neighbor Search"), whatever the order in which rows came.

use crate::codec::Codec;
use crate::error::{IndexError, Result};
use crate::graph::{Layout, NODE_HEAD, level_at, u32_at, u64_at};
use crate::table::{Place, Table};
use crate::walk::Walk;

/// Nodes that lie together: their vectors and lists fill some tens of pages, as many as the system maps or reads at once. In seven
/// segments of 43,000 rows in 96 dimensions a first search had 1,190 page faults in the order in which rows came, 761 with blocks
/// of 512 nodes, 766 with 256, 762 with 1,024, and 871 where each node follows the nearest one before it.
const BLOCK: usize = 512;
/// Nodes between two pauses.
const BETWEEN: usize = 1 << 14;
/// Bytes that are copied between two pauses.
const COPIED: usize = 16 << 20;
/// Where a block has a node, or one before it.
const PLACED: u16 = u16::MAX;

/// All nodes of a graph, block by block: to a block comes whichever node most edges of those in it lead to, and the next one begins
/// with the node that this one wanted next. `neighbours` adds those of a node to a list.
///
/// # Errors
/// No memory, no room on the disk.
pub(crate) fn by_place(
    nodes: usize,
    place: Place<'_>,
    mut neighbours: impl FnMut(u32, &mut Vec<u32>),
    pause: &dyn Fn(),
) -> Result<Table<u32>> {
    let mut order = Table::<u32>::zeroed(nodes, place)?;
    let mut block = Block::of(nodes, place)?;
    let (mut ordered, mut list) = (0, Vec::new());
    for first in 0..nodes as u32 {
        // What no edge leads to begins a block as well.
        let mut next = block.is_new(first).then_some(first);
        while let Some(node) = next {
            order[ordered] = node;
            ordered += 1;
            if ordered.is_multiple_of(BETWEEN) {
                pause();
            }
            list.clear();
            neighbours(node, &mut list);
            block.place(node, &list);
            next = block.most_wanted();
            if ordered.is_multiple_of(BLOCK) {
                block.end();
            }
        }
    }
    Ok(order)
}

/// The block that grows.
struct Block {
    /// For each node the number of edges that lead to it from this block, or [`PLACED`].
    leading: Table<u16>,
    /// Nodes to which some do.
    known: Vec<u32>,
    /// The same nodes by that number, each also where it was when fewer did.
    by_leading: Vec<Vec<u32>>,
}

impl Block {
    fn of(nodes: usize, place: Place<'_>) -> Result<Self> {
        Ok(Self {
            leading: Table::zeroed(nodes, place)?,
            known: Vec::new(),
            by_leading: Vec::new(),
        })
    }

    fn is_new(&self, node: u32) -> bool {
        self.leading[node as usize] != PLACED
    }

    fn place(&mut self, node: u32, neighbours: &[u32]) {
        self.leading[node as usize] = PLACED;
        for &to in neighbours {
            let leading = &mut self.leading[to as usize];
            if *leading == PLACED {
                continue;
            }
            if *leading == 0 {
                self.known.push(to);
            }
            // Of a damaged graph there may be more than can be counted.
            *leading = (*leading + 1).min(PLACED - 1);
            let leading = usize::from(*leading);
            if self.by_leading.len() <= leading {
                self.by_leading.resize_with(leading + 1, Vec::new);
            }
            self.by_leading[leading].push(to);
        }
    }

    fn most_wanted(&mut self) -> Option<u32> {
        for (leading, nodes) in self.by_leading.iter_mut().enumerate().rev() {
            while let Some(node) = nodes.pop() {
                if usize::from(self.leading[node as usize]) == leading {
                    return Some(node);
                }
            }
        }
        None
    }

    fn end(&mut self) {
        for node in self.known.drain(..) {
            let leading = &mut self.leading[node as usize];
            if *leading != PLACED {
                *leading = 0;
            }
        }
        self.by_leading.iter_mut().for_each(Vec::clear);
    }
}

/// Puts the nodes of a serialized graph into the order of [`by_place`], each with its key. Where there is no memory, or no room on
/// the disk, they stay where they are: a graph does without.
///
/// # Errors
/// Damage.
pub(crate) fn renumber(
    codec: &Codec,
    graph: &mut [u8],
    place: Place<'_>,
    pause: &dyn Fn(),
) -> Result<()> {
    match try_renumber(codec, graph, place, pause) {
        Err(lack) if lack.is_lack() => Ok(()),
        done => done,
    }
}

/// The same. After an error nothing has changed.
fn try_renumber(codec: &Codec, graph: &mut [u8], place: Place<'_>, pause: &dyn Fn()) -> Result<()> {
    let layout = Layout::parse(codec, graph)?;
    let walk = Walk::new(&layout)?;
    let vectors = layout.vector_at(0)..layout.vector_at(walk.nodes);
    let (levels, columns, entry) = (layout.levels(), layout.columns, layout.entry_at());
    let mut at = layout.first_node();
    let lens = [layout.node_len(0), layout.node_len(1)];
    let list = |node, out: &mut Vec<u32>| out.extend(walk.neighbours(graph, node, 0));
    let order = by_place(walk.nodes, place, list, pause)?;
    let mut numbers = Table::<u32>::zeroed(walk.nodes, place)?;
    for (number, node) in (0..).zip(order.iter()) {
        numbers[*node as usize] = number;
    }
    let most = vectors.len().max(graph.len() - levels);
    let mut before = Table::<u8>::zeroed(most, place)?;
    let moved = || {
        let numbered = order.iter().enumerate();
        numbered.inspect(|(new, _)| {
            if new.is_multiple_of(BETWEEN) {
                pause();
            }
        })
    };

    let vectors = &mut graph[vectors];
    copy(vectors, &mut before, pause);
    for (new, &old) in moved() {
        let vector = &before[old as usize * columns..][..columns];
        vectors[new * columns..][..columns].copy_from_slice(vector);
    }
    copy(&graph[levels..], &mut before, pause);
    // Where a node was is told by the levels, which come last.
    for (_, &old) in moved() {
        let from = walk.node_at(graph, old) - levels;
        let level = level_at(graph, levels, old as usize);
        let len = lens[0] + level * (lens[1] - lens[0]);
        let node = &mut graph[at..][..len];
        node.copy_from_slice(&before[from..][..len]);
        let mut list = NODE_HEAD;
        for level in 0..=level {
            let room = walk.room(level);
            let count = u32_at(node, list).map_or(0, |count| (count as usize).min(room));
            for edge in node[list + 4..][..4 * count].chunks_exact_mut(4) {
                let to = u32_at(edge, 0).expect("four bytes") as usize;
                // An edge that leads nowhere goes on doing so.
                let to = numbers.get(to).map_or(u32::MAX, |number| *number);
                edge.copy_from_slice(&to.to_le_bytes());
            }
            list += 4 + 4 * room;
        }
        at += len;
    }
    for (new, &old) in moved() {
        graph[levels + 2 * new..][..2].copy_from_slice(&before[2 * old as usize..][..2]);
    }
    let first = numbers.get(walk.entry as usize).copied();
    let first = u64::from(first.unwrap_or(u32::MAX));
    graph[entry..entry + 8].copy_from_slice(&first.to_le_bytes());
    Ok(())
}

/// Copies bytes to the front of a table.
fn copy(bytes: &[u8], to: &mut [u8], pause: &dyn Fn()) {
    for (to, from) in to.chunks_mut(COPIED).zip(bytes.chunks(COPIED)) {
        to[..from.len()].copy_from_slice(from);
        pause();
    }
}

/// Makes the number of each node of a serialized graph its key, and tells of the key that it had.
///
/// # Errors
/// Damage.
pub(crate) fn number_keys(
    codec: &Codec,
    graph: &mut [u8],
    mut tell: impl FnMut(u64, u32),
) -> Result<()> {
    let layout = Layout::parse(codec, graph)?;
    let (rows, levels, mut at) = (layout.rows(), layout.levels(), layout.first_node());
    let lens = [layout.node_len(0), layout.node_len(1)];
    for node in 0..rows {
        let Some(key) = u64_at(graph, at) else {
            return Err(IndexError::Graph("the serialized graph is damaged".into()));
        };
        tell(key, node as u32);
        graph[at..at + 8].copy_from_slice(&(node as u64).to_le_bytes());
        at += lens[0] + level_at(graph, levels, node) * (lens[1] - lens[0]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::codec::Format;
    use crate::graph::raw;
    use crate::metric::Metric;
    use crate::quantization::Quantization;

    const CODEC: Codec = Codec {
        dims: 3,
        metric: Metric::L2,
        quantization: Quantization::I8,
        format: Format::Second,
    };

    /// A graph of random points.
    fn graph(rng: &mut impl Rng, codec: Codec, m: usize, count: usize) -> Vec<u8> {
        let points: Vec<[f32; 3]> = (0..count).map(|_| rng.random()).collect();
        raw(codec, m, &points)
    }

    type Node = (Vec<u8>, usize, Vec<Vec<u64>>);

    /// What is known of the node of each key: its vector, its level, and the keys of its neighbours on each level.
    fn nodes(codec: &Codec, graph: &[u8]) -> Vec<Node> {
        let layout = Layout::parse(codec, graph).unwrap();
        let walk = Walk::new(&layout).unwrap();
        let keys: Vec<u64> = layout.keys().unwrap().iter().map(|(_, key)| *key).collect();
        let mut nodes: Vec<Node> = vec![Node::default(); keys.len()];
        for (slot, &key) in keys.iter().enumerate() {
            let (level, slot) = (layout.level(slot), slot as u32);
            let edges = |level| walk.neighbours(graph, slot, level);
            let lists = (0..=level).map(|level| edges(level).map(|to| keys[to as usize]).collect());
            let vector = walk.vector(graph, slot).to_vec();
            nodes[key as usize] = (vector, level, lists.collect());
        }
        nodes
    }

    /// The share of edges that stay in a block.
    fn within(codec: &Codec, graph: &[u8]) -> f64 {
        let walk = Walk::new(&Layout::parse(codec, graph).unwrap()).unwrap();
        let (mut within, mut count) = (0, 0);
        for node in 0..walk.nodes as u32 {
            for to in walk.neighbours(graph, node, 0) {
                within += u32::from(node / BLOCK as u32 == to / BLOCK as u32);
                count += 1;
            }
        }
        f64::from(within) / f64::from(count)
    }

    #[test]
    fn the_graph_is_the_same_and_neighbours_lie_together() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let folder = tempfile::tempdir().unwrap();
        for (count, m) in [(0, 4), (1, 4), (2, 2), (70, 2), (3000, 8)] {
            for quantization in [Quantization::I8, Quantization::F32, Quantization::B1] {
                let codec = Codec::new(3, Metric::L2, quantization);
                let before = graph(&mut rng, codec, m, count);
                for place in [Place::Memory, Place::Folder(folder.path())] {
                    let mut after = before.clone();
                    renumber(&codec, &mut after, place, &|| ()).unwrap();
                    let (known, now) = (nodes(&codec, &before), nodes(&codec, &after));
                    assert_eq!(known, now);
                    let entry = |graph: &[u8]| {
                        let layout = Layout::parse(&codec, graph).unwrap();
                        let keys = layout.keys().unwrap();
                        keys.get(layout.entry as usize).map(|(_, key)| *key)
                    };
                    assert_eq!(entry(&before), entry(&after));
                    if count == 3000 && quantization != Quantization::B1 {
                        let (before, after) = (within(&codec, &before), within(&codec, &after));
                        assert!(before < 0.3 && after > 0.7, "{before} {after}");
                    }
                    let mut keys = vec![u64::MAX; count];
                    number_keys(&codec, &mut after, |key, node| keys[node as usize] = key).unwrap();
                    Layout::parse(&codec, &after)
                        .unwrap()
                        .verify(&|| ())
                        .unwrap();
                    let numbered = nodes(&codec, &after);
                    for (node, key) in keys.iter().enumerate() {
                        assert_eq!(numbered[node].0, known[*key as usize].0);
                    }
                }
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// What leads nowhere goes on doing so.
    #[test]
    fn edges_to_nodes_that_are_not_there_are_kept() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut graph = graph(&mut rng, CODEC, 4, 200);
        let (edge, entry, key) = {
            let layout = Layout::parse(&CODEC, &graph).unwrap();
            let walk = Walk::new(&layout).unwrap();
            let key = layout.keys().unwrap()[17].1;
            (walk.edges_at(&graph, 17, 0) + 4, layout.entry_at(), key)
        };
        graph[edge..edge + 4].copy_from_slice(&200u32.to_le_bytes());
        graph[entry..entry + 8].copy_from_slice(&200u64.to_le_bytes());
        renumber(&CODEC, &mut graph, Place::Memory, &|| ()).unwrap();
        let layout = Layout::parse(&CODEC, &graph).unwrap();
        assert!(layout.entry >= 200);
        let mut keys = layout.keys().unwrap().into_iter();
        let node = keys.position(|(_, own)| own == key).unwrap() as u32;
        let walk = Walk::new(&layout).unwrap();
        let edge = walk.edges_at(&graph, node, 0) + 4;
        assert!(u32_at(&graph, edge).unwrap() >= 200);
    }

    #[test]
    fn a_pause_that_unwinds_before_anything_moves_changes_nothing() {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let before = graph(&mut rng, CODEC, 4, 300);
        let mut graph = before.clone();
        let left = catch_unwind(AssertUnwindSafe(|| {
            renumber(&CODEC, &mut graph, Place::Memory, &|| {
                resume_unwind(Box::new(()))
            })
        }));
        assert!(left.is_err());
        assert!(graph == before);
    }

    /// Edges to nodes that are not there do no harm.
    #[test]
    fn damage_is_an_error_or_stays() {
        let mut rng = ChaCha8Rng::seed_from_u64(6);
        let whole = graph(&mut rng, CODEC, 4, 200);
        for _ in 0..2000 {
            let mut graph = whole.clone();
            for _ in 0..rng.random_range(1..20) {
                let at = rng.random_range(0..graph.len());
                graph[at] = rng.random();
            }
            graph.truncate(rng.random_range(graph.len() / 2..2 * graph.len()));
            if renumber(&CODEC, &mut graph, Place::Memory, &|| ()).is_ok() {
                let _ = number_keys(&CODEC, &mut graph, |_, _| ());
            }
        }
    }
}
