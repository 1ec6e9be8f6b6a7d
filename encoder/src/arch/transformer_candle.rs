//! Transformer encoder with learned or relative positions, in candle: for GPUs, and what the kernels are tested
//! against.
//!
//! Token ids go to the device and one row for each text comes back. Products and attention are of a type of
//! their own, f32 or bf16; sums of layers and layer normalisation are f32.

use candle_core::{DType, Device, IndexOp, Tensor};

use super::on_device::OnDevice;
use super::shape::{Kind, Shape};
use crate::EncoderError;
use laser_kernels::attention::Bias;
use laser_model::config::{Activation, NormPosition, TransformerConfig, TransformerPooling};
use laser_model::folder::Weights;
use laser_model::tokenize::SECOND;

struct Norm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl Norm {
    fn load(
        weights: &Weights,
        name: &str,
        config: &TransformerConfig,
        device: &Device,
    ) -> Result<Self, EncoderError> {
        let size = config.hidden_size;
        let vector = |part: &str| -> Result<Tensor, EncoderError> {
            let data = weights.vector(&format!("{name}.{part}"), size)?;
            Ok(Tensor::from_vec(data, size, device)?)
        };
        Ok(Self {
            weight: vector("weight")?,
            bias: vector("bias")?,
            eps: config.layer_norm_eps,
        })
    }

    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        candle_nn::ops::layer_norm(&x.contiguous()?, &self.weight, &self.bias, self.eps as f32)
    }
}

/// y = x Wᵀ + b
pub(super) struct Linear {
    /// Transposed, [in, out].
    pub weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    fn load(
        weights: &Weights,
        name: &str,
        rows: usize,
        columns: usize,
        (device, dtype): (&Device, DType),
    ) -> Result<Self, EncoderError> {
        let bias = weights.vector(&format!("{name}.bias"), rows)?;
        let bias = Tensor::from_vec(bias, rows, device)?.to_dtype(dtype)?;
        Ok(Self {
            bias: Some(bias),
            ..Self::unbiased(weights, name, rows, columns, (device, dtype))?
        })
    }

    /// One whose b is zero.
    pub fn unbiased(
        weights: &Weights,
        name: &str,
        rows: usize,
        columns: usize,
        (device, dtype): (&Device, DType),
    ) -> Result<Self, EncoderError> {
        let matrix = weights.matrix(&format!("{name}.weight"), rows, columns)?;
        Ok(Self {
            weight: Tensor::from_vec(matrix.to_f32(), (rows, columns), device)?
                .to_dtype(dtype)?
                .t()?
                .contiguous()?,
            bias: None,
        })
    }

    /// `x` is [rows, in], of the type of products.
    pub fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let x = x.matmul(&self.weight)?;
        match &self.bias {
            Some(bias) => x.broadcast_add(bias),
            None => Ok(x),
        }
    }
}

pub(super) fn activate(activation: Activation, x: Tensor) -> candle_core::Result<Tensor> {
    match activation {
        Activation::None => Ok(x),
        Activation::Tanh => x.tanh(),
        Activation::Gelu => x.gelu_erf(),
        // In bf16 candle takes every step of it in bf16, which cancels below -1.
        Activation::GeluTanh => x.to_dtype(DType::F32)?.gelu()?.to_dtype(x.dtype()),
        Activation::Relu => x.relu(),
    }
}

/// A batch of sequences, longest first, none of them empty, padded to the longest.
pub(super) struct Padded<'a> {
    sequences: &'a [&'a [u32]],
    device: &'a Device,
    pub batch: usize,
    pub steps: usize,
    /// Zero for a sequence's own tokens and minus infinity for padding, [batch, steps]; `None` without padding.
    pub padding: Option<Tensor>,
}

