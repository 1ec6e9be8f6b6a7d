//! Queries, and what pending entries and stored vectors say about their distance from one.

use laser_vector::kernels::{cosine_distance, f32_dot, f32_l2_squared, l2_distance, norm};

use crate::arithmetic::{Arithmetic, HALF_ULP, SAFE, has_product, rounding};
use crate::codec::{Codec, Format};
use crate::error::Result;
use crate::kernels::DotI8;
use crate::metric::Metric;
use crate::space::{self, Space};

/// What is known of a distance, in the unit of the operator that orders by it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The most likely value.
    pub estimate: f64,
    /// The operator gives no smaller value for the row.
    pub lower: f64,
}

/// A query as it was given.
#[derive(Debug, Clone)]
pub struct Query {
    metric: Metric,
    arithmetic: Arithmetic,
    given: Vec<f32>,
    prepared: Option<Vec<f32>>,
}

impl Query {
    /// A query with `dims` dimensions.
    ///
    /// # Errors
    /// Wrong number of dimensions, NaN, infinity.
    pub fn new(metric: Metric, dims: usize, x: &[f32]) -> Result<Self> {
        Ok(Self {
            metric,
            arithmetic: Arithmetic::Own,
            given: x.to_vec(),
            prepared: space::prepare(metric, dims, x)?,
        })
    }

    /// Whether its distances are inner products.
    pub(crate) fn is_of_products(&self) -> bool {
        self.metric == Metric::InnerProduct
    }

    /// The same query, whose distances an operator with this arithmetic computes.
    pub fn compared_by(self, arithmetic: Arithmetic) -> Self {
        Self { arithmetic, ..self }
    }

    /// The vector as it was given.
    pub fn given(&self) -> &[f32] {
        &self.given
    }

    /// Whether there are distances at all: under the cosine metric the operator gives NaN for a
    /// query without direction.
    pub fn has_distances(&self) -> bool {
        self.prepared.is_some()
    }

    /// The distance of a vector that lies in the pending list, and is at most `error` from the true
    /// one.
    pub fn measure(&self, x: &[f32], error: f64) -> Estimate {
        // Of the sum here, and of the operator's.
        let relative = (rounding(x.len()) + self.arithmetic.rounding(x.len())) / 2.0;
        match self.metric {
            Metric::L2 => {
                let estimate = l2_distance(&self.given, x);
                let lower = estimate * (1.0 - relative) - error;
                Estimate {
                    estimate,
                    lower: above_zero(lower),
                }
            }
            Metric::Cosine => {
                let estimate = cosine_distance(&self.given, x);
                let length = norm(x);
                let lower = if self.has_cosines() && self.arithmetic.has_cosine(length) {
                    estimate - 4.0 * relative - 2.0 * error / length
                } else {
                    0.0
                };
                Estimate {
                    estimate,
                    lower: above_zero(lower),
                }
            }
            Metric::InnerProduct => {
                let estimate = -f64::from(f32_dot(&self.given, x));
                let (length, other) = (norm(&self.given), norm(x) + error);
                let slack = length * (2.0 * relative * other + error);
                if has_product(length * other) {
                    product(estimate, slack + vanishing(x.len()))
                } else {
                    product(estimate, f64::INFINITY)
                }
            }
        }
    }

    /// Whether the operator gives cosines for this query, of vectors for which it can.
    fn has_cosines(&self) -> bool {
        self.arithmetic.has_cosine(norm(&self.given))
    }
}

/// A lower bound of what is never negative: what is not worth being told from zero is zero, and so
/// is what no number came out of.
fn above_zero(lower: f64) -> f64 {
    if lower > 1.0 / SAFE && lower < f64::INFINITY {
        lower
    } else {
        0.0
    }
}

/// What a sum of `dims` products in `f32` loses where they are below the normal numbers.
fn vanishing(dims: usize) -> f64 {
    dims as f64 * f64::from(f32::MIN_POSITIVE)
}

fn product(estimate: f64, slack: f64) -> Estimate {
    let lower = estimate - slack;
    let safe = lower.is_finite() && lower.abs() < SAFE * SAFE;
    Estimate {
        estimate: if estimate.is_nan() { 0.0 } else { estimate },
        lower: if safe { lower } else { f64::NEG_INFINITY },
    }
}

