//! The kernels against the definition: compiled for a processor everywhere, on a GPU where there is one.

#[path = "../../../tests/src/skipped.rs"]
mod skipped;

mod common;

use candle_core::{DType, Device, Tensor, WithDType};
use common::{Random, assert_close, floats, numbers, wide};
use half::bf16;
use laser_cuda::transformer::{self, Activation, Keep, Norm, Pooling, Sentences};
use laser_cuda_emulation::transformer::{self as emulation, Element, Inputs};
use skipped::skipped;

const ACTIVATIONS: [Activation; 5] = [
    Activation::Identity,
    Activation::Tanh,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
];
const POOLINGS: [Pooling; 3] = [Pooling::First, Pooling::Mean, Pooling::Max];

/// The inputs of all parts of a layer.
struct Case {
    heads: usize,
    dtype: DType,
    lengths: Vec<usize>,
    projected: Tensor,
    bias: Tensor,
    relative: Tensor,
    product: Tensor,
    product_bias: Tensor,
    stream: Tensor,
    norm: Norm,
}

impl Case {
    fn new(heads: usize, size: usize, lengths: &[usize], dtype: DType) -> Self {
        let mut random = Random(88_172_645_463_325_252);
        let width = heads * size;
        let tokens: usize = lengths.iter().sum();
        let reach = lengths.iter().max().unwrap() + 3;
        Self {
            heads,
            dtype,
            lengths: lengths.to_vec(),
            // Some keys get most of a query's attention.
            projected: random.tensor(&[tokens, 3 * width], 3.0, dtype),
            bias: random.tensor(&[3 * width], 0.5, DType::F32),
            relative: random.tensor(&[heads, 2 * reach - 1], 2.0, DType::F32),
            product: random.tensor(&[tokens, width], 2.0, dtype),
            product_bias: random.tensor(&[width], 1.0, DType::F32),
            stream: random.tensor(&[tokens, width], 4.0, DType::F32),
            norm: Norm {
                weight: random.tensor(&[width], 2.0, DType::F32),
                shift: random.tensor(&[width], 1.0, DType::F32),
                epsilon: 1e-5,
            },
        }
    }

    fn sentences(&self) -> Sentences {
        Sentences::new(&self.lengths, self.stream.device()).unwrap()
    }

    fn to_device(&self, device: &Device) -> Self {
        let there = |t: &Tensor| t.to_device(device).unwrap();
        Self {
            heads: self.heads,
            dtype: self.dtype,
            lengths: self.lengths.clone(),
            projected: there(&self.projected),
            bias: there(&self.bias),
            relative: there(&self.relative),
            product: there(&self.product),
            product_bias: there(&self.product_bias),
            stream: there(&self.stream),
            norm: Norm {
                weight: there(&self.norm.weight),
                shift: there(&self.norm.shift),
                epsilon: self.norm.epsilon,
            },
        }
    }

    fn attention(&self, relative: bool) -> Vec<f32> {
        let relative = relative.then_some(&self.relative);
        let sentences = self.sentences();
        let mixed = transformer::attention(
            &sentences,
            &self.projected,
            &self.bias,
            self.heads,
            relative,
        );
        floats(&mixed.unwrap())
    }

    fn activate(&self, activation: Activation) -> Vec<f32> {
        let out = transformer::activate(&self.product, &self.product_bias, activation);
        floats(&out.unwrap())
    }

    fn normalize(&self, product: bool, keep: Keep) -> (Vec<f32>, Vec<f32>) {
        let product = product.then_some((&self.product, &self.product_bias));
        let out = transformer::normalize(&self.stream, product, &self.norm, keep, self.dtype);
        let out = out.unwrap();
        (floats(&out.stream), floats(&out.out))
    }

    fn pool(&self, pooling: Pooling) -> Vec<f32> {
        floats(&transformer::pool(&self.sentences(), &self.stream, pooling).unwrap())
    }
}

/// All kernels, in several orders of the threads.
fn emulate<T: Element + WithDType>(case: &Case, tolerance: f32) {
    let projected = numbers::<T>(&case.projected);
    let (bias, relative) = (floats(&case.bias), floats(&case.relative));
    let product = numbers::<T>(&case.product);
    let (product_bias, stream) = (floats(&case.product_bias), floats(&case.stream));
    let (weight, shift) = (floats(&case.norm.weight), floats(&case.norm.shift));
    let norm = (&weight[..], &shift[..], case.norm.epsilon);
    let sentences = case.sentences();
    for seed in 0..3 {
        for with_relative in [false, true] {
            let inputs = Inputs {
                projected: &projected,
                bias: &bias,
                relative: with_relative.then_some(&relative[..]),
                heads: case.heads,
            };
            let mixed = emulation::attention(&sentences, inputs, seed).unwrap();
            assert_close(&wide(&mixed), &case.attention(with_relative), tolerance);
        }
        for activation in ACTIVATIONS {
            let out = emulation::activate(&product, &product_bias, activation, seed).unwrap();
            assert_close(&wide(&out), &case.activate(activation), tolerance);
        }
        for (added, keep) in [
            (true, Keep::Norm),
            (true, Keep::Sum),
            (false, Keep::Norm),
            (false, Keep::Sum),
        ] {
            let product = added.then_some((&product[..], &product_bias[..]));
            let (kept, out) = emulation::normalize(&stream, product, norm, keep, seed).unwrap();
            let (kept_expected, expected) = case.normalize(added, keep);
            assert_close(&kept, &kept_expected, 2e-5);
            assert_close(&wide(&out), &expected, tolerance);
        }
        for pooling in POOLINGS {
            let pooled = emulation::pool(&sentences, &stream, pooling, seed).unwrap();
            assert_close(&pooled, &case.pool(pooling), 1e-5);
        }
    }
}

