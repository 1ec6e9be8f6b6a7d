//! Nodes that walks do not find by their own vectors.
//!
//! That edges lead to a node from everywhere ([`crate::reach`]) does not mean that a walk takes them. Of rows on a curve, as of a
//! device that comes by the same places, all candidates of a node lie before and behind it, and few edges lead from one turn to
//! the next: a walk that has come down on the wrong turn finds as many nodes there as it keeps, and ends. So nodes are
//! looked for as queries are. To those that are missed an edge is led from the nearest node that was found instead; one that is
//! found leads to those around it.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;

use crate::between::Between;
use crate::blocks;
use crate::codec::Codec;
use crate::error::Result;
use crate::graph::Layout;
use crate::refine::Passes;
use crate::table::{Place, Table};
use crate::walk::{Guide, Walk};
use crate::width::LEAST;

/// Candidates of the walks that look for a node. The first are the fewest that searches have by default; the next
/// ones look for what those before have missed, while that is more than one node in [`MANY`]. Where everything is nearly equally far
/// from everything, searches have thousands: of 100,000 uniform rows × 128 64 candidates miss 10,000 nodes, 512 miss 700. Edges
/// to all of the 10,000 would take the place of better ones (.295 of the ten nearest were found at 40 where .302 had been).
const WIDTHS: [usize; 4] = [LEAST, 2 * LEAST, 4 * LEAST, 8 * LEAST];
const MANY: usize = 100;
/// To no more than one node in this many edges are led: each takes a walk on a single thread.
const MOST: usize = 20;

/// Which nodes of a graph are looked for, and how.
pub(crate) struct Look<'a> {
    pub(crate) nodes: Range<usize>,
    /// Where tables are.
    pub(crate) place: Place<'a>,
    pub(crate) threads: usize,
    /// Hears of each that is looked for.
    pub(crate) passes: &'a Passes,
}

/// Nodes that were not found.
#[derive(Default)]
pub(crate) struct Missed {
    pub(crate) nodes: Vec<u32>,
    /// Candidates of the walks that have missed them.
    pub(crate) width: usize,
}

/// Looks for nodes, on one thread.
pub(crate) struct Finder<'a> {
    walk: Walk,
    between: Between<'a>,
}

impl<'a> Finder<'a> {
    /// `guide` is to this graph, whatever edges its nodes have.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn new(codec: &'a Codec, graph: &[u8], guide: &Guide) -> Result<Self> {
        Ok(Self {
            walk: Walk::with(&Layout::parse(codec, graph)?, guide.clone()),
            between: Between::new(codec),
        })
    }

    /// The nodes that a walk finds instead of one, the nearest first; none where it finds that one, or one that is as near to its
    /// vector, as rounding may have it.
    pub(crate) fn instead_of(&mut self, graph: &[u8], node: u32, width: usize) -> Vec<u32> {
        let distance = self.between.from(self.walk.vector(graph, node));
        self.walk.instead_of(graph, node, width, distance)
    }
}

/// How many of the first walks take as long as one with this number of candidates.
fn times(width: usize) -> usize {
    width / WIDTHS[0]
}

impl Look<'_> {
    /// The nodes that walks miss, where they are looked for.
    ///
    /// # Errors
    /// Damage, or no memory.
    pub(crate) fn missed(
        &self,
        codec: &Codec,
        graph: &[u8],
        guide: &Guide,
        pause: &dyn Fn(),
    ) -> Result<Missed> {
        let mut missed = Missed::default();
        // Queries for inner products do not resemble nodes, and what is nearest to a node need not be itself.
        if !codec.metric.is_nearest_to_itself() || self.nodes.is_empty() {
            return Ok(missed);
        }
        let mut is_missed = Table::<u8>::zeroed(self.nodes.len(), self.place)?;
        is_missed.fill(1);
        self.passes.seek(self.nodes.len());
        let mut count = self.nodes.len();
        for width in WIDTHS {
            if missed.width > 0 {
                self.passes.seek_again(count, times(width));
            }
            missed.width = width;
            self.look(codec, (graph, guide), width, &mut is_missed, pause)?;
            count = is_missed.iter().filter(|&&missed| missed > 0).count();
            if count <= self.nodes.len() / MANY {
                break;
            }
        }
        let nodes = self.nodes.start as u32..;
        let all = nodes.zip(is_missed.iter());
        let all = all.filter(|&(_, &missed)| missed > 0).map(|(node, _)| node);
        missed.nodes = laser_memory::collect(all.take(self.nodes.len().div_ceil(MOST)))?;
        let times = self.times_alone(&missed);
        self.passes.seek_again(missed.nodes.len(), times);
        Ok(missed)
    }

    /// An edge has been led to one of those that are missed.
    pub(crate) fn has_led(&self, missed: &Missed) {
        self.passes.looked(self.times_alone(missed));
    }

    /// As [`times`], of a walk on a single thread.
    fn times_alone(&self, missed: &Missed) -> usize {
        self.threads * times(missed.width)
    }

    /// Looks for those that are taken for missed, and corrects that.
    fn look(
        &self,
        codec: &Codec,
        (graph, guide): (&[u8], &Guide),
        width: usize,
        is_missed: &mut [u8],
        pause: &dyn Fn(),
    ) -> Result<()> {
        let together = is_missed.chunks_mut(blocks::NODES).enumerate();
        let mut together = laser_memory::collect(together)?;
        let at_once = (1, self.threads);
        // Of chunks, of which nobody is told.
        let done = AtomicUsize::new(0);
        type Together<'a> = (usize, &'a mut [u8]);
        blocks::each(&mut together, at_once, &done, pause, || {
            let mut finder = Finder::new(codec, graph, guide)?;
            Ok(
                move |(at, are_missed): &mut Together<'_>, pause: blocks::Pause<'_>| {
                    let nodes = self.nodes.start + *at * blocks::NODES..;
                    let those = nodes.zip(are_missed.iter_mut());
                    for (node, is_missed) in those.filter(|(_, missed)| **missed > 0) {
                        let found = finder.instead_of(graph, node as u32, width);
                        *is_missed = u8::from(!found.is_empty());
                        self.passes.looked(times(width));
                        pause()?;
                    }
                    Ok(())
                },
            )
        })
    }
}
