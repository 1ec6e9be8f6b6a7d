//! The LSTM of [`super::lstm`] on a device of candle: a GPU, or for tests the processor.
//!
//! Parameters, token embeddings and optimiser stay in host memory; a pass copies the weights and
//! the embeddings of its tokens to the device, a backward pass copies the gradients from there. Products
//! are candle's, the recurrence is that of `laser_cuda`. Dropout makes the masks that the
//! processor's version makes, so that both compute the same but for rounding.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use laser_cuda::lstm::{self as kernels, Gradient, Pooling, Shape};
use laser_model::config::{BilstmConfig, BilstmPooling};
use rayon::prelude::*;

use super::lstm::{LstmStack, Steps, Weights, layer_seed};
use super::pool::{Occurrences, look_up};
use crate::data::Ragged;
use laser_kernels::slices::{add, scale};
use laser_kernels::training::dropout::dropout;

/// Embeddings that a thread copies at a time.
const BLOCK: usize = 1024;

/// Where an LSTM is trained other than on the processor's own operations.
#[derive(Clone, Debug)]
pub struct LstmDevice {
    device: Device,
    /// Of weights, states and products; sums are f32.
    dtype: DType,
}

impl LstmDevice {
    /// CUDA device `ordinal`, with elements in bf16.
    ///
    /// # Errors
    /// If there is none, this build has no support for it, or the layers of `config` do not fit.
    pub fn cuda(ordinal: usize, config: &BilstmConfig) -> Result<Self> {
        let (directions, hidden) = (config.directions(), config.hidden_size);
        let device = Device::new_cuda_with_stream(ordinal)?;
        if !kernels::supported(&device, DType::BF16, Shape { directions, hidden }) {
            candle_core::bail!(
                "an LSTM of {hidden} units cannot be trained on this GPU: units must be a multiple \
                 of 16 and fit into its shared memory (compute capability 8.0 or higher)"
            );
        }
        Ok(Self {
            device,
            dtype: DType::BF16,
        })
    }

    /// candle's CPU device, straightforward and slow: for tests.
    pub fn processor(dtype: DType) -> Self {
        Self {
            device: Device::Cpu,
            dtype,
        }
    }

    fn tensor(&self, values: &[f32], shape: (usize, usize)) -> Result<Tensor> {
        Tensor::from_slice(values, shape, &self.device)?.to_dtype(self.dtype)
    }
}

/// One layer as the backward pass needs it.
#[derive(Debug)]
struct Layer {
    /// Input after dropout, [tokens, inputs].
    input: Tensor,
    /// Factors of dropout, if any.
    mask: Option<Tensor>,
    /// Weights of the input, all directions, [4DH, inputs].
    weights: Tensor,
    /// Weights of the states, [D, 4H, H].
    recurrent: Tensor,
    /// States, [tokens, DH].
    states: Tensor,
    saved: kernels::Saved,
}

/// What the backward pass of a stack needs.
#[derive(Debug)]
pub struct DeviceSaved {
    steps: Steps,
    on_device: kernels::Steps,
    ids: Vec<u32>,
    layers: Vec<Layer>,
    first: usize,
}

fn pooling(of: BilstmPooling) -> Pooling {
    match of {
        BilstmPooling::Max => Pooling::Max,
        BilstmPooling::Mean => Pooling::Sum,
        BilstmPooling::Last => Pooling::Last,
    }
}

/// Length of the sentences that have tokens; they come first.
fn present(steps: &Steps) -> &[usize] {
    &steps.lengths[..steps.active(0)]
}

