//! A second pass over the graph that usearch has built.
//!
//! usearch links a new node to at most `m` others, of what has come before it, and when a list of
//! edges overflows it keeps only those that no other one shadows: half of the room on the lowest level
//! stays empty, most of it where everything is near everything. The second pass looks for the
//! neighbours of each node among all of them and fills its list: those that no nearer one shadows
//! first (Malkov & Yashunin 2016, algorithm 4, with `keepPrunedConnections`), then the nearest of the rest.
//! Its edges are offered to where they lead, too (Subramanya et al. 2019, DiskANN, algorithm 3). Of what is
//! offered to a full list, and not shadowed, those come first that few edges lead to: a walk finds a node by these
//! alone, and a place beside a few crowded nodes is no loss to these (Iwasaki & Miyazaki 2018, ONNG, balance the
//! edges to each node likewise).
//!
//! The levels above the lowest one are linked again first ([`levels`]), so that walks for candidates come to all places.
//!
//! Two cheap passes give a better graph than one that costs as much as both, because the first one
//! links early nodes without knowing the later ones. Most of the work is in the second, which knows them all.

mod levels;

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use laser_memory::threads::{self, Gate, ScopedThread};

use crate::codec::Codec;
use crate::error::Result;
use crate::graph::Layout;
use crate::kernels::{DotI8, dot_i8};
use crate::query::Probe;
use crate::walk::Walk;

/// Candidates of the first pass, at least.
const FEWEST: usize = 32;

/// Edges to a node from which on it is as good as any.
const ENOUGH: usize = 20;

/// Widths of the two passes over a graph: for the first, by which usearch links nodes, it is enough to
/// find the neighbourhood; the second is [`refine`]. Few candidates, as of an `ef_construction` of 8,
/// leave parts of the graph that no walk comes to, by chance of the build.
pub(crate) fn widths(m: usize, ef_construction: usize) -> (usize, usize) {
    let first = (ef_construction / 2).max(m).max(FEWEST);
    (first, (ef_construction * 5 / 2).max(first).max(2 * FEWEST))
}

/// Nodes that a thread takes at once.
const BLOCK: usize = 64;
/// How often the calling thread looks whether the others are done.
const INTERVAL: Duration = Duration::from_millis(1);

/// Fills the lists of a serialized graph: on the lowest level those of the nodes from `first` on, and
/// whichever have room. Walks look for candidates with a width of `ef`. `done` grows by two for every
/// node. `pause` is called on this thread now and then, and may unwind.
///
/// # Errors
/// [`IndexError::Graph`] when the bytes are not a graph of this codec.
pub fn refine(
    codec: &Codec,
    bytes: &mut [u8],
    first: usize,
    ef: usize,
    threads: usize,
    done: &AtomicUsize,
    pause: &dyn Fn(),
) -> Result<()> {
    let walk = Walk::new(&Layout::parse(codec, bytes)?)?;
    if walk.entry as usize >= walk.nodes {
        return Ok(());
    }
    levels::refine(codec, &walk, bytes, threads, pause)?;
    let mut lists = Lists::new(&walk, bytes)?;
    let graph: &[u8] = bytes;
    let order = lists.by_place()?;
    pause();
    // Every node by itself, from the graph as it is.
    lists.rewrite(&order, threads, done, pause, || {
        let mut chooser = Chooser::new(codec, graph)?;
        Ok(move |node: u32, list: &mut List<'_>| {
            if node as usize >= first || !list.is_full() {
                chooser.begin(node);
                chooser.add_nearest(0, ef);
                chooser.add(list.edges());
                chooser.choose(list, |_| 0);
            }
        })
    })?;
    // Then with those that have chosen it.
    let offers = Offers::of(&lists, |node| node as usize, pause)?;
    lists.rewrite(&order, threads, done, pause, || {
        let mut chooser = Chooser::new(codec, graph)?;
        let mut new = Vec::new();
        let offers = &offers;
        Ok(move |node: u32, list: &mut List<'_>| {
            let from = offers.to(node).iter().copied();
            new.clear();
            new.extend(from.filter(|from| !list.edges().contains(from)));
            let rank = |node| offers.to(node).len().min(ENOUGH);
            chooser.accept(node, list, &new, rank);
        })
    })?;
    for (node, list) in lists.each() {
        write(bytes, walk.edges_at(bytes, node as u32, 0), list);
    }
    Ok(())
}

