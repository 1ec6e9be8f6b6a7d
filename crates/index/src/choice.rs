//! How many bits a component needs: decided for each new segment by its own vectors.
//!
//! A walk keeps the `ef` nearest candidates by the distances of the graph parts; the ten nearest
//! rows must be among them. Rounding blurs distances by some ε, so the tenth nearest row is safe
//! when ε is small against the gap between the tenth and the hundredth distance. Both are measured
//! on a sample, for each of some queries by itself: where half of the rows lie close together, what
//! the other half bears says nothing of them. A sample is sparser than the segment, whose gaps are smaller: distances shrink with
//! the number of rows to the power of `1/m`, where `m` is the intrinsic dimension, estimated from
//! the sample's distances (Levina & Bickel 2004): in the mean over the queries, or around a query itself where that is
//! more, as in a dense place whose rows differ in more ways than those around it.

use laser_sampling::stratified;
use laser_vector::kernels::{f32_l2_squared, norm};

use crate::codec::{Codec, Format};
use crate::encoding::Encoding;
use crate::kernels::dot_i8;
use crate::metric::Metric;
use crate::quantization::Quantization;
use crate::query::{Probe, Query};
use crate::space::Space;
use crate::trial::{self, NormDistribution};

/// Vectors that are enough to decide by.
pub const SAMPLE: usize = 8192;
/// Queries among them: enough that a place with a fiftieth of the rows has more than a hundredth of them.
const QUERIES: usize = 256;
/// Largest error of quantized distances, as a share of the gap, in the mean over the queries ([`Neighbourhood::noise`]).
/// A query whose error is the whole gap finds anything, and one beyond that nothing worse, so that it counts as that. Where vectors have more dimensions near by than far away, the
/// gap is smaller than expected; this leaves room for that.
pub const LARGEST_NOISE: f64 = 0.05;
/// Largest fraction of the queries whose error may exceed [`WORST_TO_MEAN`] times [`LARGEST_NOISE`], from where on
/// neighbours are lost: the mean hides a dense cluster among rows that are far apart. Embeddings of text have errors
/// of 0.002 to 0.010.
const MAX_BAD_QUERIES: f64 = 0.01;
/// See [`MAX_BAD_QUERIES`].
const WORST_TO_MEAN: f64 = 5.0;
/// A segment that grows keeps its encoding, so one is chosen for this many times its rows.
const GROWTH: f64 = 4.0;
/// An existing encoding is kept while its errors are at most this many times those of a new one, so that
/// vectors keep their bytes through merges.
const ENCODING_HYSTERESIS: f64 = 1.25;

/// For inner products: vectors whose norm is more than this many times the median have a segment of their own, since
/// beside them the others are all alike.
const OUTLIER_NORM_RATIO: f64 = 100.0;
/// Largest share of such outliers, in percent: if more vectors have such norms, they are no outliers.
const MAX_OUTLIER_PERCENT: usize = 1;
/// What a sample has of the longest vectors besides those from all over, at most.
pub const LONGEST: usize = 16;

/// Vectors of the sample that are searched for when a segment is measured.
pub(crate) const SEARCHED: usize = 100;
/// Vectors of the sample by which an existing encoding is compared with a new one.
const REVALIDATION_SAMPLE: usize = 256;

/// What there is when an encoding is chosen.
#[derive(Debug, Clone, Copy, Default)]
pub struct Existing<'a> {
    /// Encodings that may be kept.
    pub encodings: &'a [&'a Encoding],
    /// Whether the new segment is so much larger than they are of that it is worth asking again which
    /// graph finds the largest inner products. That takes as long as some thousand vectors do.
    pub grown: bool,
}

