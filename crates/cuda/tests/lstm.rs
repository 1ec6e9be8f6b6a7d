//! The kernels against the definition: compiled for a processor everywhere, on a GPU where there
//! is one.

#[path = "../../../tests/src/skipped.rs"]
mod skipped;

mod common;

use candle_core::{DType, Device, Tensor, WithDType};
use common::{Random, assert_close, floats, numbers, wide};
use half::bf16;
use laser_cuda::lstm::plan::Plan;
use laser_cuda::lstm::{self, Gradient, Outputs, Pooling, Saved, Shape, Steps, Weights};
use laser_cuda_emulation::lstm::{self as emulation, Element, Gradients, Inputs};
use skipped::skipped;

const POOLINGS: [Option<Pooling>; 4] = [
    None,
    Some(Pooling::Max),
    Some(Pooling::Sum),
    Some(Pooling::Last),
];

/// A layer with numbers that fill the range of the gates.
struct Case {
    shape: Shape,
    steps: Steps,
    products: Tensor,
    weights: Weights,
    d_states: Tensor,
    d_pooled: Tensor,
}

/// One direction and two, of `hidden` units.
fn shapes(hidden: usize) -> [Shape; 2] {
    [1, 2].map(|directions| Shape { directions, hidden })
}

impl Case {
    fn new(shape: Shape, lengths: &[usize], dtype: DType) -> Self {
        let (directions, hidden, width) = (shape.directions, shape.hidden, shape.width());
        let mut random = Random(88_172_645_463_325_252);
        let steps = Steps::new(lengths, &Device::Cpu).unwrap();
        let (tokens, sentences) = (steps.tokens(), steps.sentences());
        // The sum over a row of weights stays of the order of 1.
        let scale = 2.0 / (hidden as f32).sqrt();
        Self {
            shape,
            products: random.tensor(&[tokens, 4 * width], 2.0, dtype),
            weights: Weights {
                recurrent: random.tensor(&[directions, 4 * hidden, hidden], scale, dtype),
                bias: random.tensor(&[directions, 4 * hidden], 0.5, DType::F32),
            },
            d_states: random.tensor(&[tokens, width], 1.0, dtype),
            d_pooled: random.tensor(&[sentences, width], 1.0, DType::F32),
            steps,
        }
    }

    fn forward(&self, pooling: Option<Pooling>) -> Outputs {
        lstm::forward(&self.steps, &self.products, &self.weights, pooling, true).unwrap()
    }

    fn backward(&self, saved: &Saved, pooling: Option<Pooling>) -> Tensor {
        let gradient = match pooling {
            Some(pooling) => Gradient::Pooled(&self.d_pooled, pooling),
            None => Gradient::States(&self.d_states),
        };
        lstm::backward(&self.steps, &self.weights.recurrent, saved, gradient).unwrap()
    }

    fn to_device(&self, device: &Device, lengths: &[usize]) -> Self {
        let there = |t: &Tensor| t.to_device(device).unwrap();
        Self {
            shape: self.shape,
            steps: Steps::new(lengths, device).unwrap(),
            products: there(&self.products),
            weights: Weights {
                recurrent: there(&self.weights.recurrent),
                bias: there(&self.weights.bias),
            },
            d_states: there(&self.d_states),
            d_pooled: there(&self.d_pooled),
        }
    }
}

/// Both ways, with all poolings and several orders of the threads.
fn emulate<T: Element + WithDType>(case: &Case, tolerance: f32, rows: usize, groups: usize) {
    let plan = Plan {
        rows,
        groups,
        shared: 100_000,
    };
    let products = numbers::<T>(&case.products);
    let recurrent = numbers::<T>(&case.weights.recurrent);
    let transposed = case.weights.recurrent.transpose(1, 2).unwrap();
    let transposed = numbers::<T>(&transposed);
    let bias = floats(&case.weights.bias);
    let (d_states, d_pooled) = (numbers::<T>(&case.d_states), floats(&case.d_pooled));
    for pooling in POOLINGS {
        let expected = case.forward(pooling);
        let saved = expected.saved.as_ref().unwrap();
        let d_expected = floats(&case.backward(saved, pooling));
        let offsets = case.steps.offsets().iter().map(|&at| at as u32);
        let offsets: Vec<u32> = offsets.collect();
        let mut first = None;
        for seed in 0..2 {
            let inputs = Inputs {
                products: &products,
                weights: &recurrent,
                bias: &bias,
                offsets: &offsets,
                shape: case.shape,
                pooling: pooling.map_or(0, |p| p as u32),
            };
            let out = emulation::lstm_forward(inputs, &plan, seed).unwrap();
            assert_close(&wide(&out.states), &floats(&expected.states), tolerance);
            assert_close(&wide(&out.gates), &floats(&saved.gates), tolerance);
            assert_close(&out.cells, &floats(&saved.cells), tolerance);
            if let Some(pooled) = &expected.pooled {
                assert_close(&out.pooled, &floats(pooled), 2.0 * tolerance);
            }
            if let (Some(argmax), DType::F32) = (&saved.argmax, T::DTYPE) {
                assert_eq!(out.argmax, numbers::<u32>(argmax));
            }
            let gradients = Gradients {
                transposed: &transposed,
                offsets: &offsets,
                saved: &out,
                d_states: pooling.is_none().then_some(&d_states[..]),
                d_pooled: pooling.is_some().then_some(&d_pooled[..]),
                shape: case.shape,
                pooling: inputs.pooling,
            };
            let d = wide(&emulation::lstm_backward(gradients, &plan, seed).unwrap());
            // Where states are rounded, another of two nearly equal ones may be the largest.
            if pooling != Some(Pooling::Max) || T::DTYPE == DType::F32 {
                assert_close(&d, &d_expected, 2.0 * tolerance);
            }
            // The order in which threads take turns changes nothing at all.
            let all = (wide(&out.states), d);
            assert_eq!(*first.get_or_insert_with(|| all.clone()), all);
        }
    }
}

