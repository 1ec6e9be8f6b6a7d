//! LSTM of one or two directions over whole sequences, with its own backward pass.
//!
//! Gates are those of `torch.nn.LSTM` (i, f, g, o; two biases):
//! `c_t = σ(f) c_{t−1} + σ(i) tanh(g)`, `h_t = σ(o) tanh(c_t)`.
//!
//! Sentences are sorted by length and stored step by step ([`Steps`]), so that padding is never
//! computed: step t holds one row for every sentence that has more than t tokens. The products
//! with the inputs of all steps are one matrix product, as are the gradients of both matrices;
//! only the recurrent product runs step by step.

use std::ops::Range;

use laser_model::config::BilstmPooling;

use crate::data::Ragged;
use crate::ops::pool::{Occurrences, look_up};
use laser_kernels::packing::Packing;
use laser_kernels::slices::add;
use laser_kernels::training::Arithmetic;
use laser_kernels::training::dropout::dropout;
use laser_kernels::training::lstm::{cell, cell_backward};
use laser_kernels::training::pool::maximum;

/// Rows of a batch of sequences, ordered by step and, within a step, by descending length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Sentence of the batch at each place of the order, longest first.
    pub order: Vec<usize>,
    /// Tokens of each sentence, in that order.
    pub lengths: Vec<usize>,
    packing: Packing,
}

impl Steps {
    /// Sorts some sentences of a batch.
    pub fn new(batch: &Ragged, sentences: Range<usize>) -> Self {
        let length = |s: &usize| batch.starts[s + 1] - batch.starts[*s];
        let mut order: Vec<usize> = sentences.collect();
        order.sort_by_key(|s| std::cmp::Reverse(length(s)));
        let lengths: Vec<usize> = order.iter().map(length).collect();
        Self {
            packing: Packing::new(&lengths),
            order,
            lengths,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.packing.tokens()
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.packing.steps()
    }

    /// Whether no sentence has a token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sentences at step t; 0 beyond the last.
    pub fn active(&self, t: usize) -> usize {
        self.packing.active(t)
    }

    /// First row of step t.
    pub fn offset(&self, t: usize) -> usize {
        self.packing.offset(t)
    }

    /// Token ids in the order of the rows.
    pub fn ids(&self, batch: &Ragged) -> Vec<u32> {
        let mut ids = Vec::with_capacity(self.rows());
        for t in 0..self.len() {
            ids.extend(
                self.order[..self.active(t)]
                    .iter()
                    .map(|s| batch.row(*s)[t]),
            );
        }
        ids
    }
}

/// Parameters of one direction of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// [4H, inputs].
    pub input: &'a [f32],
    /// [4H, H].
    pub recurrent: &'a [f32],
    /// [4H].
    pub bias_input: &'a [f32],
    /// [4H].
    pub bias_recurrent: &'a [f32],
}

/// What the backward pass of one direction needs.
#[derive(Debug)]
pub struct DirectionSaved {
    /// Gates after their non-linearity, [rows, 4H].
    gates: Vec<f32>,
    /// Cells, [rows, H].
    cells: Vec<f32>,
    /// Outputs, [rows, H].
    hidden: Vec<f32>,
}

/// The order in which a direction visits the steps.
fn visits(steps: &Steps, reverse: bool) -> Box<dyn Iterator<Item = usize>> {
    if reverse {
        Box::new((0..steps.len()).rev())
    } else {
        Box::new(0..steps.len())
    }
}

/// First row and number of sentences of the step visited before t; no sentences at the start.
pub(super) fn before(steps: &Steps, t: usize, reverse: bool) -> (usize, usize) {
    if reverse {
        let active = steps.active(t + 1);
        (if active > 0 { steps.offset(t + 1) } else { 0 }, active)
    } else if t == 0 {
        (0, 0)
    } else {
        (steps.offset(t - 1), steps.active(t))
    }
}

