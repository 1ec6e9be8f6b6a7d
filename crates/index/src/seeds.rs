//! Where walks begin besides the highest levels of a graph.

use laser_vector::kernels::norm;

use crate::codec::Codec;
use crate::kernels::dot_i8;
use crate::metric::Metric;
use crate::query::{Probe, Query};
use crate::segment::SegmentHeader;
use crate::space::Space;
use crate::walk::Walk;

/// Nodes that so many entries share are seeds, so many of them at most.
const CROWD: usize = 16;
const CROWDS: usize = 32;

/// Nodes that nearly all queries for inner products want, so many of them.
const HUBS: usize = 256;
/// Nodes whose mean stands for queries.
const SAMPLE: usize = 1024;
/// Below this share of the nodes' lengths their mean has no direction: what is left of as many vectors of random
/// directions is a third of it.
const LEAST_MEAN: f64 = 0.1;

/// The nodes that most entries share.
pub(crate) fn crowds(head: &SegmentHeader, bytes: &[u8]) -> Vec<u32> {
    let size = |node: u32| head.entries(bytes, node as usize).len();
    let mut crowds: Vec<u32> = (0..head.nodes as u32)
        .filter(|&node| size(node) >= CROWD)
        .collect();
    if crowds.len() > CROWDS {
        crowds.select_nth_unstable_by_key(CROWDS, |&node| std::cmp::Reverse(size(node)));
        crowds.truncate(CROWDS);
    }
    crowds
}

/// The nodes with the largest inner products with the mean of all, as far as a walk finds them; none where the metric
/// is another one, or the nodes have no mean to speak of.
///
/// Inner products of rows that lie to one side of the origin (counts, images, whatever is not negative) have a part
/// that all queries share, `q̄·x`: the same rows are near to most of them. In a graph of distances these
/// are no neighbours of each other, and a walk has to come upon each by itself.
pub(crate) fn hubs(codec: &Codec, space: &Space, walk: &Walk, graph: &[u8]) -> Vec<u32> {
    if codec.metric != Metric::InnerProduct || walk.nodes <= HUBS {
        return Vec::new();
    }
    let (mut mean, mut lengths, mut count) = (vec![0.0; codec.dims], 0.0, 0.0);
    let step = walk.nodes.div_ceil(SAMPLE);
    for node in (0..walk.nodes).step_by(step) {
        let Some(place) = codec.coarse(walk.vector(graph, node as u32)) else {
            return Vec::new();
        };
        let x = space.leave(&place);
        lengths += norm(&x);
        count += 1.0;
        for (mean, x) in mean.iter_mut().zip(x) {
            *mean += f64::from(x);
        }
    }
    let mean: Vec<f32> = mean.iter().map(|sum| (sum / count) as f32).collect();
    if norm(&mean) <= LEAST_MEAN * lengths / count {
        return Vec::new();
    }
    let Ok(query) = Query::new(codec.metric, codec.dims, &mean) else {
        return Vec::new();
    };
    let probe = Probe::new(*codec, space, &query);
    let (dot, mut scratch) = (dot_i8(), Vec::new());
    walk.search(graph, HUBS, |stored| {
        probe.graph_distance(codec, stored, dot, &mut scratch)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use laser_vector::kernels::f32_dot;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::{Graph, Layout};
    use crate::quantization::Quantization;

    const DIMS: usize = 24;

    /// Rows with components from `low` to 1, the hubs of a graph of them, and the row of each node.
    fn found(metric: Metric, low: f32) -> (Vec<Vec<f32>>, Vec<usize>) {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let rows: Vec<Vec<f32>> = (0..3000)
            .map(|_| (0..DIMS).map(|_| rng.random_range(low..1.0)).collect())
            .collect();
        let codec = Codec::new(DIMS, metric, Quantization::I8);
        let space = Space::fit(metric, DIMS, &rows, true);
        let graph = Graph::new(codec, 16, 64).unwrap();
        graph.reserve(rows.len(), 1).unwrap();
        let (mut place, mut stored, mut scratch) =
            (Vec::new(), vec![0; codec.graph_len()], Vec::new());
        for (key, x) in rows.iter().enumerate() {
            space.enter(x, 0.0, &mut place);
            codec.encode_graph(&place, &mut stored);
            graph.add(key as u64, &stored, &mut scratch).unwrap();
        }
        let mut bytes = vec![0; graph.serialized_len()];
        graph.save(&mut bytes).unwrap();
        let layout = Layout::parse(&codec, &bytes).unwrap();
        let keys = layout.keys().unwrap();
        let walk = Walk::new(&layout).unwrap();
        let hubs = hubs(&codec, &space, &walk, &bytes);
        let row = |node: u32| keys[node as usize].1 as usize;
        (rows, hubs.into_iter().map(row).collect())
    }

    #[test]
    fn hubs_are_what_all_queries_want() {
        let (rows, hubs) = found(Metric::InnerProduct, 0.0);
        let hubs: HashSet<usize> = hubs.into_iter().collect();
        assert_eq!(hubs.len(), HUBS);
        // Ten rows for each of some queries, of which nearly all are among them.
        let mut hit = 0;
        for query in rows.iter().step_by(30) {
            let mut order: Vec<usize> = (0..rows.len()).collect();
            order.sort_by(|a, b| f32_dot(query, &rows[*b]).total_cmp(&f32_dot(query, &rows[*a])));
            hit += order[..10].iter().filter(|row| hubs.contains(row)).count();
        }
        assert!(hit > 950, "{hit} of 1000");
        // Rows all around the origin have none, nor have distances.
        assert_eq!(found(Metric::InnerProduct, -1.0).1, []);
        assert_eq!(found(Metric::L2, 0.0).1, []);
    }
}
