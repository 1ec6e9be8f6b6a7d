//! Transformers through candle's autograd, on a GPU; the reference of what the processor computes.
//!
//! Only the token embeddings are looked up outside the graph, which keeps their gradient sparse. The fused
//! layer normalisation and softmax of candle have no gradient, hence the plain ones.

use std::ops::Range;

use candle_core::{D, Device, Result, Tensor, Var};
use laser_kernels::training::dropout::dropout_from;
use laser_model::config::{
    Activation, NormPosition, RelativePositions, TransformerConfig, TransformerPooling,
};

use super::tokens::{lengths, mask_seed};
use crate::data::Ragged;
use crate::models::parameters::Parameters;
use crate::models::regularization::Regularization;
use crate::ops::lstm::Steps;
use crate::ops::pool::Occurrences;

/// Sentences that are padded to a common length.
const GROUP: usize = 64;
/// Added to the scores of padding: beyond it no key is left, and nothing becomes infinite.
const MASKED: f32 = -1e9;

/// Sentences that were padded together, with the graph of their outputs.
#[derive(Debug)]
struct Group {
    /// Rows of the shard's output.
    outputs: Vec<usize>,
    ids: Vec<u32>,
    /// Row of the padded batch of each token.
    rows: Vec<u32>,
    embedded: Var,
    output: Tensor,
}

/// What the backward pass needs.
#[derive(Debug)]
pub(in crate::models) struct GraphSaved {
    variables: Vec<Var>,
    groups: Vec<Group>,
}

/// The graph of one group.
struct Graph<'a> {
    config: &'a TransformerConfig,
    parameters: &'a Parameters,
    /// One variable for every dense parameter of the transformer.
    variables: &'a [Var],
    first: usize,
    device: &'a Device,
    regularization: Regularization,
    /// Row of the padded batch of each token, and the token's place among those of all sentences.
    tokens: &'a [(usize, usize)],
}

