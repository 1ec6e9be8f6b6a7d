//! Searching a serialized graph.
//!
//! Graphs are in usearch's format, which could search them too. It asks for one distance at a time, through
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
use std::sync::Arc;

use laser_cpu::prefetch;

use crate::error::Result;
use crate::graph::{Layout, NODE_HEAD, level_at, u32_at};

/// Bytes of vectors that are asked for ahead of the one whose distance is computed, as far as whole
/// vectors go.
const AHEAD: usize = 2048;
/// Seeds at most. A level has a sixteenth of the nodes of the one below it, with the default `m`.
const SEEDS: usize = 128;
/// Seeds that a walk on the lowest level begins with besides the node that the way down leads to.
const STARTS: usize = 4;
/// Nodes whose levels are added up wherever one of them begins. A sum for each node would take every session 4 MB for a
/// million of them.
const STRIDE: usize = 16;
/// What a query is near to is told by the distance of this one of the nearest nodes ([`crate::familiar`]).
pub(crate) const NEAREST: usize = 10;
/// Nodes all over a graph that [`Walk::look`] looks at there, and how many of them it begins with.
const SCATTERED: usize = 2048;
const SCATTERED_STARTS: usize = 16;

/// What walks in a graph need and only a look at all of its nodes tells. Whoever makes a segment's file keeps it for
/// those who open that, see [`crate::appendix`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Guide {
    /// The sum of the levels of the nodes before every [`STRIDE`]-th. Walks of many threads share them.
    pub(crate) sums: Arc<Vec<u32>>,
    /// Nodes from which walks begin: all from `seed_level` on, and those of [`Walk::begin_at`].
    pub(crate) seeds: Vec<u32>,
    pub(crate) seed_level: u32,
    /// Those of [`Walk::pass_by`].
    pub(crate) wanted: Vec<u32>,
    /// The distance of [`Walk::is_familiar`].
    pub(crate) familiar: Option<f32>,
    /// Whether inner products are searched for by distances, among nodes whose lengths differ ([`crate::seeds`]): walks take more
    /// candidates than elsewhere to find as much.
    pub(crate) lengths_differ: bool,
}

/// What a walk has found.
#[derive(Debug, Default)]
pub struct Found {
    /// Nodes near the query, in no order.
    pub nodes: Vec<u32>,
    /// Whether the query is like the nodes, for all that is known ([`crate::familiar`]).
    pub is_familiar: bool,
}

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
    levels: usize,
    first_node: usize,
    guide: Guide,
    state: RefCell<State>,
}

/// A distance and a node as one number with the order of the distances.
pub(crate) type Key = u64;

pub(crate) fn key(distance: f32, node: u32) -> Key {
    let bits = distance.to_bits();
    let ordered = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    };
    u64::from(ordered) << 32 | u64::from(node)
}

