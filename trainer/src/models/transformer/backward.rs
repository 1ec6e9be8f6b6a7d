//! The backward pass on the processor.

use laser_kernels::slices::{add, axpy};
use laser_kernels::training::Right;
use laser_kernels::training::activation::activate_both;
use laser_kernels::training::attention::{self, Distances};
use laser_kernels::training::dropout::dropout_from;
use laser_kernels::training::layer_norm::{self, Normalised};
use laser_model::config::{NormPosition, TransformerConfig, TransformerPooling};

use super::blocks::{Block, BlockSaved, Body, LayerSaved, PoolingSaved, Saved};
use super::layout::Part;
use super::tokens::mask_seed;
use crate::models::pass::Pass;
use crate::ops::pool::Occurrences;

/// The linear layers of a layer, ready for products with gradients.
struct Layer<'a> {
    joint: Right<'a>,
    output: Right<'a>,
    up: Right<'a>,
    down: Right<'a>,
}

struct Backward<'a> {
    body: Body<'a>,
    layers: Vec<Layer<'a>>,
    distances: Option<Distances>,
    /// Gradients, one buffer for each dense parameter of the body.
    gradients: &'a mut [Vec<f32>],
    /// Gradients of weight and bias of query, key and value of each layer, together.
    joints: Vec<(Vec<f32>, Vec<f32>)>,
    of_distances: Vec<f32>,
    scratch: Scratch,
}

/// Buffers that are kept from layer to layer.
#[derive(Default)]
struct Scratch {
    /// [tokens, D].
    d: Vec<f32>,
    /// [tokens, D].
    mixed: Vec<f32>,
    /// [tokens, 3 D].
    states: Vec<f32>,
    /// [tokens, F].
    wide: Vec<f32>,
    attention: attention::Scratch,
}

/// See [`super::backward`].
pub(super) fn backward(
    pass: &Pass<'_>,
    c: &TransformerConfig,
    saved: Saved,
    dy: &[f32],
    gradients: &mut [Vec<f32>],
) -> Occurrences {
    let body = Body::new(pass, c);
    let (d, f) = (c.hidden_size, c.intermediate_size);
    let weights: Vec<_> = (0..c.layers).map(|l| body.joint(l).0).collect();
    let layers = (0..c.layers).map(|l| {
        let weight = |part| body.value(body.layout.of(l, part));
        let right = |k, n, weight| pass.arithmetic.right(k, n, weight);
        Layer {
            joint: right(3 * d, d, &weights[l]),
            output: right(d, d, weight(Part::Output)),
            up: right(f, d, weight(Part::Up)),
            down: right(d, f, weight(Part::Down)),
        }
    });
    let distances = body.distances(saved.blocks.iter().map(|(block, _)| block));
    let mut run = Backward {
        body,
        layers: layers.collect(),
        of_distances: distances.as_ref().map_or_else(Vec::new, Distances::zeros),
        distances,
        gradients,
        joints: vec![(vec![0.0; 3 * d * d], vec![0.0; 3 * d]); c.layers],
        scratch: Scratch::default(),
    };
    let mut occurrences = Occurrences::default();
    for (block, saved) in saved.blocks {
        run.block(&block, saved, dy, &mut occurrences);
    }
    run.finish();
    occurrences
}

/// Adds the sum of some rows to a bias.
fn sum_rows(rows: &[f32], bias: &mut [f32]) {
    rows.chunks_exact(bias.len()).for_each(|row| add(row, bias));
}

