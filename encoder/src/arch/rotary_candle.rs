//! Transformer encoder with rotary positions, in candle: for GPUs, and what the kernels are tested against.
//!
//! Products and attention are of a type of their own, f32 or bf16; normalisation, positions and sums of layers are f32.

use candle_core::{DType, Device, Tensor};
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope;

use super::on_device::OnDevice;
use super::shape::{Kind, Shape};
use super::transformer_candle::{Linear, Padded, activate};
use crate::EncoderError;
use laser_kernels::rotary::Rotary;
use laser_model::config::{Reach, RotaryTransformerConfig};
use laser_model::folder::Weights;

/// What is added to the score of a key that is not seen. Finite, since a token of padding may have nothing else near it: a
/// row of minus infinities would be NaN, which all tokens of the next layer would see.
const UNSEEN: f32 = -1e9;

struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    gate: Linear,
    up: Linear,
    down: Linear,
    query_norm: Tensor,
    key_norm: Tensor,
    attention_norm: Tensor,
    attention_output_norm: Tensor,
    feed_forward_norm: Tensor,
    feed_forward_output_norm: Tensor,
}

pub(crate) struct RotaryCandle {
    config: RotaryTransformerConfig,
    shape: Shape,
    device: Device,
    /// Of products.
    dtype: DType,
    /// [tokens, hidden], of the type of products.
    table: Tensor,
    layers: Vec<Layer>,
    final_norm: Tensor,
}

impl RotaryCandle {
    pub fn load(
        config: &RotaryTransformerConfig,
        weights: &Weights,
        device: &Device,
        dtype: DType,
    ) -> Result<Self, EncoderError> {
        let (d, f, s) = (
            config.hidden_size,
            config.intermediate_size,
            config.head_size,
        );
        let (queries, keys) = (config.heads * s, config.key_value_heads * s);
        let rows = weights.rows("embed_tokens.weight")?;
        let table = weights.matrix("embed_tokens.weight", rows, d)?;
        let table = Tensor::from_vec(table.to_f32(), (rows, d), device)?.to_dtype(dtype)?;
        let norm = |name: &str, size: usize| -> Result<Tensor, EncoderError> {
            let weight = weights.vector(&format!("{name}.weight"), size)?;
            Ok(Tensor::from_vec(weight, size, device)?)
        };
        let layer = |l: usize| -> Result<Layer, EncoderError> {
            let name = |part: &str| format!("layers.{l}.{part}");
            let linear = |part: &str, rows, columns| {
                Linear::unbiased(weights, &name(part), rows, columns, (device, dtype))
            };
            Ok(Layer {
                query: linear("attention.query", queries, d)?,
                key: linear("attention.key", keys, d)?,
                value: linear("attention.value", keys, d)?,
                output: linear("attention.output", d, queries)?,
                gate: linear("feed_forward.gate", f, d)?,
                up: linear("feed_forward.up", f, d)?,
                down: linear("feed_forward.down", d, f)?,
                query_norm: norm(&name("attention.query_norm"), s)?,
                key_norm: norm(&name("attention.key_norm"), s)?,
                attention_norm: norm(&name("attention_norm"), d)?,
                attention_output_norm: norm(&name("attention_output_norm"), d)?,
                feed_forward_norm: norm(&name("feed_forward_norm"), d)?,
                feed_forward_output_norm: norm(&name("feed_forward_output_norm"), d)?,
            })
        };
        Ok(Self {
            config: config.clone(),
            shape: Kind::from(config).shape(),
            device: device.clone(),
            dtype,
            table,
            layers: (0..config.layers.len())
                .map(layer)
                .collect::<Result<_, _>>()?,
            final_norm: norm("final_norm", d)?,
        })
    }

    fn norm(&self, x: &Tensor, weight: &Tensor) -> candle_core::Result<Tensor> {
        rms_norm(&x.contiguous()?, weight, self.config.rms_norm_eps as f32)
    }

    /// Cosines and sines of the angles of the first positions, [steps, size / 2].
    fn angles(&self, base: f64, steps: usize) -> candle_core::Result<[Tensor; 2]> {
        let size = self.config.head_size;
        let angles = Rotary::new(size, base, steps);
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in 0..steps {
            let (cosines, sines) = angles.row(position);
            cos.extend_from_slice(cosines);
            sin.extend_from_slice(sines);
        }
        let tensor = |values| Tensor::from_vec(values, (steps, size / 2), &self.device);
        Ok([tensor(cos)?, tensor(sin)?])
    }

