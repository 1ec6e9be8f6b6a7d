//! The forward pass on the processor.

use laser_kernels::slices::{add, axpy, scale};
use laser_kernels::training::Right;
use laser_kernels::training::activation::activate;
use laser_kernels::training::attention::{self, Distances};
use laser_kernels::training::dropout::dropout_from;
use laser_kernels::training::layer_norm::{self, Normalised};
use laser_kernels::training::pool::maximum;
use laser_model::config::{NormPosition, TransformerPooling};

use super::blocks::{Block, BlockSaved, Body, LayerSaved, PoolingSaved, Saved};
use super::layout::Part;
use super::tokens::mask_seed;
use crate::data::Ragged;
use crate::models::pass::Pass;
use laser_model::config::TransformerConfig;

/// The linear layers of a layer, ready for products.
struct Layer<'a> {
    joint: Right<'a>,
    output: Right<'a>,
    up: Right<'a>,
    down: Right<'a>,
}

struct Forward<'a> {
    body: Body<'a>,
    joints: &'a [(Vec<f32>, Vec<f32>)],
    layers: Vec<Layer<'a>>,
    distances: Option<Distances>,
    scratch: attention::Scratch,
    /// After the activation, [tokens, F].
    activated: Vec<f32>,
}

/// See [`super::forward`].
pub(super) fn forward(
    pass: &Pass<'_>,
    c: &TransformerConfig,
    places: Option<&Ragged>,
) -> (Vec<f32>, Saved) {
    let (body, sentences) = (Body::new(pass, c), pass.sentences.clone());
    let joints: Vec<_> = (0..c.layers).map(|l| body.joint(l)).collect();
    let (d, f) = (c.hidden_size, c.intermediate_size);
    let layers = (0..c.layers).map(|l| {
        let weight = |part| body.value(body.layout.of(l, part));
        let right = |n, k, weight| pass.arithmetic.right_transposed(n, k, weight);
        Layer {
            joint: right(3 * d, d, &joints[l].0),
            output: right(d, d, weight(Part::Output)),
            up: right(f, d, weight(Part::Up)),
            down: right(d, f, weight(Part::Down)),
        }
    });
    let layers = layers.collect();
    let blocks = Block::of(c, pass.batch, sentences.clone());
    let mut run = Forward {
        body,
        joints: &joints,
        layers,
        distances: body.distances(blocks.iter()),
        scratch: attention::Scratch::default(),
        activated: Vec::new(),
    };
    let rows = match places {
        None => sentences.len(),
        Some(places) => places.starts[sentences.end] - places.starts[sentences.start],
    };
    let mut out = vec![0f32; rows * d];
    let blocks = blocks.into_iter().map(|block| {
        let (states, mut saved) = run.block(&block);
        saved.pooling = match places {
            None => run.pool(&block, &states, &mut out),
            Some(places) => run.take(&block, places, &states, &mut out),
        };
        (block, saved)
    });
    let blocks = blocks.collect();
    (out, Saved { blocks })
}

fn normalise(affine: (&[f32], &[f32]), epsilon: f64, mut x: Vec<f32>) -> (Vec<f32>, Normalised) {
    let mut y = vec![0f32; x.len()];
    let inverse = layer_norm::forward(affine, epsilon as f32, &mut x, &mut y);
    (y, Normalised { normal: x, inverse })
}

/// `x Wᵀ + b` of some rows.
fn linear(right: &Right<'_>, bias: &[f32], rows: usize, x: &[f32]) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * bias.len());
    for _ in 0..rows {
        out.extend_from_slice(bias);
    }
    right.multiply(rows, x, &mut out, true);
    out
}

