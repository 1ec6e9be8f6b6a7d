//! Transformer encoder with rotary positions for GPUs with products in bf16, as [`super::transformer_packed`]: tokens are
//! packed, and what is between products is one launch each. What there is no kernel for runs by [`super::rotary_candle`].

use candle_core::{DType, Device, Tensor};
use laser_cuda::transformer::{self, Heads, Keep, Normalized, RootNorm, Sentences, Turning};
use laser_kernels::rotary::Rotary;
use laser_model::config::{Reach, RotaryTransformerConfig};
use laser_model::folder::Weights;

use super::on_device::OnDevice;
use super::shape::{Kind, Shape};
use super::transformer_candle::Linear;
use super::transformer_packed::{activation, pooling};
use crate::EncoderError;

struct Layer {
    /// Weights of queries, keys and values, transposed and side by side.
    projection: Tensor,
    output: Tensor,
    /// Gates, then what they let through.
    up: Tensor,
    down: Tensor,
    turning: Turning,
    /// How far tokens see.
    window: Option<usize>,
    attention_norm: RootNorm,
    attention_output_norm: Tensor,
    feed_forward_norm: RootNorm,
    feed_forward_output_norm: Tensor,
}

pub(crate) struct RotaryPacked {
    config: RotaryTransformerConfig,
    shape: Shape,
    device: Device,
    dtype: DType,
    /// [tokens, hidden], of the type of products.
    table: Tensor,
    layers: Vec<Layer>,
    final_norm: RootNorm,
}

impl RotaryPacked {
    /// Whether a device has the kernels for a model.
    pub fn supported(config: &RotaryTransformerConfig, device: &Device, dtype: DType) -> bool {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        transformer::supported(device, dtype, width, config.head_size) && inner.is_multiple_of(8)
    }

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
        let vector = |name: &str, size: usize| -> Result<Tensor, EncoderError> {
            let weight = weights.vector(&format!("{name}.weight"), size)?;
            Ok(Tensor::from_vec(weight, size, device)?)
        };
        let epsilon = config.rms_norm_eps as f32;
        let norm = |name: &str| -> Result<RootNorm, EncoderError> {
            let weight = vector(name, d)?;
            Ok(RootNorm { weight, epsilon })
        };
        let full = angles(config, config.rotary_base, device)?;
        let local = match config.local {
            Some(local) => Some((local.window, angles(config, local.rotary_base, device)?)),
            None => None,
        };
        let layer = |l: usize, reach: &Reach| -> Result<Layer, EncoderError> {
            let name = |part: &str| format!("layers.{l}.{part}");
            let product = |parts: &[(&str, usize)], columns| -> Result<Tensor, EncoderError> {
                let parts = parts.iter().map(|(part, rows)| {
                    let name = name(part);
                    let linear = Linear::unbiased(weights, &name, *rows, columns, (device, dtype));
                    Ok(linear?.weight)
                });
                let parts = parts.collect::<Result<Vec<_>, EncoderError>>()?;
                Ok(Tensor::cat(&parts, 1)?.contiguous()?)
            };
            let inputs = [
                ("attention.query", queries),
                ("attention.key", keys),
                ("attention.value", keys),
            ];
            let (window, [cosines, sines]) = match (reach, &local) {
                (Reach::Local, Some((window, angles))) => (Some(*window), angles.clone()),
                _ => (None, full.clone()),
            };
            Ok(Layer {
                projection: product(&inputs, d)?,
                output: product(&[("attention.output", d)], queries)?,
                up: product(&[("feed_forward.gate", f), ("feed_forward.up", f)], d)?,
                down: product(&[("feed_forward.down", d)], f)?,
                turning: Turning {
                    query: vector(&name("attention.query_norm"), s)?,
                    key: vector(&name("attention.key_norm"), s)?,
                    epsilon,
                    cosines,
                    sines,
                },
                window,
                attention_norm: norm(&name("attention_norm"))?,
                attention_output_norm: vector(&name("attention_output_norm"), d)?,
                feed_forward_norm: norm(&name("feed_forward_norm"))?,
                feed_forward_output_norm: vector(&name("feed_forward_output_norm"), d)?,
            })
        };
        let layers = config.layers.iter().enumerate();
        Ok(Self {
            config: config.clone(),
            shape: Kind::from(config).shape(),
            device: device.clone(),
            dtype,
            table,
            layers: layers
                .map(|(l, reach)| layer(l, reach))
                .collect::<Result<_, _>>()?,
            final_norm: norm("final_norm")?,
        })
    }

    fn normalize(
        &self,
        stream: &Tensor,
        product: Option<(&Tensor, &Tensor)>,
        norm: &RootNorm,
        keep: Keep,
    ) -> candle_core::Result<Normalized> {
        transformer::root_normalize(stream, product, norm, keep, self.dtype)
    }
}

