//! What transformers of all kinds have in common, by which [`super::transformer`] computes them.

use laser_kernels::attention::Heads;
use laser_model::config::{
    Activation, NormPosition, Reach, RotaryTransformerConfig, TransformerConfig, TransformerPooling,
};

/// The configuration of a transformer.
#[derive(Clone, Copy)]
pub(crate) enum Kind<'a> {
    /// With a table of positions.
    Learned(&'a TransformerConfig),
    /// With rotary positions.
    Rotary(&'a RotaryTransformerConfig),
}

impl<'a> From<&'a TransformerConfig> for Kind<'a> {
    fn from(config: &'a TransformerConfig) -> Self {
        Self::Learned(config)
    }
}

impl<'a> From<&'a RotaryTransformerConfig> for Kind<'a> {
    fn from(config: &'a RotaryTransformerConfig) -> Self {
        Self::Rotary(config)
    }
}

/// Sizes, and what a layer is made of.
#[derive(Clone)]
pub(crate) struct Shape {
    /// Model width.
    pub width: usize,
    pub layers: usize,
    /// Of a layer that reaches everywhere.
    pub heads: Heads,
    /// Width of the feed-forward layers.
    pub inner: usize,
    /// Whether the inner states of the feed-forward part are multiplied by a gate.
    pub gated: bool,
    pub activation: Activation,
    /// Where the first norm of a part stands.
    pub norm: NormPosition,
    pub pooling: TransformerPooling,
    /// Longest sequence.
    pub positions: usize,
    /// What token embeddings are multiplied by.
    pub embedding_scale: f32,
}

impl Shape {
    /// Columns of the first product of the feed-forward part: the gate, then what it is multiplied by.
    pub fn up(&self) -> usize {
        if self.gated {
            2 * self.inner
        } else {
            self.inner
        }
    }

    /// Floating point operations of the products with weights.
    pub fn flops_per_token(&self) -> usize {
        let attention = self.width * (self.heads.input() + self.heads.output());
        2 * self.layers * (attention + self.width * (self.up() + self.inner))
    }
}

impl Kind<'_> {
    /// What it looks like.
    pub fn shape(self) -> Shape {
        match self {
            Self::Learned(c) => Shape {
                width: c.hidden_size,
                layers: c.layers,
                heads: Heads::full(c.heads, c.hidden_size / c.heads),
                inner: c.intermediate_size,
                gated: false,
                activation: c.activation,
                norm: c.norm,
                pooling: c.pooling,
                positions: c.max_positions - c.position_offset,
                embedding_scale: match c.scale_embedding {
                    true => (c.hidden_size as f32).sqrt(),
                    false => 1.0,
                },
            },
            Self::Rotary(c) => Shape {
                width: c.hidden_size,
                layers: c.layers.len(),
                heads: Heads {
                    queries: c.heads,
                    keys: c.key_value_heads,
                    size: c.head_size,
                    window: None,
                },
                inner: c.intermediate_size,
                gated: true,
                activation: c.activation,
                norm: NormPosition::Pre,
                pooling: c.pooling,
                positions: c.max_positions,
                embedding_scale: (c.hidden_size as f32).sqrt(),
            },
        }
    }

    /// How far tokens of a layer see, if not everywhere.
    pub fn window(self, layer: usize) -> Option<usize> {
        match self {
            Self::Rotary(c) if c.layers[layer] == Reach::Local => Some(c.local?.window),
            _ => None,
        }
    }
}