/// A query as a segment sees it.
#[derive(Debug)]
pub struct Probe {
    metric: Metric,
    arithmetic: Arithmetic,
    /// Nothing is known of the operator's cosines.
    blind: bool,
    dims: usize,
    /// The query in the space of the segment.
    vector: Vec<f32>,
    /// Its graph part.
    graph: Vec<u8>,
    sum: f32,
    square: f64,
    gain: f64,
    /// For inner products: the query in the unit of the space, zero in its last coordinate.
    factors: Vec<f32>,
    factors_sum: f32,
    /// Inner product of the query and the centre.
    offset: f64,
    length: f64,
    centre_length: f64,
}

impl Probe {
    /// Brings a query into the space of a segment.
    pub fn new(codec: Codec, space: &Space, query: &Query) -> Self {
        let zeros;
        let prepared = match &query.prepared {
            Some(prepared) => prepared,
            None => {
                zeros = vec![0.0; codec.dims];
                &zeros
            }
        };
        let mut vector = Vec::new();
        if codec.format == Format::First {
            vector.extend_from_slice(prepared);
        } else {
            space.enter_query(prepared, &mut vector);
        }
        let mut graph = vec![0; codec.graph_len()];
        codec.encode_graph(&vector, &mut graph);
        let (mut factors, mut offset, mut centre_length) = (Vec::new(), 0.0, 0.0);
        if codec.metric == Metric::InnerProduct {
            factors.extend(prepared.iter().map(|q| q / space.gain));
            factors.resize(codec.width(), 0.0);
            let centre = space.centre.iter().take(codec.dims);
            offset = prepared
                .iter()
                .zip(centre)
                .map(|(q, c)| f64::from(*q) * f64::from(*c))
                .sum();
            centre_length = norm(&space.centre);
        }
        Self {
            metric: codec.metric,
            arithmetic: query.arithmetic,
            blind: codec.metric == Metric::Cosine && !query.has_cosines(),
            dims: codec.dims,
            graph,
            sum: vector.iter().sum(),
            square: vector.iter().map(|x| f64::from(*x).powi(2)).sum(),
            vector,
            gain: f64::from(space.gain),
            factors_sum: factors.iter().sum(),
            factors,
            offset,
            length: norm(prepared),
            centre_length,
        }
    }

    /// For walks alone: what is searched for like a node. Queries for inner products are no nodes, for these have one more
    /// coordinate: where a node's vector is known, it is a query.
    ///
    /// # Errors
    /// A vector that is not finite.
    pub(crate) fn like(codec: &Codec, space: &Space, node: &[u8]) -> Result<Self> {
        match codec.coarse(node) {
            Some(place)
                if codec.metric == Metric::InnerProduct && codec.format == Format::Second =>
            {
                let query = Query::new(codec.metric, codec.dims, &space.leave(&place))?;
                Ok(Self::new(*codec, space, &query))
            }
            _ => Ok(Self::at(codec, node)),
        }
    }

    /// For walks alone: the place of a vector that is in the graph already.
    pub(crate) fn at(codec: &Codec, graph: &[u8]) -> Self {
        let mut vector = Vec::new();
        if !codec.has_integer_codes() {
            codec.components(graph, &mut vector);
        }
        Self {
            metric: codec.metric,
            arithmetic: Arithmetic::Own,
            blind: false,
            dims: codec.dims,
            vector,
            graph: graph.to_vec(),
            sum: 0.0,
            square: 0.0,
            gain: 1.0,
            factors: Vec::new(),
            factors_sum: 0.0,
            offset: 0.0,
            length: 0.0,
            centre_length: 0.0,
        }
    }

