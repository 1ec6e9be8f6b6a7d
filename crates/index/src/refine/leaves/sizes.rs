//! How much is compared at once: as much as fits into the processor's caches, and not into too much memory where vectors are long.

use crate::codec::Codec;
use crate::quantization::Quantization;

/// Bytes of components of a leaf at most, and of leaders or of nodes that are compared with them.
const LEAF: usize = 4 << 20;
const ROWS: usize = 1 << 20;
/// As many nodes as that are a leaf, and leaders or nodes that are compared with them, unless they are long, or very long.
const NODES: (usize, usize) = (96, 512);
const OTHERS: (usize, usize) = (16, 256);

/// Numbers of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Of a leaf, about.
    pub(super) leaf: usize,
    /// Of leaders at most.
    pub(super) leaders: usize,
    /// Of those that are compared with leaders, or with a leaf, at once.
    pub(super) rows: usize,
}

impl Sizes {
    /// For vectors of this number of components.
    pub(super) fn of(width: usize) -> Self {
        let each = size_of::<f32>() * width.max(1);
        let others = (ROWS / each).clamp(OTHERS.0, OTHERS.1);
        Self {
            leaf: (LEAF / each * 2 / 3).clamp(NODES.0, NODES.1),
            leaders: others,
            rows: others,
        }
    }

    /// Nodes of a leaf at most.
    pub(super) fn largest(self) -> usize {
        self.leaf + self.leaf / 2
    }

    /// Bytes that it takes a thread.
    fn bytes(self, width: usize) -> usize {
        let components = width * (self.largest() + self.leaders + self.rows);
        size_of::<f32>() * (components + self.rows * (self.largest() + self.leaders))
    }
}

/// Components of a vector that is stored like this.
pub(super) fn width(codec: &Codec) -> usize {
    match codec.quantization {
        Quantization::B1 => 8 * codec.graph_len(),
        _ => codec.width(),
    }
}

/// How many of these threads link nodes by leaves: no more than half of the memory has room for.
pub(crate) fn threads(codec: &Codec, wanted: usize, memory: usize) -> usize {
    let width = width(codec);
    wanted
        .min(memory / 2 / Sizes::of(width).bytes(width))
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Metric;

    #[test]
    fn long_vectors_take_no_more_memory() {
        for width in [1, 3, 96, 384, 768] {
            let sizes = Sizes::of(width);
            assert_eq!(sizes.leaf, 512, "{width}");
            assert!(sizes.bytes(width) < 7 << 20, "{width}");
        }
        for width in [1024, 2000, 4096, 16_000] {
            let sizes = Sizes::of(width);
            assert!((96..=512).contains(&sizes.leaf) && sizes.rows >= 16);
            assert!(sizes.bytes(width) < 12 << 20, "{width}");
        }
        let codec = Codec::new(384, Metric::L2, Quantization::I8);
        assert_eq!(threads(&codec, 4, 64 << 20), 4);
        assert_eq!(threads(&codec, 4, 1 << 20), 1);
        assert!(threads(&codec, 64, 64 << 20) < 20);
    }
}
