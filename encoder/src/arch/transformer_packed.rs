//! Transformer encoder with learned or relative positions for GPUs with products in bf16.
//!
//! Tokens are packed, sentence after sentence. Products with weights are candle's; what is between them is one launch
//! each of the kernels of [`laser_cuda::transformer`], so that a layer reads and writes its states as seldom as can be. What
//! those have no kernel for runs by [`super::transformer_candle`].

use candle_core::{DType, Device, Tensor};
use laser_cuda::transformer::{
    self, Activation, Heads, Keep, Norm, Normalized, Pooling, Sentences,
};
use laser_model::config::{self, NormPosition, TransformerConfig, TransformerPooling};
use laser_model::folder::Weights;
use laser_model::tokenize::SECOND;

use super::on_device::OnDevice;
use super::shape::{Kind, Shape};
use super::transformer_candle::Linear;
use crate::EncoderError;

/// Weights transposed, [in, out], of the type of products, and a bias, f32 [out].
struct Product {
    weight: Tensor,
    bias: Tensor,
}

impl Product {
    /// Of parts that have the same input, side by side.
    fn load(
        weights: &Weights,
        names: &[String],
        (rows, columns): (usize, usize),
        (device, dtype): (&Device, DType),
    ) -> Result<Self, EncoderError> {
        let (mut parts, mut bias) = (Vec::new(), Vec::new());
        for name in names {
            let part = Linear::unbiased(weights, name, rows, columns, (device, dtype))?;
            parts.push(part.weight);
            bias.extend(weights.vector(&format!("{name}.bias"), rows)?);
        }
        Ok(Self {
            weight: Tensor::cat(&parts, 1)?.contiguous()?,
            bias: Tensor::new(bias, device)?,
        })
    }
}

struct Layer {
    /// Queries, keys and values.
    projection: Product,
    output: Product,
    attention_norm: Norm,
    up: Product,
    down: Product,
    feed_forward_norm: Norm,
}

pub(crate) struct TransformerPacked {
    config: TransformerConfig,
    device: Device,
    dtype: DType,
    /// [tokens, hidden], of the type of products.
    table: Tensor,
    /// f32 [positions, hidden], with row 0 of the type table added.
    positions: Tensor,
    /// What the second text of a pair has besides, f32 [1, hidden].
    second: Tensor,
    /// What scores get by distance, f32 [heads, 2 positions - 1].
    relative: Option<Tensor>,
    embed_norm: Option<Norm>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
}

impl TransformerPacked {
    /// Whether a device has the kernels for a model.
    pub fn supported(config: &TransformerConfig, device: &Device, dtype: DType) -> bool {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let size = width / config.heads;
        transformer::supported(device, dtype, width, size) && inner.is_multiple_of(8)
    }

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
        let positions = Tensor::from_vec(positions, (config.max_positions, d), device)?;
        let [first, mut second] = super::token_types(config, weights)?;
        second.iter_mut().zip(&first).for_each(|(x, y)| *x -= y);
        let relative = super::attention_bias(config, weights)?
            .map(|bias| {
                let columns = bias.values().len() / config.heads;
                Tensor::from_vec(bias.values().to_vec(), (config.heads, columns), device)
            })
            .transpose()?;
        let norm = |name: &str| -> Result<Norm, EncoderError> {
            let vector = |part: &str| -> Result<Tensor, EncoderError> {
                let values = weights.vector(&format!("{name}.{part}"), d)?;
                Ok(Tensor::new(values, device)?)
            };
            Ok(Norm {
                weight: vector("weight")?,
                shift: vector("bias")?,
                epsilon: config.layer_norm_eps as f32,
            })
        };
        let mut layers = Vec::new();
        for l in 0..config.layers {
            let product = |names: &[&str], rows, columns| {
                let names: Vec<_> = names.iter().map(|n| format!("layers.{l}.{n}")).collect();
                Product::load(weights, &names, (rows, columns), (device, dtype))
            };
            let inputs = ["attention.query", "attention.key", "attention.value"];
            layers.push(Layer {
                projection: product(&inputs, d, d)?,
                output: product(&["attention.output"], d, d)?,
                attention_norm: norm(&format!("layers.{l}.attention_norm"))?,
                up: product(&["feed_forward.up"], f, d)?,
                down: product(&["feed_forward.down"], d, f)?,
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
            positions: positions.broadcast_add(&Tensor::new(first, device)?)?,
            second: Tensor::from_vec(second, (1, d), device)?,
            relative,
            embed_norm,
            layers,
            final_norm,
        })
    }

