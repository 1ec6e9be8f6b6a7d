//! Every node of a serialized graph can be reached.
//!
//! A walk ends its way down through the upper levels at any of their nodes, and goes on from there
//! by the edges of the lowest level alone. So that it gets everywhere, wherever that is, the lowest
//! level has to be *strongly connected*. usearch does not see to it: it keeps the nearest edges of
//! each node, so that a node which is among the nearest of none has no edge to it, and a cluster none
//! to the others; and a node that is linked while another thread comes by loses what was linked to it.
//!
//! [`link`] changes as few edges as it needs to:
//!
//! 1. What has been reached forms a *tree* below the node where walks begin. A node that has not is
//!    linked below one of its neighbours, or of the nearest nodes that a walk finds. Edges of the tree
//!    are never taken away, thus nothing is lost. Where all lists are full a node gives away one edge;
//!    what comes after is linked to those that it was given for. So the few nodes to which nearly all
//!    others lead, and none back, as with inner products, keep the edges that make them easy to find.
//! 2. To nodes that walks miss all the same ([`crate::missed`]) edges are led from the nearest ones that they find instead.
//! 3. Then all that cannot be left again are some strongly connected components without an edge to
//!    another one. Each has a node to spare an edge, because with a node also all below it in the tree
//!    are in it, and the last of them has no edges of the tree. That edge then leads back up.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::between::Between;
use crate::codec::Codec;
use crate::error::Result;
use crate::graph::{Layout, NODE_HEAD, u32_at};
use crate::missed::{Instead, Look, Missed};
use crate::table::{Place, Stack, Table};
use crate::walk::Walk;

/// No node.
const NONE: u32 = u32::MAX;
/// Candidates of the walk that looks for a node to link to.
const CANDIDATES: usize = 32;
/// A node that has given away as many edges as this, for whatever nodes, gives none for missed ones. More edges than this must lead to
/// where one led that is given away for these.
const MOST_LED: u32 = 2;
const FEW_LEAD: u32 = 2;
/// Nodes between two pauses.
const PAUSE: usize = 1 << 14;
/// Nodes that are looked for at once, by all threads, before edges are led to those that are missed.
const LED_AT_ONCE: usize = 256;
/// Rounds at least, where there are as many nodes.
const LED_IN: usize = 16;

/// What can be reached in a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Nodes of the graph.
    pub nodes: usize,
    /// Nodes to which edges of the lowest level lead from where walks begin.
    pub reached: usize,
    /// Those from which edges also lead back.
    pub connected: usize,
}

/// Looks what can be reached in a graph whose edges are known to be right.
///
/// # Errors
/// Damage, or no memory.
pub fn reach(codec: &Codec, bytes: &[u8], pause: &dyn Fn()) -> Result<Reach> {
    let walk = Walk::new(&Layout::parse(codec, bytes)?)?;
    let parts = Components::find(&walk, bytes, Place::Memory, pause)?;
    let home = parts.of.get(walk.entry as usize);
    Ok(Reach {
        nodes: walk.nodes,
        reached: parts.of.iter().filter(|&&part| part != NONE).count(),
        connected: parts.of.iter().filter(|part| home == Some(part)).count(),
    })
}

/// Changes edges of the lowest level until every node can be reached from every other one. Returns
/// how many were put in. `pause` is called now and then, and may unwind.
///
/// # Errors
/// Damage, or no memory.
pub fn link(codec: &Codec, bytes: &mut [u8], pause: &dyn Fn()) -> Result<usize> {
    link_all(codec, bytes, None, pause)
}

