//! Distances between the vectors of a graph.

use crate::codec::Codec;
use crate::kernels::{DotI8, dot_i8};
use crate::query::Probe;

/// Measures from one vector after the other.
pub(crate) struct Between<'a> {
    codec: &'a Codec,
    dot: DotI8,
    scratch: Vec<f32>,
}

impl<'a> Between<'a> {
    pub(crate) fn new(codec: &'a Codec) -> Self {
        Self {
            codec,
            dot: dot_i8(),
            scratch: Vec::new(),
        }
    }

    /// The distance of each stored vector that is shown from this one, as the graph measures it.
    pub(crate) fn from(&mut self, vector: &[u8]) -> impl FnMut(&[u8]) -> f32 + use<'a, '_> {
        let probe = Probe::at(self.codec, vector);
        let (codec, dot, scratch) = (self.codec, self.dot, &mut self.scratch);
        move |other| probe.graph_distance(codec, other, dot, scratch)
    }
}
