//! A transformer layer between its products with weights, over a batch of sentences without padding.
//!
//! With the projections of a layer's inputs x (queries, keys and values, [tokens, 3, heads, size]) a layer is
//!
//! ```text
//! q, k, v = x Wq + bq, x Wk + bk, x Wv + bv
//! mixed   = softmax(q kᵀ / √size + relative) v          within a sentence, for each head
//! y       = norm(x + mixed Wo + bo),   z = norm(y + activation(y W1 + b1) W2 + b2)
//! ```
//!
//! (Vaswani et al., NIPS 2017, section 3; what is added to scores by distance: Raffel et al., JMLR 2020, section 2.1.) The products
//! with weights are the caller's; the rest is here, one launch each. Products are of one type, f32 or bf16, which
//! queries, keys, values and shares are rounded to; scores, sums and norms are f32.

pub mod arguments;
mod definition;
#[cfg(feature = "cuda")]
mod gpu;
pub mod plan;
mod types;

use candle_core::{DType, Device, Result, Tensor, bail};

pub use types::{Activation, Keep, Norm, Normalized, Pooling, Sentences};

/// Whether a device can run layers of this width with heads of this size, on products of type `dtype`.
#[cfg_attr(
    not(feature = "cuda"),
    expect(unused_variables, reason = "a processor takes any shape")
)]
pub fn supported(device: &Device, dtype: DType, width: usize, size: usize) -> bool {
    match device {
        Device::Cpu => matches!(dtype, DType::F32 | DType::BF16),
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let known = plan::SIZES.contains(&size) && width.is_multiple_of(8);
            dtype == DType::BF16 && known && width <= plan::WIDEST && gpu::supported(device)
        }
        _ => false,
    }
}

fn expect(tensor: &Tensor, dims: &[usize], dtype: DType) -> Result<()> {
    if tensor.dims() != dims || tensor.dtype() != dtype {
        bail!("{tensor:?} is not {dims:?} {dtype:?} as a transformer layer needs it");
    }
    Ok(())
}

/// Computes on a processor or, with the feature, on a GPU.
macro_rules! on_device {
    ($tensor:expr, $function:ident($($argument:expr),*)) => {
        match $tensor.device() {
            Device::Cpu => definition::$function($($argument),*),
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => gpu::$function(device, $($argument),*),
            #[allow(unreachable_patterns, reason = "reachable without the feature")]
            other => bail!("this build has no transformer kernels for {other:?}"),
        }
    };
}

/// What each token attends to, [tokens, width], from projections [tokens, 3 width] with their bias, f32 [3 width], not yet
/// added. `relative`, f32 [heads, 2 reach - 1], has what scores get for the distances from 1 - reach to reach - 1 of
/// a key behind the query.
///
/// # Errors
/// If shapes or types do not go together, a sentence is longer than the reach, or the device fails.
pub fn attention(
    sentences: &Sentences,
    projected: &Tensor,
    bias: &Tensor,
    heads: usize,
    relative: Option<&Tensor>,
) -> Result<Tensor> {
    let columns = projected.dim(1)?;
    if heads == 0 || !columns.is_multiple_of(3 * heads) {
        bail!("{columns} columns are not queries, keys and values of {heads} heads");
    }
    expect(projected, &[sentences.tokens(), columns], projected.dtype())?;
    expect(bias, &[columns], DType::F32)?;
    if let Some(relative) = relative {
        let reach = relative.dim(1)?.div_ceil(2);
        expect(relative, &[heads, 2 * reach - 1], DType::F32)?;
        if sentences.longest() > reach {
            let longest = sentences.longest();
            bail!("a sentence of {longest} tokens exceeds the {reach} positions of the model");
        }
    }
    on_device!(
        projected,
        attention(sentences, projected, bias, heads, relative)
    )
}

/// activation(product + bias) of a product [rows, width] and a bias, f32 [width].
///
/// # Errors
/// If shapes or types do not go together, or the device fails.
pub fn activate(product: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    expect(bias, &[product.dim(1)?], DType::F32)?;
    on_device!(product, activate(product, bias, activation))
}

/// norm(stream + product + bias) of a stream, f32 [rows, width], and perhaps a product [rows, width] with its bias, f32 [width].
/// Products are of type `dtype`.
///
/// # Errors
/// If shapes or types do not go together, or the device fails.
pub fn normalize(
    stream: &Tensor,
    product: Option<(&Tensor, &Tensor)>,
    norm: &Norm,
    keep: Keep,
    dtype: DType,
) -> Result<Normalized> {
    let (rows, width) = stream.dims2()?;
    expect(stream, &[rows, width], DType::F32)?;
    expect(&norm.weight, &[width], DType::F32)?;
    expect(&norm.shift, &[width], DType::F32)?;
    if let Some((product, bias)) = product {
        expect(product, &[rows, width], dtype)?;
        expect(bias, &[width], DType::F32)?;
    }
    on_device!(stream, normalize(stream, product, norm, keep, dtype))
}

/// One vector for each sentence, f32 [sentences, width], from states, f32 [tokens, width].
///
/// # Errors
/// If shapes or types do not go together, or the device fails.
pub fn pool(sentences: &Sentences, states: &Tensor, pooling: Pooling) -> Result<Tensor> {
    expect(states, &[sentences.tokens(), states.dim(1)?], DType::F32)?;
    on_device!(states, pool(sentences, states, pooling))
}