/// As [`link`], and leads edges to those of the nodes that are looked for which walks miss.
///
/// # Errors
/// Damage, no memory, or no room on the disk.
pub(crate) fn link_all(
    codec: &Codec,
    bytes: &mut [u8],
    look: Option<&Look<'_>>,
    pause: &dyn Fn(),
) -> Result<usize> {
    let walk = Walk::new(&Layout::parse(codec, bytes)?)?;
    if walk.entry as usize >= walk.nodes {
        return Ok(0);
    }
    let place = look.map_or(Place::Memory, |look| look.place);
    let mut linker = Linker::new(&walk, codec, bytes, place, pause)?;
    // Nodes without edges to them first: they may lead to others.
    for sources in [true, false] {
        for node in 0..walk.nodes as u32 {
            linker.pause(node as usize);
            if linker.parents[node as usize] == NONE && (!sources || linker.edges_to(node) == 0) {
                linker.hang(node);
            }
        }
    }
    if let Some(look) = look {
        let missed = look.missed(codec, linker.bytes, walk.guide(), pause)?;
        linker.lead_to_missed(look, &missed)?;
    }
    linker.lead_back()?;
    Ok(linker.links)
}

/// Strongly connected components of what can be reached on the lowest level.
struct Components {
    /// The component of each node, or [`NONE`].
    of: Table<u32>,
    /// How many there are.
    count: usize,
}

impl Components {
    /// Tarjan's algorithm, from where walks begin, without recursion.
    ///
    /// # Errors
    /// No memory, or no room on the disk.
    fn find(walk: &Walk, bytes: &[u8], place: Place<'_>, pause: &dyn Fn()) -> Result<Self> {
        // The lowest number of an open node that each one is known to lead to.
        let mut low = none(walk.nodes, place)?;
        let (mut count, mut visited) = (0, 0u32);
        // A node is on either stack once at most.
        let mut open = Stack::<u32>::of(walk.nodes, place)?;
        // Nodes on the way to where the search is, their numbers, and their next edges.
        let mut way = Stack::<[u32; 3]>::of(walk.nodes, place)?;
        let mut of = none(walk.nodes, place)?;
        if (walk.entry as usize) < walk.nodes {
            way.push([walk.entry, visited, 0]);
        }
        while let Some([node, number, edge]) = way.last_mut() {
            let (at, own) = (*node as usize, *number);
            if *edge == 0 && low[at] == NONE {
                low[at] = own;
                visited += 1;
                open.push(*node);
                if (visited as usize).is_multiple_of(PAUSE) {
                    pause();
                }
            }
            let next = walk.neighbours(bytes, *node, 0).nth(*edge as usize);
            *edge += 1;
            if let Some(to) = next {
                if low[to as usize] == NONE {
                    way.push([to, visited, 0]);
                } else if of[to as usize] == NONE {
                    low[at] = low[at].min(low[to as usize]);
                }
                continue;
            }
            if low[at] == own {
                while let Some(member) = open.pop() {
                    of[member as usize] = count;
                    if member as usize == at {
                        break;
                    }
                }
                count += 1;
            }
            way.pop();
            if let Some([before, ..]) = way.last_mut() {
                let before = *before as usize;
                low[before] = low[before].min(low[at]);
            }
        }
        Ok(Self {
            of,
            count: count as usize,
        })
    }
}

/// [`NONE`] for each node.
fn none(nodes: usize, place: Place<'_>) -> Result<Table<u32>> {
    let mut table = Table::zeroed(nodes, place)?;
    table.fill(NONE);
    Ok(table)
}

struct Linker<'a> {
    walk: &'a Walk,
    codec: &'a Codec,
    bytes: &'a mut [u8],
    place: Place<'a>,
    pause: &'a dyn Fn(),
    /// The node above each one in the tree, itself for the topmost, [`NONE`] for who is not in it.
    parents: Table<u32>,
    /// Edges that lead to each node.
    incoming: Table<u32>,
    links: usize,
    /// Edges that each node has given away.
    given: Table<u32>,
    /// Edges that were led to missed nodes: from where, and to which.
    led: HashSet<(u32, u32)>,
    /// For nodes that may give no more, those that were linked below them or below these.
    deputies: HashMap<u32, VecDeque<u32>>,
    between: Between<'a>,
}

