//! Whether a pass over a graph is repeated.
//!
//! A pass takes candidates from walks over the graph as it was before. Where most edges lead into the middle of crowds, as of rows
//! whose distances to it have a heavy tail, few lead to what lies around, and walks do not find it. The pass itself mends that,
//! with edges to those to which few lead; what walks find now, most nodes could not choose then. Where that is much, another pass
//! is worth its time, with fewer candidates, as they are better ones (docs/recall.md: of 300,000 rows of which one of 32 dimensions
//! dominates, .59 of the neighbours were found at 40 after one pass, .69 after another).
//!
//! Where all distances are alike, as of uniform rows of 128 dimensions, another pass finds one neighbour in a hundred more and
//! takes as long: of 100,000 such rows a quarter of the candidates were not known, less than [`ENOUGH`]. In a graph for inner
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
/// 300,000 sentences of 384 dimensions, and with rows of which one dimension dominates, as multiples of the time that it takes to
/// add the nodes to the graph.
const SEARCHING: f64 = 1.8;
const SEARCHING_AGAIN: f64 = 1.6;
const LINKING: f64 = 0.3;

/// How far the passes over a graph have come.
#[derive(Debug, Default)]
pub struct Passes {
    nodes: AtomicUsize,
    /// Two to each node in a pass.
    visits: AtomicUsize,
    repeated: AtomicUsize,
}

impl Passes {
    /// Work of one pass, as a multiple of that of adding the nodes to the graph.
    pub const WORK: f64 = SEARCHING + LINKING;

    /// The share of the work that is done, from 0 to 1. Goes back when a pass is repeated: that is then a part of what there
    /// is to do.
    pub fn share(&self) -> f64 {
        let nodes = self.nodes.load(Ordering::Relaxed).max(1);
        let mut left = self.visits.load(Ordering::Relaxed);
        let (mut done, mut all) = (0.0, 0.0);
        for pass in 0..=self.repeated.load(Ordering::Relaxed) {
            let searching = if pass == 0 {
                SEARCHING
            } else {
                SEARCHING_AGAIN
            };
            for work in [searching, LINKING] {
                let visits = left.min(nodes);
                done += work * visits as f64 / nodes as f64;
                all += work;
                left -= visits;
            }
        }
        done / all
    }

    /// How often one was repeated.
    #[cfg(test)]
    pub(super) fn repeats(&self) -> usize {
        self.repeated.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self, nodes: usize) {
        self.nodes.store(nodes, Ordering::Relaxed);
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
        assert_eq!(at(100, 100, 0), SEARCHING / Passes::WORK);
        assert_eq!(at(100, 200, 0), 1.0);
        let all = Passes::WORK + SEARCHING_AGAIN + LINKING;
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(at(100, 200, 1), Passes::WORK / all));
        assert!(near(at(100, 300, 1), (all - LINKING) / all));
        assert!(near(at(100, 400, 1), 1.0));
        assert!(near(at(100, 600, 2), 1.0));
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
