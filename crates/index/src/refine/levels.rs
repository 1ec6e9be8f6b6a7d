//! The levels above the lowest one, linked again when all of their nodes are known.
//!
//! usearch links a node of a level to what a walk from the highest level finds among those that came before it. Where
//! nodes come one beside the other, as rows of a time series do, each is linked to the last ones, and the levels are a
//! chain along which no walk gets across: of queries near such rows one in twenty found nothing, whatever its width. Which
//! nodes are on a level is chance, so levels that are linked from the highest one down know all places. Leaves
//! ([`super::leaves`]) link the larger levels, and leave the others to this.

use std::sync::atomic::AtomicUsize;

use super::chooser::Chooser;
use super::level::Level;
use super::lists::List;
use super::members::Members;
use super::passes::Passes;
use crate::codec::Codec;
use crate::error::Result;
use crate::table::Place;
use crate::walk::Walk;

/// On a level of at most this many nodes, each is compared with all others. More than there are seeds, so that walks
/// for the level below begin on this one.
pub(super) const FEW: usize = 1024;
/// Candidates for the edges of a node.
const EF: usize = 64;

/// Fills the lists of all levels but the lowest, with walks that begin at `across` nodes of the level above
/// ([`Chooser::begin_across`]).
///
/// # Errors
/// Damage, or no memory.
pub(super) fn refine(
    (codec, place): (&Codec, Place<'_>),
    walk: &Walk,
    bytes: &mut [u8],
    (across, threads): (usize, usize),
    passes: &Passes,
    pause: &dyn Fn(),
) -> Result<()> {
    let nodes = |level: usize| walk.nodes_of(bytes, level);
    let levels: Vec<Vec<u32>> = (1..)
        .map(nodes)
        .take_while(|nodes| !nodes.is_empty())
        .collect();
    let done = passes.begin_levels(levels.iter().map(Vec::len).sum());
    for (above, nodes) in levels.iter().enumerate().rev() {
        pause();
        let level = Level {
            codec,
            walk,
            number: above + 1,
            nodes: Members::Some(nodes),
            place,
            threads,
            depths: &[],
        };
        refine_level(level, (bytes, nodes), across, done, pause)?;
    }
    Ok(())
}

fn refine_level(
    level: Level<'_>,
    (bytes, nodes): (&mut [u8], &[u32]),
    across: usize,
    done: &AtomicUsize,
    pause: &dyn Fn(),
) -> Result<()> {
    let (graph, guide): (&[u8], _) = (bytes, level.walk.guide());
    let mut lists = level.lists(graph, pause)?;
    let order: Vec<u32> = (0..nodes.len() as u32).collect();
    lists.rewrite(&order, level.threads, done, pause, || {
        let mut chooser = Chooser::new(level.codec, graph, guide)?;
        chooser.begin_across(across);
        Ok(move |place: u32, list: &mut List<'_>| {
            chooser.begin(nodes[place as usize]);
            if nodes.len() <= FEW {
                chooser.add(nodes);
                chooser.keep_nearest(EF);
            } else {
                chooser.add_nearest(level.number, EF);
                chooser.add(list.edges());
            }
            chooser.choose(list, |_| 0);
        })
    })?;
    level.link(bytes, lists, &order, done, pause)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::graph::{Layout, raw};
    use crate::kernels::dot_i8;
    use crate::metric::Metric;
    use crate::quantization::Quantization;
    use crate::query::{Probe, Query};
    use crate::reach::link;
    use crate::refine::{Form, Widths};
    use crate::space::Space;

    /// Rows of a time series, which come one beside the other: before levels were linked again, one query in
    /// twenty ended somewhere else on the path.
    #[test]
    fn places_on_a_path_are_found() {
        let (rows, dims, width) = (8000, 3, 40);
        let codec = Codec::new(dims, Metric::L2, Quantization::F32);
        let space = Space::plain(Metric::L2, dims);
        let mut missed = 0;
        for seed in 0..3 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut at = vec![0f32; dims];
            let points: Vec<Vec<f32>> = (0..rows)
                .map(|_| {
                    at.iter_mut()
                        .for_each(|x| *x += rng.random_range(-0.2..0.2));
                    at.clone()
                })
                .collect();
            let mut graph = raw(codec, 16, &points);
            let passes = Passes::default();
            super::super::refine(
                Form::of(&codec),
                &mut graph,
                0,
                Widths::of_pass(160),
                2,
                &passes,
                &|| (),
            )
            .unwrap();
            link(&codec, &mut graph, &|| ()).unwrap();
            let layout = Layout::parse(&codec, &graph).unwrap();
            let walk = Walk::new(&layout).unwrap();
            let (dot, mut scratch) = (dot_i8(), Vec::new());
            for point in points.iter().step_by(rows / 200) {
                let near: Vec<f32> = point.iter().map(|x| x * 1.003).collect();
                let query = Query::new(Metric::L2, dims, &near).unwrap();
                let probe = Probe::new(codec, &space, &query);
                let mut distance =
                    |stored: &[u8]| probe.graph_distance(&codec, stored, dot, &mut scratch);
                let all = (0..rows as u32).map(|node| distance(walk.vector(&graph, node)));
                let nearest = all.fold(f32::INFINITY, f32::min);
                let found = walk.search(&graph, width, &mut distance);
                let found = found
                    .into_iter()
                    .map(|node| distance(walk.vector(&graph, node)));
                missed += usize::from(found.fold(f32::INFINITY, f32::min) > nearest);
            }
        }
        assert!(missed <= 2, "{missed} of 600");
    }
}