impl<'a> Linker<'a> {
    fn new(
        walk: &'a Walk,
        codec: &'a Codec,
        bytes: &'a mut [u8],
        place: Place<'a>,
        pause: &'a dyn Fn(),
    ) -> Result<Self> {
        let mut linker = Self {
            walk,
            codec,
            bytes,
            place,
            pause,
            parents: none(walk.nodes, place)?,
            incoming: Table::zeroed(walk.nodes, place)?,
            links: 0,
            given: Table::zeroed(walk.nodes, place)?,
            led: HashSet::new(),
            deputies: HashMap::new(),
            between: Between::new(codec),
        };
        for node in 0..walk.nodes as u32 {
            linker.pause(node as usize);
            for to in walk.neighbours(linker.bytes, node, 0) {
                linker.incoming[to as usize] += 1;
            }
        }
        linker.grow(walk.entry, walk.entry);
        Ok(linker)
    }

    fn pause(&self, count: usize) {
        if count.is_multiple_of(PAUSE) {
            (self.pause)();
        }
    }

    fn edges_to(&self, node: u32) -> u32 {
        self.incoming[node as usize]
    }

    fn edges(&self, node: u32) -> Vec<u32> {
        self.walk.neighbours(self.bytes, node, 0).collect()
    }

    /// Where the number of a node's edges is; they follow.
    fn list(&self, node: u32) -> usize {
        self.walk.node_at(self.bytes, node) + NODE_HEAD
    }

    fn len(&self, node: u32) -> usize {
        u32_at(self.bytes, self.list(node)).map_or(0, |len| len as usize)
    }

    fn has_room(&self, node: u32) -> bool {
        self.len(node) < self.walk.base_edges
    }

