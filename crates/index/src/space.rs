//! The space in which a segment keeps its vectors: one where Euclidean distance orders as the metric
//! of the index does, whose origin is in the middle of the vectors, and in which they have a length
//! around 1.
//!
//! | metric | coordinates before centring | why the order is the same |
//! |---|---|---|
//! | L2 | `x` | it is the distance |
//! | cosine | `u = x / ‖x‖` | `‖u - v‖² = 2 - 2 cos` |
//! | inner product | `x` and `√(R² - ‖x‖²)`, the query with 0 | `‖q‖² + R² - 2 q·x` (Bachrach et al. 2014) |
//! | the same, without `R` | `x`, not centred | walks go by inner products |
//!
//! Rounding to few bits costs precision in proportion to the length of what is rounded. Vectors that
//! lie far from the origin and near each other would lose their differences; centred, they keep
//! them. The gain, a power of two, keeps squares within the range of `f32` whatever the unit of the
//! data is.

use laser_vector::kernels::norm;

use crate::arithmetic::{self, HALF_ULP};
use crate::error::{IndexError, Result};
use crate::metric::Metric;

/// Largest coordinate; what lies beyond is moved here, and its error bound is infinite. The squared
/// length of 2^16 such coordinates is far from the end of `f32`.
const FAR: f32 = 1e15;
/// How much longer the radius is than the vectors that a space is made for: those that come later are
/// seldom longer.
const HEADROOM: f64 = 1.05;
/// Vectors this many times as long as the median say nothing of where the others are: a centre that
/// they had moved would make one point of these.
const FAR_OUT: f64 = 1e3;
/// What lengths may be beyond the radius by rounding.
const ROUNDING: f64 = 1e-6;
/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub struct Space {
    /// What the order of results means.
    pub metric: Metric,
    /// Dimensions of the indexed vectors.
    pub dims: usize,
    /// Subtracted from coordinates before `gain`; [`Space::width`] numbers, or none for zeros.
    pub centre: Vec<f32>,
    /// Factor of all coordinates, a power of two.
    pub gain: f32,
    /// `R` of the table above, at least the length of any vector of the segment; zero without it.
    pub radius: f32,
}

/// The one in the middle of some numbers.
fn median(mut numbers: Vec<f64>) -> f64 {
    let middle = numbers.len() / 2;
    *numbers.select_nth_unstable_by(middle, f64::total_cmp).1
}

impl Space {
    /// Vectors as they come; for inner products those up to `radius`.
    pub fn plain(metric: Metric, dims: usize) -> Self {
        let (gain, radius) = (1.0, 1.0);
        Self {
            metric,
            dims,
            centre: Vec::new(),
            gain,
            radius,
        }
    }

    /// The space of vectors like those of a sample, which [`prepare`] has prepared. Without
    /// `centred` the origin stays where it is.
    pub fn fit(metric: Metric, dims: usize, sample: &[Vec<f32>], centred: bool) -> Self {
        Self::plain(metric, dims).fitted(sample, centred)
    }

    /// The same for inner products by which walks go themselves. They are not those of moved vectors.
    pub fn fit_inner(dims: usize, sample: &[Vec<f32>]) -> Self {
        let mut space = Self::plain(Metric::InnerProduct, dims);
        space.radius = 0.0;
        space.fitted(sample, false)
    }

