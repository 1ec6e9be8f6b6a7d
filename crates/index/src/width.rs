//! How many candidates a walk must keep to find nearly all of the nearest nodes.
//!
//! Graphs differ: one with clear neighbourhoods needs forty candidates, one of a million sentences
//! about everything thousands. When a segment has been built, nodes of it are searched for as if
//! they were not in it, and what is found is compared with what a look at every node finds. For inner products all queries are
//! for the longest nodes, also those that are like the rows of other segments: some of these are searched for as well.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use laser_sampling::scattered;

use crate::blocks::{self, Pause};
use crate::codec::Codec;
use crate::encoding::Encoding;
use crate::error::Result;
use crate::graph::Layout;
use crate::kernels::dot_i8;
use crate::lengths::Lengths;
use crate::metric::Metric;
use crate::quantization::Quantization;
use crate::query::{Probe, Query};
use crate::seeds;
use crate::stranded::are_stranded;
use crate::walk::Walk;

/// Nodes that are searched for. Of a hundred, three that are hard to find would make the difference between two widths.
const QUERIES: usize = 300;
/// Nodes that all queries are compared with before the next ones, while the processor's caches hold them.
const TOGETHER: usize = 256;
/// Nodes that may be among the nearest, before all but these are forgotten.
const KEPT: usize = 64;
/// Nearest nodes that are to be found.
pub const NEAREST: usize = 10;
/// Share of them that is to be found. Queries from elsewhere are harder than nodes, among a million
/// sentences by half of one per cent.
const WANTED: f64 = 0.996;
/// The same where queries are for inner products with nodes of different lengths: at widths that found .996 for nodes,
/// queries in random directions found .97 to .99.
const WANTED_OF_VARIED: f64 = 0.999;
/// The fewest candidates that a search keeps by default.
pub(crate) const LEAST: usize = 64;
/// Widths that are tried. The first is as much as a `LIMIT` of 20 may want of an easy graph.
const WIDTHS: [usize; 15] = [
    LEAST, 100, 150, 200, 300, 400, 600, 800, 1200, 1800, 2700, 4000, 6000, 9000, 13_500,
];

/// Where nodes cannot be brought back from the space of inner products.
const LEAST_FOR_PRODUCTS: usize = 200;

/// A node that is searched for, or none for what comes from elsewhere; what is searched for with; and the nearest of the
/// other nodes with their distances.
type Searched = (Option<u32>, Probe, Vec<(f32, u32)>);

/// Forgets of the nearest those to which nothing leads but the node that is searched for. A query from elsewhere
/// comes to them by that node, where nothing leads through it here: they say nothing of any width.
fn leave_stranded_out(walk: &Walk, graph: &[u8], queries: &mut [Searched], pause: &dyn Fn()) {
    let pairs: Vec<(u32, u32)> = queries
        .iter()
        .filter_map(|(node, _, nearest)| Some(((*node)?, nearest)))
        .flat_map(|(node, nearest)| nearest.iter().map(move |(_, near)| (*near, node)))
        .collect();
    let mut are_stranded = are_stranded(walk, graph, &pairs, pause).into_iter();
    for (.., nearest) in queries.iter_mut().filter(|(node, ..)| node.is_some()) {
        nearest.retain(|_| are_stranded.next() == Some(false));
    }
}

/// The least width of [`WIDTHS`] that is enough, or the largest. `measured` is told which share of the work is done at least, `pause`
/// is called now and then, and may unwind.
///
/// # Errors
/// Damage.
pub fn measure(
    encoding: &Encoding,
    graph: &[u8],
    threads: usize,
    measured: &dyn Fn(f64),
    pause: &dyn Fn(),
) -> Result<usize> {
    let (walk, nodes) = walk(encoding, graph)?;
    // Nodes in step with something, as rows that come from several sources in turn, would all be of one kind.
    let sample: BTreeSet<u32> = scattered(nodes).take(QUERIES).collect();
    let of = (&walk, graph);
    least_width(encoding, of, sample, 0, threads, measured, pause)
}

/// The same where a width of `from` was enough so far, by what is like [`Encoding::queries`] alone.
///
/// # Errors
/// Damage.
pub fn measure_again(
    encoding: &Encoding,
    graph: &[u8],
    from: usize,
    pause: &dyn Fn(),
) -> Result<usize> {
    let (walk, _) = walk(encoding, graph)?;
    let (of, sample) = ((&walk, graph), BTreeSet::new());
    least_width(encoding, of, sample, from, 1, &|_| (), pause)
}

/// A walk as searches make it, and the number of nodes.
fn walk(encoding: &Encoding, graph: &[u8]) -> Result<(Walk, usize)> {
    let Encoding { codec, space, .. } = encoding;
    let mut walk = Walk::new(&Layout::parse(codec, graph)?)?;
    seeds::pass_by_hubs(codec, space, &mut walk, graph);
    let nodes = walk.nodes;
    Ok((walk, nodes))
}