#[test]
fn the_kernels_without_rounding_are_the_definition() {
    for (heads, size) in [(3, 32), (2, 64), (1, 128)] {
        // One tile, a full one, and several; the shortest there is.
        let case = Case::new(heads, size, &[5, 64, 1, 130, 65, 16], DType::F32);
        emulate::<f32>(&case, 3e-5);
    }
}

#[test]
fn the_kernels_round_to_bf16() {
    for (heads, size) in [(2, 32), (1, 64), (1, 128)] {
        let case = Case::new(heads, size, &[70, 7, 33], DType::BF16);
        emulate::<bf16>(&case, 0.03);
    }
}

#[test]
fn attention_by_hand() {
    // Keys alike: every token gets the mean of the values, with their bias.
    let sentences = Sentences::new(&[2, 1], &Device::Cpu).unwrap();
    let rows = [[1f32, 2.0, 4.0], [3.0, 2.0, 8.0], [5.0, 2.0, 1.0]];
    let projected = Tensor::new(&rows, &Device::Cpu).unwrap();
    let bias = Tensor::new(&[0f32, 0.0, 0.5], &Device::Cpu).unwrap();
    let mixed = transformer::attention(&sentences, &projected, &bias, 1, None).unwrap();
    assert_eq!(floats(&mixed), [6.5, 6.5, 1.5]);
    // A score of its own for the key behind the query, and for the one before.
    let relative = Tensor::new(&[[-200f32, 0.0, 200.0]], &Device::Cpu).unwrap();
    let mixed = transformer::attention(&sentences, &projected, &bias, 1, Some(&relative)).unwrap();
    assert_eq!(floats(&mixed), [8.5, 8.5, 1.5]);
}

#[test]
fn wrong_shapes_are_refused() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let sentences = Sentences::new(&[3, 2], &Device::Cpu).unwrap();
    let attention = |projected: &[usize], bias: &[usize], heads, relative: Option<&[usize]>| {
        let relative = relative.map(zeros);
        transformer::attention(
            &sentences,
            &zeros(projected),
            &zeros(bias),
            heads,
            relative.as_ref(),
        )
    };
    assert!(attention(&[5, 24], &[24], 2, Some(&[2, 5])).is_ok());
    assert!(attention(&[4, 24], &[24], 2, None).is_err());
    assert!(attention(&[5, 24], &[12], 2, None).is_err());
    assert!(attention(&[5, 24], &[24], 5, None).is_err());
    assert!(attention(&[5, 24], &[24], 0, None).is_err());
    // Three tokens have distances from -2 to 2.
    assert!(attention(&[5, 24], &[24], 2, Some(&[2, 3])).is_err());
    assert!(transformer::activate(&zeros(&[5, 8]), &zeros(&[9]), Activation::Relu).is_err());
    assert!(transformer::pool(&sentences, &zeros(&[4, 8]), Pooling::Max).is_err());
    assert!(Sentences::new(&[3, 0], &Device::Cpu).is_err());
}

#[test]
fn a_gpu_computes_what_the_definition_says() {
    let device = match Device::new_cuda_with_stream(0) {
        Ok(device) => device,
        Err(e) => {
            skipped("the transformer kernels on a GPU", &e.to_string());
            return;
        }
    };
    for (heads, size) in [(12, 32), (12, 64), (4, 128)] {
        let lengths: Vec<usize> = (0..40).map(|i| 1 + i * 37 % 200).collect();
        let case = Case::new(heads, size, &lengths, DType::BF16);
        let there = case.to_device(&device);
        for relative in [false, true] {
            assert_close(&there.attention(relative), &case.attention(relative), 0.03);
        }
        for activation in ACTIVATIONS {
            assert_close(
                &there.activate(activation),
                &case.activate(activation),
                0.03,
            );
        }
        for (product, keep) in [(true, Keep::Norm), (true, Keep::Sum), (false, Keep::Norm)] {
            let (kept, out) = there.normalize(product, keep);
            let (kept_expected, expected) = case.normalize(product, keep);
            assert_close(&kept, &kept_expected, 1e-4);
            assert_close(&out, &expected, 0.03);
        }
        for pooling in POOLINGS {
            assert_close(&there.pool(pooling), &case.pool(pooling), 1e-4);
        }
    }
}
