//! Components of the nodes of a level, as floats, of which products are made.

use super::super::members::Members;
use super::sizes::{Sizes, width};
use crate::codec::{Codec, scalar_parts};
use crate::error::Result;
use crate::graph::Layout;
use crate::quantization::Quantization;

/// Nodes by whose mean others are moved, at most.
const MEANT: usize = 1024;

/// The nodes of a level of a graph, by their places on it.
#[derive(Clone, Copy)]
pub(super) struct Points<'a> {
    codec: &'a Codec,
    /// Those of all nodes of the graph, one behind the other.
    vectors: &'a [u8],
    nodes: Members<'a>,
}

impl<'a> Points<'a> {
    /// Those of a level of a serialized graph.
    ///
    /// # Errors
    /// Damage.
    pub(super) fn of(codec: &'a Codec, graph: &'a [u8], nodes: Members<'a>) -> Result<Self> {
        let layout = Layout::parse(codec, graph)?;
        Ok(Self {
            codec,
            vectors: &graph[layout.vector_at(0)..layout.vector_at(layout.rows())],
            nodes,
        })
    }

    /// Components of each.
    pub(super) fn width(&self) -> usize {
        width(self.codec)
    }

    /// How much of them is compared at once.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes::of(self.width())
    }

    fn vector(&self, place: u32) -> &[u8] {
        let (node, len) = (self.nodes.node(place) as usize, self.codec.graph_len());
        &self.vectors[node * len..][..len]
    }

    /// The mean of some of these places. Euclidean distances are what they are wherever the origin is, and sums of squares that
    /// lie around it are more exact.
    pub(super) fn mean(&self, places: &[u32], scratch: &mut Vec<f32>) -> Vec<f32> {
        let mut mean = vec![0f64; self.width()];
        let step = places.len().div_ceil(MEANT).max(1);
        let some = places.iter().step_by(step);
        let share = 1.0 / some.len().max(1) as f64;
        for &place in some {
            self.components(place, scratch);
            for (mean, x) in mean.iter_mut().zip(&*scratch) {
                *mean += share * f64::from(*x);
            }
        }
        mean.into_iter().map(|x| x as f32).collect()
    }

    /// What these places have, relative to `origin`: row by row.
    pub(super) fn load(
        &self,
        places: &[u32],
        origin: &[f32],
        scratch: &mut Vec<f32>,
        out: &mut Vec<f32>,
    ) -> laser_memory::Result<()> {
        let len = places.len() * self.width();
        out.clear();
        laser_memory::reserve(4 * len, || out.try_reserve_exact(len))?;
        for &place in places {
            self.components(place, scratch);
            out.extend(scratch.iter().zip(origin).map(|(x, origin)| x - origin));
        }
        Ok(())
    }

    fn components(&self, place: u32, out: &mut Vec<f32>) {
        let vector = self.vector(place);
        match self.codec.quantization {
            Quantization::I8 => {
                let (codes, scale, _) = scalar_parts(vector);
                out.clear();
                out.extend(codes.iter().map(|&code| scale * f32::from(code)));
            }
            Quantization::B1 => {
                // The square of a distance is the number of different bits.
                out.clear();
                let bits = |byte: &u8| {
                    let byte = *byte;
                    (0..8).map(move |bit| f32::from(byte >> bit & 1))
                };
                out.extend(vector.iter().flat_map(bits));
            }
            _ => self.codec.components(vector, out),
        }
    }
}
