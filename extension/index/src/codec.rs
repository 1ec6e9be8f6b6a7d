//! How a vector is stored: quantisers, and the distances between a query and stored vectors.
//!
//! A stored vector has two parts. The *graph part* is what usearch holds and walks over; the *fine
//! part* sits beside the graph and sharpens the distances of the candidates that a search returns.
//!
//! | quantization | graph part | fine part |
//! |---|---|---|
//! | f32, f16, bf16 | the components | none |
//! | i8 | scale, squared norm, one byte a component | four more bits a component |
//! | b1 | one bit a component (the sign) | scale, squared norm, one byte a component |
//!
//! Scalar quantisation uses a scale of its own for every vector: `x ≈ s c` with `s = max|x| / 127`
//! and `c` in -127..=127. The scale travels in front of the codes, so that one integer inner product
//! gives all three distances between vectors of different scales, and vectors keep their bytes
//! when they move from the pending list into a segment and from one segment into another.
//!
//! With the cosine metric vectors are brought to unit length before they are stored.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use laser_vector::kernels::{f32_dot, f32_l2_squared};

use crate::error::{IndexError, Result};
use crate::kernels::{DotI8, dot_f32_i8, dot_f32_i12, nibble, round_i8};
use crate::page::PENDING_ENTRY_MAX;

/// What the order of results means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Metric {
    /// One minus the cosine of the angle.
    Cosine = 0,
    /// Euclidean distance; squared inside, which has the same order.
    L2 = 1,
    /// Negative inner product.
    InnerProduct = 2,
}

impl Metric {
    /// The metric with this number on the metapage.
    pub fn from_u8(value: u8) -> Option<Self> {
        [Self::Cosine, Self::L2, Self::InnerProduct]
            .into_iter()
            .find(|m| *m as u8 == value)
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::L2 => "l2",
            Self::InnerProduct => "inner_product",
        }
    }
}

/// How components are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Quantization {
    /// Four bytes a component.
    F32 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// The upper half of an f32.
    Bf16 = 2,
    /// Twelve bits a component, eight of them in the graph.
    I8 = 3,
    /// Nine bits a component, one of them in the graph.
    B1 = 4,
}

impl Quantization {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::F32, Self::F16, Self::Bf16, Self::I8, Self::B1];

    /// The quantization with this number on the metapage.
    pub fn from_u8(value: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|q| *q as u8 == value)
    }

    /// The quantization with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|q| q.name() == name)
    }

    /// Its name in `WITH (quantization = …)`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::B1 => "b1",
        }
    }
}

/// Bytes of the scale and the squared norm in front of integer codes.
const PARAMETERS: usize = 8;

/// Stores and compares vectors of one index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codec {
    /// Components of a vector.
    pub dims: usize,
    /// What the order of results means.
    pub metric: Metric,
    /// How components are stored.
    pub quantization: Quantization,
}

/// A query, prepared for the graph and for exact distances.
#[derive(Debug, Clone)]
pub struct Query {
    /// The vector, of unit length with the cosine metric.
    pub vector: Vec<f32>,
    /// The graph part of the vector.
    pub graph: Vec<u8>,
    sum: f32,
    square: f32,
}

impl Codec {
    /// A codec for `dims` components.
    ///
    /// # Errors
    /// When an entry would not fit on a page of the pending list.
    pub fn new(dims: usize, metric: Metric, quantization: Quantization) -> Result<Self> {
        let codec = Self {
            dims,
            metric,
            quantization,
        };
        if dims == 0 || codec.len() > PENDING_ENTRY_MAX {
            let mut limit = 1;
            while (Self {
                dims: limit + 1,
                ..codec
            })
            .len()
                <= PENDING_ENTRY_MAX
            {
                limit += 1;
            }
            return Err(IndexError::TooWide {
                dims,
                limit,
                quantization,
            });
        }
        Ok(codec)
    }

