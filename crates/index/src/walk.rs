//! Searching a serialized graph.
//!
//! usearch builds the graphs and could search them too. It asks for one distance at a time, through
//! two function pointers, and waits for each vector to arrive from memory, which takes longer than
//! to compute its distance. This walk (Malkov & Yashunin 2016, algorithms 2 and 5) asks for the
//! vectors of a node's neighbours while it computes the distances of those before them, and believes
//! nothing that a file says: an edge that leads nowhere is passed over.
//!
//! A walk does not begin at one node but looks at all nodes of the highest levels (*seeds*): where data
//! lie in several places, the neighbours of a node are all in its own, and a walk that came down in
//! the wrong one would never leave it. Nor would it come to a node that others surround at one distance, as rows
//! without a value around a ring: nodes that many rows share are seeds as well ([`Walk::begin_at`]). Of the seeds those
//! nearest to the query are gone on from; nodes that most queries want are candidates of every walk ([`Walk::pass_by`]).

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use laser_cpu::prefetch;

use crate::error::Result;
use crate::graph::{Layout, NODE_HEAD, u32_at};

/// Bytes of vectors that are asked for ahead of the one whose distance is computed, as far as whole
/// vectors go.
const AHEAD: usize = 2048;
/// Seeds at most. A level has a sixteenth of the nodes of the one below it, with the default `m`.
const SEEDS: usize = 128;
/// Seeds that a walk on the lowest level begins with besides the node that the way down leads to.
const STARTS: usize = 4;
/// Nodes all over a graph that [`Walk::search_all_over`] looks at, and how many of them it begins with.
const SCATTERED: usize = 2048;
const SCATTERED_STARTS: usize = 16;

/// Where things are in a serialized graph, and what a walk needs besides.
#[derive(Debug)]
pub struct Walk {
    pub(crate) nodes: usize,
    vector_len: usize,
    /// Vectors within [`AHEAD`].
    ahead: usize,
    vectors: usize,
    /// Room for edges of a node on the lowest level.
    pub(crate) base_edges: usize,
    edges: usize,
    /// A node of the highest level.
    pub(crate) entry: u32,
    /// Nodes from which walks begin: all from `seed_level` on, and those of [`Self::begin_at`].
    seeds: Vec<u32>,
    seed_level: usize,
    /// Those of [`Self::pass_by`].
    wanted: Vec<u32>,
    first_node: usize,
    /// For every node, and behind the last one, the sum of the levels of those before it.
    levels_before: Vec<u32>,
    state: RefCell<State>,
}

/// A distance and a node as one number with the order of the distances.
type Key = u64;

fn key(distance: f32, node: u32) -> Key {
    let bits = distance.to_bits();
    let ordered = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    };
    u64::from(ordered) << 32 | u64::from(node)
}

/// The distance and the node of a key.
fn parts(key: Key) -> (f32, u32) {
    let ordered = (key >> 32) as u32;
    let bits = if ordered >> 31 == 1 {
        ordered & !(1 << 31)
    } else {
        !ordered
    };
    (f32::from_bits(bits), key as u32)
}

/// Room that searches share.
#[derive(Debug, Default)]
struct State {
    /// One bit for each node.
    seen: Vec<u64>,
    /// Nodes whose bits are set.
    touched: Vec<u32>,
    /// Nodes to go on from, the nearest first.
    next: BinaryHeap<Reverse<Key>>,
    /// Candidates, the farthest first.
    nearest: BinaryHeap<Key>,
    /// Neighbours of one node.
    fresh: Vec<u32>,
    /// Their distances.
    found: Vec<Key>,
    /// Where a walk on the lowest level begins.
    starts: Vec<Key>,
}

impl State {
    /// Forgets the search before, which may have ended anyhow.
    fn clear(&mut self, nodes: usize) {
        self.seen.resize(nodes.div_ceil(64), 0);
        for node in self.touched.drain(..) {
            self.seen[node as usize / 64] = 0;
        }
        self.next.clear();
        self.nearest.clear();
    }

    /// Marks a node; says whether it was not marked before.
    fn mark(&mut self, node: u32) -> bool {
        let (word, bit) = (&mut self.seen[node as usize / 64], 1 << (node % 64));
        let new = *word & bit == 0;
        if new {
            *word |= bit;
            self.touched.push(node);
        }
        new
    }
}

