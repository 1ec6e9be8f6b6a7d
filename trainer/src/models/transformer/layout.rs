//! Where the parameters of a transformer lie, in the order in which they are initialised.

use laser_model::config::{NormPosition, TransformerConfig};

/// Positions among the dense parameters of the body. A linear layer is a weight and a bias, a layer
/// normalisation a gain and a shift, one behind the other; the table of positions is the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub types: Option<usize>,
    pub relative: Option<usize>,
    pub embedding_norm: Option<usize>,
    layers: usize,
    pub final_norm: Option<usize>,
}

/// Parts of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// Key and value follow.
    Query = 0,
    Output = 6,
    AttentionNorm = 8,
    Up = 10,
    Down = 12,
    FeedForwardNorm = 14,
}

/// Parameters of a layer.
const OF_LAYER: usize = 16;

impl Layout {
    pub fn new(c: &TransformerConfig) -> Self {
        let mut next = 1;
        let mut take = |there: bool, count: usize| {
            let at = next;
            next += if there { count } else { 0 };
            there.then_some(at)
        };
        let types = take(c.type_vocab_size > 0, 1);
        let relative = take(c.relative_positions.is_some(), 1);
        let embedding_norm = take(c.embedding_norm, 2);
        let layers = take(true, c.layers * OF_LAYER).unwrap_or_default();
        let final_norm = take(c.norm == NormPosition::Pre, 2);
        Self {
            types,
            relative,
            embedding_norm,
            layers,
            final_norm,
        }
    }

    pub fn of(&self, layer: usize, part: Part) -> usize {
        self.layers + layer * OF_LAYER + part as usize
    }
}