    /// Bytes of the graph part.
    pub fn graph_len(&self) -> usize {
        match self.quantization {
            Quantization::F32 => 4 * self.dims,
            Quantization::F16 | Quantization::Bf16 => 2 * self.dims,
            Quantization::I8 => self.dims + PARAMETERS,
            Quantization::B1 => self.dims.div_ceil(8),
        }
    }

    /// Bytes of the fine part.
    pub fn fine_len(&self) -> usize {
        match self.quantization {
            Quantization::F32 | Quantization::F16 | Quantization::Bf16 => 0,
            Quantization::I8 => self.dims.div_ceil(16) * 8,
            Quantization::B1 => self.dims + PARAMETERS,
        }
    }

    /// Bytes of a stored vector.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.graph_len() + self.fine_len()
    }

    /// How many candidates the graph must deliver for every one that is wanted, because its own
    /// distances are coarse.
    pub fn overfetch(&self) -> usize {
        if self.quantization == Quantization::B1 {
            8
        } else {
            1
        }
    }

    /// Writes the stored form of `x` to `out`, which has [`Codec::len`] bytes. Returns false, and
    /// leaves `out` undefined, for a vector without direction under the cosine metric: such vectors
    /// have no distance to anything and are not indexed.
    ///
    /// # Errors
    /// Wrong number of dimensions, NaN, infinity.
    pub fn encode(&self, x: &[f32], out: &mut [u8]) -> Result<bool> {
        let mut unit = Vec::new();
        let Some(x) = self.prepare(x, &mut unit)? else {
            return Ok(false);
        };
        let (graph, fine) = out.split_at_mut(self.graph_len());
        match self.quantization {
            Quantization::F32 => graph.copy_from_slice(bytemuck::cast_slice(x)),
            Quantization::F16 => {
                for (out, &x) in graph.chunks_exact_mut(2).zip(x) {
                    // Beyond the largest half there is only infinity, which no distance survives.
                    let x = x.clamp(-65504.0, 65504.0);
                    out.copy_from_slice(&f16::from_f32(x).to_le_bytes());
                }
            }
            Quantization::Bf16 => {
                for (out, &x) in graph.chunks_exact_mut(2).zip(x) {
                    out.copy_from_slice(&bf16::from_f32(x).to_le_bytes());
                }
            }
            Quantization::I8 => {
                let step = 1.0 / scalar_encode(x, graph);
                let step = if step.is_finite() { step } else { 0.0 };
                let codes: &[i8] = bytemuck::cast_slice(&graph[PARAMETERS..]);
                fine.fill(0);
                for (i, (&x, &code)) in x.iter().zip(codes).enumerate() {
                    let rest = x * step - f32::from(code);
                    let half = (rest * 16.0 + 8.0).floor().clamp(0.0, 15.0) as u8;
                    fine[i / 16 * 8 + i % 8] |= if i % 16 < 8 { half } else { half << 4 };
                }
            }
            Quantization::B1 => {
                graph.fill(0);
                for (i, &x) in x.iter().enumerate() {
                    graph[i / 8] |= u8::from(x > 0.0) << (i % 8);
                }
                scalar_encode(x, fine);
            }
        }
        Ok(true)
    }

    /// Whether a finite vector has a place in the index: under the cosine metric those without a
    /// direction have none.
    pub fn indexes(&self, x: &[f32]) -> bool {
        self.metric != Metric::Cosine || x.iter().any(|&x| x != 0.0)
    }

    /// Checks a vector and brings it to unit length where the metric asks for it.
    fn prepare<'a>(&self, x: &'a [f32], unit: &'a mut Vec<f32>) -> Result<Option<&'a [f32]>> {
        if x.len() != self.dims {
            return Err(IndexError::Dimensions {
                expected: self.dims,
                found: x.len(),
            });
        }
        if !x.iter().all(|x| x.is_finite()) {
            return Err(IndexError::NotFinite);
        }
        if self.metric != Metric::Cosine {
            return Ok(Some(x));
        }
        let mut square = f64::from(f32_dot(x, x));
        if !(1e-30..1e30).contains(&square) {
            square = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        }
        if square == 0.0 {
            return Ok(None);
        }
        let scale = 1.0 / square.sqrt();
        unit.extend(x.iter().map(|&x| (f64::from(x) * scale) as f32));
        Ok(Some(unit))
    }

    /// Prepares a query. A query without direction under the cosine metric is equally far from
    /// everything.
    ///
    /// # Errors
    /// Wrong number of dimensions, NaN, infinity.
    pub fn query(&self, x: &[f32]) -> Result<Query> {
        let mut unit = Vec::new();
        let vector = match self.prepare(x, &mut unit)? {
            Some(x) => x.to_vec(),
            None => vec![0.0; self.dims],
        };
        let mut stored = vec![0; self.len()];
        if !self.encode(&vector, &mut stored)? {
            stored.fill(0);
        }
        stored.truncate(self.graph_len());
        Ok(Query {
            sum: vector.iter().sum(),
            square: f32_dot(&vector, &vector),
            graph: stored,
            vector,
        })
    }

    /// A query for the graph alone, with the place of a vector in it.
    pub(crate) fn query_at(&self, graph: &[u8]) -> Query {
        let mut vector = Vec::new();
        if !matches!(self.quantization, Quantization::I8 | Quantization::B1) {
            self.components(graph, &mut vector);
        }
        Query {
            sum: 0.0,
            square: 0.0,
            graph: graph.to_vec(),
            vector,
        }
    }

    /// Distance between a query and a stored vector, as exact as the stored form allows. Smaller is
    /// nearer. `scratch` is room for decoded components.
    pub fn distance(&self, q: &Query, graph: &[u8], fine: &[u8], scratch: &mut Vec<f32>) -> f32 {
        let (dot, square) = match self.quantization {
            Quantization::I8 => {
                let (codes, scale, square) = scalar_parts(graph);
                let twelve = dot_f32_i12(&q.vector, codes, fine);
                (scale * (twelve - 7.5 * q.sum) / 16.0, square)
            }
            Quantization::B1 => {
                let (codes, scale, square) = scalar_parts(fine);
                (scale * dot_f32_i8(&q.vector, codes), square)
            }
            _ => {
                let x = match bytemuck::try_cast_slice(graph) {
                    Ok(x) if self.quantization == Quantization::F32 => x,
                    _ => {
                        self.components(graph, scratch);
                        scratch
                    }
                };
                if self.metric == Metric::L2 {
                    return f32_l2_squared(&q.vector, x);
                }
                (f32_dot(&q.vector, x), 0.0)
            }
        };
        match self.metric {
            Metric::Cosine => 1.0 - dot,
            Metric::L2 => (q.square + square - 2.0 * dot).max(0.0),
            Metric::InnerProduct => -dot,
        }
    }

    /// The stored vector as floats.
    pub fn decode(&self, graph: &[u8], fine: &[u8]) -> Vec<f32> {
        match self.quantization {
            Quantization::I8 => {
                let (codes, scale, _) = scalar_parts(graph);
                let value =
                    |i: usize, c: i8| f32::from(c) + (f32::from(nibble(fine, i)) - 7.5) / 16.0;
                codes
                    .iter()
                    .enumerate()
                    .map(|(i, &c)| scale * value(i, c))
                    .collect()
            }
            Quantization::B1 => {
                let (codes, scale, _) = scalar_parts(fine);
                codes.iter().map(|&c| scale * f32::from(c)).collect()
            }
            _ => {
                let mut out = Vec::new();
                self.components(graph, &mut out);
                out
            }
        }
    }

    /// Float components of the graph part, for the quantisations that store some.
    pub(crate) fn components(&self, graph: &[u8], out: &mut Vec<f32>) {
        out.clear();
        out.resize(self.dims, 0.0);
        match self.quantization {
            Quantization::F32 => bytemuck::cast_slice_mut::<f32, u8>(out).copy_from_slice(graph),
            Quantization::F16 => match bytemuck::try_cast_slice::<u8, f16>(graph) {
                Ok(halves) => halves.convert_to_f32_slice(out),
                Err(_) => {
                    for (out, x) in out.iter_mut().zip(graph.chunks_exact(2)) {
                        *out = f16::from_le_bytes([x[0], x[1]]).to_f32();
                    }
                }
            },
            Quantization::Bf16 => {
                for (out, x) in out.iter_mut().zip(graph.chunks_exact(2)) {
                    *out = bf16::from_le_bytes([x[0], x[1]]).to_f32();
                }
            }
            Quantization::I8 | Quantization::B1 => unreachable!("integer codes"),
        }
    }

    /// What a walk over the graph goes by: a number with the order of the distances between a query
    /// and a graph part. `dot` is for integer codes, `scratch` room for decoded components.
    #[inline]
    pub(crate) fn graph_distance(
        &self,
        q: &Query,
        graph: &[u8],
        dot: DotI8,
        scratch: &mut Vec<f32>,
    ) -> f32 {
        match self.quantization {
            Quantization::I8 => self.scalar_distance(dot, &q.graph, graph),
            Quantization::B1 => {
                let bits = |x: &[u8]| u64::from_le_bytes(x.try_into().expect("eight bytes"));
                let (a, b) = (q.graph.chunks_exact(8), graph.chunks_exact(8));
                let rest = a.remainder().iter().zip(b.remainder());
                let rest: u32 = rest.map(|(a, b)| (a ^ b).count_ones()).sum();
                let sum: u32 = a
                    .zip(b)
                    .map(|(a, b)| (bits(a) ^ bits(b)).count_ones())
                    .sum();
                (sum + rest) as f32
            }
            _ => self.distance(q, graph, &[], scratch),
        }
    }

    /// Distance between two graph parts with integer codes, for usearch.
    ///
    /// Panics unless the quantization is i8 and both slices have [`Codec::graph_len`] bytes.
    #[inline(always)]
    pub(crate) fn scalar_distance(&self, dot: DotI8, a: &[u8], b: &[u8]) -> f32 {
        let (ca, sa, na) = scalar_parts(a);
        let (cb, sb, nb) = scalar_parts(b);
        let dot = sa * sb * dot(ca, cb) as f32;
        match self.metric {
            Metric::Cosine => 1.0 - dot,
            Metric::L2 => na + nb - 2.0 * dot,
            Metric::InnerProduct => -dot,
        }
    }
}

