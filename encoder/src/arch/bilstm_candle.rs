//! The stacked LSTM of one or two directions in candle, for GPUs: weights resident on the device, in f32 or bf16, cell
//! states always in f32.
//!
//! Tokens are stored step by step as in [`super::bilstm`], so nothing is padded. The input products
//! of all steps and directions are one matrix product. What follows is one kernel for the
//! whole layer ([`laser_cuda::lstm`]) where there is one for the device and the type; elsewhere
//! candle runs step by step.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::sigmoid;
use laser_cuda::lstm::{self, Pooling, Shape, Steps};

use super::Model;
use super::bilstm::packing;
use crate::EncoderError;
use crate::batch::Budget;
use laser_kernels::packing::Packing;
use laser_model::config::{BilstmConfig, BilstmPooling};
use laser_model::folder::Weights;

/// One layer, forward direction first.
struct Layer {
    /// [directions, 4H, in] as one matrix.
    input: Tensor,
    /// Those of the states.
    weights: lstm::Weights,
}

pub(crate) struct BilstmCandle {
    table: Tensor,
    pub(super) layers: LayersCandle,
}

/// The layers above the token embeddings.
pub(super) struct LayersCandle {
    device: Device,
    dtype: DType,
    layers: Vec<Layer>,
    shape: Shape,
    pooling: BilstmPooling,
    /// Whether a layer is one kernel.
    pub(super) fused: bool,
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
        let size = config.embedding_size;
        let table = weights.matrix("embed_tokens.weight", rows, size)?.to_f32();
        Ok(Self {
            table: Tensor::from_vec(table, (rows, size), device)?.to_dtype(dtype)?,
            layers: LayersCandle::load(config, weights, device, dtype)?,
        })
    }
}

impl LayersCandle {
    /// Copies the weights to `device` as `dtype`.
    pub fn load(
        config: &BilstmConfig,
        weights: &Weights,
        device: &Device,
        dtype: DType,
    ) -> std::result::Result<Self, EncoderError> {
        let (hidden, directions) = (config.hidden_size, config.directions());
        let shape = Shape { directions, hidden };
        let matrix = |name: &str, rows: usize, columns: usize| {
            let values = weights.matrix(name, rows, columns)?.to_f32();
            let tensor = Tensor::from_vec(values, (rows, columns), device)?.to_dtype(dtype)?;
            Ok::<_, EncoderError>(tensor)
        };
        let layer = |layer: usize| {
            let size = config.input_size(layer);
            let (mut input, mut recurrent, mut biases) = (Vec::new(), Vec::new(), Vec::new());
            for suffix in config.suffixes() {
                let name = |what: &str| format!("lstm.{what}_l{layer}{suffix}");
                input.push(matrix(&name("weight_ih"), 4 * hidden, size)?);
                recurrent.push(matrix(&name("weight_hh"), 4 * hidden, hidden)?);
                let mut bias = weights.vector(&name("bias_ih"), 4 * hidden)?;
                for (x, y) in bias
                    .iter_mut()
                    .zip(weights.vector(&name("bias_hh"), 4 * hidden)?)
                {
                    *x += y;
                }
                biases.extend(bias);
            }
            Ok::<_, EncoderError>(Layer {
                input: Tensor::cat(&input, 0)?,
                weights: lstm::Weights {
                    recurrent: Tensor::stack(&recurrent, 0)?,
                    bias: Tensor::from_vec(biases, (directions, 4 * hidden), device)?,
                },
            })
        };
        Ok(Self {
            device: device.clone(),
            dtype,
            layers: (0..config.layers)
                .map(layer)
                .collect::<std::result::Result<_, _>>()?,
            shape,
            pooling: config.pooling,
            fused: lstm::supported(device, dtype, shape),
        })
    }

    /// The rows of `table` of all tokens, [tokens, E].
    fn embed(&self, table: &Tensor, sequences: &[&[u32]], packing: &Packing) -> Result<Tensor> {
        let mut ids = Vec::with_capacity(packing.tokens());
        for t in 0..packing.steps() {
            ids.extend(sequences[..packing.active(t)].iter().map(|s| s[t]));
        }
        let ids = Tensor::from_vec(ids, packing.tokens(), &self.device)?;
        table.index_select(&ids, 0)?.to_dtype(self.dtype)
    }

    /// Pools with one kernel a layer.
    fn pooled(
        &self,
        table: &Tensor,
        sequences: &[&[u32]],
        packing: &Packing,
        out: &mut [f32],
    ) -> Result<()> {
        let Some((last, below)) = self.layers.split_last() else {
            candle_core::bail!("an LSTM has layers")
        };
        let lengths: Vec<usize> = sequences.iter().map(|s| s.len()).collect();
        let steps = Steps::new(&lengths, &self.device)?;
        let mut x = self.embed(table, sequences, packing)?;
        for layer in below {
            let products = x.matmul(&layer.input.t()?)?;
            x = lstm::forward(&steps, &products, &layer.weights, None, false)?.states;
        }
        let products = x.matmul(&last.input.t()?)?;
        let pooling = match self.pooling {
            BilstmPooling::Max => Pooling::Max,
            BilstmPooling::Mean => Pooling::Sum,
            BilstmPooling::Last => Pooling::Last,
        };
        let outputs = lstm::forward(&steps, &products, &last.weights, Some(pooling), false)?;
        if let Some(pooled) = outputs.pooled {
            out.copy_from_slice(&pooled.flatten_all()?.to_vec1::<f32>()?);
        }
        if pooling == Pooling::Sum {
            for (length, out) in lengths.iter().zip(out.chunks_exact_mut(self.shape.width())) {
                let scale = 1.0 / *length as f32;
                out.iter_mut().for_each(|y| *y *= scale);
            }
        }
        Ok(())
    }

