//! Which nodes the edges of a node lead to.

use super::lists::List;
use crate::between::Between;
use crate::codec::Codec;
use crate::error::Result;
use crate::graph::Layout;
use crate::kernels::{DotI8, dot_i8};
use crate::walk::{Guide, Walk};

/// One in this many edges of a longer node is for any other, whatever their ranges.
const LEAST_SHARE: usize = 8;
/// Edges to a node from which on it is as good as any.
pub(super) const ENOUGH: usize = 20;

/// Chooses the edges of one node after the other.
pub(super) struct Chooser<'a> {
    codec: &'a Codec,
    graph: &'a [u8],
    walk: Walk,
    dot: DotI8,
    between: Between<'a>,
    /// Nodes on the level above that walks for candidates begin at, beside those to which the way down leads.
    across: usize,
    /// See [`Chooser::distinguish`]; empty where there are no ranges.
    depths: &'a [u8],
    node: u32,
    candidates: Vec<Candidate>,
    /// Components of the candidates, where they are compared as floats.
    floats: Vec<f32>,
    passed_over: Vec<Candidate>,
    scratch: Vec<f32>,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// From the node whose edges are chosen.
    distance: f32,
    node: u32,
    /// Where its components begin.
    at: u32,
}

impl<'a> Chooser<'a> {
    /// `guide` is to this graph, whatever edges its nodes have.
    ///
    /// # Errors
    /// Damage.
    pub(super) fn new(codec: &'a Codec, graph: &'a [u8], guide: &Guide) -> Result<Self> {
        Ok(Self {
            codec,
            graph,
            walk: Walk::with(&Layout::parse(codec, graph)?, guide.clone()),
            dot: dot_i8(),
            between: Between::new(codec),
            across: 0,
            depths: &[],
            node: 0,
            candidates: Vec::new(),
            floats: Vec::new(),
            passed_over: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Has walks for candidates begin at this number of nodes of the level above, which lie in all parts of a graph that no edges
    /// join below.
    pub(super) fn begin_across(&mut self, nodes: usize) {
        self.across = nodes;
    }

    /// Has half of the edges of longer nodes and more lead to others of these ([`Chooser::choose`]). `depths` has of every node in how
    /// many of their ranges it is.
    pub(super) fn distinguish(&mut self, depths: &'a [u8]) {
        self.depths = depths;
    }

    /// In how many ranges a node is.
    pub(super) fn depth(&self, node: u32) -> u8 {
        self.depths.get(node as usize).copied().unwrap_or(0)
    }

    /// Has walks for candidates look at these nodes.
    pub(super) fn pass_by(&mut self, nodes: &[u32]) {
        self.walk.pass_by(nodes.to_vec());
    }

    /// Begins with a node; it gets the place of a candidate to be measured from.
    pub(super) fn begin(&mut self, node: u32) {
        self.node = node;
        self.candidates.clear();
        self.floats.clear();
        self.decode(node);
    }

    /// The node's vector.
    pub(super) fn vector(&self) -> &'a [u8] {
        self.walk.vector(self.graph, self.node)
    }

    fn decode(&mut self, node: u32) -> u32 {
        let at = self.floats.len() as u32;
        if !self.codec.has_integer_codes() {
            let vector = self.walk.vector(self.graph, node);
            self.codec.components(vector, &mut self.scratch);
            self.floats.extend_from_slice(&self.scratch);
        }
        at
    }

    fn distance(&self, a: Candidate, b: Candidate) -> f32 {
        if self.codec.has_integer_codes() {
            let place = |of: Candidate| self.walk.vector(self.graph, of.node);
            return self.codec.code_distance(self.dot, place(a), place(b));
        }
        let place = |of: Candidate| &self.floats[of.at as usize..][..self.codec.width()];
        self.codec.float_distance(place(a), place(b))
    }

    /// Adds candidates.
    pub(super) fn add(&mut self, nodes: &[u32]) {
        let centre = Candidate {
            distance: 0.0,
            node: self.node,
            at: 0,
        };
        for &node in nodes {
            if node == self.node {
                continue;
            }
            let mut candidate = Candidate {
                distance: 0.0,
                node,
                at: self.decode(node),
            };
            candidate.distance = self.distance(centre, candidate);
            self.candidates.push(candidate);
        }
    }

    /// Adds what a walk over a level finds that begins at the node itself and where a way down comes to the level. Of nodes
    /// that came one beside the other, as of a time series, all edges lead to those before and behind: where such a path
    /// comes near itself again, the way down finds it.
    pub(super) fn add_nearest(&mut self, level: usize, ef: usize) {
        let distance = self.between.from(self.walk.vector(self.graph, self.node));
        let start = (self.node, level);
        let found = self
            .walk
            .search_from(self.graph, start, self.across, ef, distance);
        for (distance, node) in found {
            if node != self.node {
                let at = self.decode(node);
                self.candidates.push(Candidate { distance, node, at });
            }
        }
    }

    /// Adds those that lead to a node to its list, or, where that has not so much room, takes the best of all.
    pub(super) fn accept(
        &mut self,
        node: u32,
        list: &mut List<'_>,
        new: &[u32],
        rank: impl Fn(u32) -> usize,
    ) {
        if new.len() <= list.room() {
            new.iter().for_each(|&from| list.push(from));
        } else {
            self.begin(node);
            self.add(list.edges());
            self.add(new);
            self.choose(list, rank);
        }
    }

    /// Forgets all candidates but the nearest.
    pub(super) fn keep_nearest(&mut self, count: usize) {
        if self.candidates.len() > count {
            let nearer = |a: &Candidate, b: &Candidate| a.distance.total_cmp(&b.distance);
            self.candidates.select_nth_unstable_by(count, nearer);
            self.candidates.truncate(count);
        }
    }

    fn sort(&mut self) {
        self.candidates.sort_unstable_by(|a, b| {
            let nearer = a.distance.total_cmp(&b.distance);
            nearer.then(a.node.cmp(&b.node))
        });
        self.candidates.dedup_by_key(|candidate| candidate.node);
    }

    /// The candidates with their distances, the nearest first.
    pub(super) fn nearest_first(&mut self) -> Vec<(f32, u32)> {
        self.sort();
        let parts = |candidate: &Candidate| (candidate.distance, candidate.node);
        self.candidates.iter().map(parts).collect()
    }

    /// Where the edges of a node lead to on the lowest level.
    pub(super) fn edges(&self, node: u32) -> Vec<u32> {
        self.walk.neighbours(self.graph, node, 0).collect()
    }

    /// Replaces a list by the best of the candidates: those that no nearer one shadows, then others, by `rank` and
    /// the nearest first. Of the list of a longer node half is for others that are in as many ranges at least, half of the rest for those
    /// that are in one less, and so on, as far as there are any, but for an eighth; what is taken for a range shadows what is taken behind
    /// it.
    pub(super) fn choose(&mut self, list: &mut List<'_>, rank: impl Fn(u32) -> usize) {
        self.sort();
        list.clear();
        let mut chosen: Vec<Candidate> = Vec::with_capacity(list.room());
        let least = list.room() / LEAST_SHARE;
        for depth in (1..=self.depth(self.node)).rev() {
            let rest = (list.room() / 2).max(least);
            self.take(list, rest, &mut chosen, depth);
            for &peer in &self.passed_over {
                if list.room() <= rest {
                    break;
                }
                list.push(peer.node);
                chosen.push(peer);
            }
        }
        self.take(list, 0, &mut chosen, 0);
        let rest = list.room();
        self.passed_over
            .sort_by_key(|candidate| rank(candidate.node));
        self.passed_over
            .iter()
            .take(rest)
            .for_each(|candidate| list.push(candidate.node));
    }

    /// Takes those of the candidates in `depth` ranges or more that none of the chosen shadows, until there is this much room in
    /// the list, and notes which are passed over.
    fn take(&mut self, list: &mut List<'_>, room: usize, chosen: &mut Vec<Candidate>, depth: u8) {
        let mut passed_over = std::mem::take(&mut self.passed_over);
        passed_over.clear();
        let before = chosen.len();
        for &candidate in &self.candidates {
            if list.room() <= room {
                break;
            }
            let is_same = |other: &Candidate| other.node == candidate.node;
            if self.depth(candidate.node) < depth || chosen[..before].iter().any(is_same) {
                continue;
            }
            let shadows = |other: &Candidate| self.distance(candidate, *other) < candidate.distance;
            if chosen.iter().any(shadows) {
                passed_over.push(candidate);
            } else {
                list.push(candidate.node);
                chosen.push(candidate);
            }
        }
        self.passed_over = passed_over;
    }
}
