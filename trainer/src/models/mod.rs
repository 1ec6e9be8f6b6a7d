//! Sentence encoders that can be trained: parameters, forward and backward.
//!
//! A model is an architecture of the encoder crate ([`Config`]) with its parameters. The forward
//! pass of some sentences of a batch runs on one thread and returns what the backward pass needs;
//! [`Model::forward`] and [`Model::backward`] split a batch over threads.

mod body;
mod error;
mod lstm;
pub mod parameters;
mod pass;
pub mod perceptron;
mod regularization;
mod residual;
#[cfg(test)]
mod tests;
mod transformer;

use std::borrow::Cow;
use std::ops::Range;

use laser_model::config::{Architecture, Config};

use crate::data::Ragged;
use crate::ops::dense::{self, DenseGradients, DenseParameters, DenseSaved};
use crate::ops::lstm_device::LstmDevice;
use crate::ops::pool::Occurrences;
use crate::ops::threads::{Threads, cut};
use laser_kernels::training::dropout::dropout;
use laser_kernels::training::{Arithmetic, l2};

pub use error::ModelError;
pub use parameters::{Parameter, Parameters};
use pass::Pass;
pub use regularization::Regularization;

/// A sentence encoder with its parameters.
#[derive(Clone, Debug)]
pub struct Model {
    config: Config,
    parameters: Parameters,
    /// Position of the first parameter of the dense layers.
    dense_begin: usize,
    /// Position of the first parameter that belongs to an objective and not to the encoder.
    objective_begin: usize,
    /// Appended to every sentence.
    eos: Option<u32>,
    arithmetic: Arithmetic,
    /// Where the BiLSTM runs, if not here.
    device: Option<LstmDevice>,
}

/// What the backward pass of one shard needs.
#[derive(Debug)]
pub struct Saved {
    sentences: Range<usize>,
    body: body::BodySaved,
    dense: Vec<DenseSaved>,
    /// Unit vectors and norms, if the model normalises.
    unit: Option<(Vec<f32>, Vec<f32>)>,
    seed: u64,
}

/// What the backward pass of the states of one shard needs.
#[derive(Debug)]
pub struct TokenStatesSaved {
    /// Rows of the output.
    rows: Range<usize>,
    sentences: Range<usize>,
    body: body::BodySaved,
    regularization: Regularization,
}

/// What [`Model::backward_shard`] gives; summed over the shards of a batch by the caller.
#[derive(Debug)]
pub struct ShardGradients {
    /// One buffer for every dense parameter; empty for sparse ones.
    pub dense: Vec<Vec<f32>>,
    /// Gradient of the embedding table.
    pub embeddings: Occurrences,
}

impl Model {
    /// A model with random parameters.
    ///
    /// # Errors
    /// [`ModelError::Config`] if the configuration is invalid, or of an architecture that is not trained here.
    pub fn new(
        config: Config,
        vocabulary: usize,
        eos: Option<u32>,
        arithmetic: Arithmetic,
        seed: u64,
    ) -> Result<Self, ModelError> {
        config
            .validate()
            .map_err(|e| ModelError::Config(e.to_string()))?;
        if let Architecture::RotaryTransformer(_) = &config.encoder {
            let message = "architecture \"rotary_transformer\" is for models that are imported: it cannot be trained";
            return Err(ModelError::Config(message.into()));
        }
        let append = matches!(&config.encoder, Architecture::Bilstm(c) if c.append_eos);
        if append && eos.is_none() {
            let message = "append_eos is set, but the tokenizer has no token \"</s>\"";
            return Err(ModelError::Config(message.into()));
        }
        let mut parameters = Parameters::default();
        body::initialise(&config.encoder, vocabulary, &mut parameters, seed);
        let dense_begin = parameters.len();
        for (i, layer) in config.dense.iter().enumerate() {
            let bound = (6.0 / (layer.input + layer.output) as f32).sqrt();
            let name = format!("dense.{i}.weight");
            parameters.uniform(&name, &[layer.output, layer.input], bound, seed);
            parameters.constant(&format!("dense.{i}.bias"), &[layer.output], 0.0);
            if layer.layer_norm {
                parameters.constant(&format!("dense.{i}.norm.weight"), &[layer.output], 1.0);
                parameters.constant(&format!("dense.{i}.norm.bias"), &[layer.output], 0.0);
            }
        }
        let objective_begin = parameters.len();
        let eos = eos.filter(|_| append);
        Ok(Self {
            config,
            parameters,
            dense_begin,
            objective_begin,
            eos,
            arithmetic,
            device: None,
        })
    }

