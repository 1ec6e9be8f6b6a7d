//! Whether a pass over a graph is repeated.
//!
//! A pass takes candidates from walks over the graph as it was before. Where most edges lead into the middle of crowds, as of rows
//! whose distances to it have a heavy tail, few lead to what lies around, and walks do not find it. The pass itself mends that,
//! with edges to those to which few lead; what walks find now, most nodes could not choose then. Where that is much, another pass
//! is worth its time (docs/recall.md: of 300,000 rows of which one of 32 dimensions dominates, .59 of the neighbours were found at 40
//! after one pass, .69 after another). It has fewer candidates, as they are better ones, where usearch has made the graph, and
//! more where leaves have, of which a first pass with few candidates is all that most data need.
//!
//! Where all distances are alike, as of uniform rows of 128 dimensions, another pass over what usearch has made finds one neighbour
//! in a hundred more and takes as long: of 100,000 such rows a quarter of the candidates were not known, less than [`ENOUGH`]; half
//! where leaves have linked them, and there the second pass brings what usearch's would have. In a graph for inner
//! products another pass does harm: what lies near a longer node is not what queries want, and .66 was found where one pass
//! gives .74.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use laser_sampling::scattered;

use super::candidates::Candidates;
use super::few::are_few;
use crate::metric::Metric;

/// Passes over a graph, at most.
pub(super) const MOST: usize = 3;
/// Of the nearest candidates of a node, another pass follows where more than this share was not known to the last one.
const ENOUGH: f64 = 0.3;
/// Nodes whose candidates are compared.
const SAMPLE: usize = 200;
/// Not more than one in this many: a look takes as long as a pass does for a node.
const EVERY: usize = 100;
/// With fewer nodes in the sample, nothing is said.
const FEWEST: usize = 20;
/// Candidates of a node that count.
const NEAREST: usize = 10;
/// What a pass costs: looking for the neighbours of all nodes, the same when it is repeated, and linking them. Measured with
/// 300,000 sentences of 384 dimensions, and with rows of which one dimension dominates, as multiples of the time that usearch
/// takes to add the nodes to the graph.
const SEARCHING: f64 = 1.8;
const SEARCHING_AGAIN: f64 = 1.6;
const LINKING: f64 = 0.3;
/// What it takes to look for every node afterwards ([`crate::missed`]), which is not done for inner products.
const LOOKING: f64 = 0.3;
/// What it takes to measure a graph afterwards ([`crate::width`]) where that is easy; hard ones take more.
const MEASURING: f64 = 0.2;
/// What it costs to link nodes by leaves ([`super::leaves`]) and to collect them before, where a pass that follows costs as much as
/// above; when that is repeated, it keeps twice as many candidates. Measured with 100,000 of the sentences.
const LEAVES: f64 = 1.0;
const COLLECTING: f64 = 0.2;
const SEARCHING_WIDER: f64 = 2.0 * SEARCHING;
/// How often nodes are visited while they are linked by leaves.
const VISITS: usize = 6;
/// How often nodes of the levels above are visited in the pass.
const VISITS_OF_LEVELS: usize = 2;

/// What is done of a graph that usearch has made, but for looking for nodes.
const WORK: f64 = SEARCHING + LINKING + MEASURING;

/// How far the passes over a graph have come.
#[derive(Debug, Default)]
pub struct Passes {
    nodes: AtomicUsize,
    /// Nodes that are linked by leaves first, and the visits to them.
    new: AtomicUsize,
    first: AtomicUsize,
    /// Two to each node in a pass.
    visits: AtomicUsize,
    repeated: AtomicUsize,
    /// Visits to the nodes of the levels above, and how many they are.
    levels: AtomicUsize,
    above: AtomicUsize,
    /// Whether nodes are looked for, and how many. Those that are looked for again count as often as such a walk is wider.
    looks: bool,
    sought: AtomicUsize,
    again: AtomicUsize,
    looked: AtomicUsize,
    /// Thousandths of the measuring.
    measured: AtomicUsize,
}

impl Passes {
    /// Work of a pass over a graph with this metric, and of what follows, as a multiple of that of adding the nodes to it: by usearch, or
    /// where leaves link them of collecting them.
    pub fn work(metric: Metric, by_leaves: bool) -> f64 {
        let is_sought = metric.is_nearest_to_itself();
        let work = WORK + if is_sought { LOOKING } else { 0.0 };
        if by_leaves {
            (LEAVES + work) / COLLECTING
        } else {
            work
        }
    }

    /// Of a graph with this metric.
    pub fn of(metric: Metric) -> Self {
        Self {
            looks: metric.is_nearest_to_itself(),
            ..Self::default()
        }
    }

    /// Which share are leaves of what is done where nodes are not looked for.
    #[cfg(test)]
    pub(super) const SHARE_OF_LEAVES: f64 = LEAVES / (LEAVES + WORK);

