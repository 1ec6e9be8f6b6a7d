//! Masked language modelling (Devlin et al., NAACL 2019): from the states of a transformer at masked places to the
//! tokens that stood there.
//!
//! A dense layer with GELU and layer normalisation turns a state into h, and the logit of token v is `h · e_v + b_v`
//! with the embeddings e of the encoder itself. The loss is the mean over the places of the cross entropy.

use laser_kernels::slices::add;
use laser_kernels::training::Arithmetic;
use laser_kernels::training::softmax::row_cross_entropy;
use laser_model::config::Activation;

use crate::models::Parameters;
use crate::ops::dense::{self, Dense, DenseGradients, DenseParameters};
use crate::ops::threads::Threads;

/// Rows of the vocabulary softmax that are worked on at a time.
const TILE: usize = 128;
/// Number of parameters of a head.
const PARAMETERS: usize = 5;

/// What predicts tokens, whose parameters are those from `first` on of the ones it was added to.
#[derive(Clone, Debug)]
pub struct Head {
    layer: Dense,
    vocabulary: usize,
    first: usize,
    arithmetic: Arithmetic,
}

/// A loss with its gradients, beside those of the head.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Mean loss in nats a place.
    pub loss: f64,
    /// Gradient of the states [places, width].
    pub dx: Vec<f32>,
    /// Gradient of the table of token embeddings [vocabulary, width], as what predicts.
    pub table: Vec<f32>,
}

impl Head {
    /// Adds a head's parameters to others.
    pub fn new(
        parameters: &mut Parameters,
        width: usize,
        vocabulary: usize,
        arithmetic: Arithmetic,
        seed: u64,
    ) -> Self {
        let first = parameters.len();
        let bound = (3.0 / width as f32).sqrt();
        parameters.uniform("mlm.weight", &[width, width], bound, seed);
        parameters.constant("mlm.bias", &[width], 0.0);
        parameters.constant("mlm.norm.weight", &[width], 1.0);
        parameters.constant("mlm.norm.bias", &[width], 0.0);
        parameters.constant("mlm.output.bias", &[vocabulary], 0.0);
        let layer = Dense {
            input: width,
            output: width,
            activation: Activation::Gelu,
            residual: false,
            layer_norm: true,
        };
        Self {
            layer,
            vocabulary,
            first,
            arithmetic,
        }
    }

    /// The loss at states `x` [places, width] where the tokens are `labels`, divided by `total` places instead of
    /// their number where they are a part of them. Adds `weight` times the gradients of the head to `gradients` (a
    /// buffer for each of `parameters`); the others are multiplied by it as well. The embeddings of tokens are the
    /// first of the parameters.
    pub fn loss(
        &self,
        threads: &Threads,
        parameters: &Parameters,
        x: &[f32],
        labels: &[u32],
        (weight, total): (f32, usize),
        gradients: &mut [Vec<f32>],
    ) -> Prediction {
        let d = self.layer.input;
        let factor = weight / total as f32;
        let parts = threads.map(threads.split(labels.len()), |_, range| {
            let states = &x[range.start * d..range.end * d];
            self.shard(parameters, states, &labels[range], factor)
        });
        let mut all = Prediction {
            loss: 0.0,
            dx: Vec::with_capacity(x.len()),
            table: vec![0.0; self.vocabulary * d],
        };
        for (part, own) in parts {
            all.loss += part.loss / total as f64;
            all.dx.extend_from_slice(&part.dx);
            add(&part.table, &mut all.table);
            let into = &mut gradients[self.first..self.first + PARAMETERS];
            for (sum, own) in into.iter_mut().zip(&own) {
                add(own, sum);
            }
        }
        all
    }

