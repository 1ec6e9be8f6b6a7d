//! Transformer encoder with learned positions, in candle: for GPUs, and what the kernels are tested
//! against.

use candle_core::{DType, Device, IndexOp, Tensor};

use super::Model;
use super::transformer::flops_per_token;
use crate::EncoderError;
use crate::config::{Activation, NormPosition, TransformerConfig, TransformerPooling};
use crate::folder::{Matrix, Weights};
use crate::kernels::{Isa, gather};

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
struct Linear {
    /// Transposed, [in, out].
    weight: Tensor,
    bias: Tensor,
}

impl Linear {
    fn load(
        weights: &Weights,
        name: &str,
        rows: usize,
        columns: usize,
        device: &Device,
    ) -> Result<Self, EncoderError> {
        let matrix = weights.matrix(&format!("{name}.weight"), rows, columns)?;
        let bias = weights.vector(&format!("{name}.bias"), rows)?;
        Ok(Self {
            weight: Tensor::from_vec(matrix.to_f32(), (rows, columns), device)?
                .t()?
                .contiguous()?,
            bias: Tensor::from_vec(bias, rows, device)?,
        })
    }

    /// `x` is [rows, in].
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        x.matmul(&self.weight)?.broadcast_add(&self.bias)
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
    table: Matrix,
    positions: Matrix,
    /// Row 0 of the type table.
    token_type: Vec<f32>,
    embed_norm: Option<Norm>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
}

impl TransformerCandle {
    pub fn load(
        config: &TransformerConfig,
        weights: &Weights,
        device: &Device,
    ) -> Result<Self, EncoderError> {
        let (d, f) = (config.hidden_size, config.intermediate_size);
        let rows = weights.rows("embed_tokens.weight")?;
        let table = weights.matrix("embed_tokens.weight", rows, d)?;
        let positions = weights.matrix("embed_positions.weight", config.max_positions, d)?;
        let mut token_type = vec![0f32; d];
        if config.type_vocab_size > 0 {
            let types = weights.matrix("embed_types.weight", config.type_vocab_size, d)?;
            types.row_into(0, &mut token_type);
        }
        let norm = |name: &str| Norm::load(weights, name, config, device);
        let mut layers = Vec::new();
        for l in 0..config.layers {
            let linear = |name: &str, rows, columns| {
                Linear::load(
                    weights,
                    &format!("layers.{l}.{name}"),
                    rows,
                    columns,
                    device,
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
            table,
            positions,
            token_type,
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
            .forward(&mixed.reshape((batch * steps, heads * size))?)
    }

    fn feed_forward(&self, layer: &Layer, x: &Tensor) -> candle_core::Result<Tensor> {
        let x = layer.up.forward(x)?;
        let x = match self.config.activation {
            Activation::None => x,
            Activation::Tanh => x.tanh()?,
            Activation::Gelu => x.gelu_erf()?,
            Activation::GeluTanh => x.gelu()?,
            Activation::Relu => x.relu()?,
        };
        layer.down.forward(&x)
    }

    fn forward(&self, sequences: &[&[u32]]) -> candle_core::Result<Vec<f32>> {
        let (batch, steps) = (sequences.len(), sequences[0].len());
        let d = self.config.hidden_size;
        let scale = if self.config.scale_embedding {
            (d as f32).sqrt()
        } else {
            1.0
        };
        let isa = Isa::detect();
        let mut embedded = vec![0f32; batch * steps * d];
        for (ids, rows) in sequences.iter().zip(embedded.chunks_exact_mut(steps * d)) {
            for (t, (&id, x)) in ids.iter().zip(rows.chunks_exact_mut(d)).enumerate() {
                x.copy_from_slice(&self.token_type);
                gather::add_row(isa, &self.table, id as usize, scale, x);
                gather::add_row(
                    isa,
                    &self.positions,
                    t + self.config.position_offset,
                    1.0,
                    x,
                );
            }
        }
        let ragged = sequences[batch - 1].len() < steps;
        // Added to the scores of keys, [batch, 1, 1, steps].
        let mask = if ragged {
            let mut mask = vec![0f32; batch * steps];
            for (ids, row) in sequences.iter().zip(mask.chunks_exact_mut(steps)) {
                row[ids.len()..].fill(f32::NEG_INFINITY);
            }
            Some(Tensor::from_vec(mask, (batch, 1, 1, steps), &self.device)?)
        } else {
            None
        };
        let mut x = Tensor::from_vec(embedded, (batch * steps, d), &self.device)?;
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
        let x = x.reshape((batch, steps, d))?;
        if self.config.pooling == TransformerPooling::Cls {
            return x.i((.., 0, ..))?.contiguous()?.flatten_all()?.to_vec1();
        }
        // Pooling over each sentence's own tokens, on the host: padding takes no part.
        let states = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let mut pooled = vec![0f32; batch * d];
        for ((ids, states), out) in sequences
            .iter()
            .zip(states.chunks_exact(steps * d))
            .zip(pooled.chunks_exact_mut(d))
        {
            let max = self.config.pooling == TransformerPooling::Max;
            out.fill(if max { f32::NEG_INFINITY } else { 0.0 });
            for state in states.chunks_exact(d).take(ids.len()) {
                for (y, x) in out.iter_mut().zip(state) {
                    *y = if max { y.max(*x) } else { *y + *x };
                }
            }
            if !max {
                let scale = 1.0 / ids.len() as f32;
                out.iter_mut().for_each(|y| *y *= scale);
            }
        }
        Ok(pooled)
    }
}

impl Model for TransformerCandle {
    fn vocabulary(&self) -> usize {
        self.table.rows()
    }

    fn width(&self) -> usize {
        self.config.hidden_size
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        _parallel: bool,
    ) -> Result<(), EncoderError> {
        let present = sequences.partition_point(|s| !s.is_empty());
        let (out, rest) = out.split_at_mut(present * self.width());
        rest.fill(0.0);
        let sequences = &sequences[..present];
        if sequences.is_empty() {
            return Ok(());
        }
        super::check_positions(&self.config, sequences)?;
        out.copy_from_slice(&self.forward(sequences)?);
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        flops_per_token(&self.config)
    }

    fn padded(&self) -> bool {
        true
    }

    fn bytes(&self) -> usize {
        if self.device.is_cpu() {
            self.flops_per_token() * 2
        } else {
            0
        }
    }
}
