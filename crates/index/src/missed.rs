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
/// ones look for what those before have missed, while that is more than one node in [`MANY`], and for no more of it than takes as long
/// together as to look for all nodes at first: of ten million points around a thousand centres × 384 64 candidates miss a third. Where everything is nearly equally far
/// from everything, searches have thousands: of 100,000 uniform rows × 128 64 candidates miss 10,000 nodes, 512 miss 700. Edges
/// to all of the 10,000 would take the place of better ones (.295 of the ten nearest were found at 40 where .302 had been).
const WIDTHS: [usize; 4] = [LEAST, 2 * LEAST, 4 * LEAST, 8 * LEAST];
const MANY: usize = 100;
/// To no more than one node in this many edges are led.
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

/// A node that was looked for.
pub(crate) struct Instead {
    pub(crate) node: u32,
    /// The nodes that were found instead, the nearest first; none where it was found.
    pub(crate) found: Vec<u32>,
}

/// Looks for nodes, on one thread.
struct Finder<'a> {
    walk: Walk,
    between: Between<'a>,
}

impl<'a> Finder<'a> {
    /// `guide` is to this graph, whatever edges its nodes have.
    ///
    /// # Errors
    /// Damage.
    fn new(codec: &'a Codec, graph: &[u8], guide: &Guide) -> Result<Self> {
        Ok(Self {
            walk: Walk::with(&Layout::parse(codec, graph)?, guide.clone()),
            between: Between::new(codec),
        })
    }

    /// The nodes that a walk finds instead of one, the nearest first; none where it finds that one, or one that is as near to its
    /// vector, as rounding may have it.
    fn instead_of(&mut self, graph: &[u8], node: u32, width: usize) -> Vec<u32> {
        let distance = self.between.from(self.walk.vector(graph, node));
        self.walk.instead_of(graph, node, width, distance)
    }
}

/// Has only `most` of the `count` nodes that are missed count as such, all over them.
fn keep_some(is_missed: &mut [u8], count: usize, most: usize) {
    let kept = |place: usize| place * most / count;
    let missed = is_missed.iter_mut().filter(|missed| **missed > 0);
    for (place, missed) in missed.enumerate() {
        *missed = u8::from(kept(place + 1) > kept(place));
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
        // What is left of the time that it took to look for all of them, and how many of the missed each stands for that is looked for.
        let (mut left, mut each) = (self.nodes.len(), 1.0);
        for width in WIDTHS {
            if missed.width > 0 {
                let most = left / times(width);
                if count > most {
                    each *= count as f64 / most.max(1) as f64;
                    keep_some(&mut is_missed, count, most);
                    count = most;
                }
                left -= times(width) * count;
                self.passes.seek_again(count, times(width));
            }
            missed.width = width;
            self.look(codec, (graph, guide), width, &mut is_missed, pause)?;
            count = is_missed.iter().filter(|&&missed| missed > 0).count();
            if each * count as f64 <= (self.nodes.len() / MANY) as f64 {
                break;
            }
        }
        let nodes = self.nodes.start as u32..;
        let all = nodes.zip(is_missed.iter());
        let all = all.filter(|&(_, &missed)| missed > 0).map(|(node, _)| node);
        missed.nodes = laser_memory::collect(all.take(self.nodes.len().div_ceil(MOST)))?;
        self.passes
            .seek_again(missed.nodes.len(), times(missed.width));
        Ok(missed)
    }

    /// What walks of this width find instead of some nodes in the graph as it is ([`Finder::instead_of`]).
    pub(crate) fn instead_of(
        &self,
        codec: &Codec,
        (graph, guide): (&[u8], &Guide),
        width: usize,
        nodes: impl Iterator<Item = u32>,
        pause: &dyn Fn(),
    ) -> Result<Vec<Instead>> {
        let unknown = |node| Instead {
            node,
            found: Vec::new(),
        };
        let mut sought: Vec<Instead> = laser_memory::collect(nodes.map(unknown))?;
        // Of nodes, of which the passes are told.
        let done = AtomicUsize::new(0);
        blocks::each(&mut sought, (1, self.threads), &done, pause, || {
            let mut finder = Finder::new(codec, graph, guide)?;
            Ok(move |sought: &mut Instead, _: blocks::Pause<'_>| {
                sought.found = finder.instead_of(graph, sought.node, width);
                self.passes.looked(times(width));
                Ok(())
            })
        })?;
        Ok(sought)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::raw;
    use crate::metric::Metric;
    use crate::quantization::Quantization;

    proptest! {
        #[test]
        fn those_that_are_kept_are_all_over(
            mut is_missed in prop::collection::vec(0u8..2, 1..200), share in 0usize..100,
        ) {
            let before = is_missed.clone();
            let missed = |all: &[u8]| all.iter().filter(|missed| **missed > 0).count();
            let count = missed(&before);
            let most = count * share / 100;
            keep_some(&mut is_missed, count, most);
            prop_assert_eq!(missed(&is_missed), most);
            prop_assert!(is_missed.iter().zip(&before).all(|(now, before)| now <= before));
            let half = is_missed.len() / 2;
            let expected = missed(&before[..half]) * most / count.max(1);
            prop_assert!(missed(&is_missed[..half]).abs_diff(expected) <= 1);
        }
    }

    /// Where few edges lead to what is nearest, most nodes are missed by any width.
    #[test]
    fn looking_again_takes_no_longer_than_at_first() {
        const NODES: usize = 4000;
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let points: Vec<[f32; 32]> = (0..NODES)
            .map(|_| std::array::from_fn(|_| rng.random_range(-1.0..1.0)))
            .collect();
        let codec = Codec::new(32, Metric::L2, Quantization::I8);
        let bytes = raw(codec, 2, &points);
        let walk = Walk::new(&Layout::parse(&codec, &bytes).unwrap()).unwrap();
        let passes = Passes::of(Metric::L2);
        let look = Look {
            nodes: 0..NODES,
            place: Place::Memory,
            threads: 2,
            passes: &passes,
        };
        let missed = look.missed(&codec, &bytes, walk.guide(), &|| ());
        let missed = missed.unwrap();
        let looked = passes.count_looked();
        assert!((NODES * 3 / 2..=2 * NODES).contains(&looked), "{looked}");
        assert!(missed.nodes.len() <= NODES / MOST, "{}", missed.nodes.len());
        let mut finder = Finder::new(&codec, &bytes, walk.guide()).unwrap();
        for node in missed.nodes {
            assert!(!finder.instead_of(&bytes, node, missed.width).is_empty());
        }
    }
}