impl Graph<'_> {
    fn get(&self, name: &str) -> &Tensor {
        let list = &self.parameters.list()[self.first..self.first + self.variables.len()];
        let at = list.iter().position(|p| p.name == name);
        self.variables[at.expect("initialise made every parameter")].as_tensor()
    }

    fn linear(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let weight = self.get(&format!("{name}.weight"));
        x.matmul(&weight.t()?)?
            .broadcast_add(self.get(&format!("{name}.bias")))
    }

    fn norm(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let (weight, bias) = (
            self.get(&format!("{name}.weight")),
            self.get(&format!("{name}.bias")),
        );
        candle_nn::ops::layer_norm_slow(x, weight, bias, self.config.layer_norm_eps as f32)
    }

    /// Dropout with the masks that [`mask_seed`] gives the tokens; padding is kept.
    fn dropout(&self, x: Tensor, rate: f32, mask: usize) -> Result<Tensor> {
        if rate == 0.0 {
            return Ok(x);
        }
        let d = self.config.hidden_size;
        let seed = mask_seed(self.regularization.seed, mask);
        let mut mask = vec![1f32; x.elem_count()];
        for (row, token) in self.tokens {
            dropout_from(token * d, &mut mask[row * d..][..d], rate, seed);
        }
        let mask = Tensor::from_vec(mask, x.shape(), self.device)?;
        x * mask
    }

    fn attention(&self, l: usize, x: &Tensor, mask: &Tensor, steps: usize) -> Result<Tensor> {
        let layer = format!("layers.{l}");
        let heads = self.config.heads;
        let (rows, d) = x.dims2()?;
        let (batch, size) = (rows / steps, d / heads);
        let split = |name: &str| -> Result<Tensor> {
            let x = self.linear(&format!("{layer}.attention.{name}"), x)?;
            x.reshape((batch, steps, heads, size))?
                .transpose(1, 2)?
                .contiguous()
        };
        let query = (split("query")? * (1.0 / (size as f64).sqrt()))?;
        let (key, value) = (split("key")?, split("value")?);
        let scores = query
            .matmul(&key.transpose(2, 3)?.contiguous()?)?
            .broadcast_add(mask)?;
        let mixed = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&value)?;
        let mixed = mixed.transpose(1, 2)?.contiguous()?.reshape((rows, d))?;
        let out = self.linear(&format!("{layer}.attention.output"), &mixed)?;
        self.dropout(out, self.regularization.hidden, 1 + 2 * l)
    }

    fn feed_forward(&self, l: usize, x: &Tensor) -> Result<Tensor> {
        let layer = format!("layers.{l}");
        let x = self.linear(&format!("{layer}.feed_forward.up"), x)?;
        let x = match self.config.activation {
            Activation::None => x,
            Activation::Tanh => x.tanh()?,
            Activation::Gelu => x.gelu_erf()?,
            Activation::GeluTanh => x.gelu()?,
            Activation::Relu => x.relu()?,
        };
        let out = self.linear(&format!("{layer}.feed_forward.down"), &x)?;
        self.dropout(out, self.regularization.hidden, 2 + 2 * l)
    }

    /// What the distances between `steps` tokens add to scores, [1, heads, steps, steps].
    fn relative_positions(&self, relative: RelativePositions, steps: usize) -> Result<Tensor> {
        let pairs = (0..steps as isize).flat_map(|query| {
            (0..steps as isize).map(move |key| relative.bucket(key - query) as u32)
        });
        let buckets = Tensor::from_iter(pairs, self.device)?;
        let table = self.get("relative_positions.weight");
        table
            .index_select(&buckets, 0)?
            .reshape((steps, steps, self.config.heads))?
            .permute((2, 0, 1))?
            .unsqueeze(0)?
            .contiguous()
    }

    /// States [sentences · steps, D] of padded token embeddings of the same shape.
    fn states(&self, embedded: &Tensor, lengths: &[usize], steps: usize) -> Result<Tensor> {
        let c = self.config;
        let (batch, d) = (lengths.len(), c.hidden_size);
        let positions = self
            .get("embed_positions.weight")
            .narrow(0, c.position_offset, steps)?;
        let mut x = embedded
            .reshape((batch, steps, d))?
            .broadcast_add(&positions)?;
        if c.type_vocab_size > 0 {
            x = x.broadcast_add(&self.get("embed_types.weight").narrow(0, 0, 1)?)?;
        }
        let mut x = x.reshape((batch * steps, d))?;
        if c.embedding_norm {
            x = self.norm("embed_norm", &x)?;
        }
        x = self.dropout(x, self.regularization.embedding, 0)?;
        let mask = present(lengths, steps, (0.0, MASKED));
        let mut mask = Tensor::from_vec(mask, (batch, 1, 1, steps), self.device)?;
        if let Some(relative) = c.relative_positions {
            mask = mask.broadcast_add(&self.relative_positions(relative, steps)?)?;
        }
        for l in 0..c.layers {
            let layer = format!("layers.{l}");
            let (first, second) = (
                format!("{layer}.attention_norm"),
                format!("{layer}.feed_forward_norm"),
            );
            match c.norm {
                NormPosition::Post => {
                    let a = self.attention(l, &x, &mask, steps)?;
                    x = self.norm(&first, &(a + &x)?)?;
                    let f = self.feed_forward(l, &x)?;
                    x = self.norm(&second, &(f + &x)?)?;
                }
                NormPosition::Pre => {
                    let a = self.attention(l, &self.norm(&first, &x)?, &mask, steps)?;
                    x = (a + &x)?;
                    let f = self.feed_forward(l, &self.norm(&second, &x)?)?;
                    x = (f + &x)?;
                }
            }
        }
        if c.norm == NormPosition::Pre {
            x = self.norm("final_norm", &x)?;
        }
        Ok(x)
    }

    /// Pooled outputs [sentences, D] of states.
    fn pool(&self, states: &Tensor, lengths: &[usize], steps: usize) -> Result<Tensor> {
        let (batch, d) = (lengths.len(), self.config.hidden_size);
        let x = states.reshape((batch, steps, d))?;
        match self.config.pooling {
            TransformerPooling::Cls => x.narrow(1, 0, 1)?.reshape((batch, d)),
            TransformerPooling::Max => {
                let mask = present(lengths, steps, (0.0, MASKED));
                let mask = Tensor::from_vec(mask, (batch, steps, 1), self.device)?;
                x.broadcast_add(&mask)?.max(1)
            }
            TransformerPooling::Mean => {
                let mut share = present(lengths, steps, (1.0, 0.0));
                for (row, length) in share.chunks_exact_mut(steps).zip(lengths) {
                    row.iter_mut().for_each(|v| *v /= *length as f32);
                }
                let share = Tensor::from_vec(share, (batch, steps, 1), self.device)?;
                x.broadcast_mul(&share)?.sum(1)
            }
        }
    }
}

/// One value for each token of padded sentences, and another for padding.
fn present(lengths: &[usize], steps: usize, (value, padding): (f32, f32)) -> Vec<f32> {
    let mut out = vec![padding; lengths.len() * steps];
    for (row, length) in out.chunks_exact_mut(steps).zip(lengths) {
        row[..*length].fill(value);
    }
    out
}

fn device() -> Result<Device> {
    Device::cuda_if_available(0)
}

