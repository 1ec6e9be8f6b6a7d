//! The translation objective of LASER (Artetxe and Schwenk, TACL 2019, section 3.1): an auxiliary
//! LSTM decoder without attention, whose only view of the source is the sentence embedding.
//!
//! The embedding gives the first state through a linear map and is part of the input of every
//! step, beside the previous target token and an embedding of the target language. The loss is the
//! cross entropy of the next target token over the whole vocabulary, or over a sample of it that each batch draws, computed
//! in tiles of rows.

use std::borrow::Cow;
use std::ops::Range;

use laser_sampling::mix;
use serde::{Deserialize, Serialize};

use super::sampled::Types;
use crate::data::Ragged;
use crate::models::Parameters;
use crate::models::parameters::random;
use crate::ops::lstm::Steps;
use crate::ops::threads::Threads;
use laser_kernels::slices::add;
use laser_kernels::training::dropout::dropout;
use laser_kernels::training::lstm::{cell, cell_backward};
use laser_kernels::training::softmax::row_cross_entropy;
use laser_kernels::training::{Arithmetic, Right};

/// Sizes of the decoder; the defaults are LASER's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecoderSizes {
    /// Width of target token embeddings.
    pub embedding_size: usize,
    /// Width of target language embeddings; 0 = none, for a decoder of one language.
    pub language_size: usize,
    /// Width of the LSTM.
    pub hidden_size: usize,
    /// Types of the vocabulary, beside those of a batch's targets, over which its softmax goes; 0 = all, the exact softmax.
    pub softmax_samples: usize,
}

impl Default for DecoderSizes {
    fn default() -> Self {
        Self {
            embedding_size: 320,
            language_size: 32,
            hidden_size: 2048,
            softmax_samples: 0,
        }
    }
}

/// Rows of the vocabulary softmax that are worked on at a time.
const TILE: usize = 512;
/// Number of parameters of a decoder.
pub const PARAMETERS: usize = 10;

/// Order of the parameters.
mod at {
    pub const EMBED: usize = 0;
    pub const LANGUAGE: usize = 1;
    pub const INIT: usize = 2;
    pub const INIT_BIAS: usize = 3;
    pub const TOKEN: usize = 4;
    pub const SENTENCE: usize = 5;
    pub const RECURRENT: usize = 6;
    pub const BIAS: usize = 7;
    pub const OUTPUT: usize = 8;
    pub const OUTPUT_BIAS: usize = 9;
}

/// A decoder, whose parameters are those from `first` on of the ones it was added to.
#[derive(Clone, Debug)]
pub struct Decoder {
    sizes: DecoderSizes,
    /// Width of the sentence embedding.
    dimensions: usize,
    vocabulary: usize,
    /// First token of every target.
    begin: u32,
    /// Last token of every target.
    end: u32,
    /// Factor of the sentence embedding: unit vectors are brought to the length that one with
    /// elements of size 1 has.
    factor: f32,
    first: usize,
    arithmetic: Arithmetic,
}

/// The softmax of a batch, prepared once for all threads; weights are [types, hidden].
struct Softmax<'a> {
    /// Those that it goes over, if not over the whole vocabulary.
    types: Option<&'a Types>,
    biases: &'a [f32],
    /// States times the transposed weights.
    forward: Right<'a>,
    /// Gradients of the logits times the weights.
    backward: Right<'a>,
}

/// Targets of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// Token ids without begin and end.
    pub sentences: &'a Ragged,
    /// Row of the language table of each sentence.
    pub languages: &'a [u32],
}

/// Rates of dropout (token embeddings, outputs) and the seed of the masks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Noise {
    /// Elements of the input embeddings.
    pub input: f32,
    /// Elements of the outputs before the softmax.
    pub output: f32,
    /// Seed of the masks of this batch.
    pub seed: u64,
}