/// What nothing is farther than in the order of [`f32::total_cmp`].
const FARTHEST: f32 = f32::from_bits(u32::MAX >> 1);

/// The nearest of all that were added.
struct Nearest {
    found: Vec<(f32, u32)>,
    /// What is farther than this is none of them.
    within: f32,
}

impl Nearest {
    fn none() -> Self {
        Self {
            found: Vec::with_capacity(KEPT),
            within: FARTHEST,
        }
    }

    fn add(&mut self, distance: f32, node: u32) {
        if distance.total_cmp(&self.within).is_gt() {
            return;
        }
        self.found.push((distance, node));
        if self.found.len() == KEPT {
            self.sort();
            self.within = self.found[NEAREST - 1].0;
        }
    }

    fn sort(&mut self) {
        self.found.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        self.found.truncate(NEAREST);
    }
}

/// The nearest nodes of each query but itself, by a look at all of them.
fn nearest(
    codec: &Codec,
    (walk, graph): (&Walk, &[u8]),
    asked: Vec<(Option<u32>, Probe)>,
    threads: usize,
    pause: &dyn Fn(),
) -> Result<Vec<Searched>> {
    let nodes = walk.nodes as u32;
    let layout = Layout::parse(codec, graph)?;
    let vector = |node: u32| &graph[layout.vector_at(node as usize)..][..codec.graph_len()];
    let asked = asked.into_iter();
    let asked = asked.map(|(node, probe)| (node, probe, Nearest::none()));
    let mut queries = laser_memory::collect(asked)?;
    let share = queries.len().div_ceil(threads.max(1)).max(1);
    let mut shares = laser_memory::collect(queries.chunks_mut(share))?;
    let (one, none) = ((1, threads), Default::default());
    blocks::each(&mut shares, one, &none, pause, || {
        let (dot, mut scratch) = (dot_i8(), Vec::new());
        let vector = &vector;
        type Share<'a> = &'a mut [(Option<u32>, Probe, Nearest)];
        Ok(move |queries: &mut Share<'_>, go_on: Pause<'_>| {
            for first in (0..nodes).step_by(TOGETHER) {
                go_on()?;
                let together = first..nodes.min(first + TOGETHER as u32);
                for (node, probe, nearest) in queries.iter_mut() {
                    for other in together.clone().filter(|other| Some(*other) != *node) {
                        let stored = vector(other);
                        let distance = probe.graph_distance(codec, stored, dot, &mut scratch);
                        nearest.add(distance, other);
                    }
                }
            }
            Ok(())
        })
    })?;
    let found = queries.into_iter().map(|(node, probe, mut nearest)| {
        nearest.sort();
        (node, probe, nearest.found)
    });
    Ok(laser_memory::collect(found)?)
}

