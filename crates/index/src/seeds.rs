//! Where walks begin besides the highest levels of a graph.

use std::collections::HashSet;

use laser_vector::kernels::norm;

use crate::codec::Codec;
use crate::encoding::Encoding;
use crate::error::Result;
use crate::familiar;
use crate::graph::Layout;
use crate::kernels::dot_i8;
use crate::lengths::Lengths;
use crate::query::{Probe, Query};
use crate::segment::SegmentHeader;
use crate::space::Space;
use crate::walk::Walk;

/// Nodes that at least this many entries share are seeds.
const CROWD: usize = 16;
/// The number of such seeds, at most.
const CROWDS: usize = 32;

/// The number of seeds that nearly all queries for inner products want, the nearest to the mean of all nodes.
const HUBS: usize = 256;
/// The number of seeds that are the longest nodes: of 100,000 rows in 24 dimensions whose lengths are log-normal, .996 of the ten
/// nearest to queries in random directions are among these (.96 among 256).
const LONGEST: usize = 512;
/// How wide the walk is that looks for them: what leads to them is often not long itself.
const WIDTH_FOR_LONGEST: usize = 2048;
/// Below this share of the nodes' lengths their mean has no direction: what is left of as many vectors of random
/// directions is a third of it.
const LEAST_MEAN: f64 = 0.1;
/// Below this share of their mean, lengths do not vary by much: their standard deviation in Gaussian data of 24 dimensions is
/// .14 of the mean.
const LEAST_DEVIATION: f64 = 0.25;
/// The number of the longest nodes that are passed by where lengths vary less, but by more than [`LEAST_DEVIATION`]: among the nearest of most queries
/// are longer rows, however few there are, and in a graph of distances nothing leads to these from the shorter ones,
/// which are nearer to each other. Of 64 entries in 48 dimensions, one query in thirty liked none as much as the hundreds of short rows
/// that it came to first.
pub(crate) const ENTRIES: usize = 256;

/// A walk in the graph of a segment's file that begins where the segment needs it.
///
/// # Errors
/// Nodes that do not lie in the graph.
pub(crate) fn walk(
    encoding: &Encoding,
    head: &SegmentHeader,
    layout: &Layout<'_>,
    file: &[u8],
) -> Result<Walk> {
    let mut walk = Walk::new(layout)?;
    walk.begin_at(crowds(head, file));
    let graph = head.graph.of(file);
    pass_by_hubs(&encoding.codec, &encoding.space, &mut walk, graph);
    let distance = familiar::distance(encoding, &walk, graph, head.ef as usize);
    walk.familiar_within(distance);
    Ok(walk)
}