    /// States of one direction, [tokens, H], from its input products, [tokens, 4H], step by step.
    fn run(
        &self,
        layer: &Layer,
        direction: usize,
        products: &Tensor,
        packing: &Packing,
    ) -> Result<Tensor> {
        let (hidden, reverse) = (self.shape.hidden, direction == 1);
        let recurrent = layer.weights.recurrent.get(direction)?.t()?;
        let products = products
            .to_dtype(DType::F32)?
            .broadcast_add(&layer.weights.bias.get(direction)?)?;
        let zeros = |rows: usize, dtype| Tensor::zeros((rows, hidden), dtype, &self.device);
        let mut state = zeros(
            packing.active(if reverse { packing.steps() - 1 } else { 0 }),
            self.dtype,
        )?;
        let mut cell = state.to_dtype(DType::F32)?;
        let mut states = Vec::with_capacity(packing.steps());
        for i in 0..packing.steps() {
            let t = if reverse { packing.steps() - 1 - i } else { i };
            let (rows, before) = (packing.active(t), cell.dim(0)?);
            // Forwards, sentences end; backwards, they begin, from zero.
            if rows > before {
                let new = rows - before;
                state = Tensor::cat(&[&state, &zeros(new, self.dtype)?], 0)?;
                cell = Tensor::cat(&[&cell, &zeros(new, DType::F32)?], 0)?;
            } else if rows < before {
                state = state.narrow(0, 0, rows)?;
                cell = cell.narrow(0, 0, rows)?;
            }
            let mut sums = products.narrow(0, packing.offset(t), rows)?;
            if i > 0 {
                sums = (sums + state.matmul(&recurrent)?.to_dtype(DType::F32)?)?;
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

    /// States of the last layer, [tokens, width], on the host, step by step.
    fn states(&self, table: &Tensor, sequences: &[&[u32]], packing: &Packing) -> Result<Vec<f32>> {
        let mut x = self.embed(table, sequences, packing)?;
        for layer in &self.layers {
            let products = x.matmul(&layer.input.t()?)?;
            let products = products.chunk(self.shape.directions, D::Minus1)?;
            let states = products.iter().enumerate();
            let states = states.map(|(d, products)| self.run(layer, d, products, packing));
            x = Tensor::cat(&states.collect::<Result<Vec<_>>>()?, D::Minus1)?;
        }
        x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
    }

    /// Pools the states of one sentence; `at(t)` are those of its token t.
    fn pool<'a>(&self, length: usize, at: impl Fn(usize) -> &'a [f32], out: &mut [f32]) {
        out.copy_from_slice(at(0));
        match self.pooling {
            BilstmPooling::Last => {
                let hidden = self.shape.hidden;
                out[..hidden].copy_from_slice(&at(length - 1)[..hidden]);
            }
            BilstmPooling::Max => {
                for t in 1..length {
                    out.iter_mut().zip(at(t)).for_each(|(y, x)| *y = y.max(*x));
                }
            }
            BilstmPooling::Mean => {
                for t in 1..length {
                    out.iter_mut().zip(at(t)).for_each(|(y, x)| *y += x);
                }
                let scale = 1.0 / length as f32;
                out.iter_mut().for_each(|y| *y *= scale);
            }
        }
    }

    /// Pools the states of each sequence, whose ids are rows of `table`, into its row of `out`
    /// [sequences, width], as [`Model::encode`].
    pub fn encode(&self, table: &Tensor, sequences: &[&[u32]], out: &mut [f32]) -> Result<()> {
        let width = self.shape.width();
        let (sequences, out) = super::with_tokens(sequences, out, width);
        if sequences.is_empty() {
            return Ok(());
        }
        let packing = packing(sequences);
        if self.fused {
            return self.pooled(table, sequences, &packing, out);
        }
        let states = self.states(table, sequences, &packing)?;
        for (row, (ids, out)) in sequences
            .iter()
            .zip(out.chunks_exact_mut(width))
            .enumerate()
        {
            let at = |t: usize| &states[(packing.offset(t) + row) * width..][..width];
            self.pool(ids.len(), at, out);
        }
        Ok(())
    }

    /// Floating point operations for each step.
    pub fn flops_per_token(&self) -> usize {
        let weights = |l: &Layer| l.input.elem_count() + l.weights.recurrent.elem_count();
        self.layers.iter().map(|l| 2 * weights(l)).sum()
    }

    /// What a batch may have at most.
    pub fn budget(&self) -> Budget {
        super::budget_on(&self.device)
    }

    /// Bytes of the weights in host memory.
    pub fn bytes(&self) -> usize {
        if self.device.is_cpu() {
            self.flops_per_token() / 2 * self.dtype.size_in_bytes()
        } else {
            0
        }
    }
}

impl Model for BilstmCandle {
    fn vocabulary(&self) -> usize {
        self.table.dims()[0]
    }

    fn width(&self) -> usize {
        self.layers.shape.width()
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        _parallel: bool,
    ) -> std::result::Result<(), EncoderError> {
        Ok(self.layers.encode(&self.table, sequences, out)?)
    }

    fn flops_per_token(&self) -> usize {
        self.layers.flops_per_token()
    }

    fn lanes(&self, _threads: usize) -> usize {
        // The device takes one batch after the other.
        1
    }

    fn budget(&self) -> Budget {
        self.layers.budget()
    }

    fn bytes(&self) -> usize {
        self.layers.bytes()
    }
}