/// The least width from `from` on that is enough for some nodes, and for what else is searched for.
fn least_width(
    encoding: &Encoding,
    (walk, graph): (&Walk, &[u8]),
    sample: BTreeSet<u32>,
    from: usize,
    threads: usize,
    measured: &dyn Fn(f64),
    pause: &dyn Fn(),
) -> Result<usize> {
    let Encoding { codec, space, .. } = encoding;
    let nodes = walk.nodes;
    if nodes <= WIDTHS[0] {
        return Ok(WIDTHS[0].max(from));
    }
    let mut asked: Vec<(Option<u32>, Probe)> = Vec::new();
    for node in sample {
        asked.push((
            Some(node),
            Probe::like(codec, space, walk.vector(graph, node))?,
        ));
    }
    for x in &encoding.queries {
        let query = Query::new(codec.metric, codec.dims, x)?;
        asked.push((None, Probe::new(*codec, space, &query)));
    }
    let mut queries = nearest(codec, (walk, graph), asked, threads, pause)?;
    leave_stranded_out(walk, graph, &mut queries, pause);
    let least = match (codec.metric, codec.quantization) {
        (Metric::InnerProduct, Quantization::B1) => LEAST_FOR_PRODUCTS.max(from),
        _ => from,
    };
    let wanted: usize = queries.iter().map(|(.., nearest)| nearest.len()).sum();
    let share = match Lengths::of(codec, space, walk, graph) {
        Some(lengths) if lengths.vary() => WANTED_OF_VARIED,
        _ => WANTED,
    };
    let may_be_missed = ((1.0 - share) * wanted as f64) as usize;
    let (layout, guide) = (Layout::parse(codec, graph)?, walk.guide());
    let (layout, queries) = (&layout, &queries[..]);
    for (tried, width) in WIDTHS.into_iter().enumerate() {
        measured((tried + 1) as f64 / (WIDTHS.len() + 1) as f64);
        if width < least {
            continue;
        }
        let missed = AtomicUsize::new(0);
        let is_too_small = || missed.load(Ordering::Relaxed) > may_be_missed;
        let mut each = laser_memory::collect(queries)?;
        blocks::each(&mut each, (1, threads), &Default::default(), pause, || {
            let walk = Walk::with(layout, guide.clone());
            let (dot, mut scratch) = (dot_i8(), Vec::new());
            let (missed, is_too_small) = (&missed, &is_too_small);
            Ok(
                move |(node, probe, nearest): &mut &Searched, _: Pause<'_>| {
                    // Most widths are far too small, and the first queries say so.
                    if is_too_small() {
                        return Ok(());
                    }
                    let own = node.map(|node| walk.vector(graph, node).as_ptr());
                    let found = walk.search(graph, width, |stored| {
                        if Some(stored.as_ptr()) == own {
                            // Nothing leads through the node that is searched for.
                            return f32::INFINITY;
                        }
                        probe.graph_distance(codec, stored, dot, &mut scratch)
                    });
                    let hits: HashSet<u32> = found.into_iter().collect();
                    let is_missed = |(_, node): &&(f32, u32)| !hits.contains(node);
                    let new = nearest.iter().filter(is_missed).count();
                    missed.fetch_add(new, Ordering::Relaxed);
                    Ok(())
                },
            )
        })?;
        if !is_too_small() {
            measured(1.0);
            return Ok(width);
        }
    }
    measured(1.0);
    Ok(WIDTHS[WIDTHS.len() - 1].max(from))
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::raw;
    use crate::reach::link;
    use crate::space::Space;

    #[test]
    fn the_nearest_are_those_of_a_sort() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        for count in [0, 1, 9, 10, 11, 63, 64, 65, 1000] {
            for values in [3, 1_000_000] {
                let mut all: Vec<f32> = (0..count)
                    .map(|_| match rng.random_range(0..values) {
                        0 => f32::NAN,
                        1 => f32::INFINITY,
                        value => value as f32 - 1.5,
                    })
                    .collect();
                let mut nearest = Nearest::none();
                (0..)
                    .zip(&all)
                    .for_each(|(node, distance)| nearest.add(*distance, node));
                nearest.sort();
                let bits = |x: f32| x.to_bits();
                let found = nearest.found.iter().map(|(distance, node)| {
                    assert_eq!(bits(*distance), bits(all[*node as usize]));
                    bits(*distance)
                });
                let found: Vec<u32> = found.collect();
                all.sort_unstable_by(f32::total_cmp);
                all.truncate(NEAREST);
                assert_eq!(found, all.into_iter().map(bits).collect::<Vec<_>>());
            }
        }
    }

    fn encoding(codec: Codec, space: Space) -> Encoding {
        Encoding {
            codec,
            space,
            noise: None,
            longest: f64::INFINITY,
            queries: Vec::new(),
        }
    }

    /// Whoever looks for a node of a small group without it finds nothing of the others, by whatever width. A query
    /// from elsewhere does: here by widths of 400 to 800.
    #[test]
    fn small_groups_are_not_taken_for_hard_ones() {
        for seed in 0..5 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let centre = |_| [(); 2].map(|()| rng.random_range(-1000.0..1000.0));
            let centres: Vec<[f32; 2]> = (0..500).map(centre).collect();
            let points: Vec<[f32; 2]> = (0..3000)
                .map(|i| centres[i / 6].map(|x| x + rng.random_range(-1.0..1.0)))
                .collect();
            let codec = Codec::new(2, Metric::L2, Quantization::F32);
            let mut graph = raw(codec, 16, &points);
            link(&codec, &mut graph, &|| ()).unwrap();
            let space = Space::plain(Metric::L2, 2);
            let width = measure(&encoding(codec, space), &graph, 2, &|_| (), &|| ()).unwrap();
            assert!(width <= 1800, "{width}, seed {seed}");
        }
    }

    /// Every fiftieth row is of a source that is easy to search: nodes in steps of fifty were all of it.
    #[test]
    fn sources_in_turn_are_all_measured() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let mut points: Vec<Vec<f32>> = (0..5000)
            .map(|i| match i % 50 {
                25 => (0..24).map(|_| i as f32 / 5e4).collect(),
                _ => (0..24).map(|_| rng.random_range(-1.0..1.0)).collect(),
            })
            .collect();
        let codec = Codec::new(24, Metric::L2, Quantization::F32);
        let space = Space::plain(Metric::L2, 24);
        let width = |points: &[Vec<f32>]| {
            let mut graph = raw(codec, 16, points);
            link(&codec, &mut graph, &|| ()).unwrap();
            measure(&encoding(codec, space.clone()), &graph, 1, &|_| (), &|| ()).unwrap()
        };
        let in_turn = width(&points);
        points.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let sorted = width(&points);
        assert!(2 * in_turn >= sorted, "{in_turn}, {sorted}");
    }
}