impl Walk {
    /// Finds its way in a graph.
    ///
    /// # Errors
    /// Damage.
    pub fn new(layout: &Layout<'_>) -> Result<Self> {
        let nodes = layout.rows();
        let mut levels_before = Vec::with_capacity(nodes + 1);
        let mut sum = 0;
        // How many nodes have each level as their highest.
        let mut counts: Vec<usize> = Vec::new();
        layout.nodes(|_, _, level| {
            levels_before.push(sum);
            sum += level as u32;
            counts.resize(counts.len().max(level + 1), 0);
            counts[level] += 1;
            Ok(())
        })?;
        levels_before.push(sum);
        let mut walk = Self {
            nodes,
            vector_len: layout.columns,
            ahead: (AHEAD / layout.columns.max(1)).clamp(1, 32),
            vectors: layout.vector_at(0),
            base_edges: layout.base_edges,
            edges: layout.edges,
            entry: u32::try_from(layout.entry).unwrap_or(u32::MAX),
            seeds: Vec::new(),
            seed_level: 0,
            wanted: Vec::new(),
            first_node: layout.first_node(),
            levels_before,
            state: RefCell::default(),
        };
        if (walk.entry as usize) < nodes {
            let mut level = counts.len();
            let mut above = 0;
            while level > 1 && above + counts[level - 1] <= SEEDS {
                level -= 1;
                above += counts[level];
            }
            walk.seeds = (0..nodes as u32)
                .filter(|&node| walk.level(node) >= level)
                .collect();
            walk.seed_level = level;
            if walk.seeds.is_empty() {
                // Most nodes are on the lowest level alone, or a file is strange.
                walk.seeds.push(walk.entry);
                walk.seed_level = walk.level(walk.entry);
            }
        }
        Ok(walk)
    }

    /// Has walks begin at these nodes as well.
    pub(crate) fn begin_at(&mut self, nodes: impl IntoIterator<Item = u32>) {
        for node in nodes {
            if !self.seeds.is_empty() && !self.seeds.contains(&node) {
                self.seeds.push(node);
            }
        }
    }

    /// Has all walks look at these nodes.
    pub(crate) fn pass_by(&mut self, nodes: Vec<u32>) {
        self.wanted = nodes;
    }

    fn level(&self, node: u32) -> usize {
        let node = node as usize;
        (self.levels_before[node + 1] - self.levels_before[node]) as usize
    }

    /// Whether walks may come to a node on the lowest level from higher ones.
    pub(crate) fn may_begin_at(&self, node: u32) -> bool {
        node == self.entry || self.level(node) > 0
    }

    /// Where a node begins.
    pub(crate) fn node_at(&self, node: u32) -> usize {
        let node = node as usize;
        self.first_node
            + node * (NODE_HEAD + 4 + 4 * self.base_edges)
            + self.levels_before[node] as usize * (4 + 4 * self.edges)
    }

