//! Edges among the longer nodes of a space for inner products.
//!
//! Queries for inner products want the longer of the nodes around them. In the graph's space ([`crate::space`]) shorter
//! nodes lie nearer to each other than any lies to a longer one, and a longer one meets, wherever a walk for its neighbours begins,
//! short ones in such numbers that the walk ends before it has come to another long one. A graph of the longest quarter
//! knows no shorter ones; one of the longest quarter of those knows what queries want where few are long, and so on
//! (norm ranges: Yan et al. 2018). What walks in these find is added to the candidates of their nodes. The graphs go when
//! the edges are chosen.
//!
//! Half of the edges of such a node lead to others in the same range, half of the rest to ones in the range around it, and so on. By
//! distance alone they would lead to the shortest of the candidates: in many dimensions rows of one length are far from each other
//! whichever way they point, and a walk that has come to the longest nodes would leave them for rows that no query wants (of 40,000
//! rows × 128, whose lengths are log-normal with a spread of .4, .68 of the ten nearest were found at 100, .93 with such edges).

use std::sync::atomic::AtomicUsize;

use super::chooser::Chooser;
use super::few::are_few;
use crate::blocks;
use crate::codec::Codec;
use crate::error::Result;
use crate::graph::{Graph, Layout};
use crate::kernels::dot_i8;
use crate::lengths::Lengths;
use crate::query::Probe;
use crate::seeds::ENTRIES;
use crate::space::Space;
use crate::walk::{Guide, Walk};

/// One in this many nodes is in the first graph, and one in this many of these in the second.
const SHARE: usize = 4;
/// Nodes of a graph, at least: fewer are all visited by every walk, see [`crate::seeds`].
const FEWEST: usize = 256;
/// Candidates when the graphs are built, and of walks in them.
const EF: usize = 64;
/// What leads to the longest nodes; by default to none.
#[derive(Default)]
pub(super) struct Longest {
    /// The very longest, where there are no graphs.
    entries: Vec<u32>,
    /// The largest first.
    ranges: Vec<Range>,
}

struct Range {
    graph: Vec<u8>,
    guide: Guide,
    /// The node that stands at each place of the graph.
    nodes: Vec<u32>,
}

impl Longest {
    /// Builds the graphs, and tells of each node in how many of them it is; none where lengths do not vary. `codec` and `space` are
    /// those of the graph, of which the nodes from `first` on are new.
    ///
    /// # Errors
    /// Damage, or no memory.
    pub(super) fn of(
        codec: &Codec,
        space: Option<&Space>,
        walk: &Walk,
        graph: &[u8],
        first: usize,
        threads: usize,
        pause: &dyn Fn(),
    ) -> Result<(Self, Vec<u8>)> {
        let (mut longest, mut depths) = (Self::default(), Vec::new());
        // Walks that go by inner products themselves meet the longest anyhow.
        let space = space.filter(|_| !codec.walks_by_products());
        let lengths = space.and_then(|space| Lengths::of(codec, space, walk, graph));
        if !lengths.is_some_and(|lengths| lengths.vary()) {
            return Ok((longest, depths));
        }
        // The last coordinate is the smaller the longer a node is.
        let shortness = |node: u32| {
            if node.is_multiple_of(4096) {
                pause();
            }
            let place = codec.coarse(walk.vector(graph, node));
            let last = place.and_then(|place| place.last().copied());
            (last.unwrap_or(0.0), node)
        };
        let mut nodes = laser_memory::collect((0..walk.nodes as u32).map(shortness))?;
        let shorten = |nodes: &mut Vec<(f32, u32)>, count: usize| {
            nodes.select_nth_unstable_by(count, |a, b| a.0.total_cmp(&b.0));
            nodes.truncate(count);
        };
        // The graph that was there has edges among the longest, which these keep.
        let few = are_few(walk.nodes.saturating_sub(first), walk.nodes);
        depths = laser_memory::filled(0, walk.nodes)?;
        while nodes.len() / SHARE >= FEWEST {
            let count = nodes.len() / SHARE;
            shorten(&mut nodes, count);
            for (_, node) in &nodes {
                depths[*node as usize] += 1;
            }
            if few {
                continue;
            }
            let mut order = laser_memory::collect(nodes.iter().map(|(_, node)| *node))?;
            order.sort_unstable();
            let range = Range::build(codec, walk, graph, &mut order, threads, pause)?;
            longest.ranges.push(range);
        }
        if few {
            if nodes.len() > ENTRIES {
                shorten(&mut nodes, ENTRIES);
            }
            longest.entries.extend(nodes.iter().map(|(_, node)| *node));
        }
        Ok((longest, depths))
    }

