//! A second pass over a graph whose nodes have first edges.
//!
//! These are either those to the nearest in the same leaves ([`leaves`]), or what usearch has linked, which adds one node after the
//! other: each to at most `m` others, of what has come before it, and when a list of
//! edges overflows it keeps only those that no other one shadows: half of the room on the lowest level
//! stays empty, most of it where everything is near everything. The second pass looks for the
//! neighbours of each node among all of them and fills its list: those that no nearer one shadows
//! first (Malkov & Yashunin 2016, algorithm 4, with `keepPrunedConnections`), then the nearest of the rest.
//! Its edges are offered to where they lead, too (Subramanya et al. 2019, DiskANN, algorithm 3). Of what is
//! offered to a full list, and not shadowed, those come first that few edges lead to: a walk finds a node by these
//! alone, and a place beside a few crowded nodes is no loss to these (Iwasaki & Miyazaki 2018, ONNG, balance the
//! edges to each node likewise).
//!
//! The levels above the lowest one are linked again first ([`levels`]), so that walks for candidates come to all places.
//! Where walks go by distances that stand for inner products, the longer nodes have candidates from graphs of their own
//! ([`longest`]).
//!
//! Two cheap passes give a better graph than one that costs as much as both, because the first one
//! knows only some of the nodes near each: those in its leaves, or that came before. Most of the work is in the second, which knows
//! them all. Where it could not know them, because the first left most of them where no walk comes, it is made again ([`passes`]).

mod candidates;
mod chooser;
mod few;
pub(crate) mod leaves;
mod level;
mod levels;
mod lists;
mod longest;
mod members;
mod passes;

use std::ops::Range;
use std::path::Path;

use crate::codec::Codec;
use crate::error::Result;
use crate::graph::Layout;
use crate::space::Space;
use crate::table::{Place, Table};
use crate::walk::Walk;
use candidates::{Candidates, Source};
pub(crate) use few::are_few;
use level::Level;
use lists::{List, Lists};
use longest::Longest;
use members::Members;
pub use passes::Passes;
use passes::Sample;

/// Candidates of a node, at least.
const FEWEST: usize = 32;

/// How many candidates walks keep for the edges of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widths {
    /// Where usearch adds it to the graph.
    pub adding: usize,
    /// In the pass over all nodes.
    pub pass: usize,
    /// In that pass for nodes to which walks come from the level above. Where a group has more nodes than others keep candidates, these
    /// alone lead to other groups, to whoever has come down in the wrong one: among 50,000 rows in 500 groups of 1,024 dimensions .981 of
    /// the ten nearest were found at 40 without, .995 with it.
    pub landing: usize,
    /// Where that is made again.
    pub again: usize,
}

impl Widths {
    /// Of a pass with as many as this, which is made again with fewer, as they are better ones.
    pub(crate) fn of_pass(pass: usize) -> Self {
        Self {
            adding: pass,
            pass,
            landing: pass,
            again: (pass * 2 / 5).max(1),
        }
    }

    /// Of a graph that usearch makes or goes on with: to add a node it is enough to find the neighbourhood, since the pass that
    /// follows knows them all. Few candidates, as of an `ef_construction` of 8, leave parts of the graph that no walk comes to, by
    /// chance of the build.
    pub fn of_added(m: usize, ef_construction: usize) -> Self {
        let adding = (ef_construction / 2).max(m).max(FEWEST);
        let pass = (ef_construction * 5 / 2).max(adding).max(2 * FEWEST);
        Self {
            adding,
            ..Self::of_pass(pass)
        }
    }

    /// Of one whose nodes are linked by leaves ([`leaves`]): these know most of what is near where that is easy, and a pass finds the
    /// rest with few candidates. Where it does not, the one that follows has as many as it takes.
    pub fn of_leaves(m: usize, ef_construction: usize) -> Self {
        let pass = ef_construction.max(m).max(FEWEST);
        Self {
            adding: pass,
            pass,
            landing: 6 * pass,
            again: 2 * pass,
        }
    }
}

/// Nodes of the level above at which walks for candidates begin in a graph of several parts.
const ACROSS: usize = 64;

