//! How a segment stores its vectors: quantisers, and what a stored vector says about its distance
//! from a query.
//!
//! A stored vector has two parts. The *graph part* is what usearch holds and walks over; the *fine
//! part* sits beside the graph, sharpens the distances of the candidates that a search returns, and
//! bounds how far the true vector may be from the stored one. [`crate::query`] compares them with queries.
//!
//! | quantization | graph part | fine part |
//! |---|---|---|
//! | f32, f16, bf16 | the components | error |
//! | i8 | scale, squared norm, one byte a component | error, squared norm, four more bits a component |
//! | b1 | one bit a component (the sign) | error, scale, squared norm, one byte a component |
//!
//! Components are those of the segment's [space](crate::space), where all metrics are Euclidean distances.
//! Scalar quantisation uses a scale of its own for every vector: `x ≈ s c` with `s = max|x| / 127`
//! and `c` in -127..=127. The scale travels in front of the codes, so that one integer inner product
//! gives the distance of vectors with different scales. Squared norms are those of what is stored,
//! not of what it stands for, so that equal codes have distance zero.
//!
//! The error makes searches exact where candidates are: by the triangle inequality the true distance
//! from a query lies within it of the distance from the stored vector
//! ([`Estimate::lower`](crate::query::Estimate::lower)).
//!
//! Segments of the first format have other fine parts, without the error, which follows from their
//! scales, and keep vectors as the metric sees them, without a space.

use half::{bf16, f16};
use laser_vector::kernels::{f16_widen, f32_dot, f32_l2_squared};

use crate::arithmetic::HALF_ULP;
use crate::error::{IndexError, Result};
use crate::kernels::{DotI8, dot_f32_i8, dot_f32_i12, nibble, round_i8};
use crate::metric::Metric;
use crate::quantization::Quantization;
use crate::space;

/// Bytes of the scale and the squared norm in front of integer codes.
const PARAMETERS: usize = 8;
/// Bytes of the error in front of a fine part.
const ERROR: usize = 4;
/// Bytes of the squared norm behind it, for twelve bits.
const SQUARE: usize = 4;

/// Version of a segment's stored vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Without a space; still read, no longer written.
    First,
    /// What this module describes.
    Second,
    /// The same for inner products, whose graph is one of inner products as well: the space has no
    /// further coordinate.
    SecondInner,
}

/// Stores and compares vectors of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codec {
    /// Dimensions of the indexed vectors.
    pub dims: usize,
    /// What the order of results means.
    pub metric: Metric,
    /// How components are stored.
    pub quantization: Quantization,
    /// Version of the form.
    pub format: Format,
}

impl Codec {
    /// A codec of the current format.
    pub fn new(dims: usize, metric: Metric, quantization: Quantization) -> Self {
        Self {
            dims,
            metric,
            quantization,
            format: Format::Second,
        }
    }

    /// A codec of the first format.
    pub fn first(dims: usize, metric: Metric, quantization: Quantization) -> Self {
        Self {
            format: Format::First,
            ..Self::new(dims, metric, quantization)
        }
    }

    /// Whether the graph is one of inner products. Graphs of Euclidean distances are the better ones
    /// for walks, but bringing inner products into such a space costs most of the recall where
    /// vectors of many dimensions have different lengths: [`crate::choice`] tries both.
    pub fn walks_by_products(&self) -> bool {
        self.metric == Metric::InnerProduct && self.format != Format::Second
    }

    /// Components of a stored vector.
    pub fn width(&self) -> usize {
        match (self.format, self.metric) {
            (Format::Second, Metric::InnerProduct) => self.dims + 1,
            _ => self.dims,
        }
    }

    /// Bytes of the graph part.
    pub fn graph_len(&self) -> usize {
        match self.quantization {
            Quantization::F32 => 4 * self.width(),
            Quantization::F16 | Quantization::Bf16 => 2 * self.width(),
            Quantization::I8 => self.width() + PARAMETERS,
            Quantization::B1 => self.width().div_ceil(8),
        }
    }

    /// Bytes of the fine part.
    pub fn fine_len(&self) -> usize {
        let codes = match self.quantization {
            Quantization::F32 | Quantization::F16 | Quantization::Bf16 => 0,
            Quantization::I8 => self.width().div_ceil(16) * 8,
            Quantization::B1 => self.width() + PARAMETERS,
        };
        codes + self.fine_head()
    }