impl Decoder {
    /// Adds a decoder's parameters to others. It reads embeddings of `d` dimensions, of unit length if `unit`. `begin` and `end` are the ids of the sentence boundary tokens, `languages` the number of language
    /// embeddings.
    pub fn new(
        parameters: &mut Parameters,
        sizes: &DecoderSizes,
        (d, unit): (usize, bool),
        (vocabulary, languages): (usize, usize),
        (begin, end): (u32, u32),
        arithmetic: Arithmetic,
        seed: u64,
    ) -> Self {
        let factor = if unit { (d as f32).sqrt() } else { 1.0 };
        let (e, l, h) = (sizes.embedding_size, sizes.language_size, sizes.hidden_size);
        let bound = 1.0 / (h as f32).sqrt();
        let shapes: [(&str, Vec<usize>, f32); PARAMETERS] = [
            ("embed_tokens", vec![vocabulary, e], 0.1),
            ("embed_languages", vec![languages, l], 0.1),
            ("init.weight", vec![2 * h, d], 1.0 / (d as f32).sqrt()),
            ("init.bias", vec![2 * h], 0.0),
            ("lstm.weight_token", vec![4 * h, e + l], bound),
            ("lstm.weight_sentence", vec![4 * h, d], bound),
            ("lstm.weight_hh", vec![4 * h, h], bound),
            ("lstm.bias", vec![4 * h], bound),
            ("output.weight", vec![vocabulary, h], bound),
            ("output.bias", vec![vocabulary], 0.0),
        ];
        let first = parameters.len();
        for (i, (name, shape, bound)) in shapes.into_iter().enumerate() {
            let n = shape.iter().product();
            let value = if bound > 0.0 {
                random(n, bound, seed, 1000 + i)
            } else {
                vec![0.0; n]
            };
            parameters.push(&format!("decoder.{name}"), &shape, value);
        }
        let sizes = sizes.clone();
        Self {
            sizes,
            dimensions: d,
            vocabulary,
            begin,
            end,
            factor,
            first,
            arithmetic,
        }
    }

    /// Mean loss in nats a target token (the end token counts), for sentence embeddings `x`
    /// [sentences, D]. Adds `weight` times the gradients of the decoder to `gradients` (a buffer
    /// for each of `parameters`) and returns the loss with `weight` times the gradient of
    /// `x`.
    pub fn loss(
        &self,
        threads: &Threads,
        parameters: &Parameters,
        x: &[f32],
        targets: Targets<'_>,
        (weight, noise): (f32, Noise),
        gradients: &mut [Vec<f32>],
    ) -> (f64, Vec<f32>) {
        let values: Vec<&[f32]> = (0..PARAMETERS)
            .map(|i| parameters.value(self.first + i))
            .collect();
        let sentences = targets.sentences;
        let tokens = sentences.ids.len() + sentences.len();
        let costs: Vec<usize> = sentences
            .starts
            .iter()
            .enumerate()
            .map(|(i, s)| s + i)
            .collect();
        let ranges = threads.split_weighted(&costs);
        let h = self.sizes.hidden_size;
        let types = self.types(sentences, noise.seed);
        let (rows, biases) = match &types {
            None => (
                Cow::from(values[at::OUTPUT]),
                Cow::from(values[at::OUTPUT_BIAS]),
            ),
            Some(types) => (
                types.rows(values[at::OUTPUT], h).into(),
                types.biases(values[at::OUTPUT_BIAS]).into(),
            ),
        };
        let v = biases.len();
        let softmax = Softmax {
            types: types.as_ref(),
            biases: &biases,
            forward: self.arithmetic.right_transposed(v, h, &rows),
            backward: self.arithmetic.right(v, h, &rows),
        };
        let mut lengths: Vec<usize> = values.iter().map(|v| v.len()).collect();
        (lengths[at::OUTPUT], lengths[at::OUTPUT_BIAS]) = (rows.len(), biases.len());
        let parts = threads.map(ranges, |_, range| {
            let mut own: Vec<Vec<f32>> = lengths.iter().map(|n| vec![0.0; *n]).collect();
            let noise = Noise {
                seed: noise.seed ^ ((range.start as u64) << 32),
                ..noise
            };
            let (loss, dx) = self.shard(
                (&values, &softmax),
                x,
                targets,
                range,
                (weight / tokens as f32, noise),
                &mut own,
            );
            (loss, dx, own)
        });
        let mut total = 0.0;
        let mut dx = Vec::with_capacity(x.len());
        for (loss, part, own) in parts {
            total += loss;
            dx.extend_from_slice(&part);
            let sums = &mut gradients[self.first..self.first + PARAMETERS];
            for (i, (sum, own)) in sums.iter_mut().zip(&own).enumerate() {
                match (&types, i) {
                    (Some(types), at::OUTPUT) => types.add_to(sum, own, h),
                    (Some(types), at::OUTPUT_BIAS) => types.add_to(sum, own, 1),
                    _ => add(own, sum),
                }
            }
        }
        (total / tokens as f64, dx)
    }

