//! Which queries are like the rows.
//!
//! The width of a search is measured with rows that are searched for ([`crate::width`]). Queries of another kind, as single words
//! where the rows are sentences, are farther from all rows than these are from each other. The edges of a graph lead from row to
//! row, and what is near to such a query need not be near to each other: of 13,000 sentences, where .997 of the nearest rows were
//! found for sentences, .947 were for words, and .864 for the fifth of these that is farthest from all rows. Such a search is made
//! again with a larger width ([`crate::scan`]).
//!
//! How far rows are from each other, their edges tell: the nearest rows are nearly always among them. What has the largest inner
//! products with a row is no neighbour of it, so that these are searched for. Where all rows have a part in common that a query has
//! not, its products are smaller than theirs: of 6,000 rows of 32 dimensions to one side of the origin .79 of the nearest were found for
//! queries around it.

use laser_sampling::scattered;

use crate::codec::{Codec, Format};
use crate::encoding::Encoding;
use crate::kernels::dot_i8;
use crate::metric::Metric;
use crate::query::Probe;
use crate::walk::{NEAREST, Walk};

/// Nodes whose edges are measured.
const SAMPLE: usize = 1024;
/// Nodes that are searched for where edges tell nothing, and the least and most candidates of these searches: with fewer than those of a
/// query the tenth would seem farther than it is, and with many more all of them take a second.
const SEARCHED: usize = 256;
const LEAST: usize = 64;
const MOST: usize = 400;
/// With fewer nodes, nothing is said: all of them are compared with every query.
const FEWEST: usize = 2048;
/// The share of the nodes that are familiar to each other.
const SHARE: f64 = 0.95;

/// The distance within which nearly all nodes have their [`NEAREST`]; for inner products as queries of searches with `ef` candidates.
/// Nothing where graphs go by inner products, which tell lengths of queries rather than what these are like, or where nodes have too few
/// edges.
pub(crate) fn distance(encoding: &Encoding, walk: &Walk, graph: &[u8], ef: usize) -> Option<f32> {
    let codec = &encoding.codec;
    if walk.nodes < FEWEST {
        return None;
    }
    let mut farthest = match codec.metric {
        Metric::InnerProduct if codec.format != Format::Second => return None,
        Metric::InnerProduct => as_queries(encoding, walk, graph, ef.clamp(LEAST, MOST))?,
        _ => by_edges(codec, walk, graph)?,
    };
    let at = ((farthest.len() - 1) as f64 * SHARE) as usize;
    let (_, most, _) = farthest.select_nth_unstable_by(at, f32::total_cmp);
    Some(*most)
}

/// How far the last of the nearest is to each of some nodes, by their edges; nothing where most have too few.
fn by_edges(codec: &Codec, walk: &Walk, graph: &[u8]) -> Option<Vec<f32>> {
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
        farthest.extend(last_of_nearest(&mut distances));
    }
    (farthest.len() >= SAMPLE / 2).then_some(farthest)
}

/// How far the last of those is that have the largest inner products with each of some nodes, which walks with `ef` candidates find;
/// nothing where nodes are too coarse to be queries. Queries are brought to one length ([`crate::space::Space::enter_query`]), so
/// that theirs does not matter.
fn as_queries(
    Encoding { codec, space, .. }: &Encoding,
    walk: &Walk,
    graph: &[u8],
    ef: usize,
) -> Option<Vec<f32>> {
    codec.coarse(walk.vector(graph, 0))?;
    let (dot, mut scratch) = (dot_i8(), Vec::new());
    let mut farthest = Vec::new();
    for node in scattered(walk.nodes).take(SEARCHED) {
        let stored = walk.vector(graph, node);
        let probe = Probe::like(codec, space, stored).ok()?;
        let mut distance = |stored: &[u8]| probe.graph_distance(codec, stored, dot, &mut scratch);
        // A query that is no node does not find itself.
        let found = walk.search(graph, ef, &mut distance).into_iter();
        let mut distances: Vec<f32> = found
            .filter(|&other| other != node)
            .map(|other| distance(walk.vector(graph, other)))
            .collect();
        farthest.extend(last_of_nearest(&mut distances));
    }
    (farthest.len() >= SEARCHED / 2).then_some(farthest)
}

fn last_of_nearest(distances: &mut [f32]) -> Option<f32> {
    (distances.len() >= NEAREST).then(|| {
        *distances
            .select_nth_unstable_by(NEAREST - 1, f32::total_cmp)
            .1
    })
}