impl LstmStack<'_> {
    /// As [`LstmStack::forward`].
    ///
    /// # Errors
    /// Failures of the device.
    pub fn forward_on(
        &self,
        on: &LstmDevice,
        table: &[f32],
        batch: &Ragged,
        sentences: Range<usize>,
        dropouts: (f32, f32),
        seed: u64,
    ) -> Result<(Vec<f32>, DeviceSaved)> {
        let (h, width) = (self.hidden_size, self.width());
        let (first, count) = (sentences.start, sentences.len());
        let steps = Steps::new(batch, sentences);
        let ids = steps.ids(batch);
        let on_device = kernels::Steps::new(present(&steps), &on.device)?;
        let mut out = vec![0f32; count * width];
        let mut layers = Vec::new();
        if steps.is_empty() {
            let saved = DeviceSaved {
                steps,
                on_device,
                ids,
                layers,
                first,
            };
            return Ok((out, saved));
        }
        let mut embedded = vec![0f32; steps.rows() * self.input_size];
        embedded
            .par_chunks_mut(BLOCK * self.input_size)
            .zip(ids.par_chunks(BLOCK))
            .for_each(|(to, ids)| look_up(table, ids, self.input_size, to));
        dropout(&mut embedded, dropouts.0, layer_seed(seed, 0));
        let mut input = on.tensor(&embedded, (steps.rows(), self.input_size))?;
        let mut mask = None;
        for (layer, directions) in self.layers.iter().enumerate() {
            let inputs = directions[0].input.len() / (4 * h);
            let matrix = |of: for<'a> fn(&Weights<'a>) -> &'a [f32], columns: usize| {
                let each = directions.iter();
                let each = each.map(|d| on.tensor(of(d), (4 * h, columns)));
                Tensor::stack(&each.collect::<Result<Vec<_>>>()?, 0)
            };
            let weights = matrix(|d| d.input, inputs)?.reshape((4 * width, inputs))?;
            let bias: Vec<f32> = directions
                .iter()
                .flat_map(|d| d.bias_input.iter().zip(d.bias_recurrent))
                .map(|(a, b)| a + b)
                .collect();
            let parameters = kernels::Weights {
                recurrent: matrix(|d| d.recurrent, h)?,
                bias: Tensor::from_vec(bias, (directions.len(), 4 * h), &on.device)?,
            };
            let products = input.matmul(&weights.t()?)?;
            let last = layer + 1 == self.layers.len();
            let pooling = last.then(|| pooling(self.pooling));
            let outputs = kernels::forward(&on_device, &products, &parameters, pooling, true)?;
            let Some(saved) = outputs.saved else {
                candle_core::bail!("the LSTM did not save what was asked for");
            };
            if let Some(pooled) = outputs.pooled {
                let pooled: Vec<f32> = pooled.flatten_all()?.to_vec1()?;
                self.scatter(&steps, first, &pooled, &mut out);
            }
            let next_mask = (!last && dropouts.1 > 0.0)
                .then(|| {
                    let mut factors = vec![1f32; steps.rows() * width];
                    dropout(&mut factors, dropouts.1, layer_seed(seed, layer + 1));
                    on.tensor(&factors, (steps.rows(), width))
                })
                .transpose()?;
            let next = match &next_mask {
                Some(mask) => (&outputs.states * mask)?,
                None => outputs.states.clone(),
            };
            layers.push(Layer {
                input: std::mem::replace(&mut input, next),
                mask: std::mem::replace(&mut mask, next_mask),
                weights,
                recurrent: parameters.recurrent,
                states: outputs.states,
                saved,
            });
        }
        let saved = DeviceSaved {
            steps,
            on_device,
            ids,
            layers,
            first,
        };
        Ok((out, saved))
    }

    /// As [`LstmStack::backward`].
    ///
    /// # Errors
    /// Failures of the device.
    pub fn backward_on(
        &self,
        on: &LstmDevice,
        saved: DeviceSaved,
        dy: &[f32],
        gradients: &mut [Vec<f32>],
        dropouts: (f32, f32),
        seed: u64,
    ) -> Result<Occurrences> {
        let (h, width) = (self.hidden_size, self.width());
        let buffers = 4 * self.directions();
        let DeviceSaved {
            steps,
            on_device,
            ids,
            layers,
            first,
        } = saved;
        let mut source = Vec::new();
        if !steps.is_empty() {
            let d_pooled = self.gather(&steps, first, dy);
            let d_pooled = Tensor::from_vec(d_pooled, (present(&steps).len(), width), &on.device)?;
            let before = previous_rows(&steps, &on.device)?;
            let mut d_states = None;
            for (layer, kept) in layers.iter().enumerate().rev() {
                let gradient = match &d_states {
                    Some(d) => Gradient::States(d),
                    None => Gradient::Pooled(&d_pooled, pooling(self.pooling)),
                };
                let d_products =
                    kernels::backward(&on_device, &kept.recurrent, &kept.saved, gradient)?;
                let own = &mut gradients[buffers * layer..buffers * (layer + 1)];
                parameter_gradients(kept, &d_products, &before, h, own)?;
                if layer == 0 && self.frozen_input {
                    return Ok(Occurrences::default());
                }
                let d_input = d_products.matmul(&kept.weights)?;
                d_states = Some(match &kept.mask {
                    Some(mask) => (d_input * mask)?,
                    None => d_input,
                });
            }
            if let Some(d_embedded) = d_states {
                source = floats(&d_embedded)?;
                dropout(&mut source, dropouts.0, layer_seed(seed, 0));
            }
        }
        if self.frozen_input {
            return Ok(Occurrences::default());
        }
        Ok(Occurrences {
            rows: (0..ids.len() as u32).collect(),
            factors: vec![1.0; ids.len()],
            ids,
            source,
            inner: Vec::new(),
        })
    }

    /// Pooled states from the order of the steps to that of the batch.
    fn scatter(&self, steps: &Steps, first: usize, pooled: &[f32], out: &mut [f32]) {
        let width = self.width();
        for ((row, sentence), length) in pooled
            .chunks_exact(width)
            .zip(&steps.order)
            .zip(&steps.lengths)
        {
            let to = &mut out[(sentence - first) * width..][..width];
            to.copy_from_slice(row);
            if self.pooling == BilstmPooling::Mean {
                scale(1.0 / *length as f32, to);
            }
        }
    }

    /// The inverse of [`LstmStack::scatter`] for gradients.
    fn gather(&self, steps: &Steps, first: usize, dy: &[f32]) -> Vec<f32> {
        let width = self.width();
        let mut rows = Vec::with_capacity(present(steps).len() * width);
        for (sentence, length) in steps.order.iter().zip(present(steps)) {
            let begin = rows.len();
            rows.extend_from_slice(&dy[(sentence - first) * width..][..width]);
            if self.pooling == BilstmPooling::Mean {
                scale(1.0 / *length as f32, &mut rows[begin..]);
            }
        }
        rows
    }
}