    /// The model with its BiLSTM on a device; embeddings, dense layers and parameters stay on the
    /// processor. Passes then take all sentences at once instead of a shard a thread.
    ///
    /// # Errors
    /// [`ModelError::Config`] for another architecture.
    pub fn on_device(mut self, device: LstmDevice) -> Result<Self, ModelError> {
        let lstm = matches!(
            self.config.encoder,
            Architecture::Bilstm(_) | Architecture::ResidualBilstm(_)
        );
        if !lstm {
            let message =
                "only the architectures \"bilstm\" and \"residual_bilstm\" are trained on a device";
            return Err(ModelError::Config(message.into()));
        }
        self.device = Some(device);
        Ok(self)
    }

    /// Adds a parameter that an objective needs and that is not part of the encoder; returns its
    /// position.
    pub fn add_objective_parameter(
        &mut self,
        name: &str,
        shape: &[usize],
        value: Vec<f32>,
    ) -> usize {
        self.parameters.push(name, shape, value);
        self.parameters.len() - 1
    }

    /// The tensors of the encoder: what a model folder holds.
    pub fn encoder_parameters(&self) -> &[Parameter] {
        &self.parameters.list()[..self.objective_begin]
    }

    /// The model with other values of its parameters, one buffer for each; frozen ones stay.
    #[must_use]
    pub fn with(&self, values: &[Vec<f32>]) -> Self {
        let mut model = self.clone();
        let frozen = self.parameters.frozen();
        let list = model.parameters.list_mut().iter_mut().zip(values);
        for (parameter, value) in list.skip(frozen) {
            parameter.value.copy_from_slice(value);
        }
        model
    }