/// Writes a list of edges to where it belongs.
fn write(graph: &mut [u8], at: usize, list: &[u32]) {
    for (i, word) in list.iter().enumerate() {
        // Nothing is left behind the last edge.
        let word = if i > list[0] as usize { 0 } else { *word };
        graph[at + 4 * i..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// The edges of every node on a level: their number, then room for as many as there may be.
struct Lists {
    stride: usize,
    all: Vec<u32>,
}

/// Those of one node.
struct List<'a>(&'a mut [u32]);

impl List<'_> {
    fn edges(&self) -> &[u32] {
        &self.0[1..=self.0[0] as usize]
    }

    fn room(&self) -> usize {
        self.0.len() - 1 - self.0[0] as usize
    }

    fn is_full(&self) -> bool {
        self.room() == 0
    }

    fn clear(&mut self) {
        self.0[0] = 0;
    }

    fn push(&mut self, to: u32) {
        self.0[0] += 1;
        self.0[self.0[0] as usize] = to;
    }
}

impl Lists {
    /// Those of all nodes on the lowest level.
    fn new(walk: &Walk, graph: &[u8]) -> Result<Self> {
        Self::of(walk, graph, 0, walk.nodes, |node| node as u32)
    }

    /// Those of `count` nodes on a level.
    fn of(
        walk: &Walk,
        graph: &[u8],
        level: usize,
        count: usize,
        node: impl Fn(usize) -> u32,
    ) -> Result<Self> {
        let stride = 1 + walk.room(level);
        let all = laser_memory::filled(0, stride * count)?;
        let mut lists = Self { stride, all };
        for (i, list) in lists.all.chunks_exact_mut(stride).enumerate() {
            let mut list = List(list);
            walk.neighbours(graph, node(i), level)
                .for_each(|to| list.push(to));
        }
        Ok(lists)
    }

    fn each(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.all.chunks_exact(self.stride).enumerate()
    }

    /// All nodes, each near those before it: from each on to its neighbours that have not been met. Walks that begin
    /// at nodes near each other find what they read in the processor's caches.
    fn by_place(&self) -> Result<Vec<u32>> {
        let nodes = self.all.len() / self.stride;
        let mut met = laser_memory::filled(false, nodes)?;
        // Every node is in each of them once.
        let mut order = laser_memory::with_capacity(nodes)?;
        let mut next = laser_memory::with_capacity(nodes)?;
        for first in 0..nodes as u32 {
            if std::mem::replace(&mut met[first as usize], true) {
                continue;
            }
            next.push(first);
            while let Some(node) = next.pop() {
                order.push(node);
                let list = &self.all[node as usize * self.stride..][..self.stride];
                let edges = list[1..=list[0] as usize].iter().rev();
                next.extend(edges.filter(|&&to| !std::mem::replace(&mut met[to as usize], true)));
            }
        }
        Ok(order)
    }

    /// Shows every list to a worker, which `start` makes for each thread; this one is among them.
    fn rewrite<W: FnMut(u32, &mut List<'_>)>(
        &mut self,
        order: &[u32],
        threads: usize,
        done: &AtomicUsize,
        pause: &dyn Fn(),
        start: impl Fn() -> Result<W> + Sync,
    ) -> Result<()> {
        let mut lists = laser_memory::collect(self.all.chunks_exact_mut(self.stride).map(Some))?;
        let by_place = order
            .iter()
            .map(|&node| (node, lists[node as usize].take().expect("every node once")));
        let mut by_place: Vec<(u32, &mut [u32])> = laser_memory::collect(by_place)?;
        drop(lists);
        pause();
        let blocks = Mutex::new(by_place.chunks_mut(BLOCK));
        let stop = AtomicBool::new(false);
        let work = |pause: &dyn Fn()| {
            let mut worker = start()?;
            loop {
                let next = blocks.lock().unwrap_or_else(|e| e.into_inner()).next();
                let Some(block) = next else { break };
                for (node, list) in block.iter_mut() {
                    if stop.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    worker(*node, &mut List(list));
                    pause();
                }
                done.fetch_add(block.len(), Ordering::Relaxed);
            }
            Ok(())
        };
        let gate = Gate::default();
        threads::scope(|scope| {
            let closed = gate.close();
            let waiting = || {
                gate.pass();
                work(&|| ())
            };
            let others: Vec<_> = (1..threads)
                // Where the system has no more threads, those that there are do the work.
                .map_while(|_| scope.spawn("laser build", waiting).ok())
                .collect();
            drop(closed);
            // Where this thread unwinds, the others do not go on for nobody.
            let _leave = Stop(&stop);
            let own = work(pause);
            // One that has stopped for want of memory never ends, but `pause` does not return then.
            while !others.iter().all(ScopedThread::is_finished) {
                pause();
                thread::sleep(INTERVAL);
            }
            let join = |other: ScopedThread<'_, _>| {
                other.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            others.into_iter().map(join).fold(own, Result::and)
        })
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// For every list, the numbers of the lists that lead to its node.
struct Offers {
    starts: Vec<usize>,
    from: Vec<u32>,
}

impl Offers {
    /// `place` is the number of a node's list.
    fn of(lists: &Lists, place: impl Fn(u32) -> usize, pause: &dyn Fn()) -> Result<Self> {
        let all = || lists.all.chunks_exact(lists.stride);
        let mut starts = laser_memory::filled(0usize, lists.all.len() / lists.stride + 1)?;
        for list in all() {
            for &to in &list[1..=list[0] as usize] {
                starts[place(to) + 1] += 1;
            }
        }
        pause();
        for node in 1..starts.len() {
            starts[node] += starts[node - 1];
        }
        let mut from = laser_memory::filled(0, starts.last().copied().unwrap_or(0))?;
        let mut next = laser_memory::copied(&starts)?;
        for (node, list) in all().enumerate() {
            for &to in &list[1..=list[0] as usize] {
                let next = &mut next[place(to)];
                from[*next] = node as u32;
                *next += 1;
            }
        }
        pause();
        Ok(Self { starts, from })
    }

    fn to(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.from[self.starts[node]..self.starts[node + 1]]
    }
}

/// Chooses the edges of one node after the other.
struct Chooser<'a> {
    codec: &'a Codec,
    graph: &'a [u8],
    walk: Walk,
    dot: DotI8,
    node: u32,
    candidates: Vec<Candidate>,
    /// Components of the candidates, where they are compared as floats.
    floats: Vec<f32>,
    passed_over: Vec<u32>,
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
    fn new(codec: &'a Codec, graph: &'a [u8]) -> Result<Self> {
        Ok(Self {
            codec,
            graph,
            walk: Walk::new(&Layout::parse(codec, graph)?)?,
            dot: dot_i8(),
            node: 0,
            candidates: Vec::new(),
            floats: Vec::new(),
            passed_over: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// Begins with a node; it gets the place of a candidate to be measured from.
    fn begin(&mut self, node: u32) {
        self.node = node;
        self.candidates.clear();
        self.floats.clear();
        self.decode(node);
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
    fn add(&mut self, nodes: &[u32]) {
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
    fn add_nearest(&mut self, level: usize, ef: usize) {
        let probe = Probe::at(self.codec, self.walk.vector(self.graph, self.node));
        let (codec, dot, scratch) = (self.codec, self.dot, &mut self.scratch);
        let distance = |stored: &[u8]| probe.graph_distance(codec, stored, dot, scratch);
        let start = (self.node, level);
        let found = self.walk.search_from(self.graph, start, ef, distance);
        for (distance, node) in found {
            if node != self.node {
                let at = self.decode(node);
                self.candidates.push(Candidate { distance, node, at });
            }
        }
    }

    /// Adds those that lead to a node to its list, or, where that has not so much room, takes the best of all.
    fn accept(&mut self, node: u32, list: &mut List<'_>, new: &[u32], rank: impl Fn(u32) -> usize) {
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
    fn keep_nearest(&mut self, count: usize) {
        if self.candidates.len() > count {
            let nearer = |a: &Candidate, b: &Candidate| a.distance.total_cmp(&b.distance);
            self.candidates.select_nth_unstable_by(count, nearer);
            self.candidates.truncate(count);
        }
    }

    /// Replaces a list by the best of the candidates: those that no nearer one shadows, then others, by `rank` and
    /// the nearest first.
    fn choose(&mut self, list: &mut List<'_>, rank: impl Fn(u32) -> usize) {
        self.candidates.sort_unstable_by(|a, b| {
            let nearer = a.distance.total_cmp(&b.distance);
            nearer.then(a.node.cmp(&b.node))
        });
        self.candidates.dedup_by_key(|candidate| candidate.node);
        list.clear();
        self.passed_over.clear();
        let mut chosen: Vec<Candidate> = Vec::with_capacity(list.room());
        for &candidate in &self.candidates {
            if list.is_full() {
                break;
            }
            let shadowed =
                |other: &Candidate| self.distance(candidate, *other) < candidate.distance;
            if chosen.iter().any(shadowed) {
                self.passed_over.push(candidate.node);
            } else {
                list.push(candidate.node);
                chosen.push(candidate);
            }
        }
        let rest = list.room();
        self.passed_over.sort_by_key(|&node| rank(node));
        self.passed_over
            .iter()
            .take(rest)
            .for_each(|&node| list.push(node));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::raw;
    use crate::metric::Metric;
    use crate::quantization::Quantization;

    const DIMS: usize = 12;

    fn points(count: usize) -> Vec<Vec<f32>> {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let mut point = || (0..DIMS).map(|_| rng.random_range(-1.0..1.0)).collect();
        (0..count).map(|_| point()).collect()
    }

    /// How many of the ten nearest of each node a walk with ten candidates finds.
    fn found(codec: &Codec, bytes: &[u8]) -> usize {
        let walk = Walk::new(&Layout::parse(codec, bytes).unwrap()).unwrap();
        let mut found = 0;
        for node in 0..walk.nodes as u32 {
            let probe = Probe::at(codec, walk.vector(bytes, node));
            let mut scratch = Vec::new();
            let mut distance =
                |stored: &[u8]| probe.graph_distance(codec, stored, dot_i8(), &mut scratch);
            let mut all: Vec<(f32, u32)> = (0..walk.nodes as u32)
                .map(|other| (distance(walk.vector(bytes, other)), other))
                .collect();
            all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            let nearest: HashSet<u32> = all[..10].iter().map(|(_, node)| *node).collect();
            let hits = walk.search(bytes, 10, distance);
            found += hits.iter().filter(|hit| nearest.contains(hit)).count();
        }
        found
    }

    #[test]
    fn more_is_found_whatever_the_quantization() {
        let points = points(1500);
        for quantization in 0..5 {
            let quantization = Quantization::from_u8(quantization).unwrap();
            let codec = Codec::new(DIMS, Metric::L2, quantization);
            let before = raw(codec, 4, &points);
            let mut after = before.clone();
            refine(&codec, &mut after, 0, 32, 1, &AtomicUsize::new(0), &|| ()).unwrap();
            let (before, after) = (found(&codec, &before), found(&codec, &after));
            assert!(after > before + 150, "{quantization:?}: {before}, {after}");
        }
    }

    #[test]
    fn lists_are_filled_with_different_nodes() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::I8);
        for count in [1, 2, 5, 9, 600] {
            let mut bytes = raw(codec, 4, &points(count));
            refine(&codec, &mut bytes, 0, 16, 2, &AtomicUsize::new(0), &|| ()).unwrap();
            let layout = Layout::parse(&codec, &bytes).unwrap();
            layout.verify(&|| ()).unwrap();
            let walk = Walk::new(&layout).unwrap();
            for node in 0..count as u32 {
                let edges: Vec<u32> = walk.neighbours(&bytes, node, 0).collect();
                let different: HashSet<u32> = edges.iter().copied().collect();
                assert_eq!(different.len(), edges.len());
                assert!(!different.contains(&node));
                assert_eq!(edges.len(), 8.min(count - 1), "{count}");
            }
        }
        let mut empty = raw(codec, 4, &points(0));
        refine(&codec, &mut empty, 0, 16, 2, &AtomicUsize::new(0), &|| ()).unwrap();
    }

    #[test]
    fn threads_make_no_difference() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::F32);
        let mut one = raw(codec, 6, &points(900));
        let mut three = one.clone();
        refine(&codec, &mut one, 0, 24, 1, &AtomicUsize::new(0), &|| ()).unwrap();
        refine(&codec, &mut three, 0, 24, 3, &AtomicUsize::new(0), &|| ()).unwrap();
        assert!(one == three);
    }

    #[test]
    fn what_is_full_stays_until_something_new_comes() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::F32);
        let mut bytes = raw(codec, 4, &points(500));
        refine(&codec, &mut bytes, 0, 32, 1, &AtomicUsize::new(0), &|| ()).unwrap();
        let before = bytes.clone();
        refine(&codec, &mut bytes, 500, 32, 1, &AtomicUsize::new(0), &|| ()).unwrap();
        let lists = |bytes: &[u8]| {
            let walk = Walk::new(&Layout::parse(&codec, bytes).unwrap()).unwrap();
            let edges = |node| walk.neighbours(bytes, node, 0).collect::<HashSet<u32>>();
            (0..500).map(edges).collect::<Vec<_>>()
        };
        // Those that are chosen by a node it did not choose may change.
        let same = lists(&before)
            .iter()
            .zip(&lists(&bytes))
            .filter(|(a, b)| a == b)
            .count();
        assert!(same > 400, "{same}");
    }

    #[test]
    fn a_pause_that_unwinds_ends_all_threads() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::F32);
        let mut bytes = raw(codec, 4, &points(2000));
        let before = bytes.clone();
        let left = catch_unwind(AssertUnwindSafe(|| {
            refine(&codec, &mut bytes, 0, 64, 2, &AtomicUsize::new(0), &|| {
                resume_unwind(Box::new(()))
            })
        }));
        assert!(left.is_err());
        assert!(before == bytes);
    }
}