/// Of which kind a graph is.
#[derive(Debug, Clone, Copy)]
pub struct Form<'a> {
    /// How its vectors are stored.
    pub codec: &'a Codec,
    /// The space of the vectors; without it, longer nodes get no graphs of their own.
    pub space: Option<&'a Space>,
    /// More than there is memory for: a folder for tables.
    pub folder: Option<&'a Path>,
    /// Of several parts that no edges join ([`crate::join`]).
    pub is_joined: bool,
}

impl<'a> Form<'a> {
    /// A graph in one part.
    pub fn of(codec: &'a Codec) -> Self {
        Self {
            codec,
            space: None,
            folder: None,
            is_joined: false,
        }
    }

    fn place(&self) -> Place<'a> {
        self.folder.map_or(Place::Memory, Place::Folder)
    }
}

/// Fills the lists of a serialized graph: on the lowest level those of the nodes from `first` on, and
/// whichever have room. `pause` is called
/// on this thread now and then, and may unwind.
///
/// # Errors
/// [`IndexError::Graph`] when the bytes are not a graph of this codec.
pub fn refine(
    form: Form<'_>,
    bytes: &mut [u8],
    first: usize,
    widths: Widths,
    threads: usize,
    passes: &Passes,
    pause: &dyn Fn(),
) -> Result<()> {
    let Form { codec, space, .. } = form;
    let walk = Walk::new(&Layout::parse(codec, bytes)?)?;
    if walk.entry as usize >= walk.nodes {
        return Ok(());
    }
    let across = if form.is_joined { ACROSS } else { 0 };
    passes.begin(walk.nodes);
    levels::refine(
        (codec, form.place()),
        &walk,
        bytes,
        (across, threads),
        passes,
        pause,
    )?;
    let (longest, depths) = Longest::of(codec, space, &walk, bytes, first, threads, pause)?;
    let mut source = Source {
        codec,
        guide: walk.guide(),
        longest,
        across,
        depths: &depths,
    };
    let new = first..walk.nodes;
    let mut sample = Sample::of(&new, walk.nodes, codec.metric);
    let lowest = Level {
        codec,
        walk: &walk,
        number: 0,
        nodes: Members::All(walk.nodes),
        place: form.place(),
        threads,
        depths: &depths,
    };
    let most = if sample.is_empty() {
        1
    } else {
        // What the first pass will know.
        sample.learn(&mut Candidates::new(&source, bytes)?, widths.pass, pause);
        passes::MOST
    };
    let mut width = widths.pass;
    for left in (0..most).rev() {
        let Found { lists, order } = search(
            &lowest,
            &new,
            &source,
            bytes,
            (width, widths.landing.max(width)),
            passes,
            pause,
        )?;
        if left == 0 {
            // A third of all nodes may be in these graphs, and what follows wants memory.
            source.longest = Longest::default();
        }
        lowest.link(bytes, lists, &order, passes.visits(), pause)?;
        if left == 0 {
            break;
        }
        width = widths.again;
        let unknown = sample.learn(&mut Candidates::new(&source, bytes)?, width, pause);
        if !Sample::is_enough(unknown) {
            break;
        }
        passes.repeat();
    }
    Ok(())
}

/// The neighbours of all nodes, and the order to visit these in.
struct Found<'a> {
    lists: Lists<'a>,
    order: Table<u32>,
}

