//! Nodes to which nothing leads but through one other node.
//!
//! Small groups of nodes that lie close together and far from all others have edges among themselves, and few into
//! them. Where such a node is searched for as if it were not there, no walk may be able to reach the rest.

use std::collections::{HashMap, HashSet};

use crate::walk::Walk;

/// What more nodes lead to than these is not stranded.
const MOST: usize = 64;
/// Looks at all edges. What leads to a node over more of them is more than [`MOST`] nearly always.
const LOOKS: usize = 16;

/// Whether each of some nodes is stranded without another, where walks begin with what is on higher levels: pairs of
/// the node and the other. `pause` is called now and then, and may unwind.
pub(crate) fn are_stranded(
    walk: &Walk,
    graph: &[u8],
    pairs: &[(u32, u32)],
    pause: &dyn Fn(),
) -> Vec<bool> {
    // What leads to each of the nodes; `None` where that is too much, or a walk may begin there.
    let mut leading: Vec<Option<HashSet<u32>>> = pairs
        .iter()
        .map(|&(node, _)| (!walk.may_begin_at(graph, node)).then(|| HashSet::from([node])))
        .collect();
    // Pairs whose set grew in the last look: what does not grow is complete.
    let mut has_grown = vec![true; pairs.len()];
    for _ in 0..LOOKS {
        if !has_grown.contains(&true) {
            break;
        }
        let mut of_node: HashMap<u32, Vec<usize>> = HashMap::new();
        let mut is_known = vec![false; walk.nodes];
        for (pair, known) in leading.iter().enumerate() {
            for &node in known.iter().flatten() {
                is_known[node as usize] = true;
                of_node.entry(node).or_default().push(pair);
            }
        }
        has_grown.fill(false);
        for from in 0..walk.nodes as u32 {
            if from % 4096 == 0 {
                pause();
            }
            for to in walk.neighbours(graph, from, 0) {
                if !is_known[to as usize] {
                    continue;
                }
                for &pair in &of_node[&to] {
                    let known = &mut leading[pair];
                    if from == pairs[pair].1 || !known.as_mut().is_some_and(|k| k.insert(from)) {
                        continue;
                    }
                    has_grown[pair] = true;
                    if walk.may_begin_at(graph, from)
                        || known.as_ref().is_some_and(|k| k.len() > MOST)
                    {
                        *known = None;
                        has_grown[pair] = false;
                    }
                }
            }
        }
    }
    leading
        .iter()
        .zip(has_grown)
        .map(|(known, has_grown)| known.is_some() && !has_grown)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::Codec;
    use crate::graph::{Layout, raw};
    use crate::metric::Metric;
    use crate::quantization::Quantization;

    /// Nodes that are reached from where walks may begin, but not through `without`.
    fn reached(walk: &Walk, graph: &[u8], without: u32) -> HashSet<u32> {
        let begins = |node: &u32| *node != without && walk.may_begin_at(graph, *node);
        let mut open: Vec<u32> = (0..walk.nodes as u32).filter(begins).collect();
        let mut reached: HashSet<u32> = open.iter().copied().collect();
        while let Some(node) = open.pop() {
            for to in walk.neighbours(graph, node, 0) {
                if to != without && reached.insert(to) {
                    open.push(to);
                }
            }
        }
        reached
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_not_reached_is_stranded(
            groups in proptest::collection::vec((0u8..20, 1usize..12), 1..30),
            m in 2usize..6,
        ) {
            let points: Vec<[f32; 2]> = groups
                .iter()
                .enumerate()
                .flat_map(|(i, &(x, size))| {
                    let place = [1000.0 * f32::from(x), 1000.0 * i as f32];
                    (0..size).map(move |j| place.map(|x| x + (j * j) as f32))
                })
                .collect();
            let codec = Codec::new(2, Metric::L2, Quantization::F32);
            let graph = raw(codec, m, &points);
            let walk = Walk::new(&Layout::parse(&codec, &graph).unwrap()).unwrap();
            let nodes = walk.nodes as u32;
            for without in 0..nodes.min(20) {
                let reached = reached(&walk, &graph, without);
                let pairs: Vec<(u32, u32)> =
                    (0..nodes).filter(|node| *node != without).map(|node| (node, without)).collect();
                let stranded = are_stranded(&walk, &graph, &pairs, &|| ());
                let is_small = nodes as usize - reached.len() <= LOOKS;
                for ((node, _), stranded) in pairs.into_iter().zip(stranded) {
                    let is_reached = reached.contains(&node);
                    prop_assert!(!(stranded && is_reached), "{} without {}", node, without);
                    prop_assert!(stranded || is_reached || !is_small, "{} without {}", node, without);
                }
            }
        }
    }
}