    fn fitted(self, sample: &[Vec<f32>], centred: bool) -> Self {
        let mut space = self;
        if sample.is_empty() {
            return space;
        }
        if space.is_extended() {
            let longest = sample.iter().map(|x| norm(x)).fold(0.0, f64::max);
            // A vector may be longer than any f32; walks then believe it farther than it is.
            let radius = (HEADROOM * longest).min(f64::from(f32::MAX));
            let nearest = radius as f32;
            // Rounded up: among the smallest numbers that there are, the nearest may be shorter than the longest.
            space.radius = match nearest {
                _ if radius == 0.0 => 1.0,
                _ if f64::from(nearest) < radius => nearest.next_up(),
                _ => nearest,
            };
        }
        let width = space.width();
        let mut scratch = vec![0.0; width];
        if centred {
            let mut sums = vec![0.0f64; width];
            let mut count = 0.0;
            let limit = FAR_OUT * median(sample.iter().map(|x| norm(x)).collect());
            for x in sample.iter().filter(|x| norm(x) <= limit) {
                space.coordinates(x, &mut scratch);
                for (sum, x) in sums.iter_mut().zip(&scratch) {
                    *sum += x;
                }
                count += 1.0;
            }
            let limit = f64::from(f32::MAX);
            let mean = |sum: &f64| (sum / count).clamp(-limit, limit) as f32;
            space.centre = sums.iter().map(mean).collect();
        }
        let lengths: Vec<f64> = sample
            .iter()
            .map(|x| {
                space.coordinates(x, &mut scratch);
                let square: f64 = (0..width)
                    .map(|i| (scratch[i] - f64::from(space.centre_at(i))).powi(2))
                    .sum();
                square.sqrt()
            })
            .collect();
        let median = median(lengths);
        if median > 0.0 {
            let exponent = (-median.log2().round()).clamp(-126.0, 126.0);
            space.gain = exponent.exp2() as f32;
        }
        space
    }

    /// Numbers of a vector in this space.
    pub fn width(&self) -> usize {
        self.dims + usize::from(self.is_extended())
    }

    /// Whether there is a further coordinate, which makes inner products distances.
    fn is_extended(&self) -> bool {
        self.metric == Metric::InnerProduct && self.radius > 0.0
    }

    /// Whether distances from a vector have the order of the metric here. For inner products one beyond the
    /// radius seems farther from every query than it is, and walks do not find it; in a space that
    /// cannot be larger it is taken as it is.
    pub fn reaches(&self, x: &[f32]) -> bool {
        let radius = f64::from(self.radius);
        !self.is_extended() || norm(x) <= radius * (1.0 + ROUNDING) || self.radius == f32::MAX
    }

    fn centre_at(&self, i: usize) -> f32 {
        self.centre.get(i).copied().unwrap_or(0.0)
    }