/// The encoding of vectors like those of a sample, for a segment of about `rows`. `asked` is the
/// quantization, if it is not left to the data.
///
/// The sample consists of prepared vectors ([`crate::space::prepare`]). For inner products the encoding need not
/// be for all of them: [`Encoding::takes`] is asked of each vector that is added. It takes one of them at
/// least, so that whoever puts the others aside and asks again comes to an end.
/// `pause` is called now and then, and may unwind.
pub fn choose(
    metric: Metric,
    dims: usize,
    asked: Option<Quantization>,
    sample: &[Vec<f32>],
    rows: usize,
    existing: Existing<'_>,
    pause: &dyn Fn(),
) -> Encoding {
    let Existing { encodings, grown } = existing;
    let queries: Vec<Vec<f32>> = match metric {
        Metric::InnerProduct => stratified(sample.len(), SEARCHED)
            .map(|at| sample[at].clone())
            .collect(),
        _ => Vec::new(),
    };
    let shorter = match metric {
        Metric::InnerProduct => without_long(sample),
        _ => None,
    };
    let sample = shorter.as_deref().unwrap_or(sample);
    let (quantization, noise) = match asked {
        Some(quantization) => (quantization, None),
        None => decide(metric, dims, sample, rows, pause),
    };
    let codec = Codec::new(dims, metric, quantization);
    let fit = |format| {
        let codec = Codec { format, ..codec };
        // Floats lose nothing far from the origin, and moving them would round them.
        let centred = quantization != Quantization::F32;
        let space = match format {
            Format::SecondInner => Space::fit_inner(dims, sample),
            _ => Space::fit(metric, dims, sample, centred),
        };
        let longest = match format {
            Format::SecondInner => trial::longest_for_products(sample),
            _ => f64::INFINITY,
        };
        Encoding {
            codec,
            space,
            noise,
            longest,
            queries: queries.clone(),
        }
    };
    // From all over the sample: it begins with rows of the largest segment.
    let few: Vec<Vec<f32>> = stratified(sample.len(), REVALIDATION_SAMPLE)
        .map(|at| sample[at].clone())
        .collect();
    let kept = |new: Encoding| {
        let mean = new.mean_error(&few);
        let fits = |old: &&&Encoding| {
            old.codec == new.codec
                && sample.iter().all(|x| old.space.reaches(x))
                && old.mean_error(&few) <= ENCODING_HYSTERESIS * mean
        };
        match encodings.iter().find(fits) {
            Some(old) => (
                Encoding {
                    noise: new.noise.or(old.noise),
                    longest: new.longest,
                    queries: new.queries,
                    ..(*old).clone()
                },
                true,
            ),
            None => (new, false),
        }
    };
    let norms = match metric {
        Metric::InnerProduct => NormDistribution::of(sample),
        _ => NormDistribution::Uniform,
    };
    let mut formats = encodings.iter().map(|old| old.codec.format);
    let known = formats.find(|format| match format {
        Format::First => false,
        Format::Second => true,
        Format::SecondInner => norms != NormDistribution::HeavyTailed,
    });
    let (found, fits) = kept(fit(known.unwrap_or(codec.format)));
    // Data that have changed, or of which there were few, may need the other graph.
    let hides = found.codec.format == Format::SecondInner && norms == NormDistribution::Varied;
    if metric == Metric::InnerProduct
        && (grown || !fits || hides)
        && let Some(format) = trial::best(dims, sample, pause)
        && format != found.codec.format
    {
        return taking_some(kept(fit(format)).0, sample);
    }
    taking_some(found, sample)
}

/// The same encoding if it takes one of some vectors, else one that takes all.
fn taking_some(mut encoding: Encoding, sample: &[Vec<f32>]) -> Encoding {
    if !sample.iter().any(|x| encoding.takes(x)) {
        encoding.longest = f64::INFINITY;
        if encoding.space.radius > 0.0 {
            encoding.space.radius = f32::MAX;
        }
    }
    encoding
}

/// Those of a sample that one segment can be for, where that is not all of them.
fn without_long(sample: &[Vec<f32>]) -> Option<Vec<Vec<f32>>> {
    let lengths = trial::lengths(sample);
    let few = LONGEST.max(sample.len() * MAX_OUTLIER_PERCENT / 100);
    let middle = lengths.get(lengths.len() / 2)?;
    let long = lengths.get(lengths.len().saturating_sub(1 + few))?;
    let limit = (OUTLIER_NORM_RATIO * middle).max(*long);
    (*lengths.last()? > limit).then(|| {
        let within = sample.iter().filter(|x| norm(x) <= limit);
        within.cloned().collect()
    })
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
    let rows = GROWTH * rows.max(sample.len()) as f64;
    let noise = |quantization| view.noise(Codec::new(dims, metric, quantization), rows, pause);
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
    queries: Vec<NearQuery>,
    intrinsic: f64,
}

