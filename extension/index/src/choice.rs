//! How many bits a component needs: decided for each new segment by its own vectors.
//!
//! A walk keeps the `ef` nearest candidates by the distances of the graph parts; the ten nearest
//! rows must be among them. Rounding blurs distances by some ε, so the tenth nearest row is safe
//! when ε is small against the gap between the tenth and the hundredth distance. Both are measured
//! on a sample. A sample is sparser than the segment, whose gaps are smaller: distances shrink with
//! the number of rows to the power of `1/m`, where `m` is the intrinsic dimension, estimated from
//! the sample's distances (Levina & Bickel 2004).

use laser_vector::kernels::f32_l2_squared;

use crate::codec::{Codec, Format, Metric, Quantization};
use crate::kernels::dot_i8;
use crate::query::{Probe, Query};
use crate::space::Space;
use crate::trial;

/// Vectors that are enough to decide by.
pub const SAMPLE: usize = 8192;
/// Queries among them.
const QUERIES: usize = 32;
/// Largest blur, as a share of the gap. Where vectors have more dimensions near by than far away, the
/// gap is smaller than expected; this leaves room for that.
pub const LARGEST_NOISE: f64 = 0.05;
/// A segment that grows is not decided about again, so it is looked at as if it had grown.
const GROWTH: f64 = 4.0;
/// An encoding that is there already is kept unless its errors are so much larger than those of a
/// new one: vectors then keep their bytes through merges.
const KEEP: f64 = 1.25;

/// How much longer than the radius of a space a vector may be; the walk's idea of its distance is a
/// little wrong then.
const BEYOND: f64 = 1.05;

/// How a segment keeps its vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct Encoding {
    /// The stored form.
    pub codec: Codec,
    /// What it stores.
    pub space: Space,
    /// The blur of eight bits as a share of the gap, where that was measured.
    pub noise: Option<f32>,
}

impl Encoding {
    /// The encoding of vectors like those of a sample, for a segment of about `rows`. `asked` is the
    /// quantization, if it is not left to the data; `existing` are encodings that may be kept.
    ///
    /// The sample consists of prepared vectors ([`crate::space::prepare`]). `pause` is called now
    /// and then, and may unwind.
    pub fn choose<'a>(
        metric: Metric,
        dims: usize,
        asked: Option<Quantization>,
        sample: &[Vec<f32>],
        rows: usize,
        existing: impl IntoIterator<Item = &'a Encoding>,
        pause: &dyn Fn(),
    ) -> Self {
        let existing: Vec<&Encoding> = existing.into_iter().collect();
        let (quantization, noise) = match asked {
            Some(quantization) => (quantization, None),
            None => decide(metric, dims, sample, rows, pause),
        };
        let mut codec = Codec::new(dims, metric, quantization);
        if metric == Metric::InnerProduct {
            let known = existing.iter().map(|old| old.codec.format);
            codec.format = match known.into_iter().find(|format| *format != Format::First) {
                Some(format) => format,
                None => trial::best(dims, sample, pause).unwrap_or(Format::Second),
            };
        }
        // Floats lose nothing far from the origin, and moving them would round them.
        let centred = quantization != Quantization::F32;
        let new = Self {
            codec,
            space: match codec.format {
                Format::SecondInner => Space::fit_inner(dims, sample),
                _ => Space::fit(metric, dims, sample, centred),
            },
            noise,
        };
        let few = &sample[..sample.len().min(256)];
        let mean = new.mean_error(few);
        for old in existing {
            if old.codec == new.codec && old.mean_error(few) <= KEEP * mean {
                return Self {
                    noise: new.noise.or(old.noise),
                    ..old.clone()
                };
            }
        }
        new
    }

    /// Mean error of stored vectors, in the unit of the data.
    fn mean_error(&self, sample: &[Vec<f32>]) -> f64 {
        let (mut place, mut stored) = (Vec::new(), vec![0; self.codec.len()]);
        let mut sum = 0.0;
        for x in sample {
            let error = self.space.enter(x, 0.0, &mut place);
            // Beyond the radius the last coordinate for inner products says nothing any more.
            let beyond = self.codec.format == Format::Second
                && self.space.metric == Metric::InnerProduct
                && laser_vector::kernels::norm(x) > BEYOND * f64::from(self.space.radius);
            if beyond {
                return f64::INFINITY;
            }
            self.codec.encode(&place, error, &mut stored);
            let (graph, fine) = stored.split_at(self.codec.graph_len());
            sum += self.codec.error(graph, fine);
        }
        sum / f64::from(self.space.gain) / sample.len().max(1) as f64
    }
}