    /// The coordinates of a prepared vector before centring.
    fn coordinates(&self, x: &[f32], out: &mut [f64]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out = f64::from(*x);
        }
        if self.is_extended() {
            let square: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            out[self.dims] = (f64::from(self.radius).powi(2) - square).max(0.0).sqrt();
        }
    }

    /// Brings a prepared vector into this space, and `error`, how far from it the true one may be.
    /// The last coordinate for inner products guides walks alone and has no part in the error.
    pub fn enter(&self, x: &[f32], error: f64, out: &mut Vec<f32>) -> f64 {
        debug_assert_eq!(x.len(), self.dims);
        let mut wide = vec![0.0; self.width()];
        self.coordinates(x, &mut wide);
        self.place(&wide, out) + error * f64::from(self.gain)
    }

    /// Brings a prepared query into this space. For inner products it is scaled to the length of
    /// the vectors, which changes no order.
    pub fn enter_query(&self, q: &[f32], out: &mut Vec<f32>) {
        let mut wide: Vec<f64> = q.iter().map(|q| f64::from(*q)).collect();
        if self.is_extended() {
            let length = norm(q);
            if length > 0.0 {
                let scale = f64::from(self.radius) / length;
                wide.iter_mut().for_each(|q| *q *= scale);
            }
            wide.push(0.0);
        }
        self.place(&wide, out);
    }

    /// A point of the graph's space whose nearest neighbours are the vectors with the largest norms; `None` in a space
    /// that is not extended.
    pub fn max_norm_query(&self) -> Option<Vec<f32>> {
        let mut wide = vec![0.0; self.dims];
        wide.push(-f64::from(self.radius));
        let mut out = Vec::new();
        self.is_extended().then(|| {
            self.place(&wide, &mut out);
            out
        })
    }

    /// Centres and scales; returns a bound of the rounding error.
    fn place(&self, wide: &[f64], out: &mut Vec<f32>) -> f64 {
        out.clear();
        let (gain, mut square, mut far) = (f64::from(self.gain), 0.0, false);
        out.extend(wide.iter().enumerate().map(|(i, x)| {
            let x = ((x - f64::from(self.centre_at(i))) * gain) as f32;
            square += f64::from(x).powi(2);
            far |= x.abs() > FAR;
            x.clamp(-FAR, FAR)
        }));
        if far {
            return f64::INFINITY;
        }
        // Besides, numbers below the normal ones have an absolute error.
        square.sqrt() * HALF_ULP + f64::from(f32::MIN_POSITIVE)
    }

    /// The prepared vector at a place of this space, without the last coordinate for inner products.
    pub fn leave(&self, place: &[f32]) -> Vec<f32> {
        let (gain, limit) = (f64::from(self.gain), f64::from(f32::MAX));
        let component = |i| f64::from(place[i]) / gain + f64::from(self.centre_at(i));
        (0..self.dims)
            .map(|i| component(i).clamp(-limit, limit) as f32)
            .collect()
    }

    /// Bytes of [`Space::write`].
    pub fn bytes(&self) -> usize {
        Self::bytes_of(self.centre.len())
    }

    /// The same for a space with `width` coordinates.
    pub fn bytes_of(width: usize) -> usize {
        8 + 4 * width
    }

    /// Writes gain, radius and centre.
    pub fn write(&self, out: &mut [u8]) {
        out[..4].copy_from_slice(&self.gain.to_le_bytes());
        out[4..8].copy_from_slice(&self.radius.to_le_bytes());
        out[8..].copy_from_slice(bytemuck::cast_slice(&self.centre));
    }

    /// Reads what [`Space::write`] has written.
    ///
    /// # Errors
    /// Another length, or numbers that no space has.
    pub fn read(metric: Metric, dims: usize, bytes: &[u8]) -> Result<Self> {
        let bad = || IndexError::Graph("the space of a segment is damaged".into());
        if bytes.len() < 8 || !bytes.len().is_multiple_of(4) {
            return Err(bad());
        }
        let mut numbers = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let mut next = || numbers.next().expect("eight bytes");
        let (gain, radius) = (next(), next());
        let space = Self {
            metric,
            dims,
            centre: numbers.collect(),
            gain,
            radius,
        };
        let sound = gain.is_normal()
            && gain > 0.0
            && radius.is_finite()
            && radius >= 0.0
            && space.centre.iter().all(|c| c.is_finite())
            && (space.centre.is_empty() || space.centre.len() == space.width());
        if sound { Ok(space) } else { Err(bad()) }
    }
}

/// A vector as its metric sees it: with the cosine metric of unit length, else unchanged. `None` for
/// one without direction under the cosine metric: it has no distance to anything.
///
/// # Errors
/// Wrong number of dimensions, NaN, infinity.
pub fn prepare(metric: Metric, dims: usize, x: &[f32]) -> Result<Option<Vec<f32>>> {
    if x.len() != dims {
        return Err(IndexError::Dimensions {
            expected: dims,
            found: x.len(),
        });
    }
    if !x.iter().all(|x| x.is_finite()) {
        return Err(IndexError::NotFinite);
    }
    if metric != Metric::Cosine {
        return Ok(Some(x.to_vec()));
    }
    let length = norm(x);
    if length == 0.0 {
        return Ok(None);
    }
    let scale = 1.0 / length;
    Ok(Some(
        x.iter().map(|&x| (f64::from(x) * scale) as f32).collect(),
    ))
}

