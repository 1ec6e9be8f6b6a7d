//! Nodes that walks do not find by their own vectors.
//!
//! That edges lead to a node from everywhere ([`crate::reach`]) does not mean that a walk takes them. Of rows on a curve, as of a
//! device that comes by the same places, all candidates of a node lie before and behind it, and no edge leads from one turn to
//! the next but by luck: a walk that has come down on the wrong turn finds as many nodes there as it keeps, and ends. So nodes are
//! looked for as queries are, and where one is not found, an edge leads to it from the nearest that is. Few are lost, and one that is
//! found leads to those around it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;

use super::lists::{List, write};
use crate::blocks;
use crate::codec::Codec;
use crate::error::Result;
use crate::graph::Layout;
use crate::kernels::{DotI8, dot_i8};
use crate::metric::Metric;
use crate::query::Probe;
use crate::table::{Place, Table};
use crate::walk::Walk;

/// Candidates of the walk that looks for a node: the fewest that searches have by default, so that all find it.
const WIDTH: usize = 64;
/// Where more than one node in this many is not found by so few, as where everything is nearly equally far from everything, searches
/// have more by default, and only those nodes are lost that [`WIDER`] do not find: of 100,000 uniform rows × 128, edges to the
/// 9,200 that 64 candidates had missed took so much from others that .295 of the ten nearest were found at 40 where .302 had been.
const MANY: usize = 100;
const WIDER: usize = 8 * WIDTH;
/// Nodes that a thread takes at once.
const TOGETHER: usize = 64;

/// Looks for nodes, on one thread.
struct Finder<'a> {
    codec: &'a Codec,
    walk: Walk,
    dot: DotI8,
    scratch: Vec<f32>,
}

impl<'a> Finder<'a> {
    fn new(codec: &'a Codec, graph: &[u8]) -> Result<Self> {
        Ok(Self {
            codec,
            walk: Walk::new(&Layout::parse(codec, graph)?)?,
            dot: dot_i8(),
            scratch: Vec::new(),
        })
    }

    /// The nodes that a walk finds instead of one, the nearest first; none where it finds that one, or one with the same vector.
    fn instead_of(&mut self, graph: &[u8], node: u32, width: usize) -> Vec<u32> {
        let probe = Probe::at(self.codec, self.walk.vector(graph, node));
        let (codec, dot, scratch) = (self.codec, self.dot, &mut self.scratch);
        let distance = |stored: &[u8]| probe.graph_distance(codec, stored, dot, scratch);
        self.walk.instead_of(graph, node, width, distance)
    }
}

/// Looks for those of the nodes from a `first` one on that are taken for lost, and corrects that.
fn look(
    codec: &Codec,
    graph: &[u8],
    (first, is_lost): (usize, &mut [u8]),
    width: usize,
    threads: usize,
    pause: &dyn Fn(),
) -> Result<()> {
    let together = is_lost.chunks_mut(TOGETHER).enumerate();
    let mut together = laser_memory::collect(together)?;
    let done = AtomicUsize::new(0);
    blocks::each(&mut together, (1, threads), &done, pause, || {
        let mut finder = Finder::new(codec, graph)?;
        Ok(
            move |(at, is_lost): &mut (usize, &mut [u8]), _: blocks::Pause<'_>| {
                let nodes = first + *at * TOGETHER..;
                for (node, is_lost) in nodes.zip(is_lost.iter_mut()).filter(|(_, lost)| **lost > 0)
                {
                    *is_lost = u8::from(!finder.instead_of(graph, node as u32, width).is_empty());
                }
                Ok(())
            },
        )
    })
}