    /// What a stored vector says about its distance from the query. `scratch` is room for decoded
    /// components.
    pub fn measure(
        &self,
        codec: &Codec,
        graph: &[u8],
        fine: &[u8],
        scratch: &mut Vec<f32>,
    ) -> Estimate {
        let error = codec.error(graph, fine);
        let inner = self.metric == Metric::InnerProduct;
        if !inner && !codec.has_integer_codes() {
            let square = f64::from(f32_l2_squared(&self.vector, codec.floats(graph, scratch)));
            let slack = square * rounding(codec.width()) + vanishing(codec.width());
            return self.apart(square, slack, error);
        }
        let vector = if inner {
            (&self.factors[..], self.factors_sum)
        } else {
            (&self.vector[..], self.sum)
        };
        let (dot, square) = codec.product_and_square(vector, graph, fine, scratch);
        let (dot, square) = (f64::from(dot), f64::from(square));
        if inner {
            return self.product(dot, square.sqrt() + error, error);
        }
        let relative = 2.0 * rounding(codec.width()) * (self.square + square);
        let mut slack = relative + vanishing(codec.width());
        if codec.format == Format::First {
            // Its squared norm is that of the vector, not of what is stored.
            slack += 2.0 * self.square.sqrt() * error;
        }
        self.apart((self.square + square - 2.0 * dot).max(0.0), slack, error)
    }

    /// What a walk over the graph goes by: a number with the order of the distances between this query
    /// and a graph part. `dot` is for integer codes, `scratch` room for decoded components.
    #[inline]
    pub(crate) fn graph_distance(
        &self,
        codec: &Codec,
        graph: &[u8],
        dot: DotI8,
        scratch: &mut Vec<f32>,
    ) -> f32 {
        if codec.has_integer_codes() {
            codec.code_distance(dot, &self.graph, graph)
        } else {
            codec.float_distance(&self.vector, codec.floats(graph, scratch))
        }
    }

    /// From the squared distance of a stored vector in the space, how uncertain that square is, and
    /// how far the true vector may be from the stored one. For L2 and cosine.
    fn apart(&self, square: f64, slack: f64, error: f64) -> Estimate {
        let relative = self.arithmetic.rounding(self.dims);
        // The query was rounded when it was brought into the space.
        let error = error + (self.square.sqrt() + 1e-30) * 2.0 * HALF_ULP;
        let nearest = ((square - slack).max(0.0).sqrt() - error).max(0.0) / self.gain;
        let likely = square.max(0.0).sqrt() / self.gain;
        let (estimate, lower) = if self.metric == Metric::Cosine {
            let lower = nearest * nearest / 2.0 - 4.0 * relative - 8.0 * HALF_ULP;
            (likely * likely / 2.0, if self.blind { 0.0 } else { lower })
        } else {
            (likely, nearest * (1.0 - relative))
        };
        Estimate {
            estimate,
            lower: above_zero(lower).min(estimate),
        }
    }