/// Bound of the distance between the direction of a vector, as it came, and the one that operators with
/// [`arithmetic::Arithmetic::Plain`] compute: 2, the diameter, where its norm is out of their range.
pub fn direction_error(metric: Metric, x: &[f32]) -> f64 {
    if metric == Metric::Cosine && !arithmetic::is_safe(norm(x)) {
        2.0
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        let square: f64 = a
            .iter()
            .zip(b)
            .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
            .sum();
        square.sqrt()
    }

    proptest! {
        #[test]
        fn distances_have_the_order_of_the_metric(
            rows in proptest::collection::vec((99.0f32..101.0, -1.0f32..1.0, 0.0f32..5.0), 3..20),
            metric in 0u8..3, centred: bool,
        ) {
            let metric = Metric::from_u8(metric).unwrap();
            let all: Vec<Vec<f32>> = rows
                .iter()
                .map(|r| prepare(metric, 3, &[r.0, r.1, r.2]).unwrap().unwrap())
                .collect();
            let space = Space::fit(metric, 3, &all[1..], centred);
            let mut bytes = vec![0; space.bytes()];
            space.write(&mut bytes);
            prop_assert_eq!(&Space::read(metric, 3, &bytes).unwrap(), &space);
            let mut query = Vec::new();
            space.enter_query(&all[0], &mut query);
            let places: Vec<(f64, f64)> = all[1..]
                .iter()
                .map(|x| {
                    let mut place = Vec::new();
                    let error = space.enter(x, 0.0, &mut place);
                    assert!(error < 1e-4);
                    let back = space.leave(&place);
                    assert!(distance(&back, x) <= error / f64::from(space.gain) + 1e-5 * norm(x));
                    let dot: f64 = all[0].iter().zip(x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    let true_one = if metric == Metric::L2 { distance(&all[0], x) } else { -dot };
                    (true_one, distance(&query, &place))
                })
                .collect();
            for a in &places {
                for b in &places {
                    let scale = if metric == Metric::InnerProduct { 1e5 } else { 1.0 };
                    prop_assert!(a.0 + 1e-5 * scale >= b.0 || a.1 <= b.1 + 2e-2, "{a:?} {b:?}");
                }
            }
        }
    }

    /// What was rounded up to infinity once may be decoded for another segment.
    #[test]
    fn numbers_at_the_end_of_the_range_come_back_finite() {
        for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
            for quantization in 0..5 {
                let quantization =
                    crate::quantization::Quantization::from_u8(quantization).unwrap();
                let codec = crate::codec::Codec::new(3, metric, quantization);
                let rows = [f32::MAX, -f32::MAX, 3.4e38, 1.0];
                let mut sample: Vec<Vec<f32>> = rows
                    .iter()
                    .filter_map(|x| prepare(metric, 3, &[*x, 1.0, *x]).unwrap())
                    .collect();
                for _ in 0..3 {
                    let space = Space::fit(metric, 3, &sample, true);
                    let mut bytes = vec![0; 8 + 4 * space.centre.len()];
                    space.write(&mut bytes);
                    Space::read(metric, 3, &bytes).unwrap();
                    let (mut place, mut stored) = (Vec::new(), vec![0; codec.len()]);
                    for x in &mut sample {
                        let error = space.enter(x, 0.0, &mut place);
                        codec.encode(&place, error, &mut stored);
                        let (graph, fine) = stored.split_at(codec.graph_len());
                        *x = space.leave(&codec.decode(graph, fine));
                        assert!(x.iter().all(|x| x.is_finite()), "{quantization:?}: {x:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_vector_longer_than_any_number_leaves_a_space_that_can_be_read() {
        for sample in [vec![vec![3e38f32; 2], vec![1.0; 2]], vec![vec![3e38; 8]; 3]] {
            for centred in [false, true] {
                let space = Space::fit(Metric::InnerProduct, sample[0].len(), &sample, centred);
                let mut bytes = vec![0; space.bytes()];
                space.write(&mut bytes);
                let read = Space::read(Metric::InnerProduct, sample[0].len(), &bytes);
                assert_eq!(read.unwrap(), space);
            }
        }
    }

    #[test]
    fn any_unit_has_room() {
        for unit in [1e-30f32, 1e-12, 1.0, 1e12, 1e30] {
            let sample: Vec<Vec<f32>> = (1..50).map(|i| vec![unit * i as f32; 4]).collect();
            let space = Space::fit(Metric::L2, 4, &sample, true);
            let mut place = Vec::new();
            let error = space.enter(&sample[7], 0.0, &mut place);
            assert!(error < 1e-6, "{unit}: {error}");
            assert!(place.iter().all(|x| x.abs() < 4.0), "{unit}: {place:?}");
        }
        let space = Space::plain(Metric::L2, 1);
        let mut place = Vec::new();
        assert_eq!(space.enter(&[3e38], 0.0, &mut place), f64::INFINITY);
    }
}