    /// What walks for candidates pass by.
    pub(super) fn entries(&self) -> &[u32] {
        &self.entries
    }

    /// Walks for one thread.
    pub(super) fn walks(&self, codec: &Codec) -> Result<Vec<Walk>> {
        let walk = |range: &Range| {
            let layout = Layout::parse(codec, &range.graph)?;
            Ok(Walk::with(&layout, range.guide.clone()))
        };
        self.ranges.iter().map(walk).collect()
    }

    /// Adds to the candidates of a node what lies near it among the longest, if it is one of these.
    pub(super) fn add(&self, codec: &Codec, walks: &[Walk], node: u32, chooser: &mut Chooser<'_>) {
        let depth = usize::from(chooser.depth(node));
        let (dot, mut scratch) = (dot_i8(), Vec::new());
        for (range, walk) in self.ranges.iter().zip(walks).take(depth) {
            let probe = Probe::at(codec, chooser.vector());
            let found = walk.search(&range.graph, EF, |stored| {
                probe.graph_distance(codec, stored, dot, &mut scratch)
            });
            let found: Vec<u32> = found
                .into_iter()
                .map(|place| range.nodes[place as usize])
                .collect();
            chooser.add(&found);
        }
    }
}

impl Range {
    fn build(
        codec: &Codec,
        walk: &Walk,
        graph: &[u8],
        nodes: &mut [u32],
        threads: usize,
        pause: &dyn Fn(),
    ) -> Result<Self> {
        let whole = Layout::parse(codec, graph)?;
        let built = Graph::new(*codec, walk.room(1), EF)?;
        built.reserve(nodes.len(), threads)?;
        let done = AtomicUsize::new(0);
        let blocks = (blocks::NODES, threads);
        blocks::each(nodes, blocks, &done, pause, || {
            let mut scratch = Vec::new();
            let (built, whole) = (&built, &whole);
            Ok(move |node: &mut u32, _: blocks::Pause<'_>| {
                let at = whole.vector_at(*node as usize);
                built.add(
                    u64::from(*node),
                    &graph[at..][..whole.columns],
                    &mut scratch,
                )
            })
        })?;
        let mut bytes = laser_memory::filled(0, built.serialized_len())?;
        built.save(&mut bytes)?;
        drop(built);
        let layout = Layout::parse(codec, &bytes)?;
        let nodes = layout.keys()?.into_iter().map(|(_, key)| key as u32);
        let nodes = laser_memory::collect(nodes)?;
        let guide = Walk::new(&layout)?.guide().clone();
        Ok(Self {
            graph: bytes,
            guide,
            nodes,
        })
    }
}

#[cfg(test)]
mod tests {
    use laser_vector::kernels::{f32_dot, norm};
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::metric::Metric;
    use crate::quantization::Quantization;
    use crate::query::Query;
    use crate::reach::link;
    use crate::refine::{Form, Passes, Widths, refine};
    use crate::seeds;

    const ROWS: usize = 20_000;

    fn normal(rng: &mut impl Rng) -> f32 {
        (0..12).map(|_| rng.random_range(-0.5f32..0.5)).sum()
    }

    fn direction(dims: usize, rng: &mut impl Rng) -> Vec<f32> {
        let x: Vec<f32> = (0..dims).map(|_| normal(rng)).collect();
        let length = norm(&x) as f32;
        x.into_iter().map(|x| x / length).collect()
    }

    /// One row in twenty is longer than the others.
    fn two_lengths(row: usize, _: &mut ChaCha8Rng) -> f32 {
        if row.is_multiple_of(20) { 1.8 } else { 1.0 }
    }