    fn write(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn push(&mut self, node: u32, to: u32) {
        let (at, len) = (self.list(node), self.len(node));
        self.write(at + 4 + 4 * len, to);
        self.write(at, len as u32 + 1);
        self.incoming[to as usize] += 1;
    }

    /// Leads an edge to another node, and returns the one that it led to.
    fn replace(&mut self, node: u32, edge: usize, to: u32) -> u32 {
        let at = self.list(node) + 4 + 4 * edge;
        let before = u32_at(self.bytes, at).expect("within the node");
        self.write(at, to);
        self.incoming[before as usize] -= 1;
        self.incoming[to as usize] += 1;
        before
    }

    /// Edges of a node that are not of the tree, nor to a missed node, with where they lead.
    fn free(&self, node: u32) -> impl Iterator<Item = (usize, u32)> {
        let edges = self.edges(node).into_iter().enumerate();
        let is_free =
            move |to| self.parents[to as usize] != node && !self.led.contains(&(node, to));
        edges.filter(move |&(_, to)| is_free(to))
    }

    /// The edge of a node that is needed least, so that all is reached: to where most others lead.
    fn spare(&self, node: u32) -> Option<usize> {
        let edge = self.free(node).max_by_key(|&(_, to)| self.edges_to(to));
        edge.map(|(edge, _)| edge)
    }

    /// The edge of a node that is needed least, so that all is found: the farthest, if others lead there. Those to where most lead are
    /// what all walks go by where a few nodes are near to all others, as short vectors are in many dimensions: of 10,000 sparse rows × 1,024
    /// .80 of the ten nearest were found at 40 where missed nodes took their place, .93 before and as it is.
    fn farthest(&mut self, node: u32) -> Option<usize> {
        let free: Vec<(usize, u32)> = self.free(node).collect();
        let mut distance = self.between.from(self.walk.vector(self.bytes, node));
        let others = free
            .into_iter()
            .filter(|&(_, to)| self.incoming[to as usize] > FEW_LEAD);
        let far = others.map(|(edge, to)| (distance(self.walk.vector(self.bytes, to)), edge));
        far.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, edge)| edge)
    }

    /// Takes a node into the tree, and everything that it leads to.
    fn grow(&mut self, node: u32, parent: u32) {
        self.parents[node as usize] = parent;
        let mut front = VecDeque::from([node]);
        let mut seen = 0;
        while let Some(from) = front.pop_front() {
            seen += 1;
            self.pause(seen);
            for to in self.walk.neighbours(self.bytes, from, 0) {
                let parent = &mut self.parents[to as usize];
                if *parent == NONE {
                    *parent = from;
                    front.push_back(to);
                }
            }
        }
    }

    /// Nodes of the tree near one that is not in it.
    fn near(&mut self, node: u32) -> Vec<u32> {
        let mut near = self.edges(node);
        near.retain(|&to| self.parents[to as usize] != NONE);
        if near.is_empty() {
            // The tree has all that can be reached, and walks find nothing else.
            let distance = self.between.from(self.walk.vector(self.bytes, node));
            near = self.walk.search_base(self.bytes, CANDIDATES, distance);
        }
        near
    }

    /// Edges that a node gives away at most: half of them stay its own.
    fn most_given(&self) -> u32 {
        self.walk.base_edges.div_ceil(2) as u32
    }

    /// Who gives away which edge, to link a node near these.
    fn giver(&mut self, near: &[u32], node: u32) -> Option<(u32, usize)> {
        let most = self.most_given();
        for at in near {
            let Some(mut queue) = self.deputies.remove(at) else {
                continue;
            };
            while let Some(&deputy) = queue.front() {
                if self.given[deputy as usize] < most
                    && let Some(edge) = self.spare(deputy)
                {
                    queue.push_back(node);
                    self.deputies.insert(*at, queue);
                    return Some((deputy, edge));
                }
                queue.pop_front();
            }
        }
        let own = near.iter().find_map(|&at| Some((at, self.spare(at)?)));
        if let Some((at, _)) = own {
            self.deputies.entry(at).or_default().push_back(node);
        }
        own
    }

    /// Links a node that is not in the tree below one that is.
    fn hang(&mut self, node: u32) {
        let near = self.near(node);
        let with_room = near.iter().copied().find(|&at| self.has_room(at));
        let above = if let Some(above) = with_room {
            self.push(above, node);
            above
        } else if let Some((above, edge)) = self.giver(&near, node) {
            self.replace(above, edge, node);
            self.given[above as usize] += 1;
            above
        } else {
            // All that leads away from there is of the tree: the node takes a place within.
            let above = near[0];
            let edge = self.len(above) - 1;
            let below = *self.edges(above).last().expect("it has no room");
            self.replace(above, edge, node);
            if self.has_room(node) {
                self.push(node, below);
            } else if !self.edges(node).contains(&below) {
                self.replace(node, self.walk.base_edges - 1, below);
            }
            self.parents[below as usize] = node;
            above
        };
        self.links += 1;
        self.grow(node, above);
    }

    /// Leads edges to nodes that walks miss, then to those that have lost one by that and are missed since.
    fn lead_to_missed(&mut self, look: &Look<'_>, missed: &Missed) -> Result<()> {
        if missed.nodes.is_empty() {
            return Ok(());
        }
        let bereft = self.lead_to(look, &missed.nodes, missed.width)?;
        self.lead_to(look, &bereft, missed.width)?;
        Ok(())
    }

    /// Leads edges to those of these nodes that walks miss: one before them may have made them found. Returns the nodes to which the
    /// edges led that were given away for this.
    fn lead_to(&mut self, look: &Look<'_>, nodes: &[u32], width: usize) -> Result<Vec<u32>> {
        let mut bereft = Vec::new();
        let rounds = (nodes.len().div_ceil(LED_AT_ONCE)).max(LED_IN.min(nodes.len()));
        for round in 0..rounds {
            // Neighbours lie together, and what is led to one may make the others found: a round has none of them.
            let these = nodes.iter().copied().skip(round).step_by(rounds);
            let graph = (&*self.bytes, self.walk.guide());
            let sought = look.instead_of(self.codec, graph, width, these, self.pause)?;
            for Instead { node, found } in sought {
                bereft.extend(self.lead_from(&found, node));
            }
        }
        Ok(bereft)
    }

    /// Leads an edge to a node from the first of others that has one to give. Returns the node to which that led before.
    fn lead_from(&mut self, found: &[u32], node: u32) -> Option<u32> {
        for &near in found {
            let mut bereft = None;
            if self.has_room(near) {
                self.push(near, node);
            } else if self.given[near as usize] < MOST_LED
                && let Some(edge) = self.farthest(near)
            {
                bereft = Some(self.replace(near, edge, node));
                self.given[near as usize] += 1;
            } else {
                continue;
            }
            self.led.insert((near, node));
            self.links += 1;
            return bereft;
        }
        None
    }

    /// Links every component that nothing leaves to the one where walks begin. All nodes are in the
    /// tree.
    fn lead_back(&mut self) -> Result<()> {
        let parts = Components::find(self.walk, self.bytes, self.place, self.pause)?;
        if parts.count == 1 {
            return Ok(());
        }
        let home = parts.of[self.walk.entry as usize];
        let mut closed = vec![true; parts.count];
        closed[home as usize] = false;
        for node in 0..self.walk.nodes as u32 {
            self.pause(node as usize);
            let part = parts.of[node as usize];
            let mut edges = self.walk.neighbours(self.bytes, node, 0);
            if edges.any(|to| parts.of[to as usize] != part) {
                closed[part as usize] = false;
            }
        }
        // The first node of each with room, or else with an edge to spare.
        let mut exits = vec![(NONE, None); parts.count];
        for node in 0..self.walk.nodes as u32 {
            self.pause(node as usize);
            let exit = &mut exits[parts.of[node as usize] as usize];
            if !closed[parts.of[node as usize] as usize] || (exit.0 != NONE && exit.1.is_none()) {
                continue;
            }
            if self.has_room(node) {
                *exit = (node, None);
            } else if exit.0 == NONE
                && let Some(edge) = self.spare(node)
            {
                *exit = (node, Some(edge));
            }
        }
        // The way up from a node, as far as it has been gone before.
        let mut above = none(self.walk.nodes, self.place)?;
        above.copy_from_slice(&self.parents);
        for (node, edge) in exits {
            if node == NONE {
                continue;
            }
            let mut home_at = node;
            while parts.of[home_at as usize] != home {
                home_at = above[home_at as usize];
            }
            let mut at = node;
            while parts.of[at as usize] != home {
                at = std::mem::replace(&mut above[at as usize], home_at);
            }
            match edge {
                None => self.push(node, home_at),
                Some(edge) => {
                    self.replace(node, edge, home_at);
                }
            }
            self.links += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::raw;
    use crate::kernels::dot_i8;
    use crate::metric::Metric;
    use crate::quantization::Quantization;
    use crate::query::Probe;
    use crate::refine::Passes;
    use crate::table::Place;

    fn codec(metric: Metric, quantization: Quantization) -> Codec {
        Codec::new(2, metric, quantization)
    }

    fn is_whole(codec: &Codec, bytes: &[u8]) {
        let layout = Layout::parse(codec, bytes).unwrap();
        let nodes = layout.rows();
        layout.verify(&|| ()).unwrap();
        let whole = Reach {
            nodes,
            reached: nodes,
            connected: nodes,
        };
        assert_eq!(reach(codec, bytes, &|| ()).unwrap(), whole);
        let walk = Walk::new(&layout).unwrap();
        for corner in [[-9e3, 9e3], [1.0, 1.0], [9e3, -9e3]] {
            let mut part = vec![0; codec.graph_len()];
            codec.encode_graph(&corner, &mut part);
            let query = Probe::at(codec, &part);
            let mut scratch = Vec::new();
            let found = walk.search(bytes, nodes, |stored| {
                query.graph_distance(codec, stored, dot_i8(), &mut scratch)
            });
            assert_eq!(found.len(), nodes);
        }
    }

    /// Twenty clusters, each far away from the next and larger than a node has edges.
    #[test]
    fn clusters_are_joined() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let points: Vec<[f32; 2]> = (0..2000)
            .map(|i| {
                let centre = 100.0 * (i % 20) as f32;
                [centre, centre].map(|x| x + rng.random_range(-1.0..1.0))
            })
            .collect();
        let codec = codec(Metric::L2, Quantization::F32);
        let mut bytes = raw(codec, 4, &points);
        let before = reach(&codec, &bytes, &|| ()).unwrap();
        assert!(before.reached < 1990, "{before:?}");
        assert!(link(&codec, &mut bytes, &|| ()).unwrap() > 0);
        is_whole(&codec, &bytes);
    }

    /// What another thread does to a graph that meets a node between two of its levels: nodes with
    /// edges, but none to them.
    #[test]
    fn lost_nodes_are_linked() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let points: Vec<[f32; 2]> = (0..1000)
            .map(|_| [rng.random_range(-1.0..1.0), rng.random_range(-1.0..1.0)])
            .collect();
        let codec = codec(Metric::L2, Quantization::I8);
        let mut bytes = raw(codec, 8, &points);
        let walk = Walk::new(&Layout::parse(&codec, &bytes).unwrap()).unwrap();
        for node in 0..1000 {
            let at = walk.node_at(&bytes, node) + NODE_HEAD;
            for edge in 0..u32_at(&bytes, at).unwrap() as usize {
                let at = at + 4 + 4 * edge;
                if u32_at(&bytes, at).unwrap() >= 900 {
                    bytes[at..at + 4].copy_from_slice(&walk.entry.to_le_bytes());
                }
            }
        }
        let before = reach(&codec, &bytes, &|| ()).unwrap();
        assert!(before.reached < 910, "{before:?}");
        link(&codec, &mut bytes, &|| ()).unwrap();
        is_whole(&codec, &bytes);
    }

    /// To some nodes a single edge leads, from afar: they can be reached, and walks miss them.
    #[test]
    fn edges_are_led_to_missed_nodes() {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let points: Vec<[f32; 2]> = (0..3000).map(|_| rng.random()).collect();
        let codec = codec(Metric::L2, Quantization::F32);
        let mut bytes = raw(codec, 8, &points);
        let walk = Walk::new(&Layout::parse(&codec, &bytes).unwrap()).unwrap();
        // All over, and in one place more than those around it may give edges for.
        let is_hidden = |&node: &u32| {
            let [x, y] = points[node as usize];
            let is_there = (0.4..0.5).contains(&x) && (0.4..0.5).contains(&y);
            (node % 100 == 0 || is_there) && !walk.may_begin_at(&bytes, node)
        };
        let hidden: Vec<u32> = (0..3000).filter(is_hidden).collect();
        let mut lists: Vec<Vec<u32>> = Vec::new();
        for node in 0..3000 {
            let mut list: Vec<u32> = walk.neighbours(&bytes, node, 0).collect();
            list.retain(|to| !hidden.contains(to));
            while list.len() < walk.base_edges {
                let to = rng.random_range(0..3000);
                if to != node && !hidden.contains(&to) && !list.contains(&to) {
                    list.push(to);
                }
            }
            lists.push(list);
        }
        let mut givers = HashSet::new();
        for &node in &hidden {
            let [x, y] = points[node as usize];
            let is_far = |from: &u32| {
                let [a, b] = points[*from as usize];
                (a - x).abs().max((b - y).abs()) > 0.5 && !hidden.contains(from)
            };
            let far = (0..3000).cycle().skip(37 * node as usize).filter(is_far);
            let from = far.into_iter().find(|from| givers.insert(*from)).unwrap();
            *lists[from as usize].last_mut().unwrap() = node;
        }
        for (node, list) in lists.iter().enumerate() {
            let at = walk.node_at(&bytes, node as u32) + NODE_HEAD;
            for (i, word) in [list.len() as u32].iter().chain(list).enumerate() {
                bytes[at + 4 * i..][..4].copy_from_slice(&word.to_le_bytes());
            }
        }
        let passes = Passes::of(Metric::L2);
        let look = |nodes| Look {
            nodes,
            place: Place::Memory,
            threads: 2,
            passes: &passes,
        };
        let missed = |bytes: &[u8]| {
            let walk = Walk::new(&Layout::parse(&codec, bytes).unwrap()).unwrap();
            let missed = look(0..3000).missed(&codec, bytes, walk.guide(), &|| ());
            missed.unwrap().nodes
        };
        // A few are found all the same, by edges of where a walk begins.
        let before = missed(&bytes);
        assert!(passes.count_looked() >= 3000);
        assert!(before.len() > 50 && before.iter().all(|node| hidden.contains(node)));
        // Who is not looked for stays where it is.
        let (mut others, first) = (bytes.clone(), before[0] as usize);
        link_all(
            &codec,
            &mut others,
            Some(&look(first + 1..first + 2)),
            &|| (),
        )
        .unwrap();
        assert_eq!(missed(&others), before);

        let links = link_all(&codec, &mut bytes, Some(&look(0..3000)), &|| ()).unwrap();
        assert!(links >= before.len() / 8, "{links}");
        is_whole(&codec, &bytes);
        assert_eq!(missed(&bytes), []);
        for (node, list) in (0..3000).zip(&lists) {
            let now: Vec<u32> = walk.neighbours(&bytes, node, 0).collect();
            let kept = list.iter().filter(|to| now.contains(to)).count();
            // One more where what cannot be left again is led back.
            let most = MOST_LED as usize + 1;
            assert!(kept + most >= list.len(), "{kept} of {}", list.len());
        }
        assert_eq!(
            link_all(&codec, &mut bytes, Some(&look(0..3000)), &|| ()).unwrap(),
            0
        );
    }

    #[test]
    fn what_is_whole_stays_as_it_is() {
        let mut rng = ChaCha8Rng::seed_from_u64(6);
        let points: Vec<[f32; 2]> = (0..300)
            .map(|_| [rng.random_range(-1.0..1.0), rng.random_range(-1.0..1.0)])
            .collect();
        let codec = codec(Metric::L2, Quantization::I8);
        let mut bytes = raw(codec, 16, &points);
        link(&codec, &mut bytes, &|| ()).unwrap();
        let before = bytes.clone();
        assert_eq!(link(&codec, &mut bytes, &|| ()).unwrap(), 0);
        assert!(bytes == before);
    }

    #[test]
    fn little_is_enough() {
        let codec = codec(Metric::Cosine, Quantization::I8);
        for points in [&[][..], &[[1.0, 2.0]], &[[1.0, 2.0], [2.0, 1.0]]] {
            let mut bytes = raw(codec, 2, points);
            assert_eq!(link(&codec, &mut bytes, &|| ()).unwrap(), 0);
            is_whole(&codec, &bytes);
        }
    }

    proptest! {
        /// Edges that mean nothing: any lists at all.
        #[test]
        fn any_graph_is_made_whole(
            nodes in 1usize..120, m in 2usize..5, seed: u64, fill in 0.0f64..1.0, reach_of in 1usize..120,
            quantization in 0u8..5,
        ) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let codec = codec(Metric::L2, Quantization::from_u8(quantization).unwrap());
            let points: Vec<[f32; 2]> = (0..nodes)
                .map(|_| [rng.random_range(-1.0..1.0), rng.random_range(-1.0..1.0)])
                .collect();
            let mut bytes = raw(codec, m, &points);
            let walk = Walk::new(&Layout::parse(&codec, &bytes).unwrap()).unwrap();
            for node in 0..nodes as u32 {
                let at = walk.node_at(&bytes, node) + NODE_HEAD;
                let mut to = Vec::new();
                for _ in 0..walk.base_edges {
                    if rng.random_bool(fill) {
                        to.push((node + rng.random_range(0..reach_of as u32)) % nodes as u32);
                    }
                }
                to.retain(|&to| to != node);
                to.sort_unstable();
                to.dedup();
                bytes[at..at + 4].copy_from_slice(&(to.len() as u32).to_le_bytes());
                for (i, to) in to.iter().enumerate() {
                    bytes[at + 4 + 4 * i..][..4].copy_from_slice(&to.to_le_bytes());
                }
            }
            link(&codec, &mut bytes, &|| ()).unwrap();
            is_whole(&codec, &bytes);
        }
    }
}