    /// Bytes of the fine part in front of its codes.
    fn fine_head(&self) -> usize {
        match (self.format, self.quantization) {
            (Format::First, _) => 0,
            (_, Quantization::I8) => ERROR + SQUARE,
            _ => ERROR,
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

    /// Writes the stored form of a place in the segment's space to `out`, which has [`Codec::len`]
    /// bytes; `error` bounds how far from there the true vector may be.
    pub fn encode(&self, place: &[f32], error: f64, out: &mut [u8]) {
        debug_assert!(self.format != Format::First && place.len() == self.width());
        let (graph, fine) = out.split_at_mut(self.graph_len());
        let (head, codes) = fine.split_at_mut(self.fine_head());
        self.encode_graph(place, graph);
        let mut rounded = 0.0;
        match self.quantization {
            Quantization::F32 => {}
            Quantization::F16 | Quantization::Bf16 => {
                let mut stored = Vec::new();
                self.components(graph, &mut stored);
                rounded = apart(place, stored.iter().map(|x| f64::from(*x)));
            }
            Quantization::I8 => {
                let (coarse, scale, _) = scalar_parts(graph);
                write_nibbles(place, coarse, scale, codes);
                let stored = twelve_bits(coarse, codes, scale);
                rounded = apart(place, stored);
                let stored = twelve_bits(coarse, codes, scale);
                let square: f64 = stored.map(|x| x * x).sum();
                head[ERROR..].copy_from_slice(&(square as f32).to_le_bytes());
            }
            Quantization::B1 => {
                let scale = scalar_encode(place, codes);
                let (codes, ..) = scalar_parts(codes);
                let stored = codes.iter().map(|c| f64::from(scale) * f64::from(*c));
                rounded = apart(place, stored);
            }
        }
        // The last coordinate for inner products has no part in the error; leaving it in errs on
        // the safe side.
        let error = (error + rounded) * (1.0 + 4.0 * HALF_ULP);
        head[..ERROR].copy_from_slice(&(error as f32).to_le_bytes());
    }

    /// Writes the graph part alone.
    pub(crate) fn encode_graph(&self, place: &[f32], graph: &mut [u8]) {
        match self.quantization {
            Quantization::F32 => graph.copy_from_slice(bytemuck::cast_slice(place)),
            Quantization::F16 => {
                for (out, &x) in graph.chunks_exact_mut(2).zip(place) {
                    // Beyond the largest half there is only infinity, which no distance survives.
                    let x = x.clamp(-65504.0, 65504.0);
                    out.copy_from_slice(&f16::from_f32(x).to_le_bytes());
                }
            }
            Quantization::Bf16 => {
                for (out, &x) in graph.chunks_exact_mut(2).zip(place) {
                    // As above: the largest numbers would be rounded up to infinity.
                    let x = x.clamp(-LARGEST_BF16, LARGEST_BF16);
                    out.copy_from_slice(&bf16::from_f32(x).to_le_bytes());
                }
            }
            Quantization::I8 => {
                scalar_encode(place, graph);
            }
            Quantization::B1 => {
                graph.fill(0);
                for (i, &x) in place.iter().enumerate() {
                    graph[i / 8] |= u8::from(x > 0.0) << (i % 8);
                }
            }
        }
    }

    /// Writes a vector as the first format did. The vector has a direction where the metric asks
    /// for one.
    ///
    /// # Errors
    /// Wrong number of dimensions, NaN, infinity.
    pub(crate) fn encode_first(&self, metric: Metric, x: &[f32], out: &mut [u8]) -> Result<()> {
        let Some(x) = space::prepare(metric, self.dims, x)? else {
            return Err(IndexError::NotFinite);
        };
        let (graph, fine) = out.split_at_mut(self.graph_len());
        match self.quantization {
            Quantization::I8 => {
                let scale = scalar_encode(&x, graph);
                let (coarse, ..) = scalar_parts(graph);
                write_nibbles(&x, coarse, scale, fine);
                // The squared norm of the vector itself.
                graph[4..PARAMETERS].copy_from_slice(&f32_dot(&x, &x).to_le_bytes());
            }
            Quantization::B1 => {
                self.encode_graph(&x, graph);
                scalar_encode(&x, fine);
                fine[4..PARAMETERS].copy_from_slice(&f32_dot(&x, &x).to_le_bytes());
            }
            _ => self.encode_graph(&x, graph),
        }
        Ok(())
    }

    /// A bound of the distance between a stored vector and the one that it stands for.
    pub fn error(&self, graph: &[u8], fine: &[u8]) -> f64 {
        if self.format != Format::First {
            return f64::from(f32_at(fine, 0));
        }
        let spread = (self.dims as f64).sqrt();
        let scaled = |scale: f32, steps: f64| {
            // Where a scale has no reciprocal all codes are zero.
            let steps = if (1.0 / scale).is_finite() {
                steps
            } else {
                127.0
            };
            f64::from(scale) * steps * spread * 1.001
        };
        match self.quantization {
            // Vectors of unit length were rounded to floats.
            Quantization::F32 => 2.0 * HALF_ULP,
            Quantization::F16 | Quantization::Bf16 => {
                let mut stored = Vec::new();
                self.components(graph, &mut stored);
                if stored.iter().any(|x| x.abs() >= 65504.0) {
                    return f64::INFINITY;
                }
                let half_ulp = if self.quantization == Quantization::F16 {
                    1.0 / 2048.0
                } else {
                    1.0 / 256.0
                };
                half_ulp * 1.01 * laser_vector::kernels::norm(&stored) + 6e-8 * spread
            }
            Quantization::I8 => scaled(scalar_parts(graph).1, 1.0 / 32.0),
            Quantization::B1 => scaled(scalar_parts(fine).1, 0.5),
        }
    }

    /// The inner product of a stored place with `vector`, whose components add up to `sum`, and the squared
    /// norm of what is stored. `scratch` is room for decoded components.
    #[inline]
    pub(crate) fn product_and_square(
        &self,
        (vector, sum): (&[f32], f32),
        graph: &[u8],
        fine: &[u8],
        scratch: &mut Vec<f32>,
    ) -> (f32, f32) {
        let codes = &fine[self.fine_head()..];
        match self.quantization {
            Quantization::I8 => {
                let (coarse, scale, square) = scalar_parts(graph);
                let vector = &vector[..self.width()];
                let dot = scale * (dot_f32_i12(vector, coarse, codes) - 7.5 * sum) / 16.0;
                let square = match self.format {
                    Format::First => square,
                    _ => f32_at(fine, ERROR),
                };
                (dot, square)
            }
            Quantization::B1 => {
                let (codes, scale, square) = scalar_parts(codes);
                (scale * dot_f32_i8(vector, codes), square)
            }
            Quantization::F32 | Quantization::F16 | Quantization::Bf16 => {
                let x = self.floats(graph, scratch);
                (f32_dot(vector, x), f32_dot(x, x))
            }
        }
    }

    /// The place as the graph part alone has it; `None` where that is one bit for each component.
    pub(crate) fn coarse(&self, graph: &[u8]) -> Option<Vec<f32>> {
        let mut place = Vec::new();
        match self.quantization {
            Quantization::I8 => {
                let (codes, scale, _) = scalar_parts(graph);
                place.extend(codes.iter().map(|&c| scale * f32::from(c)));
            }
            Quantization::B1 => return None,
            _ => self.components(graph, &mut place),
        }
        Some(place)
    }

    /// The stored place, as floats, finite ones.
    pub fn decode(&self, graph: &[u8], fine: &[u8]) -> Vec<f32> {
        let mut place = self.decode_any(graph, fine);
        // Rounding up the largest numbers gives infinity.
        place
            .iter_mut()
            .for_each(|x| *x = x.clamp(f32::MIN, f32::MAX));
        place
    }

    fn decode_any(&self, graph: &[u8], fine: &[u8]) -> Vec<f32> {
        let codes = &fine[self.fine_head()..];
        match self.quantization {
            Quantization::I8 => {
                let (coarse, scale, _) = scalar_parts(graph);
                twelve_bits(coarse, codes, scale)
                    .map(|x| x as f32)
                    .collect()
            }
            Quantization::B1 => {
                let (codes, scale, _) = scalar_parts(codes);
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
        // What is there already need not be zeroed: all of it is written.
        out.resize(self.width(), 0.0);
        match self.quantization {
            Quantization::F32 => bytemuck::cast_slice_mut::<f32, u8>(out).copy_from_slice(graph),
            Quantization::F16 => match bytemuck::try_cast_slice::<u8, f16>(graph) {
                Ok(halves) => f16_widen(halves, out),
                Err(_) => {
                    for (out, x) in out.iter_mut().zip(graph.chunks_exact(2)) {
                        *out = f16::from_le_bytes([x[0], x[1]]).to_f32();
                    }
                }
            },
            Quantization::Bf16 => {
                for (out, x) in out.iter_mut().zip(graph.chunks_exact(2)) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes([x[0], x[1]])) << 16);
                }
            }
            Quantization::I8 | Quantization::B1 => unreachable!("integer codes"),
        }
    }

    /// The same without a copy where the components are floats that lie as floats must.
    #[inline]
    pub(crate) fn floats<'a>(&self, graph: &'a [u8], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        match bytemuck::try_cast_slice(graph) {
            Ok(x) if self.quantization == Quantization::F32 => x,
            _ => {
                self.components(graph, scratch);
                scratch
            }
        }
    }

