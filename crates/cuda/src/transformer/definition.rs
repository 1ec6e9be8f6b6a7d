//! The parts of a layer on candle's CPU device, straight from the definition: slow, and what the kernels are compared
//! with.

use candle_core::{DType, Device, Result, Tensor};

use super::types::{
    Activation, Heads, Keep, Norm, Normalized, Pooling, RootNorm, Sentences, Turning,
};
use crate::rounding::{numbers, rounding, tensor};

/// See [`super::attention`]; the shapes have been checked.
pub(super) fn attention(
    sentences: &Sentences,
    projected: &Tensor,
    heads: &Heads<'_>,
) -> Result<Tensor> {
    let dtype = projected.dtype();
    let round = rounding(dtype)?;
    let (queries, keys) = (heads.queries, heads.keys);
    let columns = projected.dim(1)?;
    let size = columns / (queries + 2 * keys);
    let width = queries * size;
    let bias = heads.bias.map_or(Ok(vec![0.0; columns]), numbers)?;
    let mut projected = numbers(projected)?;
    for row in projected.chunks_exact_mut(columns) {
        for (column, (x, bias)) in row.iter_mut().zip(&bias).enumerate() {
            let scale = if column < width { heads.scale } else { 1.0 };
            *x = round((*x + bias) * scale);
        }
    }
    let reach = heads.relative.map_or(0, |r| r.dims()[1].div_ceil(2));
    let relative = heads.relative.map(numbers).transpose()?;
    let window = heads.window.unwrap_or(usize::MAX);
    let mut mixed = vec![0f32; sentences.tokens() * width];
    for tokens in sentences.offsets().windows(2) {
        for head in 0..queries {
            let part =
                |token: usize, part: usize| &projected[token * columns + part * size..][..size];
            let key_part = queries + head / (queries / keys);
            for query in tokens[0]..tokens[1] {
                let seen: Vec<usize> = (tokens[0]..tokens[1])
                    .filter(|key| query.abs_diff(*key) < window)
                    .collect();
                let score = |&key: &usize| {
                    let products = part(query, head).iter().zip(part(key, key_part));
                    let score: f32 = products.map(|(q, k)| q * k).sum();
                    let relative = relative
                        .as_ref()
                        .map(|relative| relative[head * (2 * reach - 1) + key + reach - 1 - query]);
                    score + relative.unwrap_or(0.0)
                };
                let scores: Vec<f32> = seen.iter().map(score).collect();
                let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = scores.iter().map(|score| (score - largest).exp()).sum();
                let mixed = &mut mixed[query * width + head * size..][..size];
                for (key, score) in seen.into_iter().zip(scores) {
                    let share = round((score - largest).exp() / sum);
                    let values = part(key, key_part + keys);
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

/// See [`super::turn`]; the shapes have been checked.
pub(super) fn turn(
    sentences: &Sentences,
    projected: &Tensor,
    heads: &Heads<'_>,
    turning: &Turning,
) -> Result<Tensor> {
    let (columns, dtype) = (projected.dim(1)?, projected.dtype());
    let (queries, keys) = (heads.queries, heads.keys);
    let size = columns / (queries + 2 * keys);
    let half = size / 2;
    let (query, key) = (numbers(&turning.query)?, numbers(&turning.key)?);
    let (cosines, sines) = (numbers(&turning.cosines)?, numbers(&turning.sines)?);
    let mut turned = numbers(projected)?;
    for tokens in sentences.offsets().windows(2) {
        let rows = &mut turned[tokens[0] * columns..tokens[1] * columns];
        for (place, row) in rows.chunks_exact_mut(columns).enumerate() {
            let heads_of_row = row.chunks_exact_mut(size).take(queries + keys);
            for (number, head) in heads_of_row.enumerate() {
                let (weight, scale) = match number < queries {
                    true => (&query, heads.scale),
                    false => (&key, 1.0),
                };
                let squares: f32 = head.iter().map(|x| x * x).sum();
                let factor = scale / (squares / size as f32 + turning.epsilon).sqrt();
                head.iter_mut()
                    .zip(weight)
                    .for_each(|(x, w)| *x *= factor * w);
                let (low, high) = head.split_at_mut(half);
                let angles = cosines[place * half..].iter().zip(&sines[place * half..]);
                for ((x, y), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
                    (*x, *y) = (*x * cos - *y * sin, *x * sin + *y * cos);
                }
            }
        }
    }
    tensor(turned, columns, dtype)
}

/// activation(x), f32.
fn activated(x: Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Identity => Ok(x),
        Activation::Tanh => x.tanh(),
        Activation::Gelu => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::Relu => x.relu(),
    }
}

/// See [`super::activate`]; the shapes have been checked.
pub(super) fn activate(product: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    let x = product.to_dtype(DType::F32)?.broadcast_add(bias)?;
    activated(x, activation)?.to_dtype(product.dtype())
}

/// See [`super::gate`]; the shape has been checked.
pub(super) fn gate(product: &Tensor, activation: Activation) -> Result<Tensor> {
    let width = product.dim(1)? / 2;
    let x = product.to_dtype(DType::F32)?;
    let gates = activated(x.narrow(1, 0, width)?.contiguous()?, activation)?;
    (gates * x.narrow(1, width, width)?)?.to_dtype(product.dtype())
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

fn root_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    let mean = (x.sqr()?.mean_keepdim(1)? + f64::from(epsilon))?;
    x.broadcast_div(&mean.sqrt()?)?.broadcast_mul(weight)
}

/// See [`super::root_normalize`]; the shapes have been checked.
pub(super) fn root_normalize(
    stream: &Tensor,
    product: Option<(&Tensor, &Tensor)>,
    norm: &RootNorm,
    keep: Keep,
    dtype: DType,
) -> Result<Normalized> {
    let sum = match product {
        Some((product, inner)) => {
            let product = product.to_dtype(DType::F32)?;
            (stream + root_norm(&product, inner, norm.epsilon)?)?
        }
        None => stream.clone(),
    };
    let normalized = root_norm(&sum, &norm.weight, norm.epsilon)?;
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
