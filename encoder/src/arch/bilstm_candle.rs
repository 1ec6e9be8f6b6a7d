//! The stacked BiLSTM in candle, for GPUs: weights resident on the device, in f32 or bf16, cell
//! states always in f32.
//!
//! Tokens are stored step by step as in [`super::bilstm`], so nothing is padded; the input products
//! of all steps are one matrix product, each step is one more and the gates.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::sigmoid;

use super::Model;
use super::bilstm::Packing;
use crate::EncoderError;
use crate::config::{BilstmConfig, BilstmPooling};
use crate::folder::Weights;

/// One direction of one layer; matrices transposed, [in, 4H].
struct Direction {
    input: Tensor,
    recurrent: Tensor,
    /// Sum of both biases.
    bias: Tensor,
}

pub(crate) struct BilstmCandle {
    device: Device,
    dtype: DType,
    table: Tensor,
    layers: Vec<[Direction; 2]>,
    hidden: usize,
    pooling: BilstmPooling,
}

impl BilstmCandle {
    /// Copies the weights to `device` as `dtype`.
    pub fn load(
        config: &BilstmConfig,
        weights: &Weights,
        device: &Device,
        dtype: DType,
    ) -> std::result::Result<Self, EncoderError> {
        let rows = weights.rows("embed_tokens.weight")?;
        let hidden = config.hidden_size;
        let matrix = |name: &str, rows: usize, columns: usize| {
            let values = weights.matrix(name, rows, columns)?.to_f32();
            let tensor = Tensor::from_vec(values, (rows, columns), device)?.to_dtype(dtype)?;
            Ok::<_, EncoderError>(tensor)
        };
        let direction = |layer: usize, suffix: &str| {
            let name = |what: &str| format!("lstm.{what}_l{layer}{suffix}");
            let size = if layer == 0 {
                config.embedding_size
            } else {
                2 * hidden
            };
            let mut bias = weights.vector(&name("bias_ih"), 4 * hidden)?;
            for (x, y) in bias
                .iter_mut()
                .zip(weights.vector(&name("bias_hh"), 4 * hidden)?)
            {
                *x += y;
            }
            Ok::<_, EncoderError>(Direction {
                input: matrix(&name("weight_ih"), 4 * hidden, size)?
                    .t()?
                    .contiguous()?,
                recurrent: matrix(&name("weight_hh"), 4 * hidden, hidden)?
                    .t()?
                    .contiguous()?,
                bias: Tensor::from_vec(bias, 4 * hidden, device)?,
            })
        };
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            layers.push([direction(layer, "")?, direction(layer, "_reverse")?]);
        }
        Ok(Self {
            device: device.clone(),
            dtype,
            table: matrix("embed_tokens.weight", rows, config.embedding_size)?,
            layers,
            hidden,
            pooling: config.pooling,
        })
    }

    /// States of one direction of one layer, [tokens, H].
    fn run(
        &self,
        direction: &Direction,
        reverse: bool,
        x: &Tensor,
        packing: &Packing,
    ) -> Result<Tensor> {
        let hidden = self.hidden;
        let products = x
            .matmul(&direction.input)?
            .to_dtype(DType::F32)?
            .broadcast_add(&direction.bias)?;
        let zeros = |rows: usize, dtype| Tensor::zeros((rows, hidden), dtype, &self.device);
        let mut state = zeros(
            packing.active[if reverse { packing.steps() - 1 } else { 0 }],
            self.dtype,
        )?;
        let mut cell = state.to_dtype(DType::F32)?;
        let mut states = Vec::with_capacity(packing.steps());
        for i in 0..packing.steps() {
            let t = if reverse { packing.steps() - 1 - i } else { i };
            let (rows, before) = (packing.active[t], cell.dim(0)?);
            // Forwards, sentences end; backwards, they begin, from zero.
            if rows > before {
                let new = rows - before;
                state = Tensor::cat(&[&state, &zeros(new, self.dtype)?], 0)?;
                cell = Tensor::cat(&[&cell, &zeros(new, DType::F32)?], 0)?;
            } else if rows < before {
                state = state.narrow(0, 0, rows)?;
                cell = cell.narrow(0, 0, rows)?;
            }
            let mut sums = products.narrow(0, packing.offset[t], rows)?;
            if i > 0 {
                let recurrent = state.matmul(&direction.recurrent)?;
                sums = (sums + recurrent.to_dtype(DType::F32)?)?;
            }
            let gate = |g: usize| sums.narrow(D::Minus1, g * hidden, hidden)?.contiguous();
            let kept = (sigmoid(&gate(1)?)? * &cell)?;
            let added = (sigmoid(&gate(0)?)? * gate(2)?.tanh()?)?;
            cell = (kept + added)?;
            state = (sigmoid(&gate(3)?)? * cell.tanh()?)?.to_dtype(self.dtype)?;
            states.push(state.clone());
        }
        if reverse {
            states.reverse();
        }
        Tensor::cat(&states, 0)
    }

    /// States of the last layer, [tokens, 2H], on the host.
    fn forward(&self, sequences: &[&[u32]], packing: &Packing) -> Result<Vec<f32>> {
        let mut ids = Vec::with_capacity(packing.tokens());
        for t in 0..packing.steps() {
            ids.extend(sequences[..packing.active[t]].iter().map(|s| s[t]));
        }
        let ids = Tensor::from_vec(ids, packing.tokens(), &self.device)?;
        let mut x = self.table.index_select(&ids, 0)?;
        for [forward, backward] in &self.layers {
            let forward = self.run(forward, false, &x, packing)?;
            let backward = self.run(backward, true, &x, packing)?;
            x = Tensor::cat(&[forward, backward], D::Minus1)?;
        }
        x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }
}

