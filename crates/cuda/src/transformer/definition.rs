//! The parts of a layer on candle's CPU device, straight from the definition: slow, and what the kernels are compared
//! with.

use candle_core::{DType, Device, Result, Tensor};

use super::types::{Activation, Keep, Norm, Normalized, Pooling, Sentences};
use crate::rounding::{numbers, rounding, tensor};

/// See [`super::attention`]; the shapes have been checked.
pub(super) fn attention(
    sentences: &Sentences,
    projected: &Tensor,
    bias: &Tensor,
    heads: usize,
    relative: Option<&Tensor>,
) -> Result<Tensor> {
    let dtype = projected.dtype();
    let round = rounding(dtype)?;
    let (columns, width) = (bias.dim(0)?, bias.dim(0)? / 3);
    let size = width / heads;
    let bias = numbers(bias)?;
    let scale = 1.0 / (size as f32).sqrt();
    let mut projected = numbers(projected)?;
    for row in projected.chunks_exact_mut(columns) {
        for (column, (x, bias)) in row.iter_mut().zip(&bias).enumerate() {
            let scale = if column < width { scale } else { 1.0 };
            *x = round((*x + bias) * scale);
        }
    }
    let reach = relative.map_or(0, |r| r.dims()[1].div_ceil(2));
    let relative = relative.map(numbers).transpose()?;
    let mut mixed = vec![0f32; sentences.tokens() * width];
    for tokens in sentences.offsets().windows(2) {
        for head in 0..heads {
            let part = |token: usize, part: usize| {
                &projected[token * columns + part * width + head * size..][..size]
            };
            for query in tokens[0]..tokens[1] {
                let score = |key: usize| {
                    let products = part(query, 0).iter().zip(part(key, 1));
                    let score: f32 = products.map(|(q, k)| q * k).sum();
                    let relative = relative
                        .as_ref()
                        .map(|relative| relative[head * (2 * reach - 1) + key + reach - 1 - query]);
                    score + relative.unwrap_or(0.0)
                };
                let scores: Vec<f32> = (tokens[0]..tokens[1]).map(score).collect();
                let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
                let mixed = &mut mixed[query * width + head * size..][..size];
                for (key, score) in (tokens[0]..).zip(scores) {
                    let share = round((score - largest).exp() / sum);
                    let values = part(key, 2);
                    mixed
                        .iter_mut()
                        .zip(values)
                        .for_each(|(m, v)| *m += share * v);
                }
            }
        }
    }
    tensor(mixed, width, dtype)
}

/// See [`super::activate`]; the shapes have been checked.
pub(super) fn activate(product: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    let x = product.to_dtype(DType::F32)?.broadcast_add(bias)?;
    let x = match activation {
        Activation::Identity => x,
        Activation::Tanh => x.tanh()?,
        Activation::Gelu => x.gelu_erf()?,
        Activation::GeluTanh => x.gelu()?,
        Activation::Relu => x.relu()?,
    };
    x.to_dtype(product.dtype())
}

/// See [`super::normalize`]; the shapes have been checked.
pub(super) fn normalize(
    stream: &Tensor,
    product: Option<(&Tensor, &Tensor)>,
    norm: &Norm,
    keep: Keep,
    dtype: DType,
) -> Result<Normalized> {
    let sum = match product {
        Some((product, bias)) => (stream + product.to_dtype(DType::F32)?.broadcast_add(bias)?)?,
        None => stream.clone(),
    };
    let centred = sum.broadcast_sub(&sum.mean_keepdim(1)?)?;
    let variance = (centred.sqr()?.mean_keepdim(1)? + f64::from(norm.epsilon))?;
    let normalized = centred
        .broadcast_div(&variance.sqrt()?)?
        .broadcast_mul(&norm.weight)?
        .broadcast_add(&norm.shift)?;
    Ok(Normalized {
        out: normalized.to_dtype(dtype)?,
        stream: match keep {
            Keep::Sum => sum,
            Keep::Norm => normalized,
        },
    })
}

/// See [`super::pool`]; the shapes have been checked.
pub(super) fn pool(sentences: &Sentences, states: &Tensor, pooling: Pooling) -> Result<Tensor> {
    let width = states.dim(1)?;
    let states = numbers(states)?;
    let mut pooled = Vec::with_capacity(sentences.len() * width);
    for tokens in sentences.offsets().windows(2) {
        let rows = tokens[0] * width..tokens[1] * width;
        let mut rows = states[rows].chunks_exact(width);
        let mut row = rows.next().expect("no sentence is empty").to_vec();
        if pooling != Pooling::First {
            for other in rows {
                row.iter_mut().zip(other).for_each(|(x, y)| match pooling {
                    Pooling::Max => *x = x.max(*y),
                    _ => *x += y,
                });
            }
        }
        if pooling == Pooling::Mean {
            let tokens = (tokens[1] - tokens[0]) as f32;
            row.iter_mut().for_each(|x| *x /= tokens);
        }
        pooled.extend(row);
    }
    Tensor::from_vec(pooled, (sentences.len(), width), &Device::Cpu)
}