impl<'a> Padded<'a> {
    pub fn new(sequences: &'a [&'a [u32]], device: &'a Device) -> candle_core::Result<Self> {
        let (batch, steps) = (sequences.len(), sequences[0].len());
        let mut padded = Self {
            sequences,
            device,
            batch,
            steps,
            padding: None,
        };
        if sequences[batch - 1].len() < steps {
            padded.padding = Some(padded.by_token(&|_| 0.0, f32::NEG_INFINITY)?);
        }
        Ok(padded)
    }

    /// `inside` of a sequence's length for its own tokens and `outside` for padding, [batch, steps].
    fn by_token(&self, inside: &dyn Fn(usize) -> f32, outside: f32) -> candle_core::Result<Tensor> {
        let mut values = vec![outside; self.batch * self.steps];
        for (ids, row) in self
            .sequences
            .iter()
            .zip(values.chunks_exact_mut(self.steps))
        {
            row[..ids.len()].fill(inside(ids.len()));
        }
        Tensor::from_vec(values, (self.batch, self.steps), self.device)
    }

    /// Ids of all tokens, without what tells the texts of a pair apart, [batch * steps]. Padding is token 0, which
    /// attention masks.
    pub fn ids(&self) -> candle_core::Result<Tensor> {
        let mut ids = vec![0u32; self.batch * self.steps];
        for (own, row) in self.sequences.iter().zip(ids.chunks_exact_mut(self.steps)) {
            for (row, id) in row.iter_mut().zip(*own) {
                *row = id & !SECOND;
            }
        }
        Tensor::from_vec(ids, self.batch * self.steps, self.device)
    }

    /// What is added to the scores of keys: those of padding do not count. [batch, 1, 1, steps]
    pub fn mask(&self) -> candle_core::Result<Option<Tensor>> {
        let mask = |padding: &Tensor| padding.reshape((self.batch, 1, 1, self.steps));
        self.padding.as_ref().map(mask).transpose()
    }

    /// Pools states [batch * steps, width] over each sentence's own tokens: padding takes no part.
    pub fn pool(&self, x: &Tensor, pooling: TransformerPooling) -> candle_core::Result<Vec<f32>> {
        let x = x.reshape((self.batch, self.steps, ()))?;
        let pooled = match pooling {
            TransformerPooling::Cls => x.i((.., 0, ..))?.contiguous()?,
            TransformerPooling::Max => match &self.padding {
                Some(padding) => x.broadcast_add(&padding.unsqueeze(2)?)?.max(1)?,
                None => x.max(1)?,
            },
            TransformerPooling::Mean => {
                let shares = self.by_token(&|length| 1.0 / length as f32, 0.0)?;
                x.broadcast_mul(&shares.unsqueeze(2)?)?.sum(1)?
            }
        };
        pooled.flatten_all()?.to_vec1()
    }
}

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    feed_forward_norm: Norm,
}

pub(crate) struct TransformerCandle {
    config: TransformerConfig,
    device: Device,
    /// Of products.
    dtype: DType,
    /// [tokens, hidden], of the type of products.
    table: Tensor,
    /// [positions, hidden], with row 0 of the type table added.
    positions: Tensor,
    /// What the second text of a pair has besides, [1, hidden].
    second: Tensor,
    bias: Option<Bias>,
    embed_norm: Option<Norm>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
}

impl TransformerCandle {
    pub fn load(
        config: &TransformerConfig,
        weights: &Weights,
        device: &Device,
        dtype: DType,
    ) -> Result<Self, EncoderError> {
        let (d, f) = (config.hidden_size, config.intermediate_size);
        let rows = weights.rows("embed_tokens.weight")?;
        let table = weights.matrix("embed_tokens.weight", rows, d)?;
        let table = Tensor::from_vec(table.to_f32(), (rows, d), device)?.to_dtype(dtype)?;
        let positions = weights.matrix("embed_positions.weight", config.max_positions, d)?;
        let positions = positions.to_f32();
        let mut positions = Tensor::from_vec(positions, (config.max_positions, d), device)?;
        let [first, mut second] = super::token_types(config, weights)?;
        second.iter_mut().zip(&first).for_each(|(x, y)| *x -= y);
        positions = positions.broadcast_add(&Tensor::from_vec(first, d, device)?)?;
        let second = Tensor::from_vec(second, (1, d), device)?;
        let norm = |name: &str| Norm::load(weights, name, config, device);
        let mut layers = Vec::new();
        for l in 0..config.layers {
            let linear = |name: &str, rows, columns| {
                Linear::load(
                    weights,
                    &format!("layers.{l}.{name}"),
                    rows,
                    columns,
                    (device, dtype),
                )
            };
            layers.push(Layer {
                query: linear("attention.query", d, d)?,
                key: linear("attention.key", d, d)?,
                value: linear("attention.value", d, d)?,
                output: linear("attention.output", d, d)?,
                attention_norm: norm(&format!("layers.{l}.attention_norm"))?,
                up: linear("feed_forward.up", f, d)?,
                down: linear("feed_forward.down", d, f)?,
                feed_forward_norm: norm(&format!("layers.{l}.feed_forward_norm"))?,
            });
        }
        let embed_norm = config
            .embedding_norm
            .then(|| norm("embed_norm"))
            .transpose()?;
        let final_norm = (config.norm == NormPosition::Pre)
            .then(|| norm("final_norm"))
            .transpose()?;
        Ok(Self {
            config: config.clone(),
            device: device.clone(),
            dtype,
            table,
            positions,
            second,
            bias: super::attention_bias(config, weights)?,
            embed_norm,
            layers,
            final_norm,
        })
    }