impl Model for BilstmCandle {
    fn vocabulary(&self) -> usize {
        self.table.dims()[0]
    }

    fn width(&self) -> usize {
        2 * self.hidden
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        _parallel: bool,
    ) -> std::result::Result<(), EncoderError> {
        let (hidden, width) = (self.hidden, self.width());
        let present = sequences.partition_point(|s| !s.is_empty());
        let (out, rest) = out.split_at_mut(present * width);
        rest.fill(0.0);
        let sequences = &sequences[..present];
        if sequences.is_empty() {
            return Ok(());
        }
        let packing = Packing::new(sequences);
        let states = self.forward(sequences, &packing)?;
        for (row, (ids, out)) in sequences
            .iter()
            .zip(out.chunks_exact_mut(width))
            .enumerate()
        {
            let at = |t: usize| &states[(packing.offset[t] + row) * width..][..width];
            out.copy_from_slice(at(0));
            match self.pooling {
                BilstmPooling::Last => {
                    out[..hidden].copy_from_slice(&at(ids.len() - 1)[..hidden]);
                }
                BilstmPooling::Max => {
                    for t in 1..ids.len() {
                        out.iter_mut().zip(at(t)).for_each(|(y, x)| *y = y.max(*x));
                    }
                }
                BilstmPooling::Mean => {
                    for t in 1..ids.len() {
                        out.iter_mut().zip(at(t)).for_each(|(y, x)| *y += x);
                    }
                    let scale = 1.0 / ids.len() as f32;
                    out.iter_mut().for_each(|y| *y *= scale);
                }
            }
        }
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        let weights = |d: &Direction| d.input.elem_count() + d.recurrent.elem_count();
        self.layers.iter().flatten().map(|d| 2 * weights(d)).sum()
    }

    fn lanes(&self, _threads: usize) -> usize {
        // The device takes one batch after the other.
        1
    }

    fn bytes(&self) -> usize {
        if self.device.is_cpu() {
            self.flops_per_token() / 2 * self.dtype.size_in_bytes()
        } else {
            0
        }
    }
}
