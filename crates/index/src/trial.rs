//! Which graph finds the largest inner products: one of distances in an extended [`Space`], or one of
//! inner products.
//!
//! The first is sound where vectors of few dimensions lie around the origin or in a corner; the
//! second where many dimensions and different lengths push all vectors of the extended space into
//! one corner, far from every query. No rule by dimensions or lengths was right for all data, so
//! both are built of some vectors and tried with others.

use laser_sampling::stratified;
use laser_vector::kernels::{f32_dot, norm};

use crate::codec::{Codec, Format};
use crate::error::Result;
use crate::graph::{Graph, Layout};
use crate::kernels::dot_i8;
use crate::metric::Metric;
use crate::quantization::Quantization;
use crate::query::{Probe, Query};
use crate::reach;
use crate::refine::{Form, Passes, Widths, refine};
use crate::space::Space;
use crate::walk::Walk;

/// Vectors in the graphs.
const ROWS: usize = 3000;
/// Queries, which are not in them.
const QUERIES: usize = 128;
/// Longest vectors, which are in the graphs in any case.
const LONGEST: usize = 16;
/// Neighbours that are looked for.
const NEAREST: usize = 10;
/// Candidates of the walks: as few as anybody asks for, so that differences show.
const EF: usize = 40;
/// Neighbours and candidates of searches that go on: a filter, or a large limit, wants what lies behind the longest
/// vectors, of which the ten nearest say nothing.
const DEEP_SEARCH: (usize, usize) = (200, 400);
/// Largest ratio of the largest norm to the median for which a graph of inner products is taken. Vectors that are much longer than the others are the nearest of all queries, and there all edges lead to
/// them: what lies behind is found by nobody, however many candidates are kept. Among a sample that does
/// not show, for it has few of them.
const MAX_NORM_RATIO: f64 = 2.5;
/// Neighbours of a node, few, and candidates in the two passes, few as well, so that differences show. In a graph of inner
/// products edges lead to the long vectors, of which a segment has more than a node has edges; a sample has few, and
/// shows it where edges are few as well.
const GRAPH: (usize, (usize, usize)) = (4, (48, 96));
/// By how much the graph of inner products must be better: where it is as good among few vectors, it
/// is worse among many.
const BETTER: f64 = 0.005;
/// By how much it may be worse for queries from elsewhere, and for those who go on.
const WORSE: f64 = 0.02;
/// A loss for queries from elsewhere is accepted where the gain for the rows' own kind is this many times the loss.
const REQUIRED_GAIN_RATIO: f64 = 5.0;

/// Least ratio of the largest norm to the median for which a merge repeats the trial: among vectors of nearly equal
/// norm none is hidden.
const RETRY_NORM_RATIO: f64 = 1.5;

/// How the norms of vectors are distributed, by the ratio of the largest to the median, and which graph that allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormDistribution {
    /// Nearly equal: either graph.
    Uniform,
    /// Either graph, but one of inner products may hide the shorter vectors: that is to be tried.
    Varied,
    /// The graph of distances: some vectors are so much longer that one of inner products would hide the others.
    HeavyTailed,
}

impl NormDistribution {
    /// The distribution of the norms in a sample of rows.
    pub fn of(sample: &[Vec<f32>]) -> Self {
        let (median, max) = median_and_max_norm(sample);
        if max > MAX_NORM_RATIO * median {
            Self::HeavyTailed
        } else if max > RETRY_NORM_RATIO * median {
            Self::Varied
        } else {
            Self::Uniform
        }
    }
}

/// The longest vector that a graph of inner products may have, among vectors like these.
pub fn longest_for_products(sample: &[Vec<f32>]) -> f64 {
    MAX_NORM_RATIO * median_and_max_norm(sample).0
}

/// The lengths of vectors, ascending.
pub(crate) fn lengths(vectors: &[Vec<f32>]) -> Vec<f64> {
    let mut lengths: Vec<f64> = vectors.iter().map(|x| norm(x)).collect();
    lengths.sort_unstable_by(f64::total_cmp);
    lengths
}

fn median_and_max_norm(sample: &[Vec<f32>]) -> (f64, f64) {
    let lengths = lengths(sample);
    let median = lengths.get(lengths.len() / 2);
    (
        median.copied().unwrap_or(0.0),
        lengths.last().copied().unwrap_or(0.0),
    )
}