    /// `x` is [batch * steps, hidden], of the type of products.
    fn attention(
        &self,
        layer: &Layer,
        x: &Tensor,
        [cos, sin]: &[Tensor; 2],
        mask: Option<&Tensor>,
        (batch, steps): (usize, usize),
    ) -> candle_core::Result<Tensor> {
        let (heads, keys, size) = (
            self.config.heads,
            self.config.key_value_heads,
            self.config.head_size,
        );
        let split =
            |x: Tensor, heads: usize| x.reshape((batch, steps, heads, size))?.transpose(1, 2);
        let turned = |x: Tensor, heads: usize, norm: &Tensor| {
            let x = self.norm(&split(x.to_dtype(DType::F32)?, heads)?, norm)?;
            rope(&x, cos, sin)
        };
        // Each of them is for the queries that share it, [batch, heads, steps, size].
        let shared = |x: Tensor| {
            let shape = (batch, keys, heads / keys, steps, size);
            let x = x.unsqueeze(2)?.broadcast_as(shape)?.contiguous()?;
            x.reshape((batch, heads, steps, size))
        };
        let query = turned(layer.query.forward(x)?, heads, &layer.query_norm)?;
        let query = (query * self.config.score_scale)?.to_dtype(self.dtype)?;
        let key = turned(layer.key.forward(x)?, keys, &layer.key_norm)?;
        let key = shared(key.to_dtype(self.dtype)?)?;
        let value = shared(split(layer.value.forward(x)?, keys)?)?;
        let mut scores = query.matmul(&key.transpose(2, 3)?.contiguous()?)?;
        if let Some(mask) = mask {
            scores = scores.broadcast_add(mask)?;
        }
        let mixed = softmax_last_dim(&scores)?.matmul(&value)?;
        let mixed = mixed.transpose(1, 2)?.contiguous()?;
        let mixed = mixed.reshape((batch * steps, heads * size))?;
        layer.output.forward(&mixed)?.to_dtype(DType::F32)
    }

    fn feed_forward(&self, layer: &Layer, x: &Tensor) -> candle_core::Result<Tensor> {
        let gate = activate(self.config.activation, layer.gate.forward(x)?)?;
        let inner = (gate * layer.up.forward(x)?)?;
        layer.down.forward(&inner)?.to_dtype(DType::F32)
    }
}

impl OnDevice for RotaryCandle {
    fn table(&self) -> &Tensor {
        &self.table
    }

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn is_padded(&self) -> bool {
        true
    }

    fn forward(&self, sequences: &[&[u32]]) -> candle_core::Result<Vec<f32>> {
        let padded = Padded::new(sequences, &self.device)?;
        let size = (padded.batch, padded.steps);
        let x = self.table.index_select(&padded.ids()?, 0)?;
        let mut x = (x.to_dtype(DType::F32)? * f64::from(self.shape.embedding_scale))?;
        let mask = padded.mask()?.map(|mask| mask.clamp(UNSEEN, 0f32));
        let mask = mask.transpose()?;
        let typed = |mask: Option<Tensor>| mask.map(|m| m.to_dtype(self.dtype)).transpose();
        let full = (
            self.angles(self.config.rotary_base, size.1)?,
            typed(mask.clone())?,
        );
        let local = match &self.config.local {
            Some(local) => {
                let seen = |query: usize, key: usize| match query.abs_diff(key) < local.window {
                    true => 0.0,
                    false => UNSEEN,
                };
                let values = (0..size.1).flat_map(|q| (0..size.1).map(move |k| seen(q, k)));
                let near = Tensor::from_vec(
                    values.collect::<Vec<f32>>(),
                    (1, 1, size.1, size.1),
                    &self.device,
                )?;
                let mask = match mask {
                    Some(mask) => mask.broadcast_add(&near)?,
                    None => near,
                };
                Some((self.angles(local.rotary_base, size.1)?, typed(Some(mask))?))
            }
            None => None,
        };
        for (layer, reach) in self.layers.iter().zip(&self.config.layers) {
            let (angles, mask) = match (reach, &local) {
                (Reach::Local, Some(local)) => local,
                _ => &full,
            };
            let inner = self.norm(&x, &layer.attention_norm)?.to_dtype(self.dtype)?;
            let added = self.attention(layer, &inner, angles, mask.as_ref(), size)?;
            x = (x + self.norm(&added, &layer.attention_output_norm)?)?;
            let inner = self
                .norm(&x, &layer.feed_forward_norm)?
                .to_dtype(self.dtype)?;
            let added = self.feed_forward(layer, &inner)?;
            x = (x + self.norm(&added, &layer.feed_forward_output_norm)?)?;
        }
        padded.pool(&self.norm(&x, &self.final_norm)?, self.config.pooling)
    }
}