/// Runs one direction over `input` [rows, inputs].
pub fn direction_forward(
    steps: &Steps,
    reverse: bool,
    hidden_size: usize,
    weights: Weights<'_>,
    input: &[f32],
    arithmetic: Arithmetic,
) -> DirectionSaved {
    let (h, rows) = (hidden_size, steps.rows());
    let inputs = weights.input.len() / (4 * h);
    let bias: Vec<f32> = weights
        .bias_input
        .iter()
        .zip(weights.bias_recurrent)
        .map(|(a, b)| a + b)
        .collect();
    let mut gates = Vec::with_capacity(rows * 4 * h);
    for _ in 0..rows {
        gates.extend_from_slice(&bias);
    }
    arithmetic.nt(
        (rows, 4 * h, inputs),
        input,
        weights.input,
        &mut gates,
        true,
    );
    let mut cells = vec![0f32; rows * h];
    let mut hidden = vec![0f32; rows * h];
    let recurrent = arithmetic.right_transposed(4 * h, h, weights.recurrent);
    for t in visits(steps, reverse) {
        let (at, n) = (steps.offset(t), steps.active(t));
        let (from, known) = before(steps, t, reverse);
        if known > 0 {
            let state = &hidden[from * h..(from + known) * h];
            let to = &mut gates[at * 4 * h..(at + known) * 4 * h];
            recurrent.multiply(known, state, to, true);
        }
        for s in 0..n {
            let row = at + s;
            // Rows of the other step lie on one side of this one.
            let (head, tail) = cells.split_at_mut(row * h);
            let (current, tail) = tail.split_at_mut(h);
            let previous = if s >= known {
                &[][..]
            } else if reverse {
                let begin = (from + s - row - 1) * h;
                &tail[begin..begin + h]
            } else {
                &head[(from + s) * h..(from + s + 1) * h]
            };
            let gates = &mut gates[row * 4 * h..(row + 1) * 4 * h];
            cell(
                gates,
                previous,
                current,
                &mut hidden[row * h..(row + 1) * h],
            );
        }
    }
    DirectionSaved {
        gates,
        cells,
        hidden,
    }
}

/// Gradient of one direction. `d_output` is the gradient of its outputs, [rows, H]. Adds the
/// gradient of the input to `d_input` [rows, inputs], if it is wanted, and those of the parameters to `gradients`
/// (in the order of [`Weights`]).
#[expect(
    clippy::too_many_arguments,
    reason = "one call site, each argument of another kind"
)]
pub fn direction_backward(
    steps: &Steps,
    reverse: bool,
    hidden_size: usize,
    weights: Weights<'_>,
    input: &[f32],
    saved: DirectionSaved,
    mut d_output: Vec<f32>,
    d_input: Option<&mut [f32]>,
    gradients: &mut [Vec<f32>],
    arithmetic: Arithmetic,
) {
    let (h, rows) = (hidden_size, steps.rows());
    let inputs = weights.input.len() / (4 * h);
    let DirectionSaved {
        mut gates,
        cells,
        hidden,
    } = saved;
    let mut d_cell = vec![0f32; steps.active(0) * h];
    let mut previous_hidden = vec![0f32; rows * h];
    let recurrent = arithmetic.right(4 * h, h, weights.recurrent);
    // The visits backwards: the other direction's order.
    for t in visits(steps, !reverse) {
        let (at, n) = (steps.offset(t), steps.active(t));
        let (from, known) = before(steps, t, reverse);
        for s in 0..n {
            let row = at + s;
            let previous = if s < known {
                &cells[(from + s) * h..(from + s + 1) * h]
            } else {
                &[][..]
            };
            cell_backward(
                &mut gates[row * 4 * h..(row + 1) * 4 * h],
                previous,
                &cells[row * h..(row + 1) * h],
                &d_output[row * h..(row + 1) * h],
                &mut d_cell[s * h..(s + 1) * h],
            );
        }
        if known > 0 {
            previous_hidden[at * h..(at + known) * h]
                .copy_from_slice(&hidden[from * h..(from + known) * h]);
            let d_gates = &gates[at * 4 * h..(at + known) * 4 * h];
            let to = &mut d_output[from * h..(from + known) * h];
            recurrent.multiply(known, d_gates, to, true);
        }
    }
    let [d_weights, d_recurrent, d_bias, d_bias_recurrent] = gradients else {
        panic!("a direction has four parameters")
    };
    if let Some(d_input) = d_input {
        arithmetic.nn((rows, inputs, 4 * h), &gates, weights.input, d_input, true);
    }
    arithmetic.tn((4 * h, inputs, rows), &gates, input, d_weights, true);
    arithmetic.tn(
        (4 * h, h, rows),
        &gates,
        &previous_hidden,
        d_recurrent,
        true,
    );
    let mut sums = vec![0f32; 4 * h];
    for row in gates.chunks_exact(4 * h) {
        add(row, &mut sums);
    }
    add(&sums, d_bias);
    add(&sums, d_bias_recurrent);
}