    /// Embeddings of the tokens and their places, f32 [tokens, hidden], before any norm.
    fn embed(&self, sequences: &[&[u32]]) -> candle_core::Result<Tensor> {
        let tokens = || sequences.iter().flat_map(|ids| ids.iter());
        let ids: Vec<u32> = tokens().map(|id| id & !SECOND).collect();
        let offset = self.config.position_offset;
        let places = sequences.iter().flat_map(|ids| offset..offset + ids.len());
        let places: Vec<u32> = places.map(|place| place as u32).collect();
        let x = self
            .table
            .index_select(&Tensor::new(ids, &self.device)?, 0)?;
        let mut x = x.to_dtype(DType::F32)?;
        if self.config.scale_embedding {
            x = (x * (self.config.hidden_size as f64).sqrt())?;
        }
        let places = Tensor::new(places, &self.device)?;
        x = (x + self.positions.index_select(&places, 0)?)?;
        if tokens().any(|id| id & SECOND != 0) {
            let of_second = |id: &u32| if id & SECOND != 0 { 1f32 } else { 0.0 };
            let second: Vec<f32> = tokens().map(of_second).collect();
            let rows = second.len();
            let second = Tensor::from_vec(second, (rows, 1), &self.device)?;
            x = (x + second.matmul(&self.second)?)?;
        }
        Ok(x)
    }

    fn normalize(
        &self,
        stream: &Tensor,
        product: Option<(&Tensor, &Tensor)>,
        norm: &Norm,
        keep: Keep,
    ) -> candle_core::Result<Normalized> {
        transformer::normalize(stream, product, norm, keep, self.dtype)
    }
}

pub(super) fn activation(activation: config::Activation) -> Activation {
    match activation {
        config::Activation::None => Activation::Identity,
        config::Activation::Tanh => Activation::Tanh,
        config::Activation::Gelu => Activation::Gelu,
        config::Activation::GeluTanh => Activation::GeluTanh,
        config::Activation::Relu => Activation::Relu,
    }
}

pub(super) fn pooling(pooling: TransformerPooling) -> Pooling {
    match pooling {
        TransformerPooling::Cls => Pooling::First,
        TransformerPooling::Max => Pooling::Max,
        TransformerPooling::Mean => Pooling::Mean,
    }
}

impl OnDevice for TransformerPacked {
    fn table(&self) -> &Tensor {
        &self.table
    }

    fn shape(&self) -> Shape {
        Kind::from(&self.config).shape()
    }

    fn is_padded(&self) -> bool {
        false
    }

    fn forward(&self, sequences: &[&[u32]]) -> candle_core::Result<Vec<f32>> {
        let lengths: Vec<usize> = sequences.iter().map(|ids| ids.len()).collect();
        let sentences = Sentences::new(&lengths, &self.device)?;
        let embedded = self.embed(sequences)?;
        let mut state = match &self.embed_norm {
            Some(norm) => self.normalize(&embedded, None, norm, Keep::Norm)?,
            None => Normalized {
                out: embedded.to_dtype(self.dtype)?,
                stream: embedded,
            },
        };
        // The norm that stands before the parts of a layer is computed with the sum of the part before.
        let keep = match self.config.norm {
            NormPosition::Post => Keep::Norm,
            NormPosition::Pre => Keep::Sum,
        };
        if let (NormPosition::Pre, Some(first)) = (self.config.norm, self.layers.first()) {
            state = self.normalize(&state.stream, None, &first.attention_norm, keep)?;
        }
        let activation = activation(self.config.activation);
        for (l, layer) in self.layers.iter().enumerate() {
            let (attention_norm, feed_forward_norm) = match self.config.norm {
                NormPosition::Post => (&layer.attention_norm, Some(&layer.feed_forward_norm)),
                NormPosition::Pre => (
                    &layer.feed_forward_norm,
                    self.layers.get(l + 1).map(|next| &next.attention_norm),
                ),
            };
            let projected = state.out.matmul(&layer.projection.weight)?;
            let size = self.config.hidden_size / self.config.heads;
            let heads = Heads {
                queries: self.config.heads,
                keys: self.config.heads,
                scale: 1.0 / (size as f32).sqrt(),
                window: None,
                bias: Some(&layer.projection.bias),
                relative: self.relative.as_ref(),
            };
            let mixed = transformer::attention(&sentences, &projected, &heads)?;
            let output = mixed.matmul(&layer.output.weight)?;
            let added = Some((&output, &layer.output.bias));
            state = self.normalize(&state.stream, added, attention_norm, keep)?;
            let inner = state.out.matmul(&layer.up.weight)?;
            let inner = transformer::activate(&inner, &layer.up.bias, activation)?;
            let output = inner.matmul(&layer.down.weight)?;
            let added = Some((&output, &layer.down.bias));
            // Behind the last layer is the model's last norm, whose result is pooled.
            let (norm, keep) = match (feed_forward_norm, &self.final_norm) {
                (Some(norm), _) => (norm, keep),
                (None, Some(last)) => (last, Keep::Norm),
                (None, None) => candle_core::bail!("norms before layers end with one more"),
            };
            state = self.normalize(&state.stream, added, norm, keep)?;
        }
        let pooling = pooling(self.config.pooling);
        let pooled = transformer::pool(&sentences, &state.stream, pooling)?;
        pooled.flatten_all()?.to_vec1()
    }
}