    /// Those over which the softmax of a batch goes, if not over all.
    fn types(&self, sentences: &Ragged, seed: u64) -> Option<Types> {
        let samples = self.sizes.softmax_samples;
        if samples == 0 {
            return None;
        }
        let mut targets = sentences.ids.clone();
        targets.push(self.end);
        Types::draw(&targets, self.vocabulary, samples, mix(seed ^ 2))
    }

    /// Sum of the losses of some sentences; `weight` times its gradients.
    fn shard(
        &self,
        (values, softmax): (&[&[f32]], &Softmax<'_>),
        x: &[f32],
        targets: Targets<'_>,
        range: Range<usize>,
        (weight, noise): (f32, Noise),
        gradients: &mut [Vec<f32>],
    ) -> (f64, Vec<f32>) {
        let DecoderSizes {
            embedding_size: e,
            language_size: l,
            hidden_size: h,
            ..
        } = self.sizes;
        let (d, g, a) = (self.dimensions, 4 * h, self.arithmetic);
        let inputs = e + l;
        let n = range.len();
        let mut shifted = Ragged::new();
        let mut labels = Ragged::new();
        for s in range.clone() {
            let row = targets.sentences.row(s);
            shifted.ids.push(self.begin);
            shifted.push(row);
            labels.ids.extend_from_slice(row);
            labels.push(&[self.end]);
        }
        let steps = Steps::new(&shifted, 0..n);
        let rows = steps.rows();
        let tokens = steps.ids(&shifted);
        let labels = steps.ids(&labels);
        // Sentence of each row, as a place in the order.
        let places: Vec<usize> = (0..steps.len()).flat_map(|t| 0..steps.active(t)).collect();

        let mut sentence = Vec::with_capacity(n * d);
        for s in &steps.order {
            let at = (range.start + s) * d;
            sentence.extend(x[at..at + d].iter().map(|v| v * self.factor));
        }
        let mut start = repeat(values[at::INIT_BIAS], n);
        a.nt((n, 2 * h, d), &sentence, values[at::INIT], &mut start, true);
        let (mut hidden0, mut cell0) = (Vec::new(), Vec::new());
        for row in start.chunks_exact(2 * h) {
            hidden0.extend_from_slice(&row[..h]);
            cell0.extend_from_slice(&row[h..]);
        }
        let mut context = repeat(values[at::BIAS], n);
        a.nt(
            (n, g, d),
            &sentence,
            values[at::SENTENCE],
            &mut context,
            true,
        );
        let language = |place: usize| targets.languages[range.start + steps.order[place]] as usize;
        let mut input = Vec::with_capacity(rows * inputs);
        for (token, place) in tokens.iter().zip(&places) {
            input.extend_from_slice(&values[at::EMBED][*token as usize * e..][..e]);
            input.extend_from_slice(&values[at::LANGUAGE][language(*place) * l..][..l]);
        }
        dropout(&mut input, noise.input, noise.seed);
        let mut gates = Vec::with_capacity(rows * g);
        for place in &places {
            gates.extend_from_slice(&context[place * g..(place + 1) * g]);
        }
        a.nt(
            (rows, g, inputs),
            &input,
            values[at::TOKEN],
            &mut gates,
            true,
        );

        let recurrent = a.right_transposed(g, h, values[at::RECURRENT]);
        // Row r of step t follows row `before(t) + place`; step 0 follows the first state.
        let mut cells = vec![0f32; rows * h];
        let mut hidden = vec![0f32; rows * h];
        for t in 0..steps.len() {
            let (at, active) = (steps.offset(t), steps.active(t));
            let (past, present) = hidden.split_at_mut(at * h);
            let state = match t {
                0 => &hidden0[..active * h],
                _ => &past[steps.offset(t - 1) * h..][..active * h],
            };
            let step = &mut gates[at * g..(at + active) * g];
            recurrent.multiply(active, state, step, true);
            let (past_cells, present_cells) = cells.split_at_mut(at * h);
            for s in 0..active {
                let previous = match t {
                    0 => &cell0[s * h..(s + 1) * h],
                    _ => &past_cells[(steps.offset(t - 1) + s) * h..][..h],
                };
                let at = s * h..(s + 1) * h;
                cell(
                    &mut step[s * g..(s + 1) * g],
                    previous,
                    &mut present_cells[at.clone()],
                    &mut present[at],
                );
            }
        }
        let mut output = hidden.clone();
        dropout(&mut output, noise.output, noise.seed ^ 1);

        // Softmax, tile by tile, with its gradients.
        let v = softmax.biases.len();
        let mut loss = 0f64;
        let mut d_hidden = vec![0f32; rows * h];
        let mut logits = vec![0f32; TILE.min(rows) * v];
        for from in (0..rows).step_by(TILE) {
            let to = rows.min(from + TILE);
            let m = to - from;
            let tile = &mut logits[..m * v];
            for row in tile.chunks_exact_mut(v) {
                row.copy_from_slice(softmax.biases);
            }
            let states = &output[from * h..to * h];
            softmax.forward.multiply(m, states, tile, true);
            for (row, label) in tile.chunks_exact_mut(v).zip(&labels[from..to]) {
                let label = match softmax.types {
                    None => *label as usize,
                    Some(types) => types.place(*label),
                };
                loss += row_cross_entropy(row, label, weight);
                add(row, &mut gradients[at::OUTPUT_BIAS]);
            }
            let to_hidden = &mut d_hidden[from * h..to * h];
            softmax.backward.multiply(m, tile, to_hidden, false);
            a.tn((v, h, m), tile, states, &mut gradients[at::OUTPUT], true);
        }
        dropout(&mut d_hidden, noise.output, noise.seed ^ 1);

        // Back through time.
        let mut d_cell = vec![0f32; n * h];
        let mut d_hidden0 = vec![0f32; n * h];
        let mut previous_hidden = Vec::with_capacity(rows * h);
        for t in 0..steps.len() {
            let active = steps.active(t);
            previous_hidden.extend_from_slice(match t {
                0 => &hidden0[..active * h],
                _ => &hidden[steps.offset(t - 1) * h..][..active * h],
            });
        }
        let recurrent = a.right(g, h, values[at::RECURRENT]);
        for t in (0..steps.len()).rev() {
            let (at, active) = (steps.offset(t), steps.active(t));
            let (past, present) = d_hidden.split_at_mut(at * h);
            for s in 0..active {
                let row = at + s;
                let previous = match t {
                    0 => &cell0[s * h..(s + 1) * h],
                    _ => &cells[(steps.offset(t - 1) + s) * h..][..h],
                };
                cell_backward(
                    &mut gates[row * g..(row + 1) * g],
                    previous,
                    &cells[row * h..(row + 1) * h],
                    &present[s * h..(s + 1) * h],
                    &mut d_cell[s * h..(s + 1) * h],
                );
            }
            let to = match t {
                0 => &mut d_hidden0[..active * h],
                _ => &mut past[steps.offset(t - 1) * h..][..active * h],
            };
            let step = &gates[at * g..(at + active) * g];
            recurrent.multiply(active, step, to, true);
        }
        let d_gates = gates;
        a.tn(
            (g, h, rows),
            &d_gates,
            &previous_hidden,
            &mut gradients[at::RECURRENT],
            true,
        );
        a.tn(
            (g, inputs, rows),
            &d_gates,
            &input,
            &mut gradients[at::TOKEN],
            true,
        );
        let mut d_input = vec![0f32; rows * inputs];
        a.nn(
            (rows, inputs, g),
            &d_gates,
            values[at::TOKEN],
            &mut d_input,
            false,
        );
        dropout(&mut d_input, noise.input, noise.seed);
        let mut d_context = vec![0f32; n * g];
        for (row, (token, place)) in tokens.iter().zip(&places).enumerate() {
            let d = &d_input[row * inputs..(row + 1) * inputs];
            add(
                &d[..e],
                &mut gradients[at::EMBED][*token as usize * e..][..e],
            );
            add(
                &d[e..],
                &mut gradients[at::LANGUAGE][language(*place) * l..][..l],
            );
            add(
                &d_gates[row * g..(row + 1) * g],
                &mut d_context[place * g..(place + 1) * g],
            );
        }
        for row in d_context.chunks_exact(g) {
            add(row, &mut gradients[at::BIAS]);
        }
        let mut d_start = Vec::with_capacity(n * 2 * h);
        for s in 0..n {
            d_start.extend_from_slice(&d_hidden0[s * h..(s + 1) * h]);
            d_start.extend_from_slice(&d_cell[s * h..(s + 1) * h]);
        }
        for row in d_start.chunks_exact(2 * h) {
            add(row, &mut gradients[at::INIT_BIAS]);
        }
        a.tn(
            (g, d, n),
            &d_context,
            &sentence,
            &mut gradients[at::SENTENCE],
            true,
        );
        a.tn(
            (2 * h, d, n),
            &d_start,
            &sentence,
            &mut gradients[at::INIT],
            true,
        );
        let mut d_sentence = vec![0f32; n * d];
        a.nn(
            (n, d, g),
            &d_context,
            values[at::SENTENCE],
            &mut d_sentence,
            false,
        );
        a.nn(
            (n, d, 2 * h),
            &d_start,
            values[at::INIT],
            &mut d_sentence,
            true,
        );
        let mut dx = vec![0f32; n * d];
        for (s, row) in steps.order.iter().zip(d_sentence.chunks_exact(d)) {
            for (to, from) in dx[s * d..(s + 1) * d].iter_mut().zip(row) {
                *to = from * self.factor;
            }
        }
        (loss, dx)
    }
}

/// `n` copies of a row.
fn repeat(row: &[f32], n: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(row.len() * n);
    (0..n).for_each(|_| out.extend_from_slice(row));
    out
}

#[cfg(test)]
#[allow(clippy::needless_range_loop, reason = "written as in the paper")]
mod tests {
    use super::*;