    /// Sum of the losses of some places; `factor` times its gradients, with those of the head.
    fn shard(
        &self,
        parameters: &Parameters,
        x: &[f32],
        labels: &[u32],
        factor: f32,
    ) -> (Prediction, Vec<Vec<f32>>) {
        let (d, v, a) = (self.layer.input, self.vocabulary, self.arithmetic);
        let value = |i: usize| parameters.value(self.first + i);
        let (table, bias) = (parameters.value(0), value(4));
        let own = DenseParameters {
            weight: value(0),
            bias: value(1),
            norm: Some((value(2), value(3))),
        };
        let (hidden, saved) = dense::forward(&self.layer, own, x.to_vec(), a);
        let mut gradients: Vec<Vec<f32>> =
            (0..PARAMETERS).map(|i| vec![0.0; value(i).len()]).collect();
        let mut d_table = vec![0f32; v * d];
        let mut d_hidden = vec![0f32; hidden.len()];
        let mut loss = 0f64;
        let mut logits = vec![0f32; TILE.min(labels.len()) * v];
        for from in (0..labels.len()).step_by(TILE) {
            let to = labels.len().min(from + TILE);
            let m = to - from;
            let tile = &mut logits[..m * v];
            for row in tile.chunks_exact_mut(v) {
                row.copy_from_slice(bias);
            }
            let states = &hidden[from * d..to * d];
            a.nt((m, v, d), states, table, tile, true);
            for (row, label) in tile.chunks_exact_mut(v).zip(&labels[from..to]) {
                loss += row_cross_entropy(row, *label as usize, factor);
                add(row, &mut gradients[4]);
            }
            a.nn(
                (m, d, v),
                tile,
                table,
                &mut d_hidden[from * d..to * d],
                false,
            );
            a.tn((v, d, m), tile, states, &mut d_table, true);
        }
        let [weight, bias, gain, offset, _] = &mut gradients[..] else {
            unreachable!("a head has {PARAMETERS} parameters")
        };
        let into = DenseGradients {
            weight,
            bias,
            norm: Some((gain, offset)),
        };
        let dx = dense::backward(&self.layer, own, saved, d_hidden, into, a);
        let part = Prediction {
            loss,
            dx,
            table: d_table,
        };
        (part, gradients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;

    const WIDTH: usize = 4;
    const VOCABULARY: usize = 6;

    #[test]
    fn loss_and_gradients_match_finite_differences() {
        let mut parameters = Parameters::default();
        let table = random(VOCABULARY * WIDTH, 1.0, 3, 1);
        parameters.push_sparse("embed_tokens.weight", &[VOCABULARY, WIDTH], table);
        parameters.constant("other", &[2], 0.5);
        let head = Head::new(&mut parameters, WIDTH, VOCABULARY, Arithmetic::F32, 5);
        for (i, p) in parameters.list_mut().iter_mut().enumerate().skip(2) {
            let noise = random(p.value.len(), 0.5, 8, i);
            add(&noise, &mut p.value);
        }
        let labels = [2, 0, 5, 2, 1];
        let mut x = random(labels.len() * WIDTH, 1.0, 4, 4);
        for count in [1, 2] {
            let threads = Threads::new(count).unwrap();
            let run = |parameters: &Parameters, x: &[f32]| {
                let mut gradients = parameters.zeros();
                let weight = (0.5, labels.len());
                let found = head.loss(&threads, parameters, x, &labels, weight, &mut gradients);
                (found, gradients)
            };
            let (found, mut gradients) = run(&parameters, &x);
            gradients[0] = found.table.clone();
            let close = |gradient: f32, up: f64, down: f64, what: &str| {
                let slope = 0.5 * (up - down) / 4e-3;
                let difference = (f64::from(gradient) - slope).abs();
                assert!(difference < 1e-3, "{what}: {gradient} {slope}");
            };
            for k in 0..x.len() {
                let value = x[k];
                let mut at = |to: f32| {
                    x[k] = to;
                    run(&parameters, &x).0.loss
                };
                let (up, down) = (at(value + 2e-3), at(value - 2e-3));
                at(value);
                close(found.dx[k], up, down, "state");
            }
            for (i, buffer) in gradients.iter().enumerate() {
                for (k, gradient) in buffer.iter().enumerate() {
                    let value = parameters.value(i)[k];
                    let mut at = |to: f32| {
                        parameters.list_mut()[i].value[k] = to;
                        run(&parameters, &x).0.loss
                    };
                    let (up, down) = (at(value + 2e-3), at(value - 2e-3));
                    at(value);
                    close(*gradient, up, down, &parameters.list()[i].name.clone());
                }
            }
            // Halves of the places, each divided by all, make the whole.
            let half = |from: usize, to: usize| {
                let mut own = parameters.zeros();
                let states = &x[from * WIDTH..to * WIDTH];
                let weight = (0.5, labels.len());
                let labels = &labels[from..to];
                head.loss(&threads, &parameters, states, labels, weight, &mut own)
                    .loss
            };
            assert!((half(0, 2) + half(2, 5) - found.loss).abs() < 1e-6);
        }
    }
}