/// The narrowest quantization that the data bear, and the blur of eight bits.
fn decide(
    metric: Metric,
    dims: usize,
    sample: &[Vec<f32>],
    rows: usize,
    pause: &dyn Fn(),
) -> (Quantization, Option<f32>) {
    let len = |quantization| Codec::new(dims, metric, quantization).len();
    if len(Quantization::F32) <= len(Quantization::I8) {
        return (Quantization::F32, None);
    }
    let Some(view) = Neighbourhood::measure(metric, dims, sample, pause) else {
        return (Quantization::I8, None);
    };
    let gap = view.gap(GROWTH * rows.max(sample.len()) as f64);
    let noise = |quantization| view.blur(Codec::new(dims, metric, quantization), pause) / gap;
    let eight = noise(Quantization::I8);
    let quantization = if eight <= LARGEST_NOISE {
        Quantization::I8
    } else if noise(Quantization::F16) <= LARGEST_NOISE {
        Quantization::F16
    } else {
        Quantization::F32
    };
    (quantization, Some(eight as f32))
}

/// Neighbours of a near query: the ranks that matter.
const NEAR: usize = 10;
/// Neighbours by which the intrinsic dimension is estimated.
const FAR: usize = 20;

/// Numbers and distances of vectors.
type Neighbours = Vec<(usize, f64)>;

struct Neighbourhood {
    space: Space,
    places: Vec<Vec<f32>>,
    /// Queries, and the numbers and distances of their nearest neighbours at different distances.
    queries: Vec<(Vec<f32>, Neighbours)>,
    /// Mean tenth distance.
    tenth: f64,
    intrinsic: f64,
}