    fn decoder(seed: u64, softmax_samples: usize) -> (Parameters, Decoder) {
        // A parameter of something else comes first.
        let mut parameters = Parameters::default();
        parameters.constant("other", &[3], 0.5);
        let sizes = DecoderSizes {
            embedding_size: 3,
            language_size: 2,
            hidden_size: 5,
            softmax_samples,
        };
        let exact = Arithmetic::F32;
        let decoder = Decoder::new(
            &mut parameters,
            &sizes,
            (4, false),
            (7, 2),
            (0, 1),
            exact,
            seed,
        );
        // Larger than at the start of a training, so that differences show.
        for p in &mut parameters.list_mut()[decoder.first..] {
            p.value = random(p.value.len(), 0.8, 9, p.name.len());
        }
        (parameters, decoder)
    }

    /// The definition, one token after the other, in f64.
    fn reference(
        parameters: &Parameters,
        first: usize,
        x: &[f32],
        targets: Targets<'_>,
        weights: &[f64],
    ) -> f64 {
        let p = |i: usize, k: usize| f64::from(parameters.value(first + i)[k]);
        let (d, e, l, h, v) = (4, 3, 2, 5, 7);
        let sig = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (mut loss, mut count) = (0.0, 0.0);
        for s in 0..targets.sentences.len() {
            let x: Vec<f64> = x[s * d..(s + 1) * d]
                .iter()
                .map(|v| f64::from(*v))
                .collect();
            let linear = |w: usize, b: usize, r: usize| -> f64 {
                (0..d).map(|k| p(w, r * d + k) * x[k]).sum::<f64>() + p(b, r)
            };
            let mut hidden: Vec<f64> = (0..h).map(|r| linear(at::INIT, at::INIT_BIAS, r)).collect();
            let mut cell: Vec<f64> = (h..2 * h)
                .map(|r| linear(at::INIT, at::INIT_BIAS, r))
                .collect();
            let mut token = 0u32;
            for label in targets.sentences.row(s).iter().chain([&1]) {
                let language = targets.languages[s] as usize;
                let input: Vec<f64> = (0..e)
                    .map(|k| p(at::EMBED, token as usize * e + k))
                    .chain((0..l).map(|k| p(at::LANGUAGE, language * l + k)))
                    .collect();
                let gates: Vec<f64> = (0..4 * h)
                    .map(|r| {
                        let n = e + l;
                        linear(at::SENTENCE, at::BIAS, r)
                            + (0..n)
                                .map(|k| p(at::TOKEN, r * n + k) * input[k])
                                .sum::<f64>()
                            + (0..h)
                                .map(|k| p(at::RECURRENT, r * h + k) * hidden[k])
                                .sum::<f64>()
                    })
                    .collect();
                for k in 0..h {
                    cell[k] = sig(gates[h + k]) * cell[k] + sig(gates[k]) * gates[2 * h + k].tanh();
                    hidden[k] = sig(gates[3 * h + k]) * cell[k].tanh();
                }
                let logits: Vec<f64> = (0..v)
                    .map(|r| {
                        (0..h)
                            .map(|k| p(at::OUTPUT, r * h + k) * hidden[k])
                            .sum::<f64>()
                            + p(at::OUTPUT_BIAS, r)
                    })
                    .collect();
                let sum: f64 = logits.iter().zip(weights).map(|(z, w)| w * z.exp()).sum();
                loss += sum.ln() - logits[*label as usize];
                count += 1.0;
                token = *label;
            }
        }
        loss / count
    }