/// Sentences for more than one slice of 32 and of 64, and steps that some slices do not have.
fn lengths() -> Vec<usize> {
    (0..70).map(|i| [6, 5, 3, 3, 2, 1, 1][i / 10]).collect()
}

#[test]
fn the_kernels_without_rounding_are_the_definition() {
    for shape in shapes(32) {
        let case = Case::new(shape, &lengths(), DType::F32);
        for (rows, groups) in [(64, 2), (32, 1), (32, 2)] {
            emulate::<f32>(&case, 2e-5, rows, groups);
        }
    }
}

#[test]
fn the_kernels_round_to_bf16() {
    for shape in shapes(48) {
        let case = Case::new(shape, &lengths(), DType::BF16);
        for (rows, groups) in [(64, 1), (32, 2)] {
            emulate::<bf16>(&case, 0.03, rows, groups);
        }
    }
}

#[test]
fn one_sentence_of_one_token() {
    for shape in shapes(16) {
        emulate::<f32>(&Case::new(shape, &[1], DType::F32), 1e-6, 32, 1);
    }
}

#[test]
fn the_gradient_is_that_of_finite_differences() {
    let case = |shape| Case::new(shape, &[4, 2, 2, 1], DType::F32);
    // Far enough apart that the change moves no maximum.
    let step = 4e-3f32;
    for (mut case, pooling) in shapes(3)
        .into_iter()
        .flat_map(|shape| POOLINGS.map(|p| (case(shape), p)))
    {
        let loss = |case: &Case| -> f64 {
            let out = case.forward(pooling);
            let (out, d) = match &out.pooled {
                Some(pooled) => (floats(pooled), floats(&case.d_pooled)),
                None => (floats(&out.states), floats(&case.d_states)),
            };
            let terms = out.iter().zip(d).map(|(a, b)| f64::from(*a) * f64::from(b));
            terms.sum()
        };
        let saved = case.forward(pooling).saved.unwrap();
        let gradient = floats(&case.backward(&saved, pooling));
        let products = case.products.clone();
        let original = floats(&products);
        for (i, gradient) in gradient.iter().enumerate() {
            let mut moved = |by: f32| {
                let mut values = original.clone();
                values[i] += by;
                case.products = Tensor::from_vec(values, products.dims(), &Device::Cpu).unwrap();
                loss(&case)
            };
            let slope = (moved(step) - moved(-step)) / f64::from(2.0 * step);
            let difference = (f64::from(*gradient) - slope).abs();
            assert!(difference < 1e-3, "{pooling:?} {i}: {gradient} {slope}");
        }
    }
}

#[test]
fn a_gpu_computes_what_the_definition_says() {
    let device = match Device::new_cuda_with_stream(0) {
        Ok(device) => device,
        Err(e) => {
            skipped("the LSTM kernels on a GPU", &e.to_string());
            return;
        }
    };
    for shape in [32, 512].into_iter().flat_map(shapes) {
        if !lstm::supported(&device, DType::BF16, shape) {
            let what = format!("the LSTM kernels on a GPU with {shape:?}");
            skipped(&what, "they do not fit on this one");
            continue;
        }
        let host = Case::new(shape, &lengths(), DType::BF16);
        let case = host.to_device(&device, &lengths());
        for pooling in POOLINGS {
            let (expected, out) = (host.forward(pooling), case.forward(pooling));
            assert_close(&floats(&out.states), &floats(&expected.states), 0.03);
            if let (Some(pooled), Some(expected)) = (&out.pooled, &expected.pooled) {
                assert_close(&floats(pooled), &floats(expected), 0.06);
            }
            if pooling != Some(Pooling::Max) {
                let expected = host.backward(&expected.saved.unwrap(), pooling);
                let gradient = case.backward(&out.saved.unwrap(), pooling);
                assert_close(&floats(&gradient), &floats(&expected), 0.06);
            }
        }
    }
}
