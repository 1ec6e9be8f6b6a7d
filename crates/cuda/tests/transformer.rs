//! The kernels against the definition: compiled for a processor everywhere, on a GPU where there is one.

#[path = "../../../tests/src/skipped.rs"]
mod skipped;

mod common;

use candle_core::{DType, Device, Tensor, WithDType};
use common::{Random, assert_close, floats, numbers, wide};
use half::bf16;
use laser_cuda::transformer::{
    self, Activation, Heads, Keep, Norm, Pooling, RootNorm, Sentences, Turning,
};
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

/// Queries and keys of a token, and the size of each.
#[derive(Clone, Copy)]
struct Shape {
    queries: usize,
    keys: usize,
    size: usize,
}

const fn shape(queries: usize, keys: usize, size: usize) -> Shape {
    Shape {
        queries,
        keys,
        size,
    }
}

/// What attention has besides queries, keys and values.
#[derive(Clone, Copy)]
struct Extras {
    bias: bool,
    relative: bool,
    window: Option<usize>,
}

const EXTRAS: [Extras; 4] = [
    Extras {
        bias: true,
        relative: false,
        window: None,
    },
    Extras {
        bias: true,
        relative: true,
        window: None,
    },
    Extras {
        bias: false,
        relative: false,
        window: Some(9),
    },
    // Some queries of a block do not see its first tile of keys.
    Extras {
        bias: false,
        relative: true,
        window: Some(70),
    },
];

/// The inputs of all parts of a layer.
struct Case {
    shape: Shape,
    dtype: DType,
    lengths: Vec<usize>,
    projected: Tensor,
    bias: Tensor,
    relative: Tensor,
    turning: Turning,
    product: Tensor,
    product_bias: Tensor,
    stream: Tensor,
    norm: Norm,
}