struct NearQuery {
    x: Vec<f32>,
    /// The nearest of different distances.
    neighbours: Neighbours,
    /// The intrinsic dimension around it.
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
        let mut queries = Vec::new();
        let (mut logs, mut count) = (0.0, 0.0);
        for at in stratified(sample.len(), QUERIES) {
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
            let last = found[FAR - 1].1;
            let around: f64 = found[..FAR - 1].iter().map(|(_, d)| (last / d).ln()).sum();
            logs += around;
            count += (FAR - 1) as f64;
            found.truncate(NEAR);
            queries.push(NearQuery {
                x: sample[at].clone(),
                neighbours: found,
                intrinsic: (FAR - 1) as f64 / around,
            });
        }
        if queries.is_empty() || logs <= 0.0 {
            return None;
        }
        let intrinsic = (count / logs).max(0.5);
        Some(Self {
            space,
            places,
            queries,
            intrinsic,
        })
    }

    /// Expected distance between the tenth and the hundredth neighbour of a query among `rows`, as a share of the
    /// tenth distance in the sample.
    fn gap(&self, query: &NearQuery, rows: f64) -> f64 {
        // No query has neighbours that are all equally far: distances differ.
        let root = 1.0 / self.intrinsic.max(query.intrinsic);
        (self.places.len() as f64 / rows).powf(root) * (10f64.powf(root) - 1.0)
    }

    /// What rounding changes in the distances of near neighbours, apart from what it changes in all of
    /// them: its root mean square as a share of their gap. That is the mean over the queries, or what all but the
    /// worst [`MAX_BAD_QUERIES`] have, divided by [`WORST_TO_MEAN`], where that is more.
    fn noise(&self, codec: Codec, rows: f64, pause: &dyn Fn()) -> f64 {
        let (dot, mut scratch) = (dot_i8(), Vec::new());
        let mut graph = vec![0; codec.graph_len()];
        let mut blurs = Vec::with_capacity(self.queries.len());
        for near in &self.queries {
            pause();
            let query = Query::new(codec.metric, codec.dims, &near.x).expect("prepared before");
            let probe = Probe::new(codec, &self.space, &query);
            let neighbours = &near.neighbours;
            let changes: Vec<f64> = neighbours
                .iter()
                .map(|(i, distance)| {
                    codec.encode_graph(&self.places[*i], &mut graph);
                    let square = probe.graph_distance(&codec, &graph, dot, &mut scratch);
                    f64::from(square.max(0.0)).sqrt() - distance
                })
                .collect();
            let mean = changes.iter().sum::<f64>() / changes.len() as f64;
            let square = changes.iter().map(|c| (c - mean).powi(2)).sum::<f64>();
            let blur = (square / (changes.len() as f64 - 1.0)).sqrt();
            let tenth = neighbours[neighbours.len() - 1].1;
            blurs.push((blur / (self.gap(near, rows) * tenth)).min(1.0));
        }
        blurs.sort_unstable_by(f64::total_cmp);
        let mean = blurs.iter().sum::<f64>() / blurs.len() as f64;
        let worst = blurs[blurs.len() - 1 - (MAX_BAD_QUERIES * blurs.len() as f64) as usize];
        mean.max(worst / WORST_TO_MEAN)
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
        choose(
            Metric::L2,
            dims,
            None,
            &sample,
            rows,
            Existing::default(),
            &|| (),
        )
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
        // Half of the rows, or a few of them, close together.
        for part in [0.5, 0.1, 0.03] {
            let crowd = |rng: &mut ChaCha8Rng| -> Vec<f32> {
                let (size, centre) = match rng.random_bool(part) {
                    true => (0.002, 1.0),
                    false => (1.0, 0.0),
                };
                (0..16)
                    .map(|_| centre + size * rng.random_range(-1.7..1.7f32))
                    .collect()
            };
            let found = chosen(16, 30_000, crowd);
            assert_ne!(found.codec.quantization, Quantization::I8, "{part}");
        }
        let found = chosen(16, 100_000, |_| vec![1.0; 16]);
        assert_eq!(
            (found.codec.quantization, found.noise),
            (Quantization::I8, None)
        );
    }

    #[test]
    fn another_graph_is_taken_when_the_data_ask_for_it() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut sample = |low: f32, lengths: std::ops::Range<f32>| -> Vec<Vec<f32>> {
            let mut row = || -> Vec<f32> {
                let length = rng.random_range(lengths.clone());
                (0..48)
                    .map(|_| length * rng.random_range(low..1.0))
                    .collect()
            };
            (0..3000).map(|_| row()).collect()
        };
        let choose = |sample: &[Vec<f32>], existing: Existing<'_>| {
            choose(
                Metric::InnerProduct,
                48,
                None,
                sample,
                3000,
                existing,
                &|| (),
            )
        };
        let wide = sample(-1.0, 0.2..3.0);
        let new = choose(&wide, Existing::default());
        assert_eq!(new.codec.format, Format::SecondInner);
        // What was chosen among few rows, of the same data or of others.
        let codec = Codec {
            format: Format::Second,
            ..new.codec
        };
        let few = Encoding {
            codec,
            space: Space::fit(Metric::InnerProduct, 48, &wide, true),
            noise: None,
            longest: f64::INFINITY,
            queries: Vec::new(),
        };
        let known = [&few];
        let existing = |grown| Existing {
            encodings: &known,
            grown,
        };
        assert_eq!(choose(&wide, existing(false)).codec.format, Format::Second);
        assert_eq!(
            choose(&wide, existing(true)).codec.format,
            Format::SecondInner
        );
        let far: Vec<Vec<f32>> = wide
            .iter()
            .map(|x| x.iter().map(|x| 40.0 * x).collect())
            .collect();
        assert_eq!(
            choose(&far, existing(false)).codec.format,
            Format::SecondInner
        );
    }

    /// One row in sixteen lies in a place that is dense and of all dimensions, the others on a surface of four: what is near
    /// each other there differs by less than on the surface.
    #[test]
    fn a_dense_place_of_more_dimensions_is_seen() {
        for (dims, size) in [(384, 0.003), (384, 0.01), (96, 0.003)] {
            let mut at = 0;
            let found = chosen(dims, 10_000, |rng| {
                at += 1;
                let mut wave = |of: [f32; 4], noise: f32| -> Vec<f32> {
                    let value = |j: usize| {
                        let phases = [0.7, 1.3, 2.9, 4.1].map(|rate| (j as f32 * rate).cos());
                        of.iter().zip(phases).map(|(a, b)| a * b).sum::<f32>()
                    };
                    let mut normal = || (0..6).map(|_| rng.random_range(-0.7..0.7f32)).sum::<f32>();
                    (0..dims).map(|j| value(j) + noise * normal()).collect()
                };
                if at % 16 == 0 {
                    return wave([0.3, 0.2, -0.4, 0.1], size);
                }
                let mut random = ChaCha8Rng::seed_from_u64(at);
                wave([(); 4].map(|()| random.random_range(-0.5..0.5)), 0.0)
            });
            assert_ne!(found.codec.quantization, Quantization::I8, "{dims}, {size}");
        }
    }

    /// Every eleventh row is of a source that eight bits are enough for: queries in steps of eleven would all be of it.
    #[test]
    fn sources_in_turn_are_all_asked() {
        let mut at = 0;
        let found = chosen(16, 30_000, |rng| {
            at += 1;
            let (size, centre) = if at % 11 == 1 {
                (1.0, 0.0)
            } else {
                (0.002, 1.0)
            };
            (0..16)
                .map(|_| centre + size * rng.random_range(-1.7..1.7f32))
                .collect()
        });
        assert_ne!(found.codec.quantization, Quantization::I8);
    }

    /// Vectors of any length are placed in a bounded number of turns, each of which takes some.
    #[test]
    fn every_turn_takes_some() {
        let tiny = f32::from_bits(1);
        let mut mixed = vec![vec![0.0; 2]; 300];
        mixed.extend((0..100).map(|i| vec![tiny * (i % 7) as f32, 1e30 * (i % 3) as f32]));
        let spread = (0..600).map(|i| vec![2f32.powi(i % 250 - 125), 0.0]);
        for sample in [
            vec![vec![tiny; 2]; 10],
            vec![vec![tiny; 2]; 400],
            vec![vec![f32::MAX; 2]; 300],
            vec![vec![0.0; 2]; 300],
            mixed,
            spread.collect(),
        ] {
            for asked in [None, Some(Quantization::F32), Some(Quantization::B1)] {
                let mut left = sample.clone();
                let mut turns = 0;
                while !left.is_empty() {
                    let found = choose(
                        Metric::InnerProduct,
                        2,
                        asked,
                        &left,
                        left.len(),
                        Existing::default(),
                        &|| (),
                    );
                    let before = left.len();
                    left.retain(|x| !found.takes(x));
                    assert!(left.len() < before, "{asked:?}: {:?}", left[0]);
                    turns += 1;
                }
                assert!(turns <= 100, "{turns}");
            }
        }
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
            let old_one = Existing {
                encodings: &[&old],
                grown: false,
            };
            let new = choose(Metric::L2, 24, None, &sample, 1000, old_one, &|| ());
            assert_eq!(new.space == old.space, kept);
        }
    }
}