impl Forward<'_> {
    /// The last states of a block.
    fn block(&mut self, block: &Block) -> (Vec<f32>, BlockSaved) {
        let body = self.body;
        let Body { c, layout, .. } = body;
        let mut saved = BlockSaved::default();
        let mut x = self.embed(block);
        let norm = |at: usize, x: Vec<f32>| normalise(body.pair(at), c.layer_norm_eps, x);
        if let Some(at) = layout.embedding_norm {
            let (y, normalised) = norm(at, x);
            (x, saved.embedding_norm) = (y, Some(normalised));
        }
        let regularization = body.pass.regularization;
        let seed = mask_seed(regularization.seed, 0);
        dropout_from(
            block.first * c.hidden_size,
            &mut x,
            regularization.embedding,
            seed,
        );
        for l in 0..c.layers {
            let norm = |part, x| norm(layout.of(l, part), x);
            match c.norm {
                NormPosition::Post => {
                    let attended = self.attention(l, block, &x, &x);
                    let (middle, attention_norm) = norm(Part::AttentionNorm, attended.sum);
                    let (sum, up) = self.feed_forward(l, block, &middle, &middle);
                    let (y, feed_forward_norm) = norm(Part::FeedForwardNorm, sum);
                    saved.layers.push(LayerSaved {
                        attention_input: std::mem::replace(&mut x, y),
                        states: attended.states,
                        sums: attended.sums,
                        mixed: attended.mixed,
                        attention_norm,
                        feed_forward_input: middle,
                        up,
                        feed_forward_norm,
                    });
                }
                NormPosition::Pre => {
                    let (attention_input, attention_norm) = norm(Part::AttentionNorm, x.clone());
                    let attended = self.attention(l, block, &attention_input, &x);
                    let (feed_forward_input, feed_forward_norm) =
                        norm(Part::FeedForwardNorm, attended.sum.clone());
                    let (sum, up) = self.feed_forward(l, block, &feed_forward_input, &attended.sum);
                    x = sum;
                    saved.layers.push(LayerSaved {
                        attention_input,
                        states: attended.states,
                        sums: attended.sums,
                        mixed: attended.mixed,
                        attention_norm,
                        feed_forward_input,
                        up,
                        feed_forward_norm,
                    });
                }
            }
        }
        if let Some(at) = layout.final_norm {
            let (y, normalised) = norm(at, x);
            (x, saved.final_norm) = (y, Some(normalised));
        }
        (x, saved)
    }

    /// Sums of the embedding tables, [tokens, D].
    fn embed(&self, block: &Block) -> Vec<f32> {
        let Body { c, pass, layout } = self.body;
        let (d, factor) = (c.hidden_size, self.body.scale());
        let (table, positions) = (pass.parameters.value(0), self.body.value(0));
        let kind = layout.types.map(|at| &self.body.value(at)[..d]);
        let mut x = Vec::with_capacity(block.tokens * d);
        for sentence in block.sentences() {
            let ids = &pass.batch.row(sentence.number)[..sentence.tokens];
            for (t, id) in ids.iter().enumerate() {
                let begin = x.len();
                x.extend_from_slice(&positions[(c.position_offset + t) * d..][..d]);
                let row = &mut x[begin..];
                axpy(factor, &table[*id as usize * d..][..d], row);
                if let Some(kind) = kind {
                    add(kind, row);
                }
            }
        }
        x
    }

    /// `residual` plus a linear layer after dropout.
    fn onto(
        &self,
        (right, bias): (&Right<'_>, &[f32]),
        block: &Block,
        x: &[f32],
        residual: &[f32],
        mask: usize,
    ) -> Vec<f32> {
        let regularization = self.body.pass.regularization;
        if regularization.hidden == 0.0 {
            let mut out = residual.to_vec();
            out.chunks_exact_mut(bias.len())
                .for_each(|row| add(bias, row));
            right.multiply(block.tokens, x, &mut out, true);
            return out;
        }
        let mut out = linear(right, bias, block.tokens, x);
        let seed = mask_seed(regularization.seed, mask);
        let first = block.first * self.body.c.hidden_size;
        dropout_from(first, &mut out, regularization.hidden, seed);
        add(residual, &mut out);
        out
    }

    fn attention(&mut self, l: usize, block: &Block, x: &[f32], residual: &[f32]) -> Attended {
        let (body, d) = (self.body, self.body.c.hidden_size);
        let (layer, heads) = (&self.layers[l], body.c.heads);
        let states = linear(&layer.joint, &self.joints[l].1, block.tokens, x);
        let mut sums = vec![0f32; block.tokens * heads];
        let mut mixed = vec![0f32; block.tokens * d];
        for sentence in block.sentences() {
            let part =
                |width: usize| sentence.first * width..(sentence.first + sentence.tokens) * width;
            attention::forward(
                body.heads(),
                &states[part(3 * d)],
                self.distances.as_ref(),
                &mut mixed[part(d)],
                &mut sums[part(heads)],
                &mut self.scratch,
            );
        }
        let bias = body.value(body.layout.of(l, Part::Output) + 1);
        let sum = self.onto((&layer.output, bias), block, &mixed, residual, 1 + 2 * l);
        Attended {
            states,
            sums,
            mixed,
            sum,
        }
    }

    /// The sum with the residual, and what came before the activation.
    fn feed_forward(
        &mut self,
        l: usize,
        block: &Block,
        x: &[f32],
        residual: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let (body, layer) = (self.body, &self.layers[l]);
        let bias = |part| body.value(body.layout.of(l, part) + 1);
        let up = linear(&layer.up, bias(Part::Up), block.tokens, x);
        let mut activated = std::mem::take(&mut self.activated);
        activated.clear();
        activated.extend_from_slice(&up);
        activate(body.c.activation, &mut activated);
        let down = (&self.layers[l].down, bias(Part::Down));
        let sum = self.onto(down, block, &activated, residual, 2 + 2 * l);
        self.activated = activated;
        (sum, up)
    }

    /// Pools the states of each sentence into its row of `out`.
    fn pool(&self, block: &Block, states: &[f32], out: &mut [f32]) -> PoolingSaved {
        let (d, begin) = (self.body.c.hidden_size, self.body.pass.sentences.start);
        let mut largest = Vec::new();
        for sentence in block.sentences() {
            let out = &mut out[(sentence.number - begin) * d..][..d];
            let rows = &states[sentence.first * d..(sentence.first + sentence.tokens) * d];
            match self.body.c.pooling {
                TransformerPooling::Cls => out.copy_from_slice(&rows[..d]),
                TransformerPooling::Mean => {
                    rows.chunks_exact(d).for_each(|row| add(row, out));
                    scale(1.0 / sentence.tokens as f32, out);
                }
                TransformerPooling::Max => {
                    let from = largest.len();
                    largest.resize(from + d, 0);
                    out.copy_from_slice(&rows[..d]);
                    for (t, row) in rows.chunks_exact(d).enumerate().skip(1) {
                        maximum(row, t as u32, out, &mut largest[from..]);
                    }
                }
            }
        }
        PoolingSaved::Pooled { largest }
    }

    /// Copies the states at the places of each sentence to `out`.
    fn take(
        &self,
        block: &Block,
        places: &Ragged,
        states: &[f32],
        out: &mut [f32],
    ) -> PoolingSaved {
        let (d, begin) = (self.body.c.hidden_size, self.body.pass.sentences.start);
        let mut taken = Vec::new();
        for sentence in block.sentences() {
            let first = places.starts[sentence.number] - places.starts[begin];
            for (number, place) in places.row(sentence.number).iter().enumerate() {
                if (*place as usize) < sentence.tokens {
                    let (to, from) = (first + number, sentence.first + *place as usize);
                    out[to * d..][..d].copy_from_slice(&states[from * d..][..d]);
                    taken.push((to, from));
                }
            }
        }
        PoolingSaved::TokenStates(taken)
    }
}

struct Attended {
    states: Vec<f32>,
    sums: Vec<f32>,
    mixed: Vec<f32>,
    /// With the residual.
    sum: Vec<f32>,
}
