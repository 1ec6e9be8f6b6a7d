//! How much the lengths of a graph's nodes vary, which decides what walks for inner products need.

use laser_sampling::scattered;
use laser_vector::kernels::norm;

use crate::codec::Codec;
use crate::metric::Metric;
use crate::space::Space;
use crate::walk::Walk;

/// Nodes whose mean stands for queries, and whose lengths for those of all.
const SAMPLE: usize = 1024;
/// Below this share of their mean, the deviation of lengths is noise.
const LEAST_DEVIATION: f64 = 0.02;

/// Above this share they differ so much that many nodes are shorter than whatever queries want: Gaussian vectors of 32 dimensions have .125,
/// uniform ones with positive components .09.
const DIFFERENT: f64 = 0.1;

/// What a sample of a graph's nodes tells, in the unit of the data.
pub(crate) struct Lengths {
    /// The mean of the vectors.
    pub(crate) mean: Vec<f32>,
    /// The mean of their lengths.
    pub(crate) length: f64,
    /// The standard deviation of the lengths as a share of their mean.
    pub(crate) deviation: f64,
}

impl Lengths {
    /// `None` for other metrics than the inner product, and where nodes are too coarse to have a length.
    pub(crate) fn of(codec: &Codec, space: &Space, walk: &Walk, graph: &[u8]) -> Option<Self> {
        if codec.metric != Metric::InnerProduct {
            return None;
        }
        let (mut mean, mut lengths, mut squares, mut count) =
            (vec![0.0; codec.dims], 0.0, 0.0, 0.0);
        for node in scattered(walk.nodes).take(SAMPLE) {
            let x = space.leave(&codec.coarse(walk.vector(graph, node))?);
            let length = norm(&x);
            lengths += length;
            squares += length * length;
            count += 1.0;
            for (mean, x) in mean.iter_mut().zip(x) {
                *mean += f64::from(x);
            }
        }
        let mean = mean.iter().map(|sum| (sum / count) as f32).collect();
        let (length, square) = (lengths / count, squares / count);
        let deviation = (square - length * length).max(0.0).sqrt() / length;
        Some(Self {
            mean,
            length,
            deviation,
        })
    }

    /// Whether some nodes are longer than others.
    pub(crate) fn vary(&self) -> bool {
        self.deviation > LEAST_DEVIATION
    }

    /// Whether they differ by much.
    pub(crate) fn differ(&self) -> bool {
        self.deviation > DIFFERENT
    }
}
