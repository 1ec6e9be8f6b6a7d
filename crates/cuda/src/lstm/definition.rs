//! The layer on candle's CPU device, straight from the definition: slow, and what the kernels are
//! compared with.

use candle_core::{DType, Device, Result, Tensor};
use laser_kernels::math::sigmoid;

use super::types::{Gradient, Outputs, Pooling, Saved, Shape, Steps, Weights};
use crate::rounding::{numbers, rounding, tensor};

/// See [`super::forward`]; the shapes have been checked.
pub(super) fn forward(
    steps: &Steps,
    shape: Shape,
    products: &Tensor,
    weights: &Weights,
    pooling: Option<Pooling>,
    save: bool,
) -> Result<Outputs> {
    let (h, directions, dtype) = (shape.hidden, shape.directions, products.dtype());
    let width = shape.width();
    let round = rounding(dtype)?;
    let (recurrent, bias) = (numbers(&weights.recurrent)?, numbers(&weights.bias)?);
    let mut gates = numbers(products)?;
    let mut states = vec![0f32; steps.tokens() * width];
    let mut cells = vec![0f32; steps.tokens() * width];
    let mut pooled = vec![0f32; steps.sentences() * width];
    let mut argmax = vec![0u32; steps.sentences() * width];
    for direction in 0..directions {
        let reverse = direction == 1;
        for visit in 0..steps.len() {
            let t = if reverse {
                steps.len() - 1 - visit
            } else {
                visit
            };
            let (before, continued) = steps.previous(t, reverse);
            for row in 0..steps.active(t) {
                let goes_on = row < continued;
                let token = (steps.packing.offset(t) + row) * directions + direction;
                let last = (steps.packing.offset(before) + row) * directions + direction;
                let gates = &mut gates[token * 4 * h..][..4 * h];
                for (r, sum) in gates.iter_mut().enumerate() {
                    *sum += bias[direction * 4 * h + r];
                    if goes_on {
                        let weights = &recurrent[(direction * 4 * h + r) * h..][..h];
                        let state = &states[last * h..][..h];
                        *sum += state.iter().zip(weights).map(|(a, b)| a * b).sum::<f32>();
                    }
                    let candidate = (2 * h..3 * h).contains(&r);
                    *sum = if candidate { sum.tanh() } else { sigmoid(*sum) };
                }
                for k in 0..h {
                    let old = if goes_on { cells[last * h + k] } else { 0.0 };
                    let cell = gates[h + k] * old + gates[k] * gates[2 * h + k];
                    let state = gates[3 * h + k] * cell.tanh();
                    cells[token * h + k] = cell;
                    states[token * h + k] = round(state);
                    let at = (row * directions + direction) * h + k;
                    match pooling {
                        Some(Pooling::Sum) => pooled[at] += state,
                        Some(Pooling::Max) if goes_on => {
                            // Of equal states the first wins.
                            if state > pooled[at] || (reverse && state == pooled[at]) {
                                (pooled[at], argmax[at]) = (state, t as u32);
                            }
                        }
                        _ => (pooled[at], argmax[at]) = (state, t as u32),
                    }
                }
            }
        }
    }
    let dims = (steps.sentences(), width);
    let argmax = match pooling {
        Some(Pooling::Max) => Some(Tensor::from_vec(argmax, dims, &Device::Cpu)?),
        _ => None,
    };
    let saved = match save {
        true => Some(Saved {
            gates: tensor(gates, 4 * width, dtype)?,
            cells: tensor(cells, width, DType::F32)?,
            argmax,
        }),
        false => None,
    };
    Ok(Outputs {
        states: tensor(states, width, dtype)?,
        pooled: pooling
            .map(|_| tensor(pooled, width, DType::F32))
            .transpose()?,
        saved,
    })
}

/// See [`super::backward`]; the shapes have been checked.
pub(super) fn backward(
    steps: &Steps,
    shape: Shape,
    recurrent: &Tensor,
    saved: &Saved,
    gradient: Gradient<'_>,
) -> Result<Tensor> {
    let (h, directions, dtype) = (shape.hidden, shape.directions, recurrent.dtype());
    let round = rounding(dtype)?;
    let recurrent = numbers(recurrent)?;
    let (gates, cells) = (numbers(&saved.gates)?, numbers(&saved.cells)?);
    let argmax: Vec<u32> = match &saved.argmax {
        Some(argmax) => argmax.flatten_all()?.to_vec1()?,
        None => Vec::new(),
    };
    let given = match gradient {
        Gradient::States(d) | Gradient::Pooled(d, _) => numbers(d)?,
    };
    let mut d_gates = vec![0f32; gates.len()];
    for direction in 0..directions {
        let reverse = direction == 1;
        let mut d_cells = vec![0f32; steps.sentences() * h];
        for visit in 0..steps.len() {
            let t = if reverse {
                visit
            } else {
                steps.len() - 1 - visit
            };
            let (before, continued) = steps.previous(t, reverse);
            let (after, going_on) = steps.previous(t, !reverse);
            for row in 0..steps.active(t) {
                let at = |t: usize| (steps.packing.offset(t) + row) * directions + direction;
                let token = at(t);
                for k in 0..h {
                    let sentence = (row * directions + direction) * h + k;
                    let mut d_state = match gradient {
                        Gradient::States(_) => given[token * h + k],
                        Gradient::Pooled(_, Pooling::Sum) => given[sentence],
                        Gradient::Pooled(_, Pooling::Max) if argmax[sentence] == t as u32 => {
                            given[sentence]
                        }
                        Gradient::Pooled(_, Pooling::Last) if row >= going_on => given[sentence],
                        Gradient::Pooled(..) => 0.0,
                    };
                    if row < going_on {
                        d_state += (0..4 * h)
                            .map(|r| {
                                let weight = recurrent[(direction * 4 * h + r) * h + k];
                                weight * d_gates[at(after) * 4 * h + r]
                            })
                            .sum::<f32>();
                    }
                    let gate = |g: usize| gates[token * 4 * h + g * h + k];
                    let (i, f, g, o) = (gate(0), gate(1), gate(2), gate(3));
                    let squashed = cells[token * h + k].tanh();
                    let old = if row < continued {
                        cells[at(before) * h + k]
                    } else {
                        0.0
                    };
                    let d_cell = d_cells[row * h + k] + d_state * o * (1.0 - squashed * squashed);
                    d_cells[row * h + k] = d_cell * f;
                    let d = [
                        d_cell * g * i * (1.0 - i),
                        d_cell * old * f * (1.0 - f),
                        d_cell * i * (1.0 - g * g),
                        d_state * squashed * o * (1.0 - o),
                    ];
                    for (gate, d) in d.into_iter().enumerate() {
                        d_gates[token * 4 * h + gate * h + k] = round(d);
                    }
                }
            }
        }
    }
    tensor(d_gates, 4 * shape.width(), dtype)
}