impl Case {
    fn new(shape: Shape, lengths: &[usize], dtype: DType) -> Self {
        let mut random = Random(88_172_645_463_325_252);
        let Shape {
            queries,
            keys,
            size,
        } = shape;
        let (width, columns) = (queries * size, (queries + 2 * keys) * size);
        let tokens: usize = lengths.iter().sum();
        let reach = lengths.iter().max().unwrap() + 3;
        Self {
            shape,
            dtype,
            lengths: lengths.to_vec(),
            // Some keys get most of a query's attention.
            projected: random.tensor(&[tokens, columns], 3.0, dtype),
            bias: random.tensor(&[columns], 0.5, DType::F32),
            relative: random.tensor(&[queries, 2 * reach - 1], 2.0, DType::F32),
            turning: Turning {
                query: random.tensor(&[size], 2.0, DType::F32),
                key: random.tensor(&[size], 2.0, DType::F32),
                epsilon: 0.01,
                cosines: random.tensor(&[reach, size / 2], 1.0, DType::F32),
                sines: random.tensor(&[reach, size / 2], 1.0, DType::F32),
            },
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

    fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    fn sentences(&self) -> Sentences {
        Sentences::new(&self.lengths, self.stream.device()).unwrap()
    }

    fn to_device(&self, device: &Device) -> Self {
        let there = |t: &Tensor| t.to_device(device).unwrap();
        Self {
            shape: self.shape,
            dtype: self.dtype,
            lengths: self.lengths.clone(),
            projected: there(&self.projected),
            bias: there(&self.bias),
            relative: there(&self.relative),
            turning: Turning {
                query: there(&self.turning.query),
                key: there(&self.turning.key),
                epsilon: self.turning.epsilon,
                cosines: there(&self.turning.cosines),
                sines: there(&self.turning.sines),
            },
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

    fn heads(&self, extras: Extras) -> Heads<'_> {
        Heads {
            queries: self.shape.queries,
            keys: self.shape.keys,
            scale: 1.0 / (self.shape.size as f32).sqrt(),
            window: extras.window,
            bias: extras.bias.then_some(&self.bias),
            relative: extras.relative.then_some(&self.relative),
        }
    }

    fn attention(&self, extras: Extras) -> Vec<f32> {
        let heads = self.heads(extras);
        let mixed = transformer::attention(&self.sentences(), &self.projected, &heads);
        floats(&mixed.unwrap())
    }

    fn turn(&self) -> Vec<f32> {
        let heads = self.heads(EXTRAS[0]);
        let turned = transformer::turn(&self.sentences(), &self.projected, &heads, &self.turning);
        floats(&turned.unwrap())
    }

    /// Of two neighbouring rows one gates the other.
    fn gates(&self) -> Tensor {
        let (rows, width) = self.product.dims2().unwrap();
        let even = self.product.narrow(0, 0, rows / 2 * 2).unwrap();
        even.reshape((rows / 2, 2 * width)).unwrap()
    }

    fn gate(&self, activation: Activation) -> Vec<f32> {
        floats(&transformer::gate(&self.gates(), activation).unwrap())
    }

    /// The norm's shift is the weight of the product's own norm.
    fn root_normalize(&self, product: bool, keep: Keep) -> (Vec<f32>, Vec<f32>) {
        let norm = RootNorm {
            weight: self.norm.weight.clone(),
            epsilon: self.norm.epsilon,
        };
        let product = product.then_some((&self.product, &self.norm.shift));
        let out = transformer::root_normalize(&self.stream, product, &norm, keep, self.dtype);
        let out = out.unwrap();
        (floats(&out.stream), floats(&out.out))
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
    for (seed, extras) in (0..).zip(EXTRAS) {
        let heads = case.heads(extras);
        let inputs = Inputs {
            projected: &projected,
            bias: extras.bias.then_some(&bias[..]),
            relative: extras.relative.then_some(&relative[..]),
            heads: [heads.queries, heads.keys],
            scale: heads.scale,
            window: heads.window(),
        };
        let mixed = emulation::attention(&sentences, inputs, seed).unwrap();
        assert_close(&wide(&mixed), &case.attention(extras), tolerance);
    }
    let turning = [&case.turning.query, &case.turning.key].map(floats);
    let angles = [&case.turning.cosines, &case.turning.sines].map(floats);
    let gates = numbers::<T>(&case.gates());
    for seed in 0..2 {
        let heads = case.heads(EXTRAS[0]);
        let inputs = Inputs {
            projected: &projected,
            bias: None,
            relative: None,
            heads: [heads.queries, heads.keys],
            scale: heads.scale,
            window: u32::MAX,
        };
        let [query, key] = [&turning[0][..], &turning[1][..]];
        let angles = [&angles[0][..], &angles[1][..]];
        let epsilon = case.turning.epsilon;
        let turned = emulation::turn(&sentences, inputs, [query, key], angles, epsilon, seed);
        assert_close(&wide(&turned.unwrap()), &case.turn(), tolerance);
        for activation in ACTIVATIONS {
            let out = emulation::activate(&product, &product_bias, activation, seed).unwrap();
            assert_close(&wide(&out), &case.activate(activation), tolerance);
            let out = emulation::gate(&gates, stream.len() / case.tokens(), activation, seed);
            assert_close(&wide(&out.unwrap()), &case.gate(activation), tolerance);
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
            let product = product.map(|(product, _)| (product, &shift[..]));
            let norm = (&weight[..], case.norm.epsilon);
            let (kept, out) =
                emulation::root_normalize(&stream, product, norm, keep, seed).unwrap();
            let (kept_expected, expected) = case.root_normalize(added, keep);
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
    for shape in [
        shape(4, 2, 32),
        shape(2, 2, 64),
        shape(1, 1, 128),
        shape(2, 1, 256),
    ] {
        // One tile, a full one, and several; the shortest there is.
        let case = Case::new(shape, &[5, 64, 1, 170, 65, 16], DType::F32);
        emulate::<f32>(&case, 3e-5);
    }
}

#[test]
fn the_kernels_round_to_bf16() {
    for shape in [
        shape(2, 1, 32),
        shape(1, 1, 64),
        shape(1, 1, 128),
        shape(1, 1, 256),
    ] {
        let case = Case::new(shape, &[70, 7, 33], DType::BF16);
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
    let heads = Heads {
        queries: 1,
        keys: 1,
        scale: 1.0,
        window: None,
        bias: Some(&bias),
        relative: None,
    };
    let attention =
        |heads: Heads<'_>| floats(&transformer::attention(&sentences, &projected, &heads).unwrap());
    assert_eq!(attention(heads), [6.5, 6.5, 1.5]);
    // A score of its own for the key behind the query, and for the one before.
    let relative = Tensor::new(&[[-200f32, 0.0, 200.0]], &Device::Cpu).unwrap();
    let relative = Heads {
        relative: Some(&relative),
        ..heads
    };
    assert_eq!(attention(relative), [8.5, 8.5, 1.5]);
    // Nobody sees anybody else.
    let alone = Heads {
        window: Some(1),
        ..heads
    };
    assert_eq!(attention(alone), [4.5, 8.5, 1.5]);
}

#[test]
fn turns_by_hand() {
    let tensor = |rows: &[f32], columns: usize| {
        Tensor::from_vec(rows.to_vec(), (rows.len() / columns, columns), &Device::Cpu).unwrap()
    };
    let row = |x: &[f32]| tensor(x, x.len()).squeeze(0).unwrap();
    // A query, a key and a value of two places; a quarter turn at the second.
    let projected = tensor(
        &[3.0, 4.0, 6.0, 8.0, 5.0, 5.0, 3.0, 4.0, 6.0, 8.0, 5.0, 5.0],
        6,
    );
    let turning = Turning {
        query: row(&[5.0, 5.0]),
        key: row(&[5.0, 10.0]),
        epsilon: 0.0,
        cosines: tensor(&[1.0, 0.0], 1),
        sines: tensor(&[0.0, 1.0], 1),
    };
    let heads = Heads {
        queries: 1,
        keys: 1,
        scale: 2.0,
        window: None,
        bias: None,
        relative: None,
    };
    let sentences = Sentences::new(&[2], &Device::Cpu).unwrap();
    let turned = transformer::turn(&sentences, &projected, &heads, &turning).unwrap();
    // The root of the mean of 9 and 16 is 5 / √2, that of the key twice as much.
    let root = 2f32.sqrt();
    let expected = [6.0, 8.0, 3.0, 8.0, 5.0, 5.0, -8.0, 6.0, -8.0, 3.0, 5.0, 5.0];
    let scaled: Vec<f32> = expected
        .iter()
        .enumerate()
        .map(|(i, x)| if i % 6 < 4 { x * root } else { *x })
        .collect();
    assert_close(&floats(&turned), &scaled, 1e-6);
}

#[test]
fn gates_and_norms_by_hand() {
    let row = |x: &[f32]| Tensor::new(x, &Device::Cpu).unwrap();
    let product = row(&[-1.0, 2.0, 3.0, 4.0]).unsqueeze(0).unwrap();
    let gated = transformer::gate(&product, Activation::Relu).unwrap();
    assert_eq!(floats(&gated), [0.0, 8.0]);
    // The product is normalised to 1 and 1, twice which makes 4 and 4 of the stream.
    let (stream, product) = (row(&[2.0, 2.0]), row(&[7.0, 7.0]));
    let (stream, product) = (stream.unsqueeze(0).unwrap(), product.unsqueeze(0).unwrap());
    let norm = RootNorm {
        weight: row(&[3.0, 5.0]),
        epsilon: 0.0,
    };
    for (keep, kept) in [(Keep::Sum, [4.0, 4.0]), (Keep::Norm, [3.0, 5.0])] {
        let added = Some((&product, &row(&[2.0, 2.0])));
        let out = transformer::root_normalize(&stream, added, &norm, keep, DType::F32).unwrap();
        assert_eq!(floats(&out.out), [3.0, 5.0]);
        assert_eq!(floats(&out.stream), kept);
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let sentences = Sentences::new(&[3, 2], &Device::Cpu).unwrap();
    let attention = |projected: &[usize], bias: &[usize], heads, relative: Option<&[usize]>| {
        let (bias, relative) = (zeros(bias), relative.map(zeros));
        let heads = Heads {
            queries: heads,
            keys: heads,
            scale: 1.0,
            window: None,
            bias: Some(&bias),
            relative: relative.as_ref(),
        };
        transformer::attention(&sentences, &zeros(projected), &heads)
    };
    assert!(attention(&[5, 24], &[24], 2, Some(&[2, 5])).is_ok());
    assert!(attention(&[4, 24], &[24], 2, None).is_err());
    assert!(attention(&[5, 24], &[12], 2, None).is_err());
    assert!(attention(&[5, 24], &[24], 5, None).is_err());
    assert!(attention(&[5, 24], &[24], 0, None).is_err());
    // Three tokens have distances from -2 to 2.
    assert!(attention(&[5, 24], &[24], 2, Some(&[2, 3])).is_err());
    let shared = |queries, keys, window| {
        let heads = Heads {
            queries,
            keys,
            scale: 1.0,
            window,
            bias: None,
            relative: None,
        };
        transformer::attention(&sentences, &zeros(&[5, 24]), &heads)
    };
    assert!(shared(4, 1, Some(1)).is_ok());
    assert!(shared(4, 1, Some(0)).is_err());
    assert!(shared(3, 2, None).is_err());
    let turn = |places, size| {
        let turning = Turning {
            query: zeros(&[size]),
            key: zeros(&[4]),
            epsilon: 1.0,
            cosines: zeros(&[places, 2]),
            sines: zeros(&[places, 2]),
        };
        let heads = Heads {
            queries: 4,
            keys: 1,
            scale: 1.0,
            window: None,
            bias: None,
            relative: None,
        };
        transformer::turn(&sentences, &zeros(&[5, 24]), &heads, &turning)
    };
    assert!(turn(3, 4).is_ok());
    assert!(turn(2, 4).is_err());
    assert!(turn(3, 5).is_err());
    assert!(transformer::gate(&zeros(&[5, 7]), Activation::Relu).is_err());
    assert!(transformer::activate(&zeros(&[5, 8]), &zeros(&[9]), Activation::Relu).is_err());
    assert!(transformer::pool(&sentences, &zeros(&[4, 8]), Pooling::Max).is_err());
    assert!(Sentences::new(&[3, 0], &Device::Cpu).is_err());
}

/// Fails where numbers differ by more in the root of the mean square.
#[track_caller]
fn assert_near(a: &[f32], b: &[f32], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    let error = (squares.sum::<f64>() / a.len() as f64).sqrt();
    assert!(error <= tolerance, "{error}");
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
    for shape in [
        shape(12, 12, 32),
        shape(12, 12, 64),
        shape(4, 4, 128),
        shape(3, 1, 256),
    ] {
        let lengths: Vec<usize> = (0..40).map(|i| 1 + i * 37 % 200).collect();
        let case = Case::new(shape, &lengths, DType::BF16);
        let there = case.to_device(&device);
        for extras in EXTRAS {
            let (there, here) = (there.attention(extras), case.attention(extras));
            // Both round to bf16, at other places: of a million numbers a few are twice as far from each other as from what
            // they ought to be.
            assert_near(&there, &here, 0.006);
            assert_close(&there, &here, 0.06);
        }
        assert_close(&there.turn(), &case.turn(), 0.03);
        for activation in ACTIVATIONS {
            assert_close(
                &there.activate(activation),
                &case.activate(activation),
                0.03,
            );
            assert_close(&there.gate(activation), &case.gate(activation), 0.03);
        }
        for (product, keep) in [(true, Keep::Norm), (true, Keep::Sum), (false, Keep::Norm)] {
            let (kept, out) = there.normalize(product, keep);
            let (kept_expected, expected) = case.normalize(product, keep);
            assert_close(&kept, &kept_expected, 1e-4);
            assert_close(&out, &expected, 0.03);
            let (kept, out) = there.root_normalize(product, keep);
            let (kept_expected, expected) = case.root_normalize(product, keep);
            assert_close(&kept, &kept_expected, 1e-4);
            assert_close(&out, &expected, 0.03);
        }
        for pooling in POOLINGS {
            assert_close(&there.pool(pooling), &case.pool(pooling), 1e-4);
        }
    }
}