    fn attention(
        &self,
        layer: &Layer,
        x: &Tensor,
        mask: Option<&Tensor>,
        batch: usize,
        steps: usize,
    ) -> candle_core::Result<Tensor> {
        let heads = self.config.heads;
        let size = self.config.hidden_size / heads;
        let x = &x.to_dtype(self.dtype)?;
        let split = |x: Tensor| {
            x.reshape((batch, steps, heads, size))?
                .transpose(1, 2)?
                .contiguous()
        };
        let query = (split(layer.query.forward(x)?)? * (1.0 / (size as f64).sqrt()))?;
        let key = split(layer.key.forward(x)?)?;
        let value = split(layer.value.forward(x)?)?;
        let mut scores = query.matmul(&key.transpose(2, 3)?)?;
        if let Some(mask) = mask {
            scores = scores.broadcast_add(mask)?;
        }
        let scores = candle_nn::ops::softmax_last_dim(&scores)?;
        let mixed = scores.matmul(&value)?.transpose(1, 2)?.contiguous()?;
        layer
            .output
            .forward(&mixed.reshape((batch * steps, heads * size))?)?
            .to_dtype(DType::F32)
    }

    fn feed_forward(&self, layer: &Layer, x: &Tensor) -> candle_core::Result<Tensor> {
        let x = layer.up.forward(&x.to_dtype(self.dtype)?)?;
        let x = activate(self.config.activation, x)?;
        layer.down.forward(&x)?.to_dtype(DType::F32)
    }
}

impl OnDevice for TransformerCandle {
    fn table(&self) -> &Tensor {
        &self.table
    }

    fn shape(&self) -> Shape {
        Kind::from(&self.config).shape()
    }

    fn is_padded(&self) -> bool {
        true
    }

    fn forward(&self, sequences: &[&[u32]]) -> candle_core::Result<Vec<f32>> {
        let padded = Padded::new(sequences, &self.device)?;
        let (batch, steps) = (padded.batch, padded.steps);
        let d = self.config.hidden_size;
        let x = self.table.index_select(&padded.ids()?, 0)?;
        let mut x = x.to_dtype(DType::F32)?;
        if self.config.scale_embedding {
            x = (x * (d as f64).sqrt())?;
        }
        let positions = self
            .positions
            .narrow(0, self.config.position_offset, steps)?;
        let mut x = x
            .reshape((batch, steps, d))?
            .broadcast_add(&positions)?
            .reshape((batch * steps, d))?;
        if sequences
            .iter()
            .any(|ids| ids.iter().any(|id| id & SECOND != 0))
        {
            let mut second = vec![0f32; batch * steps];
            for (own, row) in sequences.iter().zip(second.chunks_exact_mut(steps)) {
                for (x, id) in row.iter_mut().zip(*own) {
                    *x = if id & SECOND != 0 { 1.0 } else { 0.0 };
                }
            }
            let second = Tensor::from_vec(second, (batch * steps, 1), &self.device)?;
            x = (x + second.matmul(&self.second)?)?;
        }
        let bias = match &self.bias {
            Some(bias) => {
                let heads = self.config.heads;
                let rows = (0..heads).flat_map(|head| (0..steps).map(move |query| (head, query)));
                let mut values = Vec::with_capacity(heads * steps * steps);
                for (head, query) in rows {
                    values.extend_from_slice(bias.row(head, query, steps));
                }
                Some(Tensor::from_vec(
                    values,
                    (1, heads, steps, steps),
                    &self.device,
                )?)
            }
            None => None,
        };
        let mask = match (padded.mask()?, bias) {
            (Some(mask), Some(bias)) => Some(mask.broadcast_add(&bias)?),
            (mask, bias) => mask.or(bias),
        };
        let mask = mask.map(|mask| mask.to_dtype(self.dtype)).transpose()?;
        if let Some(norm) = &self.embed_norm {
            x = norm.forward(&x)?;
        }
        for layer in &self.layers {
            let attention = |x: &Tensor| self.attention(layer, x, mask.as_ref(), batch, steps);
            match self.config.norm {
                NormPosition::Post => {
                    x = layer.attention_norm.forward(&(attention(&x)? + &x)?)?;
                    x = layer
                        .feed_forward_norm
                        .forward(&(self.feed_forward(layer, &x)? + &x)?)?;
                }
                NormPosition::Pre => {
                    x = (attention(&layer.attention_norm.forward(&x)?)? + &x)?;
                    let inner = layer.feed_forward_norm.forward(&x)?;
                    x = (self.feed_forward(layer, &inner)? + &x)?;
                }
            }
        }
        if let Some(norm) = &self.final_norm {
            x = norm.forward(&x)?;
        }
        padded.pool(&x, self.config.pooling)
    }
}