    /// From the inner product with a stored vector in the unit of the space, a bound of that
    /// vector's length, and how far the true vector may be from the stored one.
    fn product(&self, dot: f64, length: f64, error: f64) -> Estimate {
        // What is left of the query's components below the normal numbers, where a stored vector may be as much longer.
        let factors = (self.dims as f64).sqrt() * f64::from(f32::from_bits(1)) * length;
        let length = length / self.gain + self.centre_length;
        let relative = rounding(self.dims) + self.arithmetic.rounding(self.dims);
        let slack = self.length * (error / self.gain + 2.0 * relative * length);
        if !has_product(self.length * length) {
            return product(-(dot + self.offset), f64::INFINITY);
        }
        product(-(dot + self.offset), slack + factors + vanishing(self.dims))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantization::Quantization;

    /// What a segment says of a vector.
    fn measured(query: &Query, codec: &Codec, space: &Space, x: &[f32]) -> Estimate {
        let (mut place, mut stored) = (Vec::new(), vec![0; codec.len()]);
        let error = space.enter(x, 0.0, &mut place);
        codec.encode(&place, error, &mut stored);
        let (graph, fine) = stored.split_at(codec.graph_len());
        Probe::new(*codec, space, query).measure(codec, graph, fine, &mut Vec::new())
    }

    /// Where most vectors are far longer than the others, squares of these are below the normal numbers.
    #[test]
    fn short_vectors_among_long_ones_have_bounds() {
        let dims = 3;
        let point = |i: usize| [i * 37 % 101, i * 53 % 103, i * 71 % 107].map(|x| x as f32 / 50.0);
        for length in [1e19f32, 1e20, 1e21, 1e30] {
            let long = (0..300).map(|i| vec![length + i as f32 * length / 1e3, length, length]);
            let short: Vec<Vec<f32>> = (0..200).map(|i| point(i).to_vec()).collect();
            let all: Vec<Vec<f32>> = long.chain(short.iter().cloned()).collect();
            let space = Space::fit(Metric::L2, dims, &all, false);
            let query = Query::new(Metric::L2, dims, &[1.0, 1.0, 1.0]).unwrap();
            for quantization in (0..5).filter_map(Quantization::from_u8) {
                let codec = Codec::new(dims, Metric::L2, quantization);
                for x in &short {
                    let found = measured(&query, &codec, &space, x);
                    let truth = l2_distance(query.given(), x);
                    assert!(
                        found.lower <= truth,
                        "{quantization:?} {length} {} {truth}",
                        found.lower
                    );
                }
            }
        }
    }

    /// Parts of the operator's sum overflow, though all together are nothing.
    #[test]
    fn products_that_cancel_have_bounds() {
        let dims = 128;
        let one = |at: usize, x: f32| match at {
            0 | 32 => x,
            64 | 96 => -x,
            _ => 0.0,
        };
        let x: Vec<f32> = (0..dims)
            .map(|i| one(i, 2.2e19) + i as f32 * 1e13)
            .collect();
        let q: Vec<f32> = (0..dims).map(|i| one(i, 1.5e19).abs()).collect();
        let query = Query::new(Metric::InnerProduct, dims, &q).unwrap();
        let truth = -f64::from(f32_dot(&q, &x));
        let pending = query.measure(&x, 0.0);
        assert!(pending.lower <= truth, "{pending:?} {truth}");
        let rows = vec![x; 4];
        for codec in (0..5).filter_map(Quantization::from_u8) {
            let codec = Codec::new(dims, Metric::InnerProduct, codec);
            let space = Space::fit(Metric::InnerProduct, dims, &rows, true);
            let found = measured(&query, &codec, &space, &rows[0]);
            assert!(found.lower <= truth, "{codec:?} {found:?} {truth}");
        }
    }

    /// The query is rounded to that in the unit of the space, where vectors may be very long.
    #[test]
    fn tiny_queries_have_bounds() {
        let dims = 16;
        let part = |i: usize, j: usize| ((i * 37 + j * 53 + i * j * 7) % 101) as f32 / 50.0 - 1.0;
        let rows: Vec<Vec<f32>> = (0..300)
            .map(|i| {
                let length = 10f32.powi(i as i32 * 36 / 299 - 20);
                (0..dims).map(|j| part(i, j) * length).collect()
            })
            .collect();
        for (format, space) in [
            (
                Format::Second,
                Space::fit(Metric::InnerProduct, dims, &rows, true),
            ),
            (Format::SecondInner, Space::fit_inner(dims, &rows)),
        ] {
            for (length, quantization) in [1.4e-45f32, 1e-40, 3e-39]
                .into_iter()
                .flat_map(|length| (0..5).map(move |q| (length, q)))
            {
                let Some(quantization) = Quantization::from_u8(quantization) else {
                    continue;
                };
                let query = vec![length; dims];
                let query = Query::new(Metric::InnerProduct, dims, &query).unwrap();
                let codec = Codec {
                    format,
                    ..Codec::new(dims, Metric::InnerProduct, quantization)
                };
                for x in &rows {
                    let found = measured(&query, &codec, &space, x);
                    let truth = -f64::from(f32_dot(query.given(), x));
                    assert!(
                        found.lower <= truth,
                        "{codec:?} {length} {} {truth}",
                        found.lower
                    );
                }
            }
        }
    }

    /// The operator's products are rounded to what is left of `f32` there.
    #[test]
    fn tiny_products_have_bounds() {
        let (x, q) = ([-4.474_054e-21f32], [-1.082_484_5e-23f32]);
        let truth = -f64::from(f32_dot(&q, &x));
        let query = Query::new(Metric::InnerProduct, 1, &q).unwrap();
        assert!(query.measure(&x, 0.0).lower <= truth);
        let space = Space::fit(Metric::InnerProduct, 1, &[x.to_vec()], false);
        let codec = Codec::new(1, Metric::InnerProduct, Quantization::F32);
        let found = measured(&query, &codec, &space, &x);
        assert!(found.lower <= truth, "{} {truth}", found.lower);
    }
}