    /// Whether graph parts are compared as they are, and not as floats.
    pub(crate) fn has_integer_codes(&self) -> bool {
        matches!(self.quantization, Quantization::I8 | Quantization::B1)
    }

    /// Distance between two graph parts with integer codes.
    pub(crate) fn code_distance(&self, dot: DotI8, a: &[u8], b: &[u8]) -> f32 {
        if self.quantization == Quantization::I8 {
            return self.scalar_distance(dot, a, b);
        }
        let bits = |x: &[u8]| u64::from_le_bytes(x.try_into().expect("eight bytes"));
        let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
        let rest = a.remainder().iter().zip(b.remainder());
        let rest: u32 = rest.map(|(a, b)| (a ^ b).count_ones()).sum();
        let sum: u32 = a
            .zip(b)
            .map(|(a, b)| (bits(a) ^ bits(b)).count_ones())
            .sum();
        (sum + rest) as f32
    }

    /// Distance between the components of two graph parts.
    pub(crate) fn float_distance(&self, a: &[f32], b: &[f32]) -> f32 {
        if self.walks_by_products() {
            -f32_dot(a, b)
        } else {
            f32_l2_squared(a, b)
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
        if self.walks_by_products() {
            -dot
        } else {
            na + nb - 2.0 * dot
        }
    }
}

fn f32_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Euclidean distance between a place and what was stored of it.
fn apart(place: &[f32], stored: impl Iterator<Item = f64>) -> f64 {
    let square: f64 = place
        .iter()
        .zip(stored)
        .map(|(x, y)| (f64::from(*x) - y).powi(2))
        .sum();
    square.sqrt()
}

/// Writes codes, scale and squared norm of what they stand for; returns the scale.
fn scalar_encode(x: &[f32], out: &mut [u8]) -> f32 {
    let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 && (1.0 / scale).is_finite() {
        1.0 / scale
    } else {
        0.0
    };
    let (parameters, codes) = out.split_at_mut(PARAMETERS);
    let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
    round_i8(x, inverse, codes);
    let squares: i64 = codes.iter().map(|c| i64::from(*c) * i64::from(*c)).sum();
    parameters[..4].copy_from_slice(&scale.to_le_bytes());
    parameters[4..].copy_from_slice(&(scale * scale * squares as f32).to_le_bytes());
    scale
}

/// The largest finite number of sixteen bits with eight of them for the exponent.
const LARGEST_BF16: f32 = 3.389_531_4e38;

/// Writes the next four bits of each component.
fn write_nibbles(x: &[f32], coarse: &[i8], scale: f32, fine: &mut [u8]) {
    let step = 1.0 / scale;
    let step = if step.is_finite() { step } else { 0.0 };
    fine.fill(0);
    for (i, (&x, &code)) in x.iter().zip(coarse).enumerate() {
        let rest = x * step - f32::from(code);
        let half = (rest * 16.0 + 8.0).floor().clamp(0.0, 15.0) as u8;
        fine[i / 16 * 8 + i % 8] |= if i % 16 < 8 { half } else { half << 4 };
    }
}

/// Components of twelve bits.
fn twelve_bits<'a>(
    coarse: &'a [i8],
    fine: &'a [u8],
    scale: f32,
) -> impl Iterator<Item = f64> + use<'a> {
    coarse.iter().enumerate().map(move |(i, &c)| {
        f64::from(scale) * (f64::from(c) + (f64::from(nibble(fine, i)) - 7.5) / 16.0)
    })
}

