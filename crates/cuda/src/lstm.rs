//! One LSTM layer of one direction or two (forwards, backwards) over a batch of sentences.
//!
//! With gates in PyTorch's order i, f, g, o, x the input product and b both biases:
//!
//! ```text
//! i, f, o = sigmoid(x + b + W h),  g = tanh(x + b + W h),  c' = f c + i g,  h' = o tanh(c')
//! ```
//!
//! (Hochreiter & Schmidhuber 1997 with forget gates, as `torch.nn.LSTM` documents it.) Tokens are
//! rows ordered by step, and within a step by descending length of their sentences ([`Steps`]), so
//! nothing is padded. Elements are f32 or bf16; sums, cells and pooled states are f32, states are
//! rounded to the type of the elements before they are multiplied.

pub mod arguments;
mod definition;
#[cfg(feature = "cuda")]
mod gpu;
pub mod plan;
mod types;

use candle_core::{DType, Device, Result, Tensor, bail};

pub use types::{Gradient, Outputs, Pooling, Saved, Shape, Steps, Weights};

/// Whether a device can run layers of a shape on elements of type `dtype`.
#[cfg_attr(
    not(feature = "cuda"),
    expect(unused_variables, reason = "a processor takes any shape")
)]
pub fn supported(device: &Device, dtype: DType, shape: Shape) -> bool {
    match device {
        Device::Cpu => matches!(dtype, DType::F32 | DType::BF16),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => dtype == DType::BF16 && gpu::supported(device, shape),
        _ => false,
    }
}

/// Runs a layer on `products`, the inputs times their weights, [tokens, 4DH] (see [`Shape`]), forward direction
/// first; `save` for [`backward`].
///
/// # Errors
/// If a shape or type is wrong, or [`supported`] is not given.
pub fn forward(
    steps: &Steps,
    products: &Tensor,
    weights: &Weights,
    pooling: Option<Pooling>,
    save: bool,
) -> Result<Outputs> {
    let shape = check(steps, products, weights)?;
    match products.device() {
        Device::Cpu => definition::forward(steps, shape, products, weights, pooling, save),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            gpu::forward(device, steps, shape, products, weights, pooling, save)
        }
        #[allow(unreachable_patterns, reason = "reachable without the feature")]
        other => bail!("this build has no LSTM kernel for {other:?}"),
    }
}

/// The gradient of a layer's `products`, [tokens, 4DH], which is also that of its biases for every
/// token; those of matrices follow by one product each. `recurrent` is that of [`Weights`].
///
/// # Errors
/// As [`forward`].
pub fn backward(
    steps: &Steps,
    recurrent: &Tensor,
    saved: &Saved,
    gradient: Gradient<'_>,
) -> Result<Tensor> {
    let (directions, _, hidden) = recurrent.dims3()?;
    let shape = Shape { directions, hidden };
    let (tokens, width) = (steps.tokens(), shape.width());
    let expected = match gradient {
        Gradient::States(d) => (d, [tokens, width], recurrent.dtype()),
        Gradient::Pooled(d, _) => (d, [steps.sentences(), width], DType::F32),
    };
    for (tensor, dims, dtype) in [
        (&saved.gates, [tokens, 4 * width], recurrent.dtype()),
        (&saved.cells, [tokens, width], DType::F32),
        expected,
    ] {
        if tensor.dims() != dims || tensor.dtype() != dtype {
            bail!("{tensor:?} is not {dims:?} {dtype:?} as an LSTM's gradient needs it");
        }
    }
    if matches!(gradient, Gradient::Pooled(_, Pooling::Max)) && saved.argmax.is_none() {
        bail!("the gradient of maxima needs their steps");
    }
    match recurrent.device() {
        Device::Cpu => definition::backward(steps, shape, recurrent, saved, gradient),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => gpu::backward(device, steps, shape, recurrent, saved, gradient),
        #[allow(unreachable_patterns, reason = "reachable without the feature")]
        other => bail!("this build has no LSTM kernel for {other:?}"),
    }
}

/// The shape of the layer, if all shapes and types go together.
fn check(steps: &Steps, products: &Tensor, weights: &Weights) -> Result<Shape> {
    let Weights { recurrent, bias } = weights;
    let (directions, gates, hidden) = recurrent.dims3()?;
    let known = matches!(directions, 1 | 2) && gates == 4 * hidden;
    if !known || bias.dims() != [directions, 4 * hidden] {
        let (recurrent, bias) = (recurrent.dims(), bias.dims());
        bail!("weights {recurrent:?} and bias {bias:?} are not those of an LSTM");
    }
    if products.dims() != [steps.tokens(), directions * 4 * hidden] {
        bail!(
            "products {:?} do not match {} tokens and {directions} x {hidden} units",
            products.dims(),
            steps.tokens()
        );
    }
    if products.dtype() != recurrent.dtype() || bias.dtype() != DType::F32 {
        bail!("products and weights of an LSTM are of one type, the bias is f32");
    }
    Ok(Shape { directions, hidden })
}

#[cfg(test)]
mod tests {
    use laser_kernels::math::sigmoid;

    use super::*;

    #[test]
    fn one_unit_by_hand() {
        // Weights of zero: only the products count.
        let steps = Steps::new(&[2, 1], &Device::Cpu).unwrap();
        let x: Vec<f32> = (0..24).map(|i| (i as f32 * 0.7).sin()).collect();
        let products = Tensor::from_slice(&x, (3, 8), &Device::Cpu).unwrap();
        let weights = Weights {
            recurrent: Tensor::zeros((2, 4, 1), DType::F32, &Device::Cpu).unwrap(),
            bias: Tensor::zeros((2, 4), DType::F32, &Device::Cpu).unwrap(),
        };
        let numbers = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let pooled = |pooling| {
            let out = forward(&steps, &products, &weights, Some(pooling), false).unwrap();
            numbers(&out.pooled.unwrap())
        };
        let out = numbers(
            &forward(&steps, &products, &weights, None, false)
                .unwrap()
                .states,
        );
        let cell = |x: &[f32], before: f32| sigmoid(x[1]) * before + sigmoid(x[0]) * x[2].tanh();
        let state = |x: &[f32], before| sigmoid(x[3]) * cell(x, before).tanh();
        // Rows: step 0 of both sentences, step 1 of the first; columns: both directions.
        let x: Vec<&[f32]> = x.chunks(4).collect();
        let expected = [
            state(x[0], 0.0),
            state(x[1], cell(x[5], 0.0)),
            state(x[2], 0.0),
            state(x[3], 0.0),
            state(x[4], cell(x[0], 0.0)),
            state(x[5], 0.0),
        ];
        for (a, b) in out.iter().zip(expected) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
        assert_eq!(pooled(Pooling::Last), [out[4], out[1], out[2], out[3]]);
        let max = pooled(Pooling::Max);
        assert_eq!(max[..2], [out[0].max(out[4]), out[1].max(out[5])]);
        assert_eq!(
            pooled(Pooling::Sum)[..2],
            [out[0] + out[4], out[1] + out[5]]
        );
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let steps = Steps::new(&[1], &Device::Cpu).unwrap();
        let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
        let weights = |hidden: usize| Weights {
            recurrent: zeros(&[2, 8, hidden]),
            bias: zeros(&[2, 8]),
        };
        assert!(forward(&steps, &zeros(&[1, 16]), &weights(2), None, false).is_ok());
        assert!(forward(&steps, &zeros(&[2, 16]), &weights(2), None, false).is_err());
        assert!(forward(&steps, &zeros(&[1, 16]), &weights(3), None, false).is_err());
    }
}