    /// The share of the work that is done, from 0 to 1. Goes back when a pass is repeated, when nodes are looked for again, and a little
    /// when the levels are begun: that is then a part of what there is to do.
    pub fn share(&self) -> f64 {
        let nodes = self.nodes.load(Ordering::Relaxed).max(1);
        let mut left = self.visits.load(Ordering::Relaxed);
        let (mut done, mut all) = (0.0, 0.0);
        let new = self.new.load(Ordering::Relaxed);
        if new > 0 {
            let first = self.first.load(Ordering::Relaxed) as f64 / (VISITS * new) as f64;
            done += LEAVES * first.min(1.0);
            all += LEAVES;
        }
        for pass in 0..=self.repeated.load(Ordering::Relaxed) {
            let searching = match (pass, new) {
                (0, _) => SEARCHING,
                (_, 0) => SEARCHING_AGAIN,
                _ => SEARCHING_WIDER,
            };
            for work in [searching, LINKING] {
                let visits = left.min(nodes);
                done += work * visits as f64 / nodes as f64;
                all += work;
                left -= visits;
            }
        }
        // Searches on a level cost what those of the pass do.
        let of_levels = SEARCHING / (VISITS_OF_LEVELS * nodes) as f64;
        let above = VISITS_OF_LEVELS * self.above.load(Ordering::Relaxed);
        done += of_levels * self.levels.load(Ordering::Relaxed).min(above) as f64;
        all += of_levels * above as f64;
        if self.looks {
            let sought = self.sought.load(Ordering::Relaxed).max(1);
            let in_all = sought + self.again.load(Ordering::Relaxed);
            let looked = self.looked.load(Ordering::Relaxed).min(in_all);
            done += LOOKING * looked as f64 / sought as f64;
            all += LOOKING * in_all as f64 / sought as f64;
        }
        done += MEASURING * self.measured.load(Ordering::Relaxed) as f64 / 1000.0;
        done / (all + MEASURING)
    }

    /// This number of nodes is looked for.
    pub(crate) fn seek(&self, nodes: usize) {
        self.sought.store(nodes, Ordering::Relaxed);
    }

    /// This number of them is looked for again, each as long as `times` before.
    pub(crate) fn seek_again(&self, nodes: usize, times: usize) {
        self.again.fetch_add(times * nodes, Ordering::Relaxed);
    }

    /// A node has been looked for as long as `times` nodes at first.
    pub(crate) fn looked(&self, times: usize) {
        self.looked.fetch_add(times, Ordering::Relaxed);
    }

    /// Nodes have been looked for.
    pub(crate) fn has_looked(&self) {
        self.looked.store(usize::MAX, Ordering::Relaxed);
    }

    /// Which share of the measuring is done.
    pub(crate) fn measured(&self, share: f64) {
        let thousandths = (1000.0 * share) as usize;
        self.measured.store(thousandths, Ordering::Relaxed);
    }

    /// How many nodes have been looked for.
    #[cfg(test)]
    pub(crate) fn count_looked(&self) -> usize {
        self.looked.load(Ordering::Relaxed)
    }

    /// How often one was repeated.
    #[cfg(test)]
    pub(super) fn repeats(&self) -> usize {
        self.repeated.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self, nodes: usize) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    /// This number of nodes is linked by leaves first, on all levels together.
    pub(super) fn begin_new(&self, nodes: usize) {
        self.new.store(nodes, Ordering::Relaxed);
    }

    /// The levels above the lowest one, which have this number of nodes together, are linked. What is returned grows by
    /// [`VISITS_OF_LEVELS`] for each.
    pub(super) fn begin_levels(&self, nodes: usize) -> &AtomicUsize {
        self.above.store(nodes, Ordering::Relaxed);
        &self.levels
    }

    /// Grows by [`VISITS`] for every node meanwhile.
    pub(super) fn first(&self) -> &AtomicUsize {
        &self.first
    }

    /// Grows by one for every visit.
    pub(super) fn visits(&self) -> &AtomicUsize {
        &self.visits
    }

    pub(super) fn repeat(&self) {
        self.repeated.fetch_add(1, Ordering::Relaxed);
    }
}

/// Some nodes, and what was known of their neighbours.
pub(super) struct Sample(Vec<Known>);

struct Known {
    node: u32,
    candidates: Vec<u32>,
    /// The distance of the farthest that counts.
    reach: f32,
}