/// Writes codes, scale and squared norm of `x`; returns the scale.
fn scalar_encode(x: &[f32], out: &mut [u8]) -> f32 {
    let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 && (1.0 / scale).is_finite() {
        1.0 / scale
    } else {
        0.0
    };
    let (parameters, codes) = out.split_at_mut(PARAMETERS);
    round_i8(x, inverse, bytemuck::cast_slice_mut(codes));
    parameters[..4].copy_from_slice(&scale.to_le_bytes());
    parameters[4..].copy_from_slice(&f32_dot(x, x).to_le_bytes());
    scale
}

/// Codes, scale and squared norm.
#[inline]
fn scalar_parts(bytes: &[u8]) -> (&[i8], f32, f32) {
    let (p, codes) = bytes.split_at(PARAMETERS);
    let scale = f32::from_le_bytes([p[0], p[1], p[2], p[3]]);
    let square = f32::from_le_bytes([p[4], p[5], p[6], p[7]]);
    (bytemuck::cast_slice(codes), scale, square)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exact(metric: Metric, q: &[f32], x: &[f32]) -> f64 {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter()
                .zip(b)
                .map(|(x, y)| f64::from(*x) * f64::from(*y))
                .sum()
        };
        match metric {
            Metric::Cosine => 1.0 - dot(q, x) / (dot(q, q) * dot(x, x)).sqrt(),
            Metric::L2 => q
                .iter()
                .zip(x)
                .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
                .sum(),
            Metric::InnerProduct => -dot(q, x),
        }
    }

    proptest! {
        #[test]
        fn distances_are_near_the_true_ones(
            pairs in proptest::collection::vec((-2.0f32..2.0, -2.0f32..2.0), 1..90),
            metric in 0u8..3, quantization in 0u8..5,
        ) {
            let q: Vec<f32> = pairs.iter().map(|p| p.0).collect();
            let x: Vec<f32> = pairs.iter().map(|p| p.1).collect();
            let metric = Metric::from_u8(metric).unwrap();
            let quantization = Quantization::from_u8(quantization).unwrap();
            let codec = Codec::new(q.len(), metric, quantization).unwrap();
            let square = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
            prop_assume!(square(&q) > 1e-3 && square(&x) > 1e-3);
            let query = codec.query(&q).unwrap();
            let mut stored = vec![0; codec.len()];
            prop_assert!(codec.encode(&x, &mut stored).unwrap());
            let (graph, fine) = stored.split_at(codec.graph_len());
            let found = f64::from(codec.distance(&query, graph, fine, &mut Vec::new()));
            let size = f64::from((square(&q) * square(&x)).sqrt()).max(1.0);
            let relative = match quantization {
                Quantization::F32 => 1e-5,
                Quantization::F16 | Quantization::I8 => 3e-3,
                Quantization::Bf16 | Quantization::B1 => 3e-2,
            };
            let scale = if metric == Metric::Cosine { 1.0 } else { 2.0 * size };
            prop_assert!((found - exact(metric, &q, &x)).abs() <= relative * scale, "{found}");
        }

        #[test]
        fn integer_graph_distance_agrees(
            pairs in proptest::collection::vec((-2.0f32..2.0, -2.0f32..2.0), 8..90), metric in 0u8..3,
        ) {
            let a: Vec<f32> = pairs.iter().map(|p| p.0).collect();
            let b: Vec<f32> = pairs.iter().map(|p| p.1).collect();
            let metric = Metric::from_u8(metric).unwrap();
            let codec = Codec::new(a.len(), metric, Quantization::I8).unwrap();
            let (qa, qb) = (codec.query(&a).unwrap(), codec.query(&b).unwrap());
            let found = f64::from(codec.scalar_distance(crate::kernels::dot_i8(), &qa.graph, &qb.graph));
            let size: f32 = a.iter().chain(&b).map(|x| x * x).sum::<f32>().max(1.0);
            let scale = if metric == Metric::Cosine { 1.0 } else { 2.0 * f64::from(size) };
            prop_assert!((found - exact(metric, &a, &b)).abs() <= 0.05 * scale);
        }
    }

    #[test]
    fn refuses_what_has_no_distance() {
        let codec = Codec::new(3, Metric::Cosine, Quantization::I8).unwrap();
        let mut out = vec![0; codec.len()];
        assert!(!codec.encode(&[0.0; 3], &mut out).unwrap());
        assert!(matches!(
            codec.encode(&[1.0; 2], &mut out),
            Err(IndexError::Dimensions { .. })
        ));
        assert!(matches!(
            codec.encode(&[f32::NAN; 3], &mut out),
            Err(IndexError::NotFinite)
        ));
        assert!(codec.encode(&[1e-30; 3], &mut out).unwrap());
        assert!(codec.encode(&[3e38; 3], &mut out).unwrap());
        let l2 = Codec::new(3, Metric::L2, Quantization::I8).unwrap();
        assert!(l2.encode(&[0.0; 3], &mut out).unwrap());
    }

    #[test]
    fn limits_name_the_largest_size() {
        let error = Codec::new(5000, Metric::L2, Quantization::F32).unwrap_err();
        assert!(error.to_string().contains("the limit is 20"), "{error}");
        for q in Quantization::ALL {
            assert!(Codec::new(2000, Metric::L2, q).is_ok());
        }
    }
}
