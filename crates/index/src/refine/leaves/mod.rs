//! First edges of nodes that have none: those to the nearest others in the same *leaves*.
//!
//! Nodes are divided by some of them, each with those to which it is nearest, until what is left is small enough to compare
//! all with all; a node is in several such leaves. Products of whole matrices compare thousands of pairs in the time in which
//! a walk sees a hundred nodes, so that this costs a fraction of what it takes to add node after node to a graph
//! (Wang, Wang, Jiang & Zeng 2012 divide by hyperplanes, "Scalable k-NN graph construction for visual descriptors";
//! Munoz, Goncalves, Dias & Torres 2019 make a graph of such leaves, "Hierarchical Clustering-Based Graphs for Large Scale
//! Approximate Nearest Neighbor Search"). Half of the ten nearest of 100,000 sentences are found so, a tenth where all dimensions
//! are alike; walks over these edges find the others in the pass that follows ([`super::refine`]).

mod divide;
mod nearest;
mod pairs;
mod parts;
mod points;
mod sizes;

use std::sync::atomic::Ordering;

use laser_sampling::{SplitMix64, mix};

use super::chooser::Chooser;
use super::level::Level;
use super::lists::List;
use super::members::Members;
use super::passes::Passes;
use super::{Form, levels};
use crate::blocks::{self, Pause};
use crate::error::Result;
use crate::graph::Layout;
use crate::table::Table;
use crate::walk::{Key, Walk};
use divide::{By, Leaders, Room, by_leader};
use nearest::Nearest;
use pairs::Pairs;
use parts::Divider;
use points::Points;
pub(crate) use sizes::threads;

/// Ways to divide all nodes, one after the other. What lies beside each other and is divided by one, is not by all.
const DIVISIONS: [By; 2] = [By::Distance, By::Direction];
/// Leaders to which each node belongs in a division of all.
const EACH: usize = 2;

/// Bytes of memory that it takes for each node of a graph with this number of edges, beside the graph: what it has met, its list, and
/// to which leaders it belongs.
pub(crate) fn bytes_per_node(m: usize) -> usize {
    nearest::BYTES + 4 * (1 + 2 * m) + 4 * EACH + 2 * EACH + 4
}

/// Links the nodes of a graph without edges. `pause` is called on this thread now and then, and may unwind.
///
/// # Errors
/// Damage, no memory, no room on the disk.
pub(crate) fn link(
    form: Form<'_>,
    bytes: &mut [u8],
    threads: usize,
    passes: &Passes,
    pause: &dyn Fn(),
) -> Result<()> {
    let walk = Walk::new(&Layout::parse(form.codec, bytes)?)?;
    if walk.nodes == 0 {
        return Ok(());
    }
    let lowest = Level {
        codec: form.codec,
        walk: &walk,
        number: 0,
        nodes: Members::All(walk.nodes),
        place: form.place(),
        threads,
        depths: &[],
    };
    // What is on a smaller one is compared all with all, in the pass that follows.
    let levels: Vec<Vec<u32>> = (1..)
        .map(|above| walk.nodes_of(bytes, above))
        .take_while(|nodes| nodes.len() > levels::FEW)
        .collect();
    passes.begin_new(walk.nodes + levels.iter().map(Vec::len).sum::<usize>());
    for (above, nodes) in levels.iter().enumerate() {
        let level = Level {
            number: above + 1,
            nodes: Members::Some(nodes),
            ..lowest
        };
        Leaves { level, passes }.link(bytes, pause)?;
    }
    drop(levels);
    let level = lowest;
    Leaves { level, passes }.link(bytes, pause)
}

/// A level whose nodes have no edges.
struct Leaves<'a> {
    level: Level<'a>,
    passes: &'a Passes,
}

