//! What goes through all layers together, and what is kept of it.

use std::ops::Range;

use laser_kernels::training::attention::{Distances, Heads};
use laser_kernels::training::layer_norm::Normalised;
use laser_model::config::TransformerConfig;

use super::layout::{Layout, Part};
use super::tokens::lengths;
use crate::data::Ragged;
use crate::models::pass::Pass;

/// Tokens of a block: as many as make products fast, so few that they stay near the processor.
const TOKENS: usize = if cfg!(test) { 12 } else { 1024 };

/// Sentences that go through all layers together, their tokens one behind the other.
#[derive(Debug)]
pub(super) struct Block {
    sentences: Range<usize>,
    /// Tokens of each.
    lengths: Vec<usize>,
    /// Place of the first token among those of all sentences of the pass.
    pub first: usize,
    /// Sum of the sentences' lengths: rows of the block.
    pub tokens: usize,
}

/// One sentence of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sentence {
    /// In the batch.
    pub number: usize,
    /// Its first row in the block.
    pub first: usize,
    /// Its rows, at least one.
    pub tokens: usize,
}

impl Block {
    /// Splits the sentences of a pass into blocks of whole sentences.
    pub fn of(c: &TransformerConfig, batch: &Ragged, sentences: Range<usize>) -> Vec<Self> {
        let mut blocks: Vec<Self> = Vec::new();
        for (s, length) in sentences.clone().zip(lengths(c, batch, sentences)) {
            match blocks.last_mut() {
                Some(last) if last.tokens + length <= TOKENS => {
                    last.sentences.end = s + 1;
                    last.tokens += length;
                    last.lengths.push(length);
                }
                last => {
                    let first = last.map_or(0, |b| b.first + b.tokens);
                    blocks.push(Self {
                        sentences: s..s + 1,
                        lengths: vec![length],
                        first,
                        tokens: length,
                    });
                }
            }
        }
        blocks
    }

    /// Its sentences that have tokens.
    pub fn sentences(&self) -> impl Iterator<Item = Sentence> {
        let mut first = 0;
        let all = self.sentences.clone().zip(&self.lengths);
        all.map(move |(number, tokens)| {
            first += tokens;
            Sentence {
                number,
                first: first - tokens,
                tokens: *tokens,
            }
        })
        .filter(|s| s.tokens > 0)
    }
}

/// What the backward pass needs.
#[derive(Debug)]
pub(in crate::models) struct Saved {
    pub(super) blocks: Vec<(Block, BlockSaved)>,
}

/// What it needs of a block.
#[derive(Debug, Default)]
pub(super) struct BlockSaved {
    pub embedding_norm: Option<Normalised>,
    pub layers: Vec<LayerSaved>,
    pub final_norm: Option<Normalised>,
    pub pooling: PoolingSaved,
}

/// What it needs of a layer. Of attention and of the activation only inputs are kept.
#[derive(Debug)]
pub(super) struct LayerSaved {
    /// What queries, keys and values were computed from, [tokens, D].
    pub attention_input: Vec<f32>,
    /// Queries, keys and values, [tokens, 3 D].
    pub states: Vec<f32>,
    /// Logarithms of the sums of each softmax: [heads, tokens] of each sentence.
    pub sums: Vec<f32>,
    /// Mixed values, [tokens, D].
    pub mixed: Vec<f32>,
    pub attention_norm: Normalised,
    /// [tokens, D].
    pub feed_forward_input: Vec<f32>,
    /// Before the activation, [tokens, F].
    pub up: Vec<f32>,
    pub feed_forward_norm: Normalised,
}

/// Which states the result of a pass was computed from.
#[derive(Debug)]
pub(super) enum PoolingSaved {
    /// One row for each sentence; for the largest value, the token of each element.
    Pooled { largest: Vec<u32> },
    /// Pairs of a row of the result and a row of the block.
    TokenStates(Vec<(usize, usize)>),
}

impl Default for PoolingSaved {
    fn default() -> Self {
        Self::TokenStates(Vec::new())
    }
}

/// What forward and backward pass compute from.
#[derive(Clone, Copy)]
pub(super) struct Body<'a> {
    pub c: &'a TransformerConfig,
    pub pass: &'a Pass<'a>,
    pub layout: Layout,
}

impl<'a> Body<'a> {
    pub fn new(pass: &'a Pass<'a>, c: &'a TransformerConfig) -> Self {
        Self {
            c,
            pass,
            layout: Layout::new(c),
        }
    }

    pub fn value(&self, i: usize) -> &'a [f32] {
        self.pass.parameters.value(self.pass.dense.start + i)
    }

    /// A weight and its bias, or a gain and its shift.
    pub fn pair(&self, i: usize) -> (&'a [f32], &'a [f32]) {
        (self.value(i), self.value(i + 1))
    }

    pub fn heads(&self) -> Heads {
        Heads {
            width: self.c.hidden_size,
            count: self.c.heads,
        }
    }

    /// Weight [3 D, D] and bias [3 D] of query, key and value of a layer.
    pub fn joint(&self, layer: usize) -> (Vec<f32>, Vec<f32>) {
        let at = self.layout.of(layer, Part::Query);
        let all = |first: usize| [0, 2, 4].map(|i| self.value(first + i)).concat();
        (all(at), all(at + 1))
    }

    /// Biases of attention for the longest sentence of some blocks.
    pub fn distances<'b>(&self, blocks: impl Iterator<Item = &'b Block>) -> Option<Distances> {
        let (at, relative) = (self.layout.relative?, self.c.relative_positions?);
        let (table, heads) = (self.value(at), self.c.heads);
        let longest = blocks.flat_map(|b| &b.lengths).max().copied();
        let positions = longest.unwrap_or(0).max(1);
        Some(Distances::new(heads, positions, |head, distance| {
            table[relative.bucket(distance) * heads + head]
        }))
    }

    /// What token embeddings are multiplied by.
    pub fn scale(&self) -> f32 {
        if self.c.scale_embedding {
            (self.c.hidden_size as f32).sqrt()
        } else {
            1.0
        }
    }
}
