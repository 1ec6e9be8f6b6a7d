//! How many candidates a walk must keep to find nearly all of the nearest nodes.
//!
//! Graphs differ: one with clear neighbourhoods needs forty candidates, one of a million sentences
//! about everything thousands. When a segment has been built, nodes of it are searched for as if
//! they were not in it, and what is found is compared with what a look at every node finds.

use std::collections::HashSet;

use crate::codec::{Codec, Format};
use crate::error::Result;
use crate::graph::Layout;
use crate::kernels::dot_i8;
use crate::metric::Metric;
use crate::quantization::Quantization;
use crate::query::{Probe, Query};
use crate::seeds;
use crate::space::Space;
use crate::walk::Walk;

/// Nodes that are searched for.
const QUERIES: usize = 100;
/// Nearest nodes that are to be found.
const NEAREST: usize = 10;
/// Share of them that is to be found. Queries from elsewhere are harder than nodes, among a million
/// sentences by half of one per cent.
const WANTED: f64 = 0.996;
/// Widths that are tried. The first is as much as a `LIMIT` of 20 may want of an easy graph.
const WIDTHS: [usize; 15] = [
    64, 100, 150, 200, 300, 400, 600, 800, 1200, 1800, 2700, 4000, 6000, 9000, 13_500,
];

/// Where nodes cannot be brought back from the space of inner products.
const LEAST_FOR_PRODUCTS: usize = 200;

/// What is searched for like a node. Queries for inner products are no nodes, for these have one more
/// coordinate: where a node's vector is known, it is a query.
fn probe(codec: &Codec, space: &Space, node: &[u8]) -> Result<Probe> {
    match codec.coarse(node) {
        Some(place) if codec.metric == Metric::InnerProduct && codec.format == Format::Second => {
            let query = Query::new(codec.metric, codec.dims, &space.leave(&place))?;
            Ok(Probe::new(*codec, space, &query))
        }
        _ => Ok(Probe::at(codec, node)),
    }
}

/// The least width of [`WIDTHS`] that is enough, or the largest. `pause` is called now and then, and
/// may unwind.
///
/// # Errors
/// Damage.
pub fn measure(codec: &Codec, space: &Space, graph: &[u8], pause: &dyn Fn()) -> Result<usize> {
    let mut walk = Walk::new(&Layout::parse(codec, graph)?)?;
    let nodes = walk.nodes;
    if nodes <= WIDTHS[0] {
        return Ok(WIDTHS[0]);
    }
    let hubs = seeds::hubs(codec, space, &walk, graph);
    walk.pass_by(hubs);
    let (dot, mut scratch) = (dot_i8(), Vec::new());
    let step = (nodes / QUERIES).max(1);
    let mut queries = Vec::new();
    for node in (0..nodes).step_by(step).take(QUERIES) {
        let node = node as u32;
        let probe = probe(codec, space, walk.vector(graph, node))?;
        let mut all: Vec<(f32, u32)> = Vec::new();
        for other in (0..nodes as u32).filter(|other| *other != node) {
            if other % 4096 == 0 {
                pause();
            }
            let stored = walk.vector(graph, other);
            all.push((
                probe.graph_distance(codec, stored, dot, &mut scratch),
                other,
            ));
            if all.len() == 1024 {
                all.select_nth_unstable_by(NEAREST, |a, b| a.0.total_cmp(&b.0));
                all.truncate(NEAREST);
            }
        }
        all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        all.truncate(NEAREST);
        queries.push((node, probe, all));
    }
    let least = match (codec.metric, codec.quantization) {
        (Metric::InnerProduct, Quantization::B1) => LEAST_FOR_PRODUCTS,
        _ => 0,
    };
    let wanted: usize = queries.iter().map(|(.., nearest)| nearest.len()).sum();
    let may_be_missed = ((1.0 - WANTED) * wanted as f64) as usize;
    for width in WIDTHS.into_iter().filter(|width| *width >= least) {
        let mut missed = 0;
        for (node, probe, nearest) in &queries {
            pause();
            let own = walk.vector(graph, *node).as_ptr();
            let found = walk.search(graph, width, |stored| {
                if stored.as_ptr() == own {
                    // Nothing leads through the node that is searched for.
                    return f32::INFINITY;
                }
                probe.graph_distance(codec, stored, dot, &mut scratch)
            });
            let hits: HashSet<u32> = found.into_iter().collect();
            missed += nearest
                .iter()
                .filter(|(_, node)| !hits.contains(node))
                .count();
            // Most widths are far too small, and the first queries say so.
            if missed > may_be_missed {
                break;
            }
        }
        if missed <= may_be_missed {
            return Ok(width);
        }
    }
    Ok(WIDTHS[WIDTHS.len() - 1])
}