/// The distance and the node of a key.
pub(crate) fn parts(key: Key) -> (f32, u32) {
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

    /// The candidates, the nearest first.
    fn take_nearest_first(&mut self) -> Vec<u32> {
        let nearest = std::mem::take(&mut self.nearest).into_sorted_vec();
        nearest.into_iter().map(|key| key as u32).collect()
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

impl Guide {
    /// # Errors
    /// Nodes that do not lie in the graph.
    fn of(layout: &Layout<'_>) -> Result<Self> {
        let nodes = layout.rows();
        let mut sums = Vec::with_capacity(nodes.div_ceil(STRIDE));
        let mut sum = 0;
        // How many nodes have each level as their highest.
        let mut counts: Vec<usize> = Vec::new();
        layout.nodes(|node, _, level| {
            if node % STRIDE == 0 {
                sums.push(sum);
            }
            sum += level as u32;
            counts.resize(counts.len().max(level + 1), 0);
            counts[level] += 1;
            Ok(())
        })?;
        let mut guide = Self {
            sums: Arc::new(sums),
            ..Self::default()
        };
        let Some(entry) = u32::try_from(layout.entry)
            .ok()
            .filter(|entry| (*entry as usize) < nodes)
        else {
            return Ok(guide);
        };
        let mut level = counts.len();
        let mut above = 0;
        while level > 1 && above + counts[level - 1] <= SEEDS {
            level -= 1;
            above += counts[level];
        }
        let is_seed = |node: &u32| layout.level(*node as usize) >= level;
        guide.seeds = (0..nodes as u32).filter(is_seed).collect();
        if guide.seeds.is_empty() {
            // Most nodes are on the lowest level alone, or a file is strange.
            guide.seeds.push(entry);
            level = layout.level(entry as usize);
        }
        guide.seed_level = level as u32;
        Ok(guide)
    }

    /// Whether this may be a guide to a graph: it leads to no node that is not there.
    pub(crate) fn is_for(&self, layout: &Layout<'_>) -> bool {
        let nodes = layout.rows();
        let is_there = |node: &u32| (*node as usize) < nodes;
        self.sums.len() == nodes.div_ceil(STRIDE)
            && (!self.seeds.is_empty() || !u32::try_from(layout.entry).is_ok_and(|e| is_there(&e)))
            && self.seeds.iter().chain(&self.wanted).all(is_there)
    }
}

impl Walk {
    /// Finds its way in a graph.
    ///
    /// # Errors
    /// Nodes that do not lie in the graph.
    pub fn new(layout: &Layout<'_>) -> Result<Self> {
        Ok(Self::with(layout, Guide::of(layout)?))
    }

    /// Finds its way by a guide to the same graph, see [`Guide::is_for`].
    pub(crate) fn with(layout: &Layout<'_>, guide: Guide) -> Self {
        Self {
            nodes: layout.rows(),
            vector_len: layout.columns,
            ahead: (AHEAD / layout.columns.max(1)).clamp(1, 32),
            vectors: layout.vector_at(0),
            base_edges: layout.base_edges,
            edges: layout.edges,
            entry: u32::try_from(layout.entry).unwrap_or(u32::MAX),
            levels: layout.levels(),
            first_node: layout.first_node(),
            guide,
            state: RefCell::default(),
        }
    }

    /// What a look at all nodes has told.
    pub(crate) fn guide(&self) -> &Guide {
        &self.guide
    }

    /// Has walks begin at these nodes as well.
    pub(crate) fn begin_at(&mut self, nodes: impl IntoIterator<Item = u32>) {
        for node in nodes {
            let seeds = &mut self.guide.seeds;
            if !seeds.is_empty() && !seeds.contains(&node) {
                seeds.push(node);
            }
        }
    }

    /// Has walks tell queries that are farther than this from the tenth of their nearest nodes from others.
    pub(crate) fn familiar_within(&mut self, distance: Option<f32>) {
        self.guide.familiar = distance;
    }

    /// Has all walks look at these nodes.
    pub(crate) fn pass_by(&mut self, nodes: Vec<u32>) {
        self.guide.wanted = nodes;
    }

    /// Has walks know of [`Guide::lengths_differ`].
    pub(crate) fn lengths_differ(&mut self, differ: bool) {
        self.guide.lengths_differ = differ;
    }

    fn level(&self, graph: &[u8], node: u32) -> usize {
        level_at(graph, self.levels, node as usize)
    }

    /// Whether walks may come to a node on the lowest level from higher ones.
    pub(crate) fn may_begin_at(&self, graph: &[u8], node: u32) -> bool {
        node == self.entry || self.level(graph, node) > 0
    }

    /// Where a node begins.
    pub(crate) fn node_at(&self, graph: &[u8], node: u32) -> usize {
        let node = node as usize;
        let (before, at) = (node % STRIDE, self.levels + 2 * (node - node % STRIDE));
        let level = |b: &[u8]| u32::from(u16::from_le_bytes([b[0], b[1]]));
        // Behind the levels come the nodes: there is a whole stride but in the smallest graphs. That it is whole lets the
        // CPU add all at once.
        let between: u32 = match graph.get(at..at + 2 * STRIDE) {
            Some(levels) => levels
                .chunks_exact(2)
                .enumerate()
                .map(|(i, b)| if i < before { level(b) } else { 0 })
                .sum(),
            None => graph[at..].chunks_exact(2).take(before).map(level).sum(),
        };
        let levels = self
            .guide
            .sums
            .get(node / STRIDE)
            .map_or(0, |sum| sum.wrapping_add(between));
        self.first_node
            + node * (NODE_HEAD + 4 + 4 * self.base_edges)
            + levels as usize * (4 + 4 * self.edges)
    }

    /// The nodes of a level, ascending.
    pub(crate) fn nodes_of(&self, graph: &[u8], level: usize) -> Vec<u32> {
        let nodes = 0..self.nodes as u32;
        nodes
            .filter(|&node| self.level(graph, node) >= level)
            .collect()
    }

    /// Where the number of a node's edges on a level is, behind which they come.
    pub(crate) fn edges_at(&self, graph: &[u8], node: u32, level: usize) -> usize {
        let base = self.node_at(graph, node) + NODE_HEAD;
        match level {
            0 => base,
            _ => base + 4 + 4 * self.base_edges + (level - 1) * (4 + 4 * self.edges),
        }
    }

    /// Room for edges of a node on a level.
    pub(crate) fn room(&self, level: usize) -> usize {
        match level {
            0 => self.base_edges,
            _ => self.edges,
        }
    }

    pub(crate) fn vector<'a>(&self, graph: &'a [u8], node: u32) -> &'a [u8] {
        &graph[self.vectors + node as usize * self.vector_len..][..self.vector_len]
    }

    /// Neighbours of a node on a level that it has. What an edge of a damaged file leads to is there, and on that level.
    pub(crate) fn neighbours<'a>(
        &self,
        graph: &'a [u8],
        node: u32,
        level: usize,
    ) -> impl Iterator<Item = u32> + use<'a> {
        let (at, most) = (self.edges_at(graph, node, level), self.room(level));
        let count = u32_at(graph, at).map_or(0, |count| (count as usize).min(most));
        let (nodes, levels) = (self.nodes as u32, self.levels);
        let edges = graph.get(at + 4..at + 4 + 4 * count).unwrap_or_default();
        edges
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .filter(move |&node| {
                node < nodes && (level == 0 || level_at(graph, levels, node as usize) >= level)
            })
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

    /// Walks down to the level above `bottom`, always to the nearest neighbour. Leaves in `starts` the node
    /// where it ends, the nearest of the seeds, and what is passed by.
    fn descend(
        &self,
        graph: &[u8],
        bottom: usize,
        distance: &mut impl FnMut(&[u8]) -> f32,
        state: &mut State,
        starts: &mut Vec<Key>,
    ) {
        let State { fresh, found, .. } = state;
        starts.clear();
        self.measure(graph, &self.guide.seeds, distance, starts);
        starts.sort_unstable();
        let seed_level = self.guide.seed_level as usize;
        // Nodes at which walks only begin as well ([`Walk::begin_at`]) are on too low a level to go down from, and take no
        // other's place.
        let (mut best, mut leading, mut others, mut kept) = (starts[0], 0, 0, 0);
        for at in 0..starts.len() {
            let start = starts[at];
            if self.level(graph, start as u32) >= seed_level {
                leading += 1;
                if leading == 1 {
                    best = start;
                }
            } else if others <= STARTS {
                others += 1;
            } else {
                continue;
            }
            starts[kept] = start;
            kept += 1;
            if leading > STARTS {
                break;
            }
        }
        starts.truncate(kept);
        let top = seed_level.min(self.level(graph, best as u32));
        for level in (bottom + 1..=top).rev() {
            loop {
                fresh.clear();
                found.clear();
                let next = self.neighbours(graph, best as u32, level);
                fresh.extend(next);
                self.measure(graph, fresh, distance, found);
                match found.iter().min() {
                    Some(&nearest) if nearest < best => best = nearest,
                    _ => break,
                }
            }
        }
        starts.push(best);
        self.measure(graph, &self.guide.wanted, distance, starts);
    }

    /// Whether a walk with this number of candidates has nowhere to begin, or nothing to find.
    fn finds_nothing(&self, count: usize) -> bool {
        self.entry as usize >= self.nodes || count == 0
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
        self.look(graph, count, false, distance).nodes
    }

    /// As [`Self::search`]; `all_over`, the walk begins as well with the nearest of nodes all over the graph, whatever the edges
    /// between them: it is not caught where other walks are.
    pub fn look(
        &self,
        graph: &[u8],
        count: usize,
        all_over: bool,
        mut distance: impl FnMut(&[u8]) -> f32,
    ) -> Found {
        if self.finds_nothing(count) {
            return Found::default();
        }
        let scattered = if all_over { SCATTERED } else { 0 };
        let state = &mut *self.state.borrow_mut();
        state.clear(self.nodes);
        let mut starts = std::mem::take(&mut state.starts);
        self.descend(graph, 0, &mut distance, state, &mut starts);
        state.fresh.clear();
        state
            .fresh
            .extend(laser_sampling::scattered(self.nodes).take(scattered));
        state.found.clear();
        let State { fresh, found, .. } = &mut *state;
        self.measure(graph, fresh, &mut distance, found);
        if found.len() > SCATTERED_STARTS {
            found.select_nth_unstable(SCATTERED_STARTS);
            found.truncate(SCATTERED_STARTS);
        }
        starts.append(found);
        self.spread(state, graph, 0, &starts, count, distance);
        state.starts = starts;
        let mut keys: Vec<Key> = state.nearest.drain().collect();
        Found {
            is_familiar: self.is_familiar(&mut keys),
            nodes: keys.into_iter().map(|key| key as u32).collect(),
        }
    }

    /// Whether a query to which these are the nearest is no farther from them than nodes are from each other.
    fn is_familiar(&self, nearest: &mut [Key]) -> bool {
        let Some(familiar) = self.guide.familiar else {
            return true;
        };
        if nearest.len() < NEAREST {
            return true;
        }
        let (_, last, _) = nearest.select_nth_unstable(NEAREST - 1);
        parts(*last).0 <= familiar
    }

    /// The `count` nodes nearest to a query that a walk on the lowest level alone finds from where
    /// walks begin, the nearest first.
    pub(crate) fn search_base(
        &self,
        graph: &[u8],
        count: usize,
        mut distance: impl FnMut(&[u8]) -> f32,
    ) -> Vec<u32> {
        if self.finds_nothing(count) {
            return Vec::new();
        }
        let state = &mut *self.state.borrow_mut();
        state.clear(self.nodes);
        let start = key(distance(self.vector(graph, self.entry)), self.entry);
        self.spread(state, graph, 0, &[start], count, distance);
        state.take_nearest_first()
    }

    /// What a search that keeps `count` candidates finds instead of a node, by its vector, the nearest first; nothing where it
    /// finds one that is as near.
    pub(crate) fn instead_of(
        &self,
        graph: &[u8],
        node: u32,
        count: usize,
        mut distance: impl FnMut(&[u8]) -> f32,
    ) -> Vec<u32> {
        if self.finds_nothing(count) {
            return Vec::new();
        }
        let state = &mut *self.state.borrow_mut();
        state.clear(self.nodes);
        let mut starts = std::mem::take(&mut state.starts);
        self.descend(graph, 0, &mut distance, state, &mut starts);
        let own = key(distance(self.vector(graph, node)), u32::MAX);
        let is_found = starts.iter().any(|&start| start <= own)
            || self.spread_until(state, graph, 0, (&starts, count), distance, Some(own));
        state.starts = starts;
        if is_found {
            return Vec::new();
        }
        state.take_nearest_first()
    }

    /// The `count` nodes nearest to a node of a level that a walk over that level finds, from the node itself and from where
    /// a way down comes to the level; with their distances, in no order. The way down is one of the nearest nodes, or, if
    /// `across` is not zero, of that number of them on the level above: they lie in all parts of a level that no edges join.
    pub(crate) fn search_from(
        &self,
        graph: &[u8],
        (node, level): (u32, usize),
        across: usize,
        count: usize,
        mut distance: impl FnMut(&[u8]) -> f32,
    ) -> Vec<(f32, u32)> {
        let state = &mut *self.state.borrow_mut();
        state.clear(self.nodes);
        let mut starts = std::mem::take(&mut state.starts);
        let mut begin_on = |state: &mut State, level: usize, starts: &mut Vec<Key>| {
            self.descend(graph, level, &mut distance, state, starts);
            starts.retain(|&start| self.level(graph, start as u32) >= level);
        };
        if across > 0 {
            begin_on(state, level + 1, &mut starts);
        }
        if across > 0 && !starts.is_empty() {
            self.spread(state, graph, level + 1, &starts, across, &mut distance);
            starts.clear();
            starts.extend(state.nearest.drain());
            state.clear(self.nodes);
        } else {
            begin_on(state, level, &mut starts);
        }
        starts.push(key(distance(self.vector(graph, node)), node));
        self.spread(state, graph, level, &starts, count, distance);
        state.starts = starts;
        state.nearest.drain().map(parts).collect()
    }

    /// Walks over a level from `starts` on, and leaves the `count` nearest in the state,
    /// which is clear.
    fn spread(
        &self,
        state: &mut State,
        graph: &[u8],
        level: usize,
        starts: &[Key],
        count: usize,
        distance: impl FnMut(&[u8]) -> f32,
    ) {
        self.spread_until(state, graph, level, (starts, count), distance, None);
    }

    /// As [`Self::spread`], until something is found that is as near as `enough`; says whether it was.
    fn spread_until(
        &self,
        state: &mut State,
        graph: &[u8],
        level: usize,
        (starts, count): (&[Key], usize),
        mut distance: impl FnMut(&[u8]) -> f32,
        enough: Option<Key>,
    ) -> bool {
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
        let mut is_enough = false;
        'walk: while let Some(Reverse(from)) = state.next.pop() {
            if from > farthest && state.nearest.len() == count {
                break;
            }
            fresh.clear();
            found.clear();
            let next = self.neighbours(graph, from as u32, level);
            fresh.extend(next.filter(|&node| state.mark(node)));
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
                let head = self.node_at(graph, found as u32);
                prefetch(
                    graph
                        .get(head..head + NODE_HEAD + 4 * self.base_edges)
                        .unwrap_or_default(),
                );
                state.next.push(Reverse(found));
                farthest = *state.nearest.peek().expect("one was pushed");
                if enough.is_some_and(|enough| found <= enough) {
                    is_enough = true;
                    break 'walk;
                }
            }
        }
        state.fresh = fresh;
        state.found = found;
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::codec::Codec;
    use crate::graph::raw;
    use crate::metric::Metric;
    use crate::quantization::Quantization;

    #[test]
    fn nodes_are_where_the_graph_has_them() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let codec = Codec::new(2, Metric::L2, Quantization::F32);
        for count in [1, 2, 63, 64, 65, 1000] {
            // Few edges, hence many levels.
            let points: Vec<[f32; 2]> = (0..count).map(|_| rng.random()).collect();
            let graph = raw(codec, 2, &points);
            let layout = Layout::parse(&codec, &graph).unwrap();
            let walk = Walk::new(&layout).unwrap();
            let nodes = |slot: usize, at, level| {
                let node = slot as u32;
                assert_eq!(
                    (walk.node_at(&graph, node), walk.level(&graph, node)),
                    (at, level)
                );
                Ok(())
            };
            layout.nodes(nodes).unwrap();
        }
    }

    #[test]
    fn guides_to_other_graphs_are_told() {
        let codec = Codec::new(2, Metric::L2, Quantization::F32);
        let points: Vec<[f32; 2]> = (0..200).map(|i| [i as f32, 0.0]).collect();
        let graph = raw(codec, 4, &points);
        let layout = Layout::parse(&codec, &graph).unwrap();
        let guide = Guide::of(&layout).unwrap();
        assert!(guide.is_for(&layout));
        let changed = |change: &dyn Fn(&mut Guide)| {
            let mut guide = guide.clone();
            change(&mut guide);
            guide.is_for(&layout)
        };
        assert!(!changed(&|guide| Arc::make_mut(&mut guide.sums).push(0)));
        assert!(!changed(&|guide| guide.seeds.push(200)));
        assert!(!changed(&|guide| guide.seeds.clear()));
        assert!(!changed(&|guide| guide.wanted.push(u32::MAX)));
        assert!(changed(&|guide| guide.wanted.push(199)));
    }
}
