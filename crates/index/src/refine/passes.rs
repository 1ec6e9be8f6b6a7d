//! Whether a pass over a graph is repeated.
//!
//! A pass takes candidates from walks over the graph as it was before. Where most edges lead into the middle of crowds, as of rows
//! whose distances to it have a heavy tail, few lead to what lies around, and walks do not find it. The pass itself mends that,
//! with edges to those to which few lead; what walks find now, most nodes could not choose then. Where that is much, another pass
//! is worth its time, with fewer candidates, as they are better ones: of 300,000 rows of which one of 32 dimensions dominates,
//! .59, .78 and .90 of the neighbours were found at 40, 100 and 200 after one pass, .72, .91 and .98 after two.
//!
//! Where all distances are alike, as of uniform rows of 128 dimensions, a second pass finds one neighbour in a hundred more and
//! takes as long: a quarter of the candidates were not known there, less than [`ENOUGH`]. In a graph for inner products another
//! pass does harm: what lies near a longer node is not what queries want, and .66 was found where one pass gives .74.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use laser_sampling::scattered;

use super::candidates::Candidates;
use crate::metric::Metric;

/// Passes over a graph, at most.
pub(super) const MOST: usize = 3;
/// The share of the nearest candidates that a pass did not know from which on another one follows.
const ENOUGH: f64 = 0.3;
/// Nodes whose candidates are compared.
const SAMPLE: usize = 200;
/// Not more than one in this many: a look takes as long as a pass does for a node.
const EVERY: usize = 100;
/// With fewer nodes in the sample, nothing is said.
const FEWEST: usize = 20;
/// Candidates of a node that count.
const NEAREST: usize = 10;

/// How far the passes over a graph have come.
#[derive(Debug, Default)]
pub struct Passes {
    visits: AtomicUsize,
    repeated: AtomicUsize,
}

impl Passes {
    /// Visits of nodes, two to each of them when all is done. Goes back when a pass is repeated: that is then a part of what there
    /// is to do.
    pub fn visits(&self) -> usize {
        self.visits.load(Ordering::Relaxed) / (1 + self.repeated.load(Ordering::Relaxed))
    }

    /// How often one was repeated.
    #[cfg(test)]
    pub(super) fn repeats(&self) -> usize {
        self.repeated.load(Ordering::Relaxed)
    }

    /// Grows by one for every visit.
    pub(super) fn count(&self) -> &AtomicUsize {
        &self.visits
    }

    pub(super) fn repeat(&self) {
        self.repeated.fetch_add(1, Ordering::Relaxed);
    }
}

/// Some nodes, and the candidates that they have had.
pub(super) struct Sample(Vec<(u32, Vec<u32>)>);

impl Sample {
    /// A sample of these nodes; an empty one where they are few, or near each other for inner products.
    pub(super) fn of(nodes: &Range<usize>, metric: Metric) -> Self {
        let size = SAMPLE.min(nodes.len() / EVERY);
        let size = if size < FEWEST || metric == Metric::InnerProduct {
            0
        } else {
            size
        };
        let nodes = scattered(nodes.len()).map(|at| nodes.start as u32 + at);
        Self(nodes.take(size).map(|node| (node, Vec::new())).collect())
    }

    /// Looks for the candidates that the next pass has, and tells whether it is worth its time: whether enough of the nearest are
    /// not those of the last look.
    pub(super) fn is_worth_a_pass(
        &mut self,
        candidates: &mut Candidates<'_>,
        width: usize,
        pause: &dyn Fn(),
    ) -> bool {
        let (mut nearest, mut unknown) = (0, 0);
        for (node, known) in &mut self.0 {
            pause();
            let found = candidates.of(*node, width);
            let first = found.iter().take(NEAREST);
            nearest += first.len();
            unknown += first.filter(|near| !known.contains(near)).count();
            *known = found;
        }
        unknown as f64 > ENOUGH * nearest as f64
    }
}