/// Pooled outputs [sentences, D] of some sentences, zeros for those without tokens; or the states [places, D] at
/// places of each sentence, zeros for those behind the last position.
///
/// # Panics
/// If candle fails, for lack of memory on a GPU.
pub(in crate::models) fn forward(
    c: &TransformerConfig,
    parameters: &Parameters,
    variables: usize,
    batch: &Ragged,
    sentences: Range<usize>,
    places: Option<&Ragged>,
    regularization: Regularization,
) -> (Vec<f32>, GraphSaved) {
    let run = || -> Result<(Vec<f32>, GraphSaved)> {
        let device = device()?;
        let first = parameters.sparse();
        let variables = parameters.list()[first..first + variables]
            .iter()
            .map(|p| Var::from_slice(&p.value, &p.shape[..], &device))
            .collect::<Result<Vec<_>>>()?;
        let (d, begin) = (c.hidden_size, sentences.start);
        let table = parameters.value(0);
        let scale = if c.scale_embedding {
            (d as f32).sqrt()
        } else {
            1.0
        };
        let rows = match places {
            None => sentences.len(),
            Some(places) => places.starts[sentences.end] - places.starts[begin],
        };
        let mut out = vec![0f32; rows * d];
        let all = sentences.clone();
        let order = Steps::new(batch, sentences);
        let present = order.lengths.partition_point(|l| *l > 0);
        let mut groups = Vec::new();
        // The first token of each sentence among those of all.
        let mut begins = vec![0];
        for length in lengths(c, batch, all.clone()) {
            begins.push(begins[begins.len() - 1] + length);
        }
        for at in (0..present).step_by(GROUP) {
            let end = present.min(at + GROUP);
            let limit = c.max_positions - c.position_offset;
            let lengths: Vec<usize> = order.lengths[at..end]
                .iter()
                .map(|l| (*l).min(limit))
                .collect();
            let steps = lengths[0];
            let mut embedded = vec![0f32; lengths.len() * steps * d];
            let (mut ids, mut rows) = (Vec::new(), Vec::new());
            let mut tokens = Vec::new();
            for (s, (sentence, length)) in order.order[at..end].iter().zip(&lengths).enumerate() {
                for (t, id) in batch.row(*sentence)[..*length].iter().enumerate() {
                    let row = s * steps + t;
                    let token = &table[*id as usize * d..][..d];
                    for (to, from) in embedded[row * d..(row + 1) * d].iter_mut().zip(token) {
                        *to = from * scale;
                    }
                    ids.push(*id);
                    rows.push(row as u32);
                    tokens.push((row, begins[sentence - begin] + t));
                }
            }
            let embedded = Var::from_vec(embedded, (lengths.len() * steps, d), &device)?;
            let graph = Graph {
                config: c,
                parameters,
                variables: &variables,
                first,
                device: &device,
                regularization,
                tokens: &tokens,
            };
            let states = graph.states(embedded.as_tensor(), &lengths, steps)?;
            let members = order.order[at..end].iter();
            let (own, output): (Vec<usize>, Tensor) = match places {
                None => {
                    let output = graph.pool(&states, &lengths, steps)?;
                    (members.map(|s| s - begin).collect(), output)
                }
                Some(places) => {
                    let (mut own, mut at) = (Vec::new(), Vec::new());
                    for (s, (sentence, length)) in members.zip(&lengths).enumerate() {
                        let first = places.starts[*sentence] - places.starts[begin];
                        for (number, place) in places.row(*sentence).iter().enumerate() {
                            if (*place as usize) < *length {
                                own.push(first + number);
                                at.push((s * steps) as u32 + place);
                            }
                        }
                    }
                    if own.is_empty() {
                        continue;
                    }
                    let count = at.len();
                    let at = Tensor::from_vec(at, count, &device)?;
                    (own, states.index_select(&at, 0)?)
                }
            };
            for (s, row) in own.iter().zip(output.to_vec2::<f32>()?) {
                out[s * d..(s + 1) * d].copy_from_slice(&row);
            }
            groups.push(Group {
                outputs: own,
                ids,
                rows,
                embedded,
                output,
            });
        }
        Ok((out, GraphSaved { variables, groups }))
    };
    run().expect("candle could not run the transformer")
}

/// Gradient of the token embeddings from that of what [`forward`] gave; adds those of the dense
/// parameters to `gradients`.
///
/// # Panics
/// If candle fails, for lack of memory on a GPU.
pub(in crate::models) fn backward(
    c: &TransformerConfig,
    saved: GraphSaved,
    dy: &[f32],
    gradients: &mut [Vec<f32>],
) -> Occurrences {
    let d = c.hidden_size;
    let scale = if c.scale_embedding {
        (d as f32).sqrt()
    } else {
        1.0
    };
    let mut all = Occurrences::default();
    let run = || -> Result<()> {
        for group in saved.groups {
            let mut own = Vec::with_capacity(group.outputs.len() * d);
            for s in &group.outputs {
                own.extend_from_slice(&dy[s * d..(s + 1) * d]);
            }
            let dy = Tensor::from_vec(own, group.output.shape(), group.output.device())?;
            let grads = (group.output * dy)?.sum_all()?.backward()?;
            for (variable, total) in saved.variables.iter().zip(gradients.iter_mut()) {
                if let Some(gradient) = grads.get(variable) {
                    laser_kernels::slices::add(&gradient.flatten_all()?.to_vec1::<f32>()?, total);
                }
            }
            let Some(gradient) = grads.get(&group.embedded) else {
                continue;
            };
            let offset = (all.source.len() / d) as u32;
            all.source.extend(gradient.flatten_all()?.to_vec1::<f32>()?);
            all.rows.extend(group.rows.iter().map(|r| r + offset));
            all.factors
                .resize(all.factors.len() + group.ids.len(), scale);
            all.ids.extend(group.ids);
        }
        Ok(())
    };
    run().expect("candle could not run the transformer backwards");
    all
}