/// Cosines and sines of the angles of all positions, f32 [positions, size / 2].
fn angles(
    config: &RotaryTransformerConfig,
    base: f64,
    device: &Device,
) -> candle_core::Result<[Tensor; 2]> {
    let (size, positions) = (config.head_size, config.max_positions);
    let angles = Rotary::new(size, base, positions);
    let rows = || (0..positions).map(|position| angles.row(position));
    let cosines: Vec<f32> = rows().flat_map(|(cosines, _)| cosines).copied().collect();
    let sines: Vec<f32> = rows().flat_map(|(_, sines)| sines).copied().collect();
    let tensor = |values| Tensor::from_vec(values, (positions, size / 2), device);
    Ok([tensor(cosines)?, tensor(sines)?])
}

impl OnDevice for RotaryPacked {
    fn table(&self) -> &Tensor {
        &self.table
    }

    fn shape(&self) -> Shape {
        self.shape.clone()
    }

    fn is_padded(&self) -> bool {
        false
    }

    fn forward(&self, sequences: &[&[u32]]) -> candle_core::Result<Vec<f32>> {
        let lengths: Vec<usize> = sequences.iter().map(|ids| ids.len()).collect();
        let sentences = Sentences::new(&lengths, &self.device)?;
        let ids = Tensor::new(sequences.concat(), &self.device)?;
        let x = self.table.index_select(&ids, 0)?.to_dtype(DType::F32)?;
        let x = (x * f64::from(self.shape.embedding_scale))?;
        let activation = activation(self.config.activation);
        // The norm before a part is computed with the sum of the part before; behind the last layer is the model's last
        // norm, whose result is pooled.
        let mut state = match self.layers.first() {
            Some(first) => self.normalize(&x, None, &first.attention_norm, Keep::Sum)?,
            None => self.normalize(&x, None, &self.final_norm, Keep::Norm)?,
        };
        for (l, layer) in self.layers.iter().enumerate() {
            let mut heads = Heads {
                queries: self.config.heads,
                keys: self.config.key_value_heads,
                scale: self.config.score_scale as f32,
                window: layer.window,
                bias: None,
                relative: None,
            };
            let projected = state.out.matmul(&layer.projection)?;
            let projected = transformer::turn(&sentences, &projected, &heads, &layer.turning)?;
            heads.scale = 1.0;
            let mixed = transformer::attention(&sentences, &projected, &heads)?;
            let output = mixed.matmul(&layer.output)?;
            let added = Some((&output, &layer.attention_output_norm));
            state = self.normalize(&state.stream, added, &layer.feed_forward_norm, Keep::Sum)?;
            let inner = state.out.matmul(&layer.up)?;
            let output = transformer::gate(&inner, activation)?.matmul(&layer.down)?;
            let added = Some((&output, &layer.feed_forward_output_norm));
            let (norm, keep) = match self.layers.get(l + 1) {
                Some(next) => (&next.attention_norm, Keep::Sum),
                None => (&self.final_norm, Keep::Norm),
            };
            state = self.normalize(&state.stream, added, norm, keep)?;
        }
        let pooling = pooling(self.config.pooling);
        let pooled = transformer::pool(&sentences, &state.stream, pooling)?;
        pooled.flatten_all()?.to_vec1()
    }
}