/// A stack of layers with pooling over time; D is the number of their directions.
#[derive(Debug)]
pub struct LstmStack<'a> {
    /// Width of the token embeddings.
    pub input_size: usize,
    /// Width H of one direction.
    pub hidden_size: usize,
    /// Pooling of the last layer over time.
    pub pooling: BilstmPooling,
    /// The directions of each layer: the forward one and, where D is 2, the backward one.
    pub layers: Vec<Vec<Weights<'a>>>,
    /// Arithmetic of the products.
    pub arithmetic: Arithmetic,
    /// Whether the token embeddings get no gradient.
    pub frozen_input: bool,
}

/// What the backward pass of a stack needs.
#[derive(Debug)]
pub struct StackSaved {
    steps: Steps,
    ids: Vec<u32>,
    /// Input of each layer, after dropout, with its directions.
    layers: Vec<(Vec<f32>, Vec<DirectionSaved>)>,
    /// For max pooling, the step that gave each element of the result.
    argmax: Vec<u32>,
}

/// Seeds of the dropout masks of a layer's input.
pub(super) fn layer_seed(seed: u64, layer: usize) -> u64 {
    seed.wrapping_add(0xa076_1d64_78bd_642fu64.wrapping_mul(layer as u64 + 1))
}

impl LstmStack<'_> {
    /// Number D of directions.
    pub(super) fn directions(&self) -> usize {
        self.layers.first().map_or(0, Vec::len)
    }

    /// Width DH of the outputs.
    pub(super) fn width(&self) -> usize {
        self.directions() * self.hidden_size
    }

    /// Pooled outputs [sentences, DH] in the order of the batch. `dropouts` are the rates of token
    /// embeddings and between layers. Sentences without tokens become zeros.
    pub fn forward(
        &self,
        table: &[f32],
        batch: &Ragged,
        sentences: Range<usize>,
        dropouts: (f32, f32),
        seed: u64,
    ) -> (Vec<f32>, StackSaved) {
        let (h, width) = (self.hidden_size, self.width());
        let (begin, count) = (sentences.start, sentences.len());
        let steps = Steps::new(batch, sentences);
        let ids = steps.ids(batch);
        let rows = steps.rows();
        let mut input = vec![0f32; rows * self.input_size];
        look_up(table, &ids, self.input_size, &mut input);
        dropout(&mut input, dropouts.0, layer_seed(seed, 0));
        let mut layers: Vec<(Vec<f32>, Vec<DirectionSaved>)> = Vec::new();
        for (layer, directions) in self.layers.iter().enumerate() {
            if let Some((_, below)) = layers.last() {
                input = side_by_side(below, h);
                dropout(&mut input, dropouts.1, layer_seed(seed, layer));
            }
            let run = |(d, weights): (usize, &Weights<'_>)| {
                direction_forward(&steps, d == 1, h, *weights, &input, self.arithmetic)
            };
            let outputs = directions.iter().enumerate().map(run).collect();
            layers.push((std::mem::take(&mut input), outputs));
        }
        let mut out = vec![0f32; count * width];
        let mut argmax = Vec::new();
        if let Some((_, top)) = layers.last() {
            if self.pooling == BilstmPooling::Max {
                argmax = vec![0u32; count * width];
            }
            for (s, (sentence, length)) in steps.order.iter().zip(&steps.lengths).enumerate() {
                let at = (sentence - begin) * width;
                for (d, direction) in top.iter().enumerate() {
                    let to = at + d * h..at + (d + 1) * h;
                    let row = |t: usize| {
                        let r = steps.offset(t) + s;
                        &direction.hidden[r * h..(r + 1) * h]
                    };
                    let out = &mut out[to.clone()];
                    match self.pooling {
                        _ if *length == 0 => {}
                        BilstmPooling::Max => {
                            out.copy_from_slice(row(0));
                            for t in 1..*length {
                                maximum(row(t), t as u32, out, &mut argmax[to.clone()]);
                            }
                        }
                        BilstmPooling::Last => {
                            out.copy_from_slice(row(if d == 0 { length - 1 } else { 0 }));
                        }
                        BilstmPooling::Mean => {
                            (0..*length).for_each(|t| add(row(t), out));
                            laser_kernels::slices::scale(1.0 / *length as f32, out);
                        }
                    }
                }
            }
        }
        (
            out,
            StackSaved {
                steps,
                ids,
                layers,
                argmax,
            },
        )
    }

    /// Gradient of the token embeddings from that of the pooled outputs (nothing if they are frozen);
    /// adds the gradients of
    /// the parameters (four buffers a direction) to `gradients`.
    pub fn backward(
        &self,
        saved: StackSaved,
        dy: &[f32],
        gradients: &mut [Vec<f32>],
        dropouts: (f32, f32),
        seed: u64,
    ) -> Occurrences {
        let (h, width) = (self.hidden_size, self.width());
        let StackSaved {
            steps,
            ids,
            mut layers,
            argmax,
        } = saved;
        let rows = steps.rows();
        let begin = steps.order.iter().min().copied().unwrap_or(0);
        let mut d_outputs = vec![vec![0f32; rows * h]; self.directions()];
        for (s, (sentence, length)) in steps.order.iter().zip(&steps.lengths).enumerate() {
            if *length == 0 {
                continue;
            }
            let at = (sentence - begin) * width;
            for (d, d_output) in d_outputs.iter_mut().enumerate() {
                let from = at + d * h..at + (d + 1) * h;
                let dy = &dy[from.clone()];
                let row = |t: usize| (steps.offset(t) + s) * h;
                match self.pooling {
                    BilstmPooling::Max => {
                        for (k, (g, t)) in dy.iter().zip(&argmax[from]).enumerate() {
                            d_output[row(*t as usize) + k] = *g;
                        }
                    }
                    BilstmPooling::Last => {
                        let r = row(if d == 0 { length - 1 } else { 0 });
                        d_output[r..r + h].copy_from_slice(dy);
                    }
                    BilstmPooling::Mean => {
                        for t in 0..*length {
                            let r = row(t);
                            laser_kernels::slices::axpy(
                                1.0 / *length as f32,
                                dy,
                                &mut d_output[r..r + h],
                            );
                        }
                    }
                }
            }
        }
        let mut d_input = Vec::new();
        let top = layers.len();
        for (layer, directions) in self.layers.iter().enumerate().rev() {
            let Some((input, outputs)) = layers.pop() else {
                break;
            };
            if layer + 1 < top {
                d_outputs = apart(&d_input, directions.len(), h);
            }
            let wanted = layer > 0 || !self.frozen_input;
            d_input = vec![0f32; if wanted { input.len() } else { 0 }];
            let outputs = outputs.into_iter().zip(d_outputs.drain(..));
            for (d, (saved, d_output)) in outputs.enumerate() {
                let at = (directions.len() * layer + d) * 4;
                direction_backward(
                    &steps,
                    d == 1,
                    h,
                    directions[d],
                    &input,
                    saved,
                    d_output,
                    wanted.then_some(&mut d_input[..]),
                    &mut gradients[at..at + 4],
                    self.arithmetic,
                );
            }
            let rate = if layer == 0 { dropouts.0 } else { dropouts.1 };
            dropout(&mut d_input, rate, layer_seed(seed, layer));
        }
        if self.frozen_input {
            return Occurrences::default();
        }
        Occurrences {
            rows: (0..ids.len() as u32).collect(),
            factors: vec![1.0; ids.len()],
            ids,
            source: d_input,
            inner: Vec::new(),
        }
    }
}