impl Sample {
    /// A sample of the `new` nodes among `all`; an empty one where these are few, and in a graph for inner products.
    pub(super) fn of(new: &Range<usize>, all: usize, metric: Metric) -> Self {
        let size = SAMPLE.min(new.len() / EVERY);
        let is_told = size >= FEWEST && !are_few(new.len(), all) && metric != Metric::InnerProduct;
        let nodes = scattered(new.len()).map(|at| new.start as u32 + at);
        let known = |node| Known {
            node,
            candidates: Vec::new(),
            reach: f32::INFINITY,
        };
        Self(
            nodes
                .take(if is_told { size } else { 0 })
                .map(known)
                .collect(),
        )
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the candidates that a pass of this width has for what is known, and tells which share of the nearest was not known
    /// before, and is nearer than what was: of many nodes at one distance walks find others every time.
    pub(super) fn learn(
        &mut self,
        candidates: &mut Candidates<'_>,
        width: usize,
        pause: &dyn Fn(),
    ) -> f64 {
        let (mut nearest, mut unknown) = (0, 0);
        for known in &mut self.0 {
            pause();
            let found = candidates.of(known.node, width);
            let counts = &found[..found.len().min(NEAREST)];
            let is_unknown = |&&(distance, node): &&(f32, u32)| {
                distance < known.reach && !known.candidates.contains(&node)
            };
            nearest += counts.len();
            unknown += counts.iter().filter(is_unknown).count();
            let reach = counts.last().map_or(f32::INFINITY, |last| last.0);
            known.reach = reach;
            known.candidates = found.into_iter().map(|(_, node)| node).collect();
        }
        unknown as f64 / nearest.max(1) as f64
    }

    /// Whether another pass is worth its time where this share was not known.
    pub(super) fn is_enough(share: f64) -> bool {
        share > ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nodes: usize, visits: usize, repeated: usize) -> f64 {
        let passes = Passes::default();
        passes.begin(nodes);
        passes.visits().fetch_add(visits, Ordering::Relaxed);
        (0..repeated).for_each(|_| passes.repeat());
        passes.share()
    }

    #[test]
    fn what_is_done_is_a_share_of_the_work() {
        assert_eq!(at(0, 0, 0), 0.0);
        assert_eq!(at(100, 0, 0), 0.0);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(at(100, 100, 0), SEARCHING / WORK));
        let (passes, all) = (WORK - MEASURING, WORK);
        assert!(near(at(100, 200, 0), passes / all));
        let all = all + SEARCHING_AGAIN + LINKING;
        assert!(near(at(100, 200, 1), passes / all));
        assert!(near(at(100, 300, 1), (all - LINKING - MEASURING) / all));
        assert!(near(at(100, 400, 1), (all - MEASURING) / all));

        let passes = Passes::default();
        passes.begin_new(100);
        assert_eq!(passes.share(), 0.0);
        passes.first().fetch_add(3 * 100, Ordering::Relaxed);
        let all = LEAVES + WORK;
        assert!(near(passes.share(), LEAVES / 2.0 / all));
        passes.first().fetch_add(4 * 100, Ordering::Relaxed);
        passes.begin(100);
        passes.visits().fetch_add(100, Ordering::Relaxed);
        assert!(near(passes.share(), (all - LINKING - MEASURING) / all));
        passes.visits().fetch_add(100, Ordering::Relaxed);
        passes.measured(0.5);
        assert!(near(passes.share(), (all - MEASURING / 2.0) / all));
        passes.measured(1.0);
        assert!(near(passes.share(), 1.0));
    }

    #[test]
    fn looking_for_nodes_is_work() {
        let share = |passes: &Passes| passes.share() * (WORK + LOOKING);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        let passes = Passes::of(Metric::L2);
        passes.begin(100);
        passes.visits().fetch_add(200, Ordering::Relaxed);
        let before = WORK - MEASURING;
        assert!(near(share(&passes), before));
        passes.seek(50);
        (0..25).for_each(|_| passes.looked(1));
        assert!(near(share(&passes), before + LOOKING / 2.0));
        (0..25).for_each(|_| passes.looked(1));
        assert!(near(share(&passes), before + LOOKING));
        // Half of them again, twice as long.
        passes.seek_again(25, 2);
        let all = WORK + 2.0 * LOOKING;
        assert!(near(passes.share(), (before + LOOKING) / all));
        (0..25).for_each(|_| passes.looked(2));
        assert!(near(passes.share(), (before + 2.0 * LOOKING) / all));
        passes.has_looked();
        assert!(near(passes.share(), (before + 2.0 * LOOKING) / all));
        passes.measured(1.0);
        assert!(near(passes.share(), 1.0));
    }

    #[test]
    fn levels_are_work() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        let passes = Passes::default();
        passes.begin(100);
        let levels = passes.begin_levels(10);
        let all = WORK + SEARCHING / 10.0;
        levels.fetch_add(10, Ordering::Relaxed);
        assert!(near(passes.share(), SEARCHING / 20.0 / all));
        levels.fetch_add(30, Ordering::Relaxed);
        assert!(near(passes.share(), SEARCHING / 10.0 / all));
        passes.visits().fetch_add(200, Ordering::Relaxed);
        passes.measured(1.0);
        assert!(near(passes.share(), 1.0));
    }

    #[test]
    fn few_nodes_and_inner_products_say_nothing() {
        let size = |new: Range<usize>, metric| Sample::of(&new, new.end, metric).0.len();
        assert_eq!(size(0..1_999, Metric::L2), 0);
        assert_eq!(size(0..2_000, Metric::L2), 20);
        assert_eq!(size(0..1_000_000, Metric::Cosine), 200);
        assert_eq!(size(0..1_000_000, Metric::InnerProduct), 0);
        assert_eq!(size(940_000..1_000_000, Metric::L2), 0);
        assert_eq!(size(900_000..1_000_000, Metric::L2), 200);
    }
}