impl Neighbourhood {
    /// `None` where a sample has too few different vectors to tell anything.
    fn measure(metric: Metric, dims: usize, sample: &[Vec<f32>], pause: &dyn Fn()) -> Option<Self> {
        let space = Space::fit(metric, dims, sample, true);
        let mut places = Vec::with_capacity(sample.len());
        for x in sample {
            let mut place = Vec::new();
            space.enter(x, 0.0, &mut place);
            places.push(place);
        }
        let step = (sample.len() / QUERIES).max(1);
        let mut queries = Vec::new();
        let (mut tenth, mut logs, mut count) = (0.0, 0.0, 0.0);
        for at in (0..sample.len()).step_by(step).take(QUERIES) {
            pause();
            let mut query = Vec::new();
            space.enter_query(&sample[at], &mut query);
            let mut found: Vec<(usize, f64)> = places
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != at)
                .map(|(i, place)| (i, f64::from(f32_l2_squared(&query, place)).sqrt()))
                .filter(|(_, distance)| *distance > 0.0)
                .collect();
            found.sort_unstable_by(|a, b| a.1.total_cmp(&b.1));
            // Equal vectors share a node, they are one neighbour.
            found.dedup_by(|a, b| a.1 == b.1);
            found.truncate(FAR);
            if found.len() < FAR {
                continue;
            }
            tenth += found[NEAR - 1].1;
            let last = found[FAR - 1].1;
            for (_, distance) in &found[..FAR - 1] {
                logs += (last / distance).ln();
                count += 1.0;
            }
            found.truncate(NEAR);
            queries.push((sample[at].clone(), found));
        }
        if queries.is_empty() || logs <= 0.0 {
            return None;
        }
        let intrinsic = (count / logs).max(0.5);
        Some(Self {
            tenth: tenth / queries.len() as f64,
            space,
            places,
            queries,
            intrinsic,
        })
    }

    /// Expected distance between the tenth and the hundredth neighbour among `rows`.
    fn gap(&self, rows: f64) -> f64 {
        let root = 1.0 / self.intrinsic;
        let tenth = self.tenth * (self.places.len() as f64 / rows).powf(root);
        tenth * (10f64.powf(root) - 1.0)
    }

    /// Root mean square of what rounding changes in the distances of near neighbours, apart from
    /// what it changes in all of them.
    fn blur(&self, codec: Codec, pause: &dyn Fn()) -> f64 {
        let (dot, mut scratch) = (dot_i8(), Vec::new());
        let mut graph = vec![0; codec.graph_len()];
        let (mut sum, mut count) = (0.0, 0.0);
        for (query, neighbours) in &self.queries {
            pause();
            let query = Query::new(codec.metric, codec.dims, query).expect("prepared before");
            let probe = Probe::new(codec, &self.space, &query);
            let changes: Vec<f64> = neighbours
                .iter()
                .map(|(i, distance)| {
                    codec.encode_graph(&self.places[*i], &mut graph);
                    let square = codec.graph_distance(&probe, &graph, dot, &mut scratch);
                    f64::from(square.max(0.0)).sqrt() - distance
                })
                .collect();
            let mean = changes.iter().sum::<f64>() / changes.len() as f64;
            sum += changes.iter().map(|c| (c - mean).powi(2)).sum::<f64>();
            count += changes.len() as f64 - 1.0;
        }
        (sum / count).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::space::prepare;

    fn chosen(
        dims: usize,
        rows: usize,
        mut row: impl FnMut(&mut ChaCha8Rng) -> Vec<f32>,
    ) -> Encoding {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let sample: Vec<Vec<f32>> = (0..3000)
            .map(|_| prepare(Metric::L2, dims, &row(&mut rng)).unwrap().unwrap())
            .collect();
        Encoding::choose(Metric::L2, dims, None, &sample, rows, [], &|| ())
    }

    #[test]
    fn as_many_bits_as_the_data_need() {
        let uniform = |dims, offset: f32| {
            move |rng: &mut ChaCha8Rng| (0..dims).map(|_| offset + rng.random::<f32>()).collect()
        };
        for offset in [0.0, 100.0] {
            let found = chosen(32, 1_000_000, uniform(32, offset));
            assert_eq!(found.codec.quantization, Quantization::I8, "{offset}");
        }
        let found = chosen(3, 1000, uniform(3, 0.0));
        assert_eq!(found.codec.quantization, Quantization::F32);
        let dominant = |rng: &mut ChaCha8Rng| {
            let mut x: Vec<f32> = (0..32).map(|_| rng.random_range(-1.0..1.0)).collect();
            x[5] *= 1e3;
            x[6] *= 1e3;
            x
        };
        let found = chosen(32, 100_000, dominant);
        assert_ne!(found.codec.quantization, Quantization::I8);
        assert!(f64::from(found.noise.unwrap()) > LARGEST_NOISE);
        let found = chosen(16, 100_000, |_| vec![1.0; 16]);
        assert_eq!(
            (found.codec.quantization, found.noise),
            (Quantization::I8, None)
        );
    }

    #[test]
    fn what_fits_is_kept() {
        let row = |offset: f32| {
            move |rng: &mut ChaCha8Rng| -> Vec<f32> {
                (0..24).map(|_| offset + rng.random::<f32>()).collect()
            }
        };
        let old = chosen(24, 1000, row(0.0));
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        for (offset, kept) in [(0.0, true), (50.0, false)] {
            let row = row(offset);
            let sample: Vec<Vec<f32>> = (0..500).map(|_| row(&mut rng)).collect();
            let new = Encoding::choose(Metric::L2, 24, None, &sample, 1000, [&old], &|| ());
            assert_eq!(new.space == old.space, kept);
        }
    }
}