fn floats(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// For either direction, the row of the state that each token goes on from; the number of rows
/// where a sentence begins.
fn previous_rows(steps: &Steps, device: &Device) -> Result<[Tensor; 2]> {
    let rows = steps.rows() as u32;
    let tensor = |reverse: bool| {
        let mut previous = Vec::with_capacity(steps.rows());
        for t in 0..steps.len() {
            let (from, known) = super::lstm::before(steps, t, reverse);
            let row = |s: usize| if s < known { (from + s) as u32 } else { rows };
            previous.extend((0..steps.active(t)).map(row));
        }
        Tensor::from_vec(previous, steps.rows(), device)
    };
    Ok([tensor(false)?, tensor(true)?])
}

/// Adds the gradients of a layer's parameters, four buffers a direction.
fn parameter_gradients(
    layer: &Layer,
    d_products: &Tensor,
    before: &[Tensor; 2],
    h: usize,
    gradients: &mut [Vec<f32>],
) -> Result<()> {
    let zero = Tensor::zeros((1, h), layer.states.dtype(), layer.states.device())?;
    for (direction, gradients) in gradients.chunks_exact_mut(4).enumerate() {
        let d = d_products
            .narrow(1, direction * 4 * h, 4 * h)?
            .contiguous()?;
        let states = layer.states.narrow(1, direction * h, h)?;
        let states = Tensor::cat(&[&states, &zero], 0)?;
        let states = states.index_select(&before[direction], 0)?;
        let transposed = d.t()?;
        add(
            &floats(&transposed.matmul(&layer.input)?)?,
            &mut gradients[0],
        );
        add(&floats(&transposed.matmul(&states)?)?, &mut gradients[1]);
        let bias = floats(&d.to_dtype(DType::F32)?.sum(0)?)?;
        add(&bias, &mut gradients[2]);
        add(&bias, &mut gradients[3]);
    }
    Ok(())
}