impl Backward<'_> {
    fn block(&mut self, block: &Block, saved: BlockSaved, dy: &[f32], all: &mut Occurrences) {
        let Body { c, pass, layout } = self.body;
        let mut dx = self.of_states(block, &saved.pooling, dy);
        if let (Some(at), Some(normalised)) = (layout.final_norm, &saved.final_norm) {
            self.norm(at, normalised, &mut dx);
        }
        for (l, layer) in saved.layers.into_iter().enumerate().rev() {
            self.layer(l, block, layer, &mut dx);
        }
        let regularization = pass.regularization;
        let seed = mask_seed(regularization.seed, 0);
        dropout_from(
            block.first * c.hidden_size,
            &mut dx,
            regularization.embedding,
            seed,
        );
        if let (Some(at), Some(normalised)) = (layout.embedding_norm, &saved.embedding_norm) {
            self.norm(at, normalised, &mut dx);
        }
        self.embeddings(block, dx, all);
    }

    /// Gradient of the last states [tokens, D] from that of the result.
    fn of_states(&self, block: &Block, pooling: &PoolingSaved, dy: &[f32]) -> Vec<f32> {
        let (d, begin) = (self.body.c.hidden_size, self.body.pass.sentences.start);
        let mut dx = vec![0f32; block.tokens * d];
        let largest = match pooling {
            PoolingSaved::TokenStates(places) => {
                for (from, to) in places {
                    add(&dy[from * d..][..d], &mut dx[to * d..][..d]);
                }
                return dx;
            }
            PoolingSaved::Pooled { largest } => largest,
        };
        for (i, sentence) in block.sentences().enumerate() {
            let dy = &dy[(sentence.number - begin) * d..][..d];
            let rows = &mut dx[sentence.first * d..(sentence.first + sentence.tokens) * d];
            match self.body.c.pooling {
                TransformerPooling::Cls => rows[..d].copy_from_slice(dy),
                TransformerPooling::Mean => {
                    let share = 1.0 / sentence.tokens as f32;
                    rows.chunks_exact_mut(d)
                        .for_each(|row| axpy(share, dy, row));
                }
                TransformerPooling::Max => {
                    for (k, (dy, t)) in dy.iter().zip(&largest[i * d..(i + 1) * d]).enumerate() {
                        rows[*t as usize * d + k] = *dy;
                    }
                }
            }
        }
        dx
    }

    /// The parameter at a position and the one behind it.
    fn pair(&mut self, at: usize) -> (&mut [f32], &mut [f32]) {
        let (first, rest) = self.gradients[at..].split_at_mut(1);
        (&mut first[0], &mut rest[0])
    }

    fn norm(&mut self, at: usize, saved: &Normalised, dy: &mut [f32]) {
        let gain = self.body.value(at);
        layer_norm::backward(saved, gain, dy, self.pair(at));
    }

    /// Turns the gradient of a layer's output into that of its input.
    fn layer(&mut self, l: usize, block: &Block, saved: LayerSaved, dx: &mut [f32]) {
        let layout = self.body.layout;
        let first = layout.of(l, Part::AttentionNorm);
        let second = layout.of(l, Part::FeedForwardNorm);
        match self.body.c.norm {
            NormPosition::Post => {
                self.norm(second, &saved.feed_forward_norm, dx);
                self.mask(dx, block, 2 + 2 * l);
                self.feed_forward(l, block, saved.up, &saved.feed_forward_input, dx, true);
                self.norm(first, &saved.attention_norm, dx);
                self.mask(dx, block, 1 + 2 * l);
                let (states, sums) = (&saved.states[..], &saved.sums[..]);
                let kept = (states, sums, &saved.mixed[..], &saved.attention_input[..]);
                self.attention(l, block, kept, dx, true);
            }
            NormPosition::Pre => {
                let mut part = vec![0f32; dx.len()];
                self.mask(dx, block, 2 + 2 * l);
                let input = &saved.feed_forward_input;
                self.feed_forward(l, block, saved.up, input, &mut part, false);
                self.norm(second, &saved.feed_forward_norm, &mut part);
                add(&part, dx);
                self.mask(dx, block, 1 + 2 * l);
                let (states, sums) = (&saved.states[..], &saved.sums[..]);
                let kept = (states, sums, &saved.mixed[..], &saved.attention_input[..]);
                self.attention(l, block, kept, &mut part, false);
                self.norm(first, &saved.attention_norm, &mut part);
                add(&part, dx);
            }
        }
    }

    /// Copies a gradient to the scratch, through the dropout of that mask.
    fn mask(&mut self, dx: &[f32], block: &Block, mask: usize) {
        let regularization = self.body.pass.regularization;
        let d = &mut self.scratch.d;
        d.clear();
        d.extend_from_slice(dx);
        let seed = mask_seed(regularization.seed, mask);
        let first = block.first * self.body.c.hidden_size;
        dropout_from(first, d, regularization.hidden, seed);
    }

    /// From the masked gradient of the output to that of the input, which is added to `dx` or written.
    fn feed_forward(
        &mut self,
        l: usize,
        block: &Block,
        mut up: Vec<f32>,
        input: &[f32],
        dx: &mut [f32],
        onto: bool,
    ) {
        let Body { c, pass, layout } = self.body;
        let (d, f, rows) = (c.hidden_size, c.intermediate_size, block.tokens);
        let arithmetic = pass.arithmetic;
        let dy = std::mem::take(&mut self.scratch.d);
        let mut wide = std::mem::take(&mut self.scratch.wide);
        wide.resize(rows * f, 0.0);
        self.layers[l].down.multiply(rows, &dy, &mut wide, false);
        activate_both(c.activation, &mut up, &mut wide);
        let (weight, bias) = self.pair(layout.of(l, Part::Down));
        arithmetic.tn((d, f, rows), &dy, &up, weight, true);
        sum_rows(&dy, bias);
        let (weight, bias) = self.pair(layout.of(l, Part::Up));
        arithmetic.tn((f, d, rows), &wide, input, weight, true);
        sum_rows(&wide, bias);
        self.layers[l].up.multiply(rows, &wide, dx, onto);
        (self.scratch.d, self.scratch.wide) = (dy, wide);
    }

    /// The same for attention; `kept` are states, sums, mixed values and input.
    fn attention(
        &mut self,
        l: usize,
        block: &Block,
        (states, sums, mixed, input): (&[f32], &[f32], &[f32], &[f32]),
        dx: &mut [f32],
        onto: bool,
    ) {
        let Body { c, pass, layout } = self.body;
        let (d, rows, heads) = (c.hidden_size, block.tokens, c.heads);
        let arithmetic = pass.arithmetic;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.mixed.resize(rows * d, 0.0);
        self.layers[l]
            .output
            .multiply(rows, &scratch.d, &mut scratch.mixed, false);
        let (weight, bias) = self.pair(layout.of(l, Part::Output));
        arithmetic.tn((d, d, rows), &scratch.d, mixed, weight, true);
        sum_rows(&scratch.d, bias);
        scratch.states.resize(rows * 3 * d, 0.0);
        for sentence in block.sentences() {
            let part =
                |width: usize| sentence.first * width..(sentence.first + sentence.tokens) * width;
            let saved = attention::Saved {
                states: &states[part(3 * d)],
                out: &mixed[part(d)],
                sums: &sums[part(heads)],
            };
            attention::backward(
                self.body.heads(),
                saved,
                &scratch.mixed[part(d)],
                self.distances
                    .as_ref()
                    .map(|of| (of, &mut self.of_distances[..])),
                &mut scratch.states[part(3 * d)],
                &mut scratch.attention,
            );
        }
        let (weight, bias) = &mut self.joints[l];
        arithmetic.tn((3 * d, d, rows), &scratch.states, input, weight, true);
        sum_rows(&scratch.states, bias);
        self.layers[l]
            .joint
            .multiply(rows, &scratch.states, dx, onto);
        self.scratch = scratch;
    }

    /// Gradients of the embedding tables from that of their sums.
    fn embeddings(&mut self, block: &Block, dx: Vec<f32>, all: &mut Occurrences) {
        let Body { c, pass, layout } = self.body;
        let (d, factor) = (c.hidden_size, self.body.scale());
        if let Some(at) = layout.types {
            sum_rows(&dx, &mut self.gradients[at][..d]);
        }
        for sentence in block.sentences() {
            all.ids
                .extend_from_slice(&pass.batch.row(sentence.number)[..sentence.tokens]);
            let rows = &dx[sentence.first * d..(sentence.first + sentence.tokens) * d];
            let positions = &mut self.gradients[0][c.position_offset * d..];
            add(rows, &mut positions[..rows.len()]);
        }
        let begin = (all.source.len() / d) as u32;
        all.rows.extend(begin..begin + block.tokens as u32);
        all.factors.resize(all.factors.len() + block.tokens, factor);
        all.source.extend(dx);
    }

    /// Gives the gradients that were kept together to their parameters.
    fn finish(self) {
        let Body { c, layout, .. } = self.body;
        for (l, (weight, bias)) in self.joints.iter().enumerate() {
            let at = layout.of(l, Part::Query);
            let size = (weight.len() / 3, bias.len() / 3);
            let parts = weight.chunks_exact(size.0).zip(bias.chunks_exact(size.1));
            for (i, (weight, bias)) in parts.enumerate() {
                add(weight, &mut self.gradients[at + 2 * i]);
                add(bias, &mut self.gradients[at + 2 * i + 1]);
            }
        }
        if let (Some(at), Some(relative), Some(distances)) =
            (layout.relative, c.relative_positions, &self.distances)
        {
            let gradient = &mut self.gradients[at];
            distances.each(&self.of_distances, |head, distance, value| {
                gradient[relative.bucket(distance) * c.heads + head] += value;
            });
        }
    }
}