impl Leaves<'_> {
    fn link(&self, bytes: &mut [u8], pause: &dyn Fn()) -> Result<()> {
        let graph: &[u8] = bytes;
        let Level {
            codec, nodes, walk, ..
        } = self.level;
        let guide = walk.guide();
        let mut nearest = Nearest::of(nodes.len(), self.level.place)?;
        let order = self.meet(graph, &mut nearest, pause)?;
        let mut lists = self.level.lists(graph, pause)?;
        let done = self.passes.first();
        lists.rewrite(&order, self.level.threads, done, pause, || {
            let mut chooser = Chooser::new(codec, graph, guide)?;
            let (nearest, mut met) = (&nearest, Vec::new());
            Ok(move |place: u32, list: &mut List<'_>| {
                met.clear();
                met.extend(nearest.of_node(place).map(|met| nodes.node(met)));
                chooser.begin(nodes.node(place));
                chooser.add(&met);
                chooser.choose(list, |_| 0);
            })
        })?;
        drop(nearest);
        self.level.link(bytes, lists, &order, done, pause)
    }

    /// Has nodes meet others. The order that is returned has those beside each other that do.
    fn meet(&self, graph: &[u8], nearest: &mut Nearest, pause: &dyn Fn()) -> Result<Table<u32>> {
        let Level { nodes, place, .. } = self.level;
        let (count, done) = (nodes.len(), self.passes.first());
        let points = Points::of(self.level.codec, graph, nodes)?;
        let mut order = Table::<u32>::zeroed(count, place)?;
        for (at, own) in (0..).zip(order.iter_mut()) {
            *own = at;
        }
        let shared = nearest.shared()?;
        let met = &shared;
        if count <= points.sizes().largest() {
            let go_on = || {
                pause();
                Ok(())
            };
            let meet = |node, others: &[Key]| met.offer(node, others);
            Pairs::default().each(points, &order, &go_on, meet)?;
            done.fetch_add(2 * DIVISIONS.len() * count, Ordering::Relaxed);
            return Ok(order);
        }
        for (turn, by) in DIVISIONS.into_iter().enumerate() {
            let mut random = SplitMix64::new(mix((turn << 8 | self.level.number) as u64));
            let leaders = (EACH * count).div_ceil(points.sizes().leaf);
            let mut room = Room::default();
            let leaders = Leaders::of(points, &order, leaders, by, &mut random, &mut room)?;
            let belongs = self.belongs(points, &leaders, pause)?;
            let all = belongs.iter().copied().enumerate();
            let all = all.map(|(at, leader)| (leader, (at / EACH) as u32));
            if turn == 0 {
                // By the first leader of each.
                by_leader(&mut order, leaders.len(), all.clone().step_by(EACH));
            }
            let mut members = Table::<u32>::zeroed(belongs.len(), place)?;
            let starts = by_leader(&mut members, leaders.len(), all);
            drop(belongs);
            pause();
            // The largest first: who has one is busy for long.
            let (mut rest, mut parts) = (&mut members[..], Vec::new());
            for part in starts.windows(2) {
                let (own, behind) = rest.split_at_mut(part[1] - part[0]);
                rest = behind;
                parts.push((parts.len() as u64, own));
            }
            parts.sort_by_key(|(_, part)| std::cmp::Reverse(part.len()));
            let (one, none) = ((1, self.level.threads), Default::default());
            let number = self.level.number;
            blocks::each(&mut parts, one, &none, pause, || {
                let mut divider = Divider::new(points, met);
                Ok(
                    move |(own, part): &mut (u64, &mut [u32]), pause: Pause<'_>| {
                        let seed = mix(*own << 16 | (turn << 8 | number) as u64);
                        divider.divide(part, by, seed, pause)?;
                        done.fetch_add(part.len() / EACH, Ordering::Relaxed);
                        Ok(())
                    },
                )
            })?;
        }
        drop(shared);
        Ok(order)
    }

    /// To which leaders every node belongs, [`EACH`] of each.
    fn belongs(
        &self,
        points: Points<'_>,
        leaders: &Leaders,
        pause: &dyn Fn(),
    ) -> Result<Table<u16>> {
        let (count, done) = (self.level.nodes.len(), self.passes.first());
        let mut belongs = Table::<u16>::zeroed(EACH * count, self.level.place)?;
        let at_once = points.sizes().rows;
        let rows = belongs.chunks_mut(EACH * at_once).enumerate();
        let mut rows = laser_memory::collect(rows)?;
        let (none, one) = (Default::default(), (1, self.level.threads));
        blocks::each(&mut rows, one, &none, pause, || {
            let (mut room, mut places) = (Room::default(), Vec::new());
            Ok(
                move |(number, out): &mut (usize, &mut [u16]), _: Pause<'_>| {
                    let first = *number * at_once;
                    places.clear();
                    places.extend((first..first + out.len() / EACH).map(|place| place as u32));
                    leaders.assign(points, &places, EACH, &mut room, out)?;
                    done.fetch_add(places.len(), Ordering::Relaxed);
                    Ok(())
                },
            )
        })?;
        drop(rows);
        Ok(belongs)
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::codec::Codec;
    use crate::metric::Metric;
    use crate::nodes::Nodes;
    use crate::quantization::Quantization;

    const M: usize = 8;

    /// The graph of some points, without edges.
    fn collected(codec: Codec, points: &[Vec<f32>]) -> Vec<u8> {
        let nodes = Nodes::new(codec, M, 0);
        let mut stored = vec![0; codec.graph_len()];
        for (key, x) in (0..).zip(points) {
            codec.encode_graph(x, &mut stored);
            nodes.add(key, &stored).unwrap();
        }
        let mut bytes = vec![0; nodes.serialized_len()];
        nodes.save(&mut bytes).unwrap();
        bytes
    }

    fn linked(codec: &Codec, graph: &[u8], threads: usize) -> Vec<u8> {
        let (mut bytes, passes) = (graph.to_vec(), Passes::default());
        link(Form::of(codec), &mut bytes, threads, &passes, &|| ()).unwrap();
        let layout = Layout::parse(codec, &bytes).unwrap();
        layout.verify(&|| ()).unwrap();
        if layout.rows() > 0 {
            passes.begin(layout.rows());
            // All of this, and none of the pass that follows.
            let share = Passes::SHARE_OF_LEAVES;
            assert!((passes.share() - share).abs() < 0.01, "{}", passes.share());
        }
        bytes
    }

    /// The share of the five nearest of some nodes to which edges of these lead.
    fn known(codec: &Codec, bytes: &[u8], points: &[Vec<f32>]) -> f64 {
        let walk = Walk::new(&Layout::parse(codec, bytes).unwrap()).unwrap();
        let distance = |a: &[f32], b: &[f32]| laser_vector::kernels::f32_l2_squared(a, b);
        let (mut known, mut all) = (0, 0);
        for node in (0..points.len() as u32).step_by(points.len().div_ceil(200)) {
            let own = &points[node as usize];
            let mut others: Vec<(f32, u32)> = (0..)
                .zip(points)
                .filter(|(other, _)| *other != node)
                .map(|(other, x)| (distance(own, x), other))
                .collect();
            others.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
            let edges: Vec<u32> = walk.neighbours(bytes, node, 0).collect();
            let nearest = others.iter().take(5);
            all += nearest.len();
            known += nearest.filter(|(_, other)| edges.contains(other)).count();
        }
        known as f64 / all as f64
    }

    fn normal(rng: &mut impl Rng, dims: usize) -> Vec<f32> {
        let mut one = || (0..12).map(|_| rng.random_range(-0.5..0.5f32)).sum();
        (0..dims).map(|_| one()).collect()
    }

    #[test]
    fn edges_lead_to_what_is_near() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let centres: Vec<Vec<f32>> = (0..40).map(|_| normal(&mut rng, 24)).collect();
        let mut data: Vec<Vec<Vec<f32>>> = vec![
            // Few dimensions; groups; all around one place; far from the origin.
            (0..9000).map(|_| normal(&mut rng, 3)).collect(),
            (0..9000)
                .map(|i| {
                    let own = normal(&mut rng, 24);
                    let x = centres[i % 40].iter().zip(own);
                    x.map(|(centre, own)| 3.0 * centre + own).collect()
                })
                .collect(),
            (0..9000).map(|_| normal(&mut rng, 24)).collect(),
        ];
        data.push(data[0].clone());
        data[3].iter_mut().flatten().for_each(|x| *x += 1000.0);
        for (points, least) in data.iter().zip([0.9, 0.8, 0.3, 0.9]) {
            let codec = Codec::new(points[0].len(), Metric::L2, Quantization::F32);
            let graph = collected(codec, points);
            let one = linked(&codec, &graph, 1);
            assert!(one == linked(&codec, &graph, 3));
            let share = known(&codec, &one, points);
            assert!(share > least, "{share}, {least} expected");
        }
    }

    #[test]
    fn whatever_the_quantization_they_do() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        let points: Vec<Vec<f32>> = (0..3000).map(|_| normal(&mut rng, 16)).collect();
        for (quantization, least) in [
            (Quantization::F32, 0.5),
            (Quantization::F16, 0.5),
            (Quantization::Bf16, 0.5),
            (Quantization::I8, 0.5),
            (Quantization::B1, 0.05),
        ] {
            for metric in [Metric::L2, Metric::Cosine] {
                let codec = Codec::new(16, metric, quantization);
                let bytes = linked(&codec, &collected(codec, &points), 2);
                let share = known(&codec, &bytes, &points);
                assert!(share > least, "{quantization:?} {metric:?}: {share}");
            }
        }
    }

    /// What cannot be divided, or has no distances, is linked somehow.
    #[test]
    fn strange_vectors_come_to_an_end() {
        let codec = Codec::new(2, Metric::L2, Quantization::F32);
        let of = |x: &dyn Fn(usize) -> f32| -> Vec<Vec<f32>> {
            (0..5000).map(|i| vec![x(i), 1.0]).collect()
        };
        for points in [
            of(&|_| 7.0),
            of(&|i| i as f32),
            of(&|i| (i % 3) as f32),
            of(&|i| if i == 9 { 1e30 } else { i as f32 * 1e-30 }),
            of(&|i| f32::MAX * if i % 2 == 0 { 1.0 } else { -1.0 }),
            of(&|i| f32::MIN_POSITIVE * i as f32),
        ] {
            linked(&codec, &collected(codec, &points), 2);
        }
        for few in 0..3 {
            let bytes = linked(&codec, &collected(codec, &of(&|i| i as f32)[..few]), 2);
            let walk = Walk::new(&Layout::parse(&codec, &bytes).unwrap()).unwrap();
            let edges = |node| walk.neighbours(&bytes, node, 0).count();
            assert!((0..few as u32).all(|node| edges(node) == few - 1));
        }
    }
}