    pub(crate) fn vector<'a>(&self, graph: &'a [u8], node: u32) -> &'a [u8] {
        &graph[self.vectors + node as usize * self.vector_len..][..self.vector_len]
    }

    /// Neighbours of a node on a level that it has.
    pub(crate) fn neighbours<'a>(
        &self,
        graph: &'a [u8],
        node: u32,
        level: usize,
    ) -> impl Iterator<Item = u32> + use<'a> {
        let (mut at, mut most) = (self.node_at(node) + NODE_HEAD, self.base_edges);
        if level > 0 {
            at += 4 + 4 * self.base_edges + (level - 1) * (4 + 4 * self.edges);
            most = self.edges;
        }
        let count = u32_at(graph, at).map_or(0, |count| (count as usize).min(most));
        let nodes = self.nodes as u32;
        graph[at + 4..][..4 * count]
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .filter(move |&node| node < nodes)
    }

    /// Appends the distances of nodes to `found`.
    fn measure(
        &self,
        graph: &[u8],
        nodes: &[u32],
        distance: &mut impl FnMut(&[u8]) -> f32,
        found: &mut Vec<Key>,
    ) {
        for &node in nodes.iter().take(self.ahead) {
            prefetch(self.vector(graph, node));
        }
        for (i, &node) in nodes.iter().enumerate() {
            if let Some(&later) = nodes.get(i + self.ahead) {
                prefetch(self.vector(graph, later));
            }
            found.push(key(distance(self.vector(graph, node)), node));
        }
    }

    /// Walks down to the lowest level, always to the nearest neighbour. Leaves in `starts` the node
    /// where it ends, the nearest of the seeds, and what is passed by.
    fn descend(
        &self,
        graph: &[u8],
        distance: &mut impl FnMut(&[u8]) -> f32,
        state: &mut State,
        starts: &mut Vec<Key>,
    ) {
        let State { fresh, found, .. } = state;
        starts.clear();
        self.measure(graph, &self.seeds, distance, starts);
        starts.sort_unstable();
        starts.truncate(1 + STARTS);
        let mut best = starts[0];
        for level in (1..=self.seed_level.min(self.level(best as u32))).rev() {
            loop {
                fresh.clear();
                found.clear();
                let next = self.neighbours(graph, best as u32, level);
                fresh.extend(next.filter(|&node| self.level(node) >= level));
                self.measure(graph, fresh, distance, found);
                match found.iter().min() {
                    Some(&nearest) if nearest < best => best = nearest,
                    _ => break,
                }
            }
        }
        starts.push(best);
        self.measure(graph, &self.wanted, distance, starts);
    }

    /// The `count` nodes nearest to a query that a walk with as many candidates finds, in no order.
    /// `graph` are the bytes that this was made from; `distance` is that of a vector in it to the
    /// query.
    pub fn search(
        &self,
        graph: &[u8],
        count: usize,
        distance: impl FnMut(&[u8]) -> f32,
    ) -> Vec<u32> {
        self.search_with(graph, count, 0, distance)
    }

    /// As [`Self::search`], of a walk that begins as well with the nearest of nodes all over the graph, whatever the
    /// edges between them: it is not caught where other walks are.
    pub fn search_all_over(
        &self,
        graph: &[u8],
        count: usize,
        distance: impl FnMut(&[u8]) -> f32,
    ) -> Vec<u32> {
        self.search_with(graph, count, SCATTERED, distance)
    }

    fn search_with(
        &self,
        graph: &[u8],
        count: usize,
        scattered: usize,
        mut distance: impl FnMut(&[u8]) -> f32,
    ) -> Vec<u32> {
        if self.entry as usize >= self.nodes || count == 0 {
            return Vec::new();
        }
        let state = &mut *self.state.borrow_mut();
        state.clear(self.nodes);
        let mut starts = std::mem::take(&mut state.starts);
        self.descend(graph, &mut distance, state, &mut starts);
        // Weyl's sequence lies evenly among the nodes, and in step with nothing in their order.
        let place = |i: usize| (i as u32).wrapping_mul(0x9e37_79b9);
        let node = |i| ((u64::from(place(i)) * self.nodes as u64) >> u32::BITS) as u32;
        state.fresh.clear();
        state.fresh.extend((0..scattered).map(node));
        state.found.clear();
        let State { fresh, found, .. } = &mut *state;
        self.measure(graph, fresh, &mut distance, found);
        if found.len() > SCATTERED_STARTS {
            found.select_nth_unstable(SCATTERED_STARTS);
            found.truncate(SCATTERED_STARTS);
        }
        starts.append(found);
        self.spread(state, graph, &starts, count, distance);
        state.starts = starts;
        state.nearest.drain().map(|key| key as u32).collect()
    }

    /// The `count` nodes nearest to a query that a walk on the lowest level alone finds from where
    /// walks begin, the nearest first.
    pub(crate) fn search_base(
        &self,
        graph: &[u8],
        count: usize,
        mut distance: impl FnMut(&[u8]) -> f32,
    ) -> Vec<u32> {
        if self.entry as usize >= self.nodes || count == 0 {
            return Vec::new();
        }
        let state = &mut *self.state.borrow_mut();
        state.clear(self.nodes);
        let start = key(distance(self.vector(graph, self.entry)), self.entry);
        self.spread(state, graph, &[start], count, distance);
        let nearest = std::mem::take(&mut state.nearest).into_sorted_vec();
        nearest.into_iter().map(|key| key as u32).collect()
    }

    /// The same from a node on, with their distances, in no order.
    pub(crate) fn search_from(
        &self,
        graph: &[u8],
        node: u32,
        count: usize,
        mut distance: impl FnMut(&[u8]) -> f32,
    ) -> Vec<(f32, u32)> {
        let state = &mut *self.state.borrow_mut();
        state.clear(self.nodes);
        let start = key(distance(self.vector(graph, node)), node);
        self.spread(state, graph, &[start], count, distance);
        state.nearest.drain().map(parts).collect()
    }

    /// Walks over the lowest level from `starts` on, and leaves the `count` nearest in the state,
    /// which is clear.
    fn spread(
        &self,
        state: &mut State,
        graph: &[u8],
        starts: &[Key],
        count: usize,
        mut distance: impl FnMut(&[u8]) -> f32,
    ) {
        let mut fresh = std::mem::take(&mut state.fresh);
        let mut found = std::mem::take(&mut state.found);
        for &start in starts {
            if state.mark(start as u32) {
                state.next.push(Reverse(start));
                state.nearest.push(start);
            }
        }
        while state.nearest.len() > count {
            state.nearest.pop();
        }
        let mut farthest = *state.nearest.peek().expect("a walk begins somewhere");
        while let Some(Reverse(from)) = state.next.pop() {
            if from > farthest && state.nearest.len() == count {
                break;
            }
            fresh.clear();
            found.clear();
            fresh.extend(
                self.neighbours(graph, from as u32, 0)
                    .filter(|&node| state.mark(node)),
            );
            // All distances first: what is done with them branches in ways that the CPU cannot
            // foresee, and would have it drop distances that it has begun.
            self.measure(graph, &fresh, &mut distance, &mut found);
            for &found in &found {
                if state.nearest.len() < count {
                    state.nearest.push(found);
                } else if found < farthest {
                    *state.nearest.peek_mut().expect("it is full") = found;
                } else {
                    continue;
                }
                let head = self.node_at(found as u32);
                prefetch(&graph[head..head + NODE_HEAD + 4 * self.base_edges]);
                state.next.push(Reverse(found));
                farthest = *state.nearest.peek().expect("one was pushed");
            }
        }
        state.fresh = fresh;
        state.found = found;
    }
}