/// The nodes that most entries share.
fn crowds(head: &SegmentHeader, bytes: &[u8]) -> Vec<u32> {
    if (head.placed().saturating_sub(head.nodes) as usize) < CROWD - 1 {
        return Vec::new();
    }
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

/// Has a walk for inner products look at [`hubs`], and know whether lengths differ.
pub(crate) fn pass_by_hubs(codec: &Codec, space: &Space, walk: &mut Walk, graph: &[u8]) {
    let Some(lengths) = Lengths::of(codec, space, walk, graph) else {
        return;
    };
    walk.pass_by(hubs(codec, space, &lengths, walk, graph));
    walk.lengths_differ(lengths.differ() && !codec.walks_by_products());
}

/// What many queries for inner products want, whatever their directions, as far as walks find it; nothing where the
/// metric is another one.
///
/// * The nodes with the largest inner products with the mean of all. Inner products of rows that lie to one side of the
///   origin (counts, images, whatever is not negative) have a part that all queries share, `q̄·x`: the same rows are
///   near to most of them. Without a mean to speak of there are none.
/// * The longest, where lengths vary, whether there is a mean or not: a query away from it has other neighbours.
///
/// In a graph of distances these are no neighbours of each other, and a walk has to come upon each by itself.
fn hubs(codec: &Codec, space: &Space, lengths: &Lengths, walk: &Walk, graph: &[u8]) -> Vec<u32> {
    if walk.nodes <= LONGEST {
        return Vec::new();
    }
    let (dot, mut scratch) = (dot_i8(), Vec::new());
    let mut nearest = |probe: &Probe, width: usize, count: usize| {
        let mut distance = |stored: &[u8]| probe.graph_distance(codec, stored, dot, &mut scratch);
        let mut found: Vec<(f32, u32)> = walk
            .search(graph, width, &mut distance)
            .into_iter()
            .map(|node| (distance(walk.vector(graph, node)), node))
            .collect();
        if found.len() > count {
            found.select_nth_unstable_by(count, |a, b| a.0.total_cmp(&b.0));
            found.truncate(count);
        }
        found.into_iter().map(|(_, node)| node)
    };
    let mut hubs = Vec::new();
    if norm(&lengths.mean) > LEAST_MEAN * lengths.length
        && let Ok(query) = Query::new(codec.metric, codec.dims, &lengths.mean)
    {
        hubs.extend(nearest(&Probe::new(*codec, space, &query), HUBS, HUBS));
    }
    let longest = match lengths.deviation {
        deviation if deviation > LEAST_DEVIATION => LONGEST,
        _ if lengths.vary() => ENTRIES,
        _ => 0,
    };
    if longest > 0
        && let Some(place) = space.max_norm_query()
    {
        let mut stored = vec![0; codec.graph_len()];
        codec.encode_graph(&place, &mut stored);
        let known: HashSet<u32> = hubs.iter().copied().collect();
        let longest = nearest(&Probe::at(codec, &stored), WIDTH_FOR_LONGEST, longest);
        hubs.extend(longest.filter(|node| !known.contains(node)));
    }
    hubs
}

#[cfg(test)]
mod tests {
    use laser_vector::kernels::f32_dot;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::Graph;
    use crate::metric::Metric;
    use crate::quantization::Quantization;

    const DIMS: usize = 24;

    /// The hubs of a graph of rows, as rows.
    fn found(metric: Metric, rows: &[Vec<f32>]) -> Vec<usize> {
        let codec = Codec::new(DIMS, metric, Quantization::I8);
        let space = Space::fit(metric, DIMS, rows, true);
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
        let mut walk = Walk::new(&layout).unwrap();
        pass_by_hubs(&codec, &space, &mut walk, &bytes);
        let row = |node: &u32| keys[*node as usize].1 as usize;
        walk.guide().wanted.iter().map(row).collect()
    }

    /// Rows with components from `low` to 1.
    fn rows(rng: &mut impl Rng, count: usize, low: f32) -> Vec<Vec<f32>> {
        let row = |_| (0..DIMS).map(|_| rng.random_range(low..1.0)).collect();
        (0..count).map(row).collect()
    }

    /// How many of the ten rows nearest to each of 100 queries are hubs.
    fn hits(rows: &[Vec<f32>], hubs: &[usize], queries: &[Vec<f32>]) -> usize {
        let hubs: HashSet<usize> = hubs.iter().copied().collect();
        let hits = |query: &Vec<f32>| {
            let mut order: Vec<usize> = (0..rows.len()).collect();
            order.sort_by(|a, b| f32_dot(query, &rows[*b]).total_cmp(&f32_dot(query, &rows[*a])));
            order[..10].iter().filter(|row| hubs.contains(row)).count()
        };
        assert_eq!(queries.len(), 100);
        queries.iter().map(hits).sum()
    }

    #[test]
    fn hubs_are_what_all_queries_want() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let positive = rows(&mut rng, 3000, 0.0);
        let hubs = found(Metric::InnerProduct, &positive);
        // Their lengths vary as well, so that the longest follow.
        assert!((HUBS..=HUBS + ENTRIES).contains(&hubs.len()));
        let queries: Vec<_> = positive.iter().step_by(30).cloned().collect();
        let hit = hits(&positive, &hubs[..HUBS], &queries);
        assert!(hit > 950, "{hit} of 1000");
        // Rows all around the origin have none but the longest, nor have distances.
        let around = rows(&mut rng, 3000, -1.0);
        assert_eq!(found(Metric::InnerProduct, &around).len(), ENTRIES);
        assert_eq!(found(Metric::L2, &positive), []);
    }

    #[test]
    fn a_share_of_longer_rows_is_entered() {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let mut rows = rows(&mut rng, 3000, -1.0);
        for (i, x) in rows.iter_mut().enumerate() {
            let length = if i % 10 == 0 { 1.6 } else { 1.0 };
            let factor = length / norm(x) as f32;
            x.iter_mut().for_each(|x| *x *= factor);
        }
        let hubs = found(Metric::InnerProduct, &rows);
        let long = hubs.iter().filter(|row| **row % 10 == 0).count();
        assert_eq!((hubs.len(), long), (ENTRIES, ENTRIES));
        // As well where all rows lean to one side a little, and some are near to most queries for that.
        let mut leaning = rows.clone();
        for (i, x) in leaning.iter_mut().enumerate() {
            x[0] += if i % 10 == 0 { 0.24 } else { 0.15 };
        }
        let hubs = found(Metric::InnerProduct, &leaning);
        let long = hubs.iter().filter(|row| **row % 10 == 0).count();
        assert!(
            hubs.len() > HUBS && long >= ENTRIES,
            "{long} of {}",
            hubs.len()
        );
        // Rows of one length have nothing to enter by.
        for x in &mut rows {
            let length = norm(x) as f32;
            x.iter_mut().for_each(|x| *x /= length);
        }
        assert_eq!(found(Metric::InnerProduct, &rows), []);
    }

    #[test]
    fn the_longest_are_what_all_queries_want() {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let mut long = rows(&mut rng, 3000, -1.0);
        for x in &mut long {
            // Log-normal: the sum of twelve is normal but for its ends.
            let normal = (0..12).map(|_| rng.random_range(-0.5f32..0.5)).sum::<f32>();
            let length = normal.exp() / norm(x) as f32;
            x.iter_mut().for_each(|x| *x *= length);
        }
        let hubs = found(Metric::InnerProduct, &long);
        assert_eq!(hubs.len(), LONGEST);
        let queries = rows(&mut rng, 100, -1.0);
        let hit = hits(&long, &hubs, &queries);
        assert!(hit > 950, "{hit} of 1000");
        assert_eq!(found(Metric::L2, &long), []);
    }
}