    /// How many of the ten largest inner products a walk with 100 candidates finds, of 500, where rows have such lengths
    /// and the graph has been refined after `first` of them and then after all.
    fn found(
        quantization: Quantization,
        (dims, length): (usize, fn(usize, &mut ChaCha8Rng) -> f32),
        first: usize,
    ) -> usize {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let rows: Vec<Vec<f32>> = (0..ROWS)
            .map(|row| {
                let length = length(row, &mut rng);
                let direction = direction(dims, &mut rng).into_iter();
                direction.map(|x| length * x).collect()
            })
            .collect();
        let codec = Codec::new(dims, Metric::InnerProduct, quantization);
        let space = Space::fit(Metric::InnerProduct, dims, &rows, true);
        let (mut place, mut stored, mut scratch) =
            (Vec::new(), vec![0; codec.graph_len()], Vec::new());
        let (mut bytes, mut refined) = (Vec::new(), 0);
        for end in [first, ROWS] {
            if end == refined {
                break;
            }
            let graph = match refined {
                0 => Graph::new(codec, 16, 32),
                _ => Graph::load(codec, 16, 32, &bytes),
            };
            let graph = graph.unwrap();
            graph.reserve(end, 1).unwrap();
            for (key, x) in rows.iter().enumerate().take(end).skip(refined) {
                space.enter(x, 0.0, &mut place);
                codec.encode_graph(&place, &mut stored);
                graph.add(key as u64, &stored, &mut scratch).unwrap();
            }
            bytes = vec![0; graph.serialized_len()];
            graph.save(&mut bytes).unwrap();
            let form = Form {
                space: Some(&space),
                ..Form::of(&codec)
            };
            let passes = Passes::default();
            refine(
                form,
                &mut bytes,
                refined,
                Widths::of_pass(160),
                2,
                &passes,
                &|| (),
            )
            .unwrap();
            link(&codec, &mut bytes, &|| ()).unwrap();
            refined = end;
        }
        let layout = Layout::parse(&codec, &bytes).unwrap();
        let keys = layout.keys().unwrap();
        let mut walk = Walk::new(&layout).unwrap();
        seeds::pass_by_hubs(&codec, &space, &mut walk, &bytes);
        let mut found = 0;
        for _ in 0..50 {
            let query = direction(dims, &mut rng);
            let mut products: Vec<f32> = rows.iter().map(|x| f32_dot(&query, x)).collect();
            let of_row = products.clone();
            let (_, tenth, _) = products.select_nth_unstable_by(9, |a, b| b.total_cmp(a));
            let query = Query::new(Metric::InnerProduct, dims, &query).unwrap();
            let probe = Probe::new(codec, &space, &query);
            let nodes = walk.search(&bytes, 100, |stored| {
                probe.graph_distance(&codec, stored, dot_i8(), &mut scratch)
            });
            let row = |node: u32| keys[node as usize].1 as usize;
            let good = nodes
                .into_iter()
                .filter(|node| of_row[row(*node)] >= *tenth);
            found += good.count();
        }
        found
    }

    /// Before longer nodes had graphs of their own, walks found 25.
    #[test]
    fn longer_nodes_lead_to_each_other() {
        for quantization in [Quantization::I8, Quantization::F32] {
            let found = found(quantization, (48, two_lengths), ROWS);
            assert!(found > 480, "{quantization:?}: {found} of 500");
        }
    }

    #[test]
    fn a_merge_of_a_few_rows_links_them_too() {
        let found = found(Quantization::I8, (48, two_lengths), ROWS - ROWS / 20);
        assert!(found > 475, "{found} of 500");
    }

    /// The nearest to longer nodes are the shortest ones, wherever they point: before half of the edges and more led to longer ones,
    /// walks found 340.
    #[test]
    fn longer_nodes_lead_to_each_other_in_many_dimensions() {
        let lengths = |_, rng: &mut ChaCha8Rng| (0.4 * normal(rng)).exp();
        for first in [ROWS, ROWS - ROWS / 20] {
            let found = found(Quantization::I8, (128, lengths), first);
            assert!(found > 430, "{first}: {found} of 500");
        }
    }
}
