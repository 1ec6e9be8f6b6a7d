//! How a segment keeps its vectors: the stored form, and the space that it is of.

use laser_vector::kernels::norm;

use crate::codec::Codec;
use crate::space::Space;

/// How a segment keeps its vectors.
#[derive(Debug, Clone)]
pub struct Encoding {
    /// The stored form.
    pub codec: Codec,
    /// What it stores.
    pub space: Space,
    /// The blur of eight bits as a share of the gap, where that was measured.
    pub noise: Option<f32>,
    /// Length of the longest vector that it is for; [`Space::reaches`] has another limit.
    pub longest: f64,
    /// For inner products: some of the prepared vectors that it was chosen by, from all segments. Queries like them are
    /// for the largest products wherever these are.
    pub queries: Vec<Vec<f32>>,
}

impl Encoding {
    /// Whether a prepared vector may be in a segment of this encoding.
    pub fn takes(&self, x: &[f32]) -> bool {
        self.space.reaches(x) && (self.longest == f64::INFINITY || norm(x) <= self.longest)
    }

    /// Whether vectors are stored in the same way: the bytes of one are those of the other.
    pub fn stores_like(&self, other: &Self) -> bool {
        self.codec == other.codec && self.space == other.space
    }

    /// Mean error of stored vectors, in the unit of the data.
    pub(crate) fn mean_error(&self, sample: &[Vec<f32>]) -> f64 {
        let (mut place, mut stored) = (Vec::new(), vec![0; self.codec.len()]);
        let mut sum = 0.0;
        for x in sample {
            let error = self.space.enter(x, 0.0, &mut place);
            self.codec.encode(&place, error, &mut stored);
            let (graph, fine) = stored.split_at(self.codec.graph_len());
            sum += self.codec.error(graph, fine);
        }
        sum / f64::from(self.space.gain) / sample.len().max(1) as f64
    }
}