/// The form to take; `None` if there are too few vectors to tell, or none can be built.
pub fn best(dims: usize, sample: &[Vec<f32>], pause: &dyn Fn()) -> Option<Format> {
    if sample.len() < 4 * QUERIES {
        return None;
    }
    if NormDistribution::of(sample) == NormDistribution::HeavyTailed {
        return Some(Format::Second);
    }
    // Queries are from all over the table.
    let mut chosen = stratified(sample.len(), QUERIES).peekable();
    let (mut queries, mut rows) = (Vec::new(), Vec::new());
    for (i, x) in sample.iter().enumerate() {
        if chosen.next_if_eq(&i).is_some() {
            queries.push(x.clone());
        } else {
            rows.push(x.clone());
        }
    }
    // The longest ones are among the nearest of many queries, however few they are.
    let lengths = lengths(&rows);
    let long = lengths[lengths.len().saturating_sub(1 + LONGEST)];
    let mut chosen = stratified(rows.len(), ROWS).peekable();
    let mut at = 0;
    rows.retain(|x| {
        at += 1;
        chosen.next_if_eq(&(at - 1)).is_some() || norm(x) > long
    });
    let mut moved = queries.clone();
    for at in 0..dims {
        let sum: f64 = sample.iter().map(|x| f64::from(x[at])).sum();
        let mean = sum / sample.len() as f64;
        moved
            .iter_mut()
            .for_each(|x| x[at] = (f64::from(x[at]) - mean) as f32);
    }
    let queries = [queries, moved];
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
    let better = inner[0] - extended[0];
    Some(
        if better > BETTER
            && inner[1] > extended[1] - WORSE.max(better / REQUIRED_GAIN_RATIO)
            && inner[2] > extended[2] - WORSE
        {
            Format::SecondInner
        } else {
            Format::Second
        },
    )
}

/// The share of the largest products that walks find, for each kind of queries, and for the first kind
/// of those further on.
fn recall(
    codec: Codec,
    space: &Space,
    rows: &[Vec<f32>],
    queries: &[Vec<Vec<f32>>; 2],
    pause: &dyn Fn(),
) -> Result<[f64; 3]> {
    let (neighbours, (first, second)) = GRAPH;
    let graph = Graph::new(codec, neighbours, first)?;
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
    graph.save(&mut bytes)?;
    pause();
    refine(
        // Graphs of the longer nodes would find all among so few rows, and say nothing of many.
        Form::of(&codec),
        &mut bytes,
        0,
        Widths::of_pass(second),
        1,
        &Passes::default(),
        pause,
    )?;
    reach::link(&codec, &mut bytes, pause)?;
    let layout = Layout::parse(&codec, &bytes)?;
    let keys = layout.keys()?;
    let walk = Walk::new(&layout)?;
    let mut share = |queries: &[Vec<f32>], nearest: usize, ef: usize| -> Result<f64> {
        let (mut found, mut wanted) = (0, 0);
        for query in queries {
            pause();
            let mut products: Vec<f32> = rows.iter().map(|x| f32_dot(query, x)).collect();
            let by_row = products.clone();
            let last = products.len().min(nearest) - 1;
            let (_, least, _) = products.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
            let query = Query::new(codec.metric, codec.dims, query)?;
            let probe = Probe::new(codec, space, &query);
            let hits = walk.search(&bytes, ef, |stored| {
                probe.graph_distance(&codec, stored, dot_i8(), &mut scratch)
            });
            let good = |slot: &&u32| by_row[keys[**slot as usize].1 as usize] >= *least;
            found += hits.iter().filter(good).count().min(last + 1);
            wanted += last + 1;
        }
        Ok(found as f64 / wanted as f64)
    };
    Ok([
        share(&queries[0], NEAREST, EF)?,
        share(&queries[1], NEAREST, EF)?,
        share(&queries[0], DEEP_SEARCH.0, DEEP_SEARCH.1)?,
    ])
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
        // Many dimensions, to one side of the origin: it finds so much more that queries from elsewhere weigh less.
        assert_eq!(
            best(384, &sample(384, false), &|| ()),
            Some(Format::SecondInner)
        );
        assert_eq!(best(3, &sample(3, false)[..100], &|| ()), None);
        // A few rows that are much longer than the others, and hide them.
        for (ratio, one_of) in [(3.0, 100), (10.0, 100), (10.0, 1000)] {
            let mut hidden: Vec<Vec<f32>> = sample(32, true);
            for (i, row) in hidden.iter_mut().enumerate() {
                let length = norm(row) as f32 * if i % one_of == 1 { 1.0 / ratio } else { 1.0 };
                row.iter_mut().for_each(|x| *x /= length);
            }
            assert_eq!(best(32, &hidden, &|| ()), Some(Format::Second), "{ratio}");
        }
        // The same where they are not much longer: their share decides.
        for one_of in [10, 20, 50, 100] {
            let mut hidden: Vec<Vec<f32>> = sample(32, true);
            for (i, row) in hidden.iter_mut().enumerate() {
                let length = norm(row) as f32 / if i % one_of == 1 { 2.4 } else { 1.0 };
                row.iter_mut().for_each(|x| *x /= length);
            }
            assert_eq!(best(32, &hidden, &|| ()), Some(Format::Second), "{one_of}");
        }
        // Rows in two places, and queries that point away from the farther one.
        let mut places: Vec<Vec<f32>> = sample(8, false);
        let far = places.iter_mut().skip(1).step_by(2).flatten();
        far.for_each(|x| *x += 5.0);
        assert_eq!(best(8, &places, &|| ()), Some(Format::Second));
    }
}
