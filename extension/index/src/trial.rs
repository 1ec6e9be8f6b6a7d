//! Which graph finds the largest inner products: one of distances in an extended [`Space`], or one of
//! inner products.
//!
//! The first is sound where vectors of few dimensions lie around the origin or in a corner; the
//! second where many dimensions and different lengths push all vectors of the extended space into
//! one corner, far from every query. No rule by dimensions or lengths was right for all data, so
//! both are built of some vectors and tried with others.

use crate::codec::{Codec, Format, Metric, Quantization};
use crate::error::Result;
use crate::graph::{Graph, Layout};
use crate::kernels::dot_i8;
use crate::query::{Probe, Query};
use crate::space::Space;
use crate::walk::Walk;
use laser_vector::kernels::f32_dot;

/// Vectors in the graphs.
const ROWS: usize = 3000;
/// Queries, which are not in them.
const QUERIES: usize = 64;
/// Neighbours that are looked for.
const NEAREST: usize = 10;
/// Candidates of the walks: few, so that differences show.
const EF: usize = 20;
/// Neighbours of a node, and candidates while one is added: the defaults.
const GRAPH: (usize, usize) = (16, 64);
/// By how much the graph of inner products must be better: where it is as good among few vectors, it
/// is worse among many.
const BETTER: f64 = 0.02;

/// The form to take; `None` if there are too few vectors to tell, or none can be built.
pub fn best(dims: usize, sample: &[Vec<f32>], pause: &dyn Fn()) -> Option<Format> {
    if sample.len() < 8 * QUERIES {
        return None;
    }
    // Every n-th is a query, wherever in the table it comes from.
    let step = sample.len() / QUERIES;
    let (mut queries, mut rows) = (Vec::new(), Vec::new());
    for (i, x) in sample.iter().enumerate() {
        if i % step == 0 && queries.len() < QUERIES {
            queries.push(x);
        } else {
            rows.push(x.clone());
        }
    }
    let rows: Vec<Vec<f32>> = rows
        .iter()
        .step_by(rows.len().div_ceil(ROWS))
        .cloned()
        .collect();
    let codec = Codec::new(dims, Metric::InnerProduct, Quantization::F32);
    let inner = Codec {
        format: Format::SecondInner,
        ..codec
    };
    let extended = Space::fit(Metric::InnerProduct, dims, &rows, false);
    let extended = recall(codec, &extended, &rows, &queries, pause).ok()?;
    let inner = recall(
        inner,
        &Space::fit_inner(dims, &rows),
        &rows,
        &queries,
        pause,
    )
    .ok()?;
    Some(if inner > extended + BETTER {
        Format::SecondInner
    } else {
        Format::Second
    })
}

fn recall(
    codec: Codec,
    space: &Space,
    rows: &[Vec<f32>],
    queries: &[&Vec<f32>],
    pause: &dyn Fn(),
) -> Result<f64> {
    let graph = Graph::new(codec, GRAPH.0, GRAPH.1)?;
    graph.reserve(rows.len(), 1)?;
    let (mut place, mut stored, mut scratch) = (Vec::new(), vec![0; codec.graph_len()], Vec::new());
    for (key, x) in rows.iter().enumerate() {
        if key % 64 == 0 {
            pause();
        }
        space.enter(x, 0.0, &mut place);
        codec.encode_graph(&place, &mut stored);
        graph.add(key as u64, &stored, &mut scratch)?;
    }
    let mut bytes = vec![0; graph.serialized_len()];
    graph.save(&mut bytes, pause)?;
    let layout = Layout::parse(&codec, &bytes)?;
    let keys = layout.keys()?;
    let walk = Walk::new(&layout)?;
    let (mut found, mut wanted) = (0, 0);
    for query in queries {
        pause();
        let mut products: Vec<f32> = rows.iter().map(|x| f32_dot(query, x)).collect();
        let by_row = products.clone();
        let last = products.len().min(NEAREST) - 1;
        let (_, least, _) = products.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
        let query = Query::new(codec.metric, codec.dims, query)?;
        let probe = Probe::new(codec, space, &query);
        let hits = walk.search(&bytes, EF, |stored| {
            codec.graph_distance(&probe, stored, dot_i8(), &mut scratch)
        });
        let good = |slot: &&u32| by_row[keys[**slot as usize].1 as usize] >= *least;
        found += hits.iter().filter(good).count().min(last + 1);
        wanted += last + 1;
    }
    Ok(found as f64 / wanted as f64)
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn each_graph_has_its_data() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut sample = |dims: usize, wide: bool| -> Vec<Vec<f32>> {
            let mut row = || {
                // Directions alike in all dimensions, lengths of many sizes.
                let length = if wide {
                    rng.random_range(0.2f32..3.0)
                } else {
                    1.0
                };
                let low = if wide { -1.0 } else { 0.0 };
                let x: Vec<f32> = (0..dims)
                    .map(|_| length * rng.random_range(low..1.0))
                    .collect();
                x
            };
            (0..3000).map(|_| row()).collect()
        };
        assert_eq!(best(3, &sample(3, false), &|| ()), Some(Format::Second));
        assert_eq!(
            best(48, &sample(48, true), &|| ()),
            Some(Format::SecondInner)
        );
        assert_eq!(best(3, &sample(3, false)[..100], &|| ()), None);
    }
}