    /// Sentences as the encoder sees them: with the end token, where it appends one.
    pub fn prepare<'a>(&self, batch: &'a Ragged) -> Cow<'a, Ragged> {
        let Some(eos) = self.eos else {
            return Cow::Borrowed(batch);
        };
        let mut ended = Ragged::new();
        for i in 0..batch.len() {
            let row = batch.row(i);
            ended
                .ids
                .extend_from_slice(&row[..row.len().min(self.config.max_tokens - 1)]);
            ended.push(&[eos]);
        }
        Cow::Owned(ended)
    }

    /// The architecture.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// How its products are rounded.
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// Width of the sentence embeddings.
    pub fn dimensions(&self) -> usize {
        self.config.dimensions
    }

    /// Width of the token embeddings.
    pub fn embedding_size(&self) -> usize {
        self.config.encoder.embedding_size()
    }

    /// Parameters of the encoder, then those that objectives have added.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// All parameters, to be changed by an optimiser or a checkpoint.
    pub fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }

    /// Whether tokens have learned weights.
    pub fn has_token_weights(&self) -> bool {
        self.parameters.sparse() == 2
    }

    fn dense_parameters(&self, layer: usize) -> (usize, DenseParameters<'_>) {
        let at = self.dense_begin
            + self.config.dense[..layer]
                .iter()
                .map(|d| if d.layer_norm { 4 } else { 2 })
                .sum::<usize>();
        let value = |i: usize| self.parameters.value(at + i);
        let norm = self.config.dense[layer]
            .layer_norm
            .then(|| (value(2), value(3)));
        (
            at,
            DenseParameters {
                weight: value(0),
                bias: value(1),
                norm,
            },
        )
    }

    /// What a pass of the body works on.
    fn pass<'a>(
        &'a self,
        batch: &'a Ragged,
        sentences: Range<usize>,
        regularization: Regularization,
    ) -> Pass<'a> {
        Pass {
            parameters: &self.parameters,
            dense: self.parameters.sparse()..self.dense_begin,
            arithmetic: self.arithmetic,
            device: self.device.as_ref(),
            batch,
            sentences,
            regularization,
        }
    }

    /// Embeddings [sentences, dimensions] of some sentences of a batch, on the calling thread.
    ///
    /// # Errors
    /// [`ModelError::Device`].
    pub fn forward_shard(
        &self,
        batch: &Ragged,
        sentences: Range<usize>,
        regularization: Option<Regularization>,
    ) -> Result<(Vec<f32>, Saved), ModelError> {
        let regularization = regularization.unwrap_or_default();
        let seed = regularization.seed ^ (sentences.start as u64).wrapping_mul(0x9e37_79b9_7f4a);
        let shard = Regularization {
            seed,
            ..regularization
        };
        let pass = self.pass(batch, sentences.clone(), shard);
        let (mut x, body) = body::forward(&self.config.encoder, &pass)?;
        let mut saved = Vec::with_capacity(self.config.dense.len());
        for (i, layer) in self.config.dense.iter().enumerate() {
            dropout(&mut x, regularization.hidden, dense_seed(seed, i));
            let (y, s) = dense::forward(layer, self.dense_parameters(i).1, x, self.arithmetic);
            x = y;
            saved.push(s);
        }
        let unit = self.config.normalize.then(|| {
            let norms = l2::normalize(&mut x, self.config.dimensions);
            (x.clone(), norms)
        });
        let saved = Saved {
            sentences,
            body,
            dense: saved,
            unit,
            seed,
        };
        Ok((x, saved))
    }

    /// Gradients from the gradient `dx` [sentences, dimensions] of a shard's embeddings.
    ///
    /// # Errors
    /// [`ModelError::Device`].
    pub fn backward_shard(
        &self,
        batch: &Ragged,
        saved: Saved,
        mut dx: Vec<f32>,
        regularization: Option<Regularization>,
    ) -> Result<ShardGradients, ModelError> {
        let regularization = Regularization {
            seed: saved.seed,
            ..regularization.unwrap_or_default()
        };
        let mut dense: Vec<Vec<f32>> = self.parameters.zeros();
        if let Some((unit, norms)) = &saved.unit {
            l2::normalize_backward(unit, norms, &mut dx, self.config.dimensions);
        }
        for (i, (layer, saved)) in self.config.dense.iter().zip(saved.dense).enumerate().rev() {
            let (at, parameters) = self.dense_parameters(i);
            let [weight, bias, norm @ ..] = &mut dense[at..at + parameters_of(layer)] else {
                unreachable!("a dense layer has a weight and a bias")
            };
            let norm = match norm {
                [gain, shift] => Some((&mut gain[..], &mut shift[..])),
                _ => None,
            };
            let gradients = DenseGradients { weight, bias, norm };
            dx = dense::backward(layer, parameters, saved, dx, gradients, self.arithmetic);
            dropout(
                &mut dx,
                regularization.hidden,
                dense_seed(saved_seed(&regularization), i),
            );
        }
        let pass = self.pass(batch, saved.sentences, regularization);
        let embeddings = body::backward(&self.config.encoder, &pass, saved.body, dx, &mut dense)?;
        let frozen = self.parameters.frozen() > 0;
        let embeddings = if frozen {
            Occurrences::default()
        } else {
            embeddings
        };
        Ok(ShardGradients { dense, embeddings })
    }

    /// Embeddings [sentences, dimensions] of some sentences of a batch, with what the backward
    /// pass needs.
    ///
    /// # Errors
    /// [`ModelError::Device`].
    pub fn forward(
        &self,
        threads: &Threads,
        batch: &Ragged,
        sentences: Range<usize>,
        regularization: Option<Regularization>,
    ) -> Result<(Vec<f32>, Vec<Saved>), ModelError> {
        let shards = self.shards(threads, batch, sentences.clone());
        let parts = threads.map(shards, |_, range| {
            self.forward_shard(batch, range, regularization)
        });
        let mut out = Vec::with_capacity(sentences.len() * self.config.dimensions);
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            let (x, saved) = part?;
            out.extend_from_slice(&x);
            all.push(saved);
        }
        Ok((out, all))
    }

    /// Gradients of every shard from the gradient `dx` of the embeddings of the whole batch.
    ///
    /// # Errors
    /// [`ModelError::Device`].
    pub fn backward(
        &self,
        threads: &Threads,
        batch: &Ragged,
        saved: Vec<Saved>,
        dx: &[f32],
        regularization: Option<Regularization>,
    ) -> Result<Vec<ShardGradients>, ModelError> {
        let width = self.config.dimensions;
        let gradients = threads.map(saved, |_, saved| {
            let part = &dx[saved.sentences.start * width..saved.sentences.end * width];
            self.backward_shard(batch, saved, part.to_vec(), regularization)
        });
        gradients.into_iter().collect()
    }

    /// States [places, width] of a transformer at places of some sentences of a batch, with what the backward pass
    /// needs.
    ///
    /// # Errors
    /// [`ModelError::Config`] for other architectures.
    pub fn forward_places(
        &self,
        threads: &Threads,
        batch: &Ragged,
        sentences: Range<usize>,
        places: &Ragged,
        regularization: Regularization,
    ) -> Result<(Vec<f32>, Vec<TokenStatesSaved>), ModelError> {
        let begin = places.starts[sentences.start];
        let shards = self.shards(threads, batch, sentences);
        let parts = threads.map(shards, |_, sentences| {
            let seed =
                regularization.seed ^ (sentences.start as u64).wrapping_mul(0x9e37_79b9_7f4a);
            let regularization = Regularization {
                seed,
                ..regularization
            };
            let pass = self.pass(batch, sentences.clone(), regularization);
            let (x, body) = body::forward_places(&self.config.encoder, &pass, places)?;
            let rows = places.starts[sentences.start] - begin..places.starts[sentences.end] - begin;
            let saved = TokenStatesSaved {
                rows,
                sentences,
                body,
                regularization,
            };
            Some((x, saved))
        });
        let (mut out, mut all) = (Vec::new(), Vec::new());
        for part in parts {
            let (x, saved) = part.ok_or_else(|| {
                ModelError::Config("only a transformer predicts masked tokens".into())
            })?;
            out.extend_from_slice(&x);
            all.push(saved);
        }
        Ok((out, all))
    }

    /// Gradients of every shard from the gradient `dx` [places, width] of all states.
    ///
    /// # Errors
    /// Of [`Model::forward_places`].
    pub fn backward_places(
        &self,
        threads: &Threads,
        batch: &Ragged,
        saved: Vec<TokenStatesSaved>,
        dx: &[f32],
    ) -> Result<Vec<ShardGradients>, ModelError> {
        let width = self.config.encoder.output_size();
        let gradients = threads.map(saved, |_, saved| {
            let part = dx[saved.rows.start * width..saved.rows.end * width].to_vec();
            let mut dense = self.parameters.zeros();
            let pass = self.pass(batch, saved.sentences, saved.regularization);
            let architecture = &self.config.encoder;
            let embeddings = body::backward(architecture, &pass, saved.body, part, &mut dense)?;
            let frozen = self.parameters.frozen() > 0;
            let embeddings = if frozen {
                Occurrences::default()
            } else {
                embeddings
            };
            Ok(ShardGradients { dense, embeddings })
        });
        gradients.into_iter().collect()
    }

    /// Embeddings [sentences, dimensions] for use: in blocks, so that long lists need little
    /// memory.
    ///
    /// # Errors
    /// [`ModelError::Device`].
    pub fn encode(&self, threads: &Threads, batch: &Ragged) -> Result<Vec<f32>, ModelError> {
        let width = self.config.dimensions;
        let mut out = vec![0f32; batch.len() * width];
        let shards = self.shards(threads, batch, 0..batch.len());
        let work = cut(&mut out, &shards, width)
            .into_iter()
            .zip(shards.iter().cloned())
            .collect();
        let results = threads.map(work, |_, (out, range): (&mut [f32], Range<usize>)| {
            // A device gets the weights again for every block.
            let size = if self.device.is_some() { 2048 } else { 256 };
            let begin = range.start;
            for from in range.clone().step_by(size) {
                let block = from..range.end.min(from + size);
                let to = &mut out[(from - begin) * width..(block.end - begin) * width];
                to.copy_from_slice(&self.forward_shard(batch, block, None)?.0);
            }
            Ok(())
        });
        results.into_iter().collect::<Result<(), ModelError>>()?;
        Ok(out)
    }

    /// The ranges of sentences that are computed at the same time.
    fn shards(
        &self,
        threads: &Threads,
        batch: &Ragged,
        sentences: Range<usize>,
    ) -> Vec<Range<usize>> {
        match &self.device {
            // A device takes one after the other.
            Some(_) if sentences.is_empty() => Vec::new(),
            Some(_) => vec![sentences],
            None => shards(threads, batch, sentences),
        }
    }
}

fn parameters_of(layer: &dense::Dense) -> usize {
    if layer.layer_norm { 4 } else { 2 }
}

fn saved_seed(regularization: &Regularization) -> u64 {
    regularization.seed
}

fn dense_seed(seed: u64, layer: usize) -> u64 {
    seed.wrapping_add(0xd1b5_4a32_d192_ed03u64.wrapping_mul(layer as u64 + 1))
}

/// One range of sentences a thread, with about the same number of tokens each.
fn shards(threads: &Threads, batch: &Ragged, sentences: Range<usize>) -> Vec<Range<usize>> {
    // Every sentence also has a cost of its own (dense layers).
    let starts = &batch.starts[sentences.start..=sentences.end];
    let costs: Vec<usize> = starts.iter().enumerate().map(|(i, s)| s + 8 * i).collect();
    let shift = |r: Range<usize>| r.start + sentences.start..r.end + sentences.start;
    threads
        .split_weighted(&costs)
        .into_iter()
        .map(shift)
        .collect()
}