/// [rows, DH] from the outputs of D directions.
fn side_by_side(directions: &[DirectionSaved], h: usize) -> Vec<f32> {
    let size = directions[0].hidden.len();
    let mut out = Vec::with_capacity(size * directions.len());
    for at in (0..size).step_by(h) {
        for direction in directions {
            out.extend_from_slice(&direction.hidden[at..at + h]);
        }
    }
    out
}

/// The inverse of [`side_by_side`].
fn apart(states: &[f32], directions: usize, h: usize) -> Vec<Vec<f32>> {
    let part = |_| Vec::with_capacity(states.len() / directions);
    let mut parts: Vec<Vec<f32>> = (0..directions).map(part).collect();
    for row in states.chunks_exact(directions * h) {
        for (part, row) in parts.iter_mut().zip(row.chunks_exact(h)) {
            part.extend_from_slice(row);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;

    fn batch() -> Ragged {
        let mut batch = Ragged::new();
        for row in [&[1u32, 2, 3][..], &[4], &[], &[5, 1, 2, 0, 3], &[2, 2]] {
            batch.push(row);
        }
        batch
    }

    struct Net {
        h: usize,
        e: usize,
        parameters: Vec<Vec<f32>>,
        table: Vec<f32>,
        pooling: BilstmPooling,
        directions: usize,
    }

    impl Net {
        fn new(layers: usize, directions: usize, pooling: BilstmPooling) -> Self {
            let (h, e) = (3, 4);
            let mut parameters = Vec::new();
            for d in 0..directions * layers {
                let input = if d < directions { e } else { directions * h };
                for (k, n) in [4 * h * input, 4 * h * h, 4 * h, 4 * h]
                    .into_iter()
                    .enumerate()
                {
                    parameters.push(random(n, 0.7, 3, d * 4 + k));
                }
            }
            Self {
                h,
                e,
                parameters,
                table: random(6 * e, 1.0, 5, 99),
                pooling,
                directions,
            }
        }

        fn stack(&self, arithmetic: Arithmetic) -> LstmStack<'_> {
            let layers = self.parameters.chunks_exact(4 * self.directions);
            let layers = layers.map(|layer| {
                let weights = layer.chunks_exact(4).map(|p| Weights {
                    input: &p[0],
                    recurrent: &p[1],
                    bias_input: &p[2],
                    bias_recurrent: &p[3],
                });
                weights.collect()
            });
            LstmStack {
                input_size: self.e,
                hidden_size: self.h,
                pooling: self.pooling,
                layers: layers.collect(),
                arithmetic,
                frozen_input: false,
            }
        }

        /// The definition, one sentence and step after the other, in f64.
        fn reference(&self, ids: &[u32]) -> Vec<f64> {
            let (h, sig) = (self.h, |x: f64| 1.0 / (1.0 + (-x).exp()));
            let width = self.directions * h;
            let mut xs: Vec<Vec<f64>> = ids
                .iter()
                .map(|i| {
                    let at = *i as usize * self.e;
                    self.table[at..at + self.e]
                        .iter()
                        .map(|v| f64::from(*v))
                        .collect()
                })
                .collect();
            let mut last = vec![0.0; width];
            for layer in self.parameters.chunks_exact(4 * self.directions) {
                let mut ys = vec![vec![0f64; width]; xs.len()];
                for (d, p) in layer.chunks_exact(4).enumerate() {
                    let (mut hidden, mut cell) = (vec![0f64; h], vec![0f64; h]);
                    let order: Vec<usize> = if d == 0 {
                        (0..xs.len()).collect()
                    } else {
                        (0..xs.len()).rev().collect()
                    };
                    for t in order {
                        let n = xs[t].len();
                        let gate = |r: usize| -> f64 {
                            let a: f64 =
                                (0..n).map(|k| f64::from(p[0][r * n + k]) * xs[t][k]).sum();
                            let b: f64 =
                                (0..h).map(|k| f64::from(p[1][r * h + k]) * hidden[k]).sum();
                            a + b + f64::from(p[2][r]) + f64::from(p[3][r])
                        };
                        let gates: Vec<f64> = (0..4 * h).map(gate).collect();
                        for k in 0..h {
                            cell[k] = sig(gates[h + k]) * cell[k]
                                + sig(gates[k]) * gates[2 * h + k].tanh();
                            hidden[k] = sig(gates[3 * h + k]) * cell[k].tanh();
                        }
                        ys[t][d * h..(d + 1) * h].copy_from_slice(&hidden);
                    }
                    last[d * h..(d + 1) * h].copy_from_slice(&hidden);
                }
                xs = ys;
            }
            if ids.is_empty() {
                return vec![0.0; width];
            }
            (0..width)
                .map(|k| match self.pooling {
                    BilstmPooling::Max => xs.iter().map(|x| x[k]).fold(f64::MIN, f64::max),
                    BilstmPooling::Last => last[k],
                    BilstmPooling::Mean => xs.iter().map(|x| x[k]).sum::<f64>() / xs.len() as f64,
                })
                .collect()
        }

        /// A loss that weighs every output differently.
        fn loss(&self, batch: &Ragged) -> f64 {
            (0..batch.len())
                .flat_map(|s| self.reference(batch.row(s)))
                .enumerate()
                .map(|(i, y)| y * (i as f64 * 0.7).sin())
                .sum()
        }
    }

    #[test]
    fn forward_and_gradients_match_the_definition() {
        let batch = batch();
        for pooling in [BilstmPooling::Max, BilstmPooling::Last, BilstmPooling::Mean] {
            for (layers, directions) in [(1, 2), (2, 2), (1, 1), (3, 1)] {
                let mut net = Net::new(layers, directions, pooling);
                let (y, saved) =
                    net.stack(Arithmetic::F32)
                        .forward(&net.table, &batch, 0..5, (0.0, 0.0), 0);
                let expected: Vec<f64> = (0..5).flat_map(|s| net.reference(batch.row(s))).collect();
                for (a, b) in y.iter().zip(&expected) {
                    assert!((f64::from(*a) - b).abs() < 2e-6, "{pooling:?} {a} {b}");
                }
                let dy: Vec<f32> = (0..y.len()).map(|i| (i as f32 * 0.7).sin()).collect();
                let mut gradients: Vec<Vec<f32>> =
                    net.parameters.iter().map(|p| vec![0.0; p.len()]).collect();
                let tokens =
                    net.stack(Arithmetic::F32)
                        .backward(saved, &dy, &mut gradients, (0.0, 0.0), 0);
                let mut table = vec![0f32; net.table.len()];
                for (id, row) in tokens.ids.iter().zip(tokens.source.chunks_exact(net.e)) {
                    add(row, &mut table[*id as usize * net.e..][..net.e]);
                }
                let h = 2e-3;
                let close = |gradient: f32, up: f64, down: f64, step: f64| {
                    let slope = (up - down) / step;
                    assert!(
                        (f64::from(gradient) - slope).abs() < 2e-4,
                        "{gradient} {slope}"
                    );
                };
                for k in 0..table.len() {
                    let value = net.table[k];
                    net.table[k] = value + h;
                    let up = net.loss(&batch);
                    net.table[k] = value - h;
                    let down = net.loss(&batch);
                    close(
                        table[k],
                        up,
                        down,
                        f64::from(value + h) - f64::from(value - h),
                    );
                    net.table[k] = value;
                }
                for (p, gradient) in gradients.iter().enumerate() {
                    for k in (0..gradient.len()).step_by(3) {
                        let value = net.parameters[p][k];
                        net.parameters[p][k] = value + h;
                        let up = net.loss(&batch);
                        net.parameters[p][k] = value - h;
                        let down = net.loss(&batch);
                        close(
                            gradient[k],
                            up,
                            down,
                            f64::from(value + h) - f64::from(value - h),
                        );
                        net.parameters[p][k] = value;
                    }
                }
            }
        }
    }

    #[test]
    fn bf16_products_give_nearly_the_same() {
        let batch = batch();
        let net = Net::new(2, 2, BilstmPooling::Mean);
        let run = |arithmetic| {
            let (y, saved) = net
                .stack(arithmetic)
                .forward(&net.table, &batch, 0..5, (0.0, 0.0), 0);
            let mut gradients: Vec<Vec<f32>> =
                net.parameters.iter().map(|p| vec![0.0; p.len()]).collect();
            let dy = vec![1.0; y.len()];
            net.stack(arithmetic)
                .backward(saved, &dy, &mut gradients, (0.0, 0.0), 0);
            (y, gradients.concat())
        };
        let (exact, rounded) = (run(Arithmetic::F32), run(Arithmetic::Bf16));
        let pairs = exact
            .0
            .iter()
            .zip(&rounded.0)
            .chain(exact.1.iter().zip(&rounded.1));
        for (a, b) in pairs {
            assert!((a - b).abs() < 0.02 + 0.03 * a.abs(), "{a} {b}");
        }
    }

    #[test]
    fn shards_of_a_batch_give_what_the_whole_gives() {
        let batch = batch();
        let net = Net::new(1, 2, BilstmPooling::Max);
        let stack = net.stack(Arithmetic::F32);
        let whole = stack.forward(&net.table, &batch, 0..5, (0.0, 0.0), 0).0;
        let mut parts = stack.forward(&net.table, &batch, 0..2, (0.0, 0.0), 0).0;
        parts.extend(stack.forward(&net.table, &batch, 2..5, (0.0, 0.0), 0).0);
        for (a, b) in whole.iter().zip(&parts) {
            assert!((a - b).abs() < 1e-6);
        }
    }
}