/// Codes, scale and squared norm.
#[inline]
pub(crate) fn scalar_parts(bytes: &[u8]) -> (&[i8], f32, f32) {
    let (p, codes) = bytes.split_at(PARAMETERS);
    let scale = f32::from_le_bytes([p[0], p[1], p[2], p[3]]);
    let square = f32::from_le_bytes([p[4], p[5], p[6], p[7]]);
    (bytemuck::cast_slice(codes), scale, square)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arithmetic::Arithmetic;
    use crate::query::{Probe, Query};
    use crate::space::Space;
    use proptest::prelude::*;

    fn exact(metric: Metric, q: &[f32], x: &[f32]) -> f64 {
        use laser_vector::kernels::{cosine_distance, f32_dot, l2_distance};
        match metric {
            Metric::Cosine => cosine_distance(q, x),
            Metric::L2 => l2_distance(q, x),
            Metric::InnerProduct => -f64::from(f32_dot(q, x)),
        }
    }

    /// Distances as in pgvector's `vector.c`.
    fn plain(metric: Metric, a: &[f32], b: &[f32]) -> f64 {
        let sum = |f: fn(f32, f32) -> f32| a.iter().zip(b).fold(0.0f32, |s, (a, b)| s + f(*a, *b));
        match metric {
            Metric::L2 => f64::from(sum(|a, b| (a - b) * (a - b))).sqrt(),
            Metric::InnerProduct => -f64::from(sum(|a, b| a * b)),
            Metric::Cosine => {
                let (aa, bb) = (sum(|a, _| a * a), sum(|_, b| b * b));
                let lengths = (f64::from(aa) * f64::from(bb)).sqrt();
                1.0 - (f64::from(sum(|a, b| a * b)) / lengths).clamp(-1.0, 1.0)
            }
        }
    }

    proptest! {
        /// The operator's value is never below the lower bound, whatever the data, and the estimate
        /// is near it.
        #[test]
        fn bounds_hold(
            seed: u64, dims in 1usize..80, metric in 0u8..3, quantization in 0u8..5,
            offset in prop_oneof![Just(0.0f32), Just(1.0), Just(100.0)],
            unit in prop_oneof![Just(1.0f32), Just(1e-12), Just(1e12)],
        ) {
            use rand::{Rng, SeedableRng};
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let metric = Metric::from_u8(metric).unwrap();
            let quantization = Quantization::from_u8(quantization).unwrap();
            let mut vector = || -> Vec<f32> {
                (0..dims).map(|_| unit * (offset + rng.random_range(-1.0f32..1.0))).collect()
            };
            let rows: Vec<Vec<f32>> = (0..20).map(|_| vector()).collect();
            let query = Query::new(metric, dims, &vector()).unwrap();
            let prepared: Vec<Vec<f32>> = rows
                .iter()
                .map(|x| space::prepare(metric, dims, x).unwrap().unwrap())
                .collect();
            let space = Space::fit(metric, dims, &prepared, quantization != Quantization::F32);
            let codec = Codec::new(dims, metric, quantization);
            let probe = Probe::new(codec, &space, &query);
            let (mut place, mut stored) = (Vec::new(), vec![0; codec.len()]);
            for (row, x) in rows.iter().zip(&prepared) {
                let error = space.enter(x, 0.0, &mut place);
                codec.encode(&place, error, &mut stored);
                let (graph, fine) = stored.split_at(codec.graph_len());
                let found = probe.measure(&codec, graph, fine, &mut Vec::new());
                let truth = exact(metric, query.given(), row);
                prop_assert!(found.lower <= truth, "{} > {truth}", found.lower);
                prop_assert!(found.lower <= found.estimate);
                let again = space.leave(&codec.decode(graph, fine));
                let off: f64 = again.iter().zip(x)
                    .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>().sqrt();
                let bound = codec.error(graph, fine) / f64::from(space.gain);
                let length = laser_vector::kernels::norm(x);
                prop_assert!(off <= bound + 2.0 * HALF_ULP * length, "{off} {bound}");
            }
        }

        /// The same for an operator that adds squares one by one in `f32`, as pgvector's does in the worst case,
        /// in any unit: of what overflows or vanishes there nothing is promised.
        #[test]
        fn bounds_of_plain_sums_hold(
            seed: u64, dims in prop_oneof![1usize..80, 2000usize..2010], metric in 0u8..3,
            quantization in 0u8..5, offset in prop_oneof![Just(0.0f32), Just(1.0), Just(-1.0)],
            units in (-44i32..38, -44i32..38),
        ) {
            use rand::{Rng, SeedableRng};
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
            let metric = Metric::from_u8(metric).unwrap();
            let quantization = Quantization::from_u8(quantization).unwrap();
            let mut vector = |unit: i32, row: usize| -> Vec<f32> {
                let unit = 10f64.powi(unit);
                let sign = if row.is_multiple_of(2) { 1.0 } else { -1.0 };
                let all: Vec<f32> = (0..dims)
                    .map(|_| {
                        let x = sign * f64::from(offset + rng.random_range(-1.0f32..1.0));
                        (unit * x).clamp(-3e38, 3e38) as f32
                    })
                    .collect();
                if all.iter().all(|x| *x == 0.0) { vec![1e-45; dims] } else { all }
            };
            let rows: Vec<Vec<f32>> = (0..6).map(|row| vector(units.0, row)).collect();
            let query = Query::new(metric, dims, &vector(units.1, 0)).unwrap()
                .compared_by(Arithmetic::Plain);
            let prepared: Vec<Vec<f32>> = rows
                .iter()
                .map(|x| space::prepare(metric, dims, x).unwrap().unwrap())
                .collect();
            let space = Space::fit(metric, dims, &prepared, quantization != Quantization::F32);
            let codec = Codec::new(dims, metric, quantization);
            let probe = Probe::new(codec, &space, &query);
            let (mut place, mut stored) = (Vec::new(), vec![0; codec.len()]);
            for (row, x) in rows.iter().zip(&prepared) {
                let truth = plain(metric, query.given(), row);
                let listed = query.measure(row, 0.0);
                prop_assert!(truth.is_nan() || listed.lower <= truth, "{} > {truth}", listed.lower);
                let error = space.enter(x, space::direction_error(metric, row), &mut place);
                codec.encode(&place, error, &mut stored);
                let (graph, fine) = stored.split_at(codec.graph_len());
                let found = probe.measure(&codec, graph, fine, &mut Vec::new());
                prop_assert!(truth.is_nan() || found.lower <= truth, "{} > {truth}", found.lower);
            }
        }

        /// The same for vectors as the first format stored them.
        #[test]
        fn bounds_of_the_first_format_hold(
            pairs in proptest::collection::vec((-2.0f32..2.0, -2.0f32..2.0), 1..90),
            metric in 0u8..3, quantization in 0u8..5,
        ) {
            let q: Vec<f32> = pairs.iter().map(|p| p.0).collect();
            let x: Vec<f32> = pairs.iter().map(|p| p.1).collect();
            let metric = Metric::from_u8(metric).unwrap();
            let codec = Codec::first(q.len(), metric, Quantization::from_u8(quantization).unwrap());
            let square = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
            prop_assume!(square(&q) > 1e-3 && square(&x) > 1e-3);
            let query = Query::new(metric, q.len(), &q).unwrap();
            let probe = Probe::new(codec, &Space::plain(metric, q.len()), &query);
            let mut stored = vec![0; codec.len()];
            codec.encode_first(metric, &x, &mut stored).unwrap();
            let (graph, fine) = stored.split_at(codec.graph_len());
            let found = probe.measure(&codec, graph, fine, &mut Vec::new());
            let truth = exact(metric, &q, &x);
            prop_assert!(found.lower <= truth, "{} > {truth}", found.lower);
            let size = f64::from((square(&q) * square(&x)).sqrt()).max(1.0);
            prop_assert!((found.estimate - truth).abs() <= 0.1 * size, "{} {truth}", found.estimate);
        }
    }

    #[test]
    fn equal_codes_have_distance_zero() {
        let codec = Codec::new(64, Metric::L2, Quantization::I8);
        let place: Vec<f32> = (0..64).map(|i| (i as f32).sin()).collect();
        let mut stored = vec![0; codec.len()];
        codec.encode(&place, 0.0, &mut stored);
        let graph = &stored[..codec.graph_len()];
        let distance = codec.scalar_distance(crate::kernels::dot_i8(), graph, graph);
        assert!(distance.abs() < 1e-5, "{distance}");
    }
}