    #[test]
    fn loss_and_gradients_match_the_definition() {
        check(0, |_| vec![1.0; 7]);
    }

    /// Types that no target has count as many times as there are others for each that is drawn.
    #[test]
    fn sampled_loss_and_gradients_match_the_definition() {
        check(1, |decoder| {
            let mut targets = Ragged::new();
            targets.push(&[2, 3, 4, 2]);
            let types = decoder.types(&targets, 0).unwrap();
            let drawn = types.biases(&[0.0; 7]);
            let mut weights = vec![0.0; 7];
            types.add_to(
                &mut weights,
                &drawn.iter().map(|b| b.exp()).collect::<Vec<_>>(),
                1,
            );
            // 1 to 4 are of targets; one of three others is drawn.
            assert_eq!(weights[1..5], [1.0; 4]);
            assert!(
                (weights.iter().sum::<f32>() - 7.0).abs() < 1e-5,
                "{weights:?}"
            );
            weights.into_iter().map(f64::from).collect()
        });
        // As many as there are: the exact softmax.
        check(3, |_| vec![1.0; 7]);
    }

    fn check(samples: usize, weights: impl Fn(&Decoder) -> Vec<f64>) {
        let (mut parameters, decoder) = decoder(3, samples);
        let weights = weights(&decoder);
        let mut sentences = Ragged::new();
        for row in [&[2u32, 3, 4][..], &[3], &[], &[4, 2]] {
            sentences.push(row);
        }
        let targets = Targets {
            sentences: &sentences,
            languages: &[0, 1, 1, 0],
        };
        let mut x = random(16, 1.0, 4, 4);
        for count in [1, 2] {
            let threads = Threads::new(count).unwrap();
            let mut gradients = parameters.zeros();
            let (loss, dx) = decoder.loss(
                &threads,
                &parameters,
                &x,
                targets,
                (0.5, Noise::default()),
                &mut gradients,
            );
            let first = decoder.first;
            assert!((loss - reference(&parameters, first, &x, targets, &weights)).abs() < 1e-5);
            let h = 2e-3f32;
            let close = |gradient: f32, up: f64, down: f64, step: f32| {
                let slope = 0.5 * (up - down) / f64::from(step);
                assert!(
                    (f64::from(gradient) - slope).abs() < 1e-4,
                    "{gradient} {slope}"
                );
            };
            for k in 0..x.len() {
                let value = x[k];
                x[k] = value + h;
                let up = reference(&parameters, first, &x, targets, &weights);
                x[k] = value - h;
                let down = reference(&parameters, first, &x, targets, &weights);
                x[k] = value;
                close(dx[k], up, down, (value + h) - (value - h));
            }
            for i in first..first + PARAMETERS {
                for k in 0..gradients[i].len() {
                    let value = parameters.value(i)[k];
                    let mut at = |to: f32| {
                        parameters.list_mut()[i].value[k] = to;
                        reference(&parameters, first, &x, targets, &weights)
                    };
                    let (up, down) = (at(value + h), at(value - h));
                    at(value);
                    close(gradients[i][k], up, down, (value + h) - (value - h));
                }
            }
        }
    }
}