/// Looks for the neighbours of the `new` nodes of the lowest level, and of those that have room, each by itself in the graph as
/// it is.
fn search<'a>(
    lowest: &Level<'a>,
    new: &Range<usize>,
    source: &Source<'_>,
    graph: &[u8],
    (width, landing): (usize, usize),
    passes: &Passes,
    pause: &dyn Fn(),
) -> Result<Found<'a>> {
    let walk = lowest.walk;
    let mut landings = Table::<u8>::zeroed(walk.nodes, lowest.place)?;
    for (node, is_landing) in (0..).zip(landings.iter_mut()) {
        *is_landing = u8::from(walk.may_begin_at(graph, node));
    }
    let is_landing = &landings[..];
    let mut lists = lowest.lists(graph, pause)?;
    let order = lists.by_place(pause)?;
    lists.rewrite(&order, lowest.threads, passes.visits(), pause, || {
        let mut candidates = Candidates::new(source, graph)?;
        Ok(move |node: u32, list: &mut List<'_>| {
            if new.contains(&(node as usize)) || !list.is_full() {
                let width = if is_landing[node as usize] > 0 {
                    landing
                } else {
                    width
                };
                candidates.choose(node, list, width);
            }
        })
    })?;
    Ok(Found { lists, order })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::raw;
    use crate::kernels::dot_i8;
    use crate::metric::Metric;
    use crate::quantization::Quantization;
    use crate::query::Probe;

    const DIMS: usize = 12;

    fn points(count: usize) -> Vec<Vec<f32>> {
        let mut rng = ChaCha8Rng::seed_from_u64(11);
        let mut point = || (0..DIMS).map(|_| rng.random_range(-1.0..1.0)).collect();
        (0..count).map(|_| point()).collect()
    }

    /// How many of the ten nearest of each node a walk with ten candidates finds.
    fn found(codec: &Codec, bytes: &[u8]) -> usize {
        found_of(codec, bytes, 1, 10)
    }

    /// How many of the ten nearest of every `step`th node a walk with `ef` candidates finds.
    fn found_of(codec: &Codec, bytes: &[u8], step: usize, ef: usize) -> usize {
        let walk = Walk::new(&Layout::parse(codec, bytes).unwrap()).unwrap();
        let mut found = 0;
        for node in (0..walk.nodes as u32).step_by(step) {
            let probe = Probe::at(codec, walk.vector(bytes, node));
            let mut scratch = Vec::new();
            let mut distance =
                |stored: &[u8]| probe.graph_distance(codec, stored, dot_i8(), &mut scratch);
            let mut all: Vec<(f32, u32)> = (0..walk.nodes as u32)
                .map(|other| (distance(walk.vector(bytes, other)), other))
                .collect();
            all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            let nearest: HashSet<u32> = all[..10].iter().map(|(_, node)| *node).collect();
            let hits = walk.search(bytes, ef, distance);
            found += hits.iter().filter(|hit| nearest.contains(hit)).count();
        }
        found
    }

    #[test]
    fn more_is_found_whatever_the_quantization() {
        let points = points(1500);
        for quantization in 0..5 {
            let quantization = Quantization::from_u8(quantization).unwrap();
            let codec = Codec::new(DIMS, Metric::L2, quantization);
            let before = raw(codec, 4, &points);
            let mut after = before.clone();
            refine(
                Form::of(&codec),
                &mut after,
                0,
                Widths::of_pass(32),
                1,
                &Passes::default(),
                &|| (),
            )
            .unwrap();
            let (before, after) = (found(&codec, &before), found(&codec, &after));
            assert!(after > before + 150, "{quantization:?}: {before}, {after}");
        }
    }

    #[test]
    fn lists_are_filled_with_different_nodes() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::I8);
        for count in [1, 2, 5, 9, 600] {
            let mut bytes = raw(codec, 4, &points(count));
            refine(
                Form::of(&codec),
                &mut bytes,
                0,
                Widths::of_pass(16),
                2,
                &Passes::default(),
                &|| (),
            )
            .unwrap();
            let layout = Layout::parse(&codec, &bytes).unwrap();
            layout.verify(&|| ()).unwrap();
            let walk = Walk::new(&layout).unwrap();
            for node in 0..count as u32 {
                let edges: Vec<u32> = walk.neighbours(&bytes, node, 0).collect();
                let different: HashSet<u32> = edges.iter().copied().collect();
                assert_eq!(different.len(), edges.len());
                assert!(!different.contains(&node));
                assert_eq!(edges.len(), 8.min(count - 1), "{count}");
            }
        }
        let mut empty = raw(codec, 4, &points(0));
        refine(
            Form::of(&codec),
            &mut empty,
            0,
            Widths::of_pass(16),
            2,
            &Passes::default(),
            &|| (),
        )
        .unwrap();
    }

    #[test]
    fn threads_make_no_difference() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::F32);
        let mut one = raw(codec, 6, &points(900));
        let mut three = one.clone();
        refine(
            Form::of(&codec),
            &mut one,
            0,
            Widths::of_pass(24),
            1,
            &Passes::default(),
            &|| (),
        )
        .unwrap();
        refine(
            Form::of(&codec),
            &mut three,
            0,
            Widths::of_pass(24),
            3,
            &Passes::default(),
            &|| (),
        )
        .unwrap();
        assert!(one == three);
    }

    /// Rows at two poles, nearer to them or farther away by a heavy tail, as rows are by cosine of which one dimension dominates:
    /// most edges lead to the middle of either. After one pass .81 of the nearest were found.
    #[test]
    fn a_pass_is_repeated_where_few_edges_lead_to_the_outskirts() {
        let count = 30_000;
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut normal = || -> f32 { (0..12).map(|_| rng.random_range(-0.5..0.5f32)).sum() };
        let mut build = |dims: usize, dominant: f32| {
            let mut point = || {
                let mut x: Vec<f32> = (0..dims).map(|_| normal()).collect();
                x[0] *= dominant;
                let length = x.iter().map(|x| x * x).sum::<f32>().sqrt();
                x.iter_mut().for_each(|x| *x /= length);
                x
            };
            let points: Vec<Vec<f32>> = (0..count).map(|_| point()).collect();
            let codec = Codec::new(dims, Metric::Cosine, Quantization::F32);
            let bytes = raw(codec, 8, &points);
            let refined = |threads| {
                let (mut bytes, passes) = (bytes.clone(), Passes::default());
                refine(
                    Form::of(&codec),
                    &mut bytes,
                    0,
                    Widths::of_pass(40),
                    threads,
                    &passes,
                    &|| (),
                )
                .unwrap();
                passes.measured(1.0);
                assert_eq!(passes.share(), 1.0);
                (bytes, passes.repeats())
            };
            let (bytes, repeats) = refined(2);
            assert!(refined(1) == (bytes.clone(), repeats));
            let found = found_of(&codec, &bytes, count / 400, 100);
            (repeats, found as f64 / 4000.0)
        };
        // Of the candidates .37 were not known, and .17 after another pass.
        let (repeats, found) = build(32, 100.0);
        assert!(repeats > 0);
        assert!(found > 0.84, "{found}");
        // Few dimensions, none of which dominates: .01.
        let (repeats, found) = build(6, 1.0);
        assert_eq!(repeats, 0);
        assert!(found > 0.95, "{found}");
    }

    #[test]
    fn what_is_full_stays_until_something_new_comes() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::F32);
        let mut bytes = raw(codec, 4, &points(500));
        refine(
            Form::of(&codec),
            &mut bytes,
            0,
            Widths::of_pass(32),
            1,
            &Passes::default(),
            &|| (),
        )
        .unwrap();
        let before = bytes.clone();
        refine(
            Form::of(&codec),
            &mut bytes,
            500,
            Widths::of_pass(32),
            1,
            &Passes::default(),
            &|| (),
        )
        .unwrap();
        let lists = |bytes: &[u8]| {
            let walk = Walk::new(&Layout::parse(&codec, bytes).unwrap()).unwrap();
            let edges = |node| walk.neighbours(bytes, node, 0).collect::<HashSet<u32>>();
            (0..500).map(edges).collect::<Vec<_>>()
        };
        // Those that are chosen by a node it did not choose may change.
        let same = lists(&before)
            .iter()
            .zip(&lists(&bytes))
            .filter(|(a, b)| a == b)
            .count();
        assert!(same > 400, "{same}");
    }

    #[test]
    fn a_pause_that_unwinds_ends_all_threads() {
        let codec = Codec::new(DIMS, Metric::L2, Quantization::F32);
        let mut bytes = raw(codec, 4, &points(2000));
        let before = bytes.clone();
        let left = catch_unwind(AssertUnwindSafe(|| {
            refine(
                Form::of(&codec),
                &mut bytes,
                0,
                Widths::of_pass(64),
                2,
                &Passes::default(),
                &|| resume_unwind(Box::new(())),
            )
        }));
        assert!(left.is_err());
        assert!(before == bytes);
    }
}
