//! Which queries are like the rows.
//!
//! The width of a search is measured with rows that are searched for ([`crate::width`]). Queries of another kind, as single words
//! where the rows are sentences, are farther from all rows than these are from each other. The edges of a graph lead from row to
//! row, and what is near to such a query need not be near to each other: of 13,000 sentences, where .997 of the nearest rows were
//! found for sentences, .947 were for words, and .864 for the fifth of these that is farthest from all rows. Such a search is made
//! again with a larger width ([`crate::scan`]).
//!
//! How far rows are from each other, their edges tell: the nearest rows are nearly always among them.

use laser_sampling::scattered;

use crate::codec::Codec;
use crate::kernels::dot_i8;
use crate::metric::Metric;
use crate::query::Probe;
use crate::walk::{NEAREST, Walk};

/// Nodes whose edges are measured.
const SAMPLE: usize = 1024;
/// With fewer nodes, nothing is said: all of them are compared with every query.
const FEWEST: usize = 2048;
/// The share of the nodes that are familiar to each other.
const SHARE: f64 = 0.95;

/// The distance within which nearly all nodes have their [`NEAREST`]; nothing where graphs go by inner products, which tell lengths
/// of queries rather than what these are like, or where nodes have too few edges.
pub(crate) fn distance(codec: &Codec, walk: &Walk, graph: &[u8]) -> Option<f32> {
    if codec.metric == Metric::InnerProduct || walk.nodes < FEWEST {
        return None;
    }
    let (dot, mut scratch) = (dot_i8(), Vec::new());
    let mut farthest = Vec::new();
    let mut distances = Vec::new();
    for node in scattered(walk.nodes).take(SAMPLE) {
        let probe = Probe::at(codec, walk.vector(graph, node));
        distances.clear();
        distances.extend(
            walk.neighbours(graph, node, 0)
                .map(|to| probe.graph_distance(codec, walk.vector(graph, to), dot, &mut scratch)),
        );
        if distances.len() >= NEAREST {
            let (_, last, _) = distances.select_nth_unstable_by(NEAREST - 1, f32::total_cmp);
            farthest.push(*last);
        }
    }
    if farthest.len() < SAMPLE / 2 {
        return None;
    }
    let at = ((farthest.len() - 1) as f64 * SHARE) as usize;
    let (_, most, _) = farthest.select_nth_unstable_by(at, f32::total_cmp);
    Some(*most)
}