/// Links nodes that walks do not find; returns how many edges were put in. In a graph for inner products it does nothing: a node
/// need not be the nearest to itself.
///
/// # Errors
/// Damage, or no memory.
pub(super) fn link(
    codec: &Codec,
    graph: &mut [u8],
    nodes: Range<usize>,
    (place, threads): (Place<'_>, usize),
    pause: &dyn Fn(),
) -> Result<usize> {
    if codec.metric == Metric::InnerProduct {
        return Ok(0);
    }
    let mut is_lost = Table::<u8>::zeroed(nodes.len(), place)?;
    is_lost.fill(1);
    let mut width = WIDTH;
    look(
        codec,
        graph,
        (nodes.start, &mut is_lost),
        width,
        threads,
        pause,
    )?;
    let count = |is_lost: &[u8]| is_lost.iter().filter(|&&lost| lost > 0).count();
    if count(&is_lost) > nodes.len() / MANY {
        width = WIDER;
        look(
            codec,
            graph,
            (nodes.start, &mut is_lost),
            width,
            threads,
            pause,
        )?;
    }

    let mut finder = Finder::new(codec, graph)?;
    let room = finder.walk.room(0);
    // How many edges of each node lead to lost ones.
    let mut given: HashMap<u32, usize> = HashMap::new();
    let mut links = 0;
    for (node, _) in (nodes.start as u32..)
        .zip(is_lost.iter())
        .filter(|&(_, lost)| *lost > 0)
    {
        pause();
        // One before it may have led here.
        for near in finder.instead_of(graph, node, width) {
            let given = given.entry(near).or_default();
            // Half of its edges stay.
            if *given >= room / 2 {
                continue;
            }
            let at = finder.walk.edges_at(graph, near, 0);
            let mut list: Vec<u32> = vec![0; 1 + room];
            let mut list = List(&mut list);
            finder
                .walk
                .neighbours(graph, near, 0)
                .for_each(|to| list.push(to));
            if list.is_full() {
                // The last edges are those that are missed least ([`super::chooser::Chooser::choose`]).
                list.0[room - *given] = node;
            } else {
                list.push(node);
            }
            *given += 1;
            write(graph, at, list.0);
            links += 1;
            break;
        }
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::raw;
    use crate::quantization::Quantization;

    /// A graph of points in a square, and nodes of the lowest level alone that no edge leads to any more.
    fn without_edges_to(codec: &Codec, every: usize) -> (Vec<u8>, Vec<u32>) {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let points: Vec<[f32; 2]> = (0..3000).map(|_| rng.random()).collect();
        let mut graph = raw(*codec, 8, &points);
        let walk = Walk::new(&Layout::parse(codec, &graph).unwrap()).unwrap();
        let is_low = |node: &u32| !walk.may_begin_at(&graph, *node);
        let hidden: Vec<u32> = (0..3000).step_by(every).filter(is_low).collect();
        for node in 0..3000 {
            let mut list = vec![0; 1 + walk.room(0)];
            let mut list = List(&mut list);
            let edges = walk.neighbours(&graph, node, 0);
            edges
                .filter(|to| !hidden.contains(to))
                .for_each(|to| list.push(to));
            let at = walk.edges_at(&graph, node, 0);
            write(&mut graph, at, list.0);
        }
        (graph, hidden)
    }

    #[test]
    fn what_no_walk_comes_to_is_found_afterwards() {
        let codec = Codec::new(2, Metric::L2, Quantization::F32);
        // The second time more than one in a hundred are lost.
        for every in [150, 20] {
            let (mut graph, hidden) = without_edges_to(&codec, every);
            let before = graph.clone();
            let mut finder = Finder::new(&codec, &graph).unwrap();
            let lost = |finder: &mut Finder<'_>, graph: &[u8]| {
                let nodes = 0..3000u32;
                let is_lost = |node: &u32| !finder.instead_of(graph, *node, WIDTH).is_empty();
                nodes.filter(is_lost).collect::<Vec<_>>()
            };
            assert_eq!(lost(&mut finder, &graph), hidden);
            let how = (Place::Memory, 2);
            let links = link(&codec, &mut graph, 0..3000, how, &|| ()).unwrap();
            assert!(links > 0 && links <= hidden.len(), "{links}");
            assert_eq!(lost(&mut finder, &graph), []);
            let walk = &finder.walk;
            for node in 0..3000 {
                let of = |graph| walk.neighbours(graph, node, 0).collect::<Vec<_>>();
                let (was, is) = (of(&before), of(&graph));
                let kept = was.iter().filter(|&to| is.contains(to)).count();
                assert!(kept >= was.len() / 2 && is.len() >= was.len());
            }
            // There is nothing more to do, and other nodes are none of its business.
            assert_eq!(link(&codec, &mut graph, 0..3000, how, &|| ()).unwrap(), 0);
            let first = hidden[0] as usize;
            let mut graph = before.clone();
            assert_eq!(
                link(&codec, &mut graph, first + 1..first + 2, how, &|| ()).unwrap(),
                0
            );
            assert!(graph == before);
        }
    }
}
