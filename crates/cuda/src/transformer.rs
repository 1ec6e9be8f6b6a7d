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
//! (Vaswani et al., NIPS 2017, section 3; what is added to scores by distance: Raffel et al., JMLR 2020, section 2.1.) One of
//! a model with rotary positions (Gemma 3, arXiv:2503.19786), whose norms are by the root of the mean square, is
//!
//! ```text
//! q, k, v = turn(norm(x Wq)), turn(norm(x Wk)), x Wv
//! y       = x + norm(mixed Wo),   z = y + norm((activation(norm(y) Wg) norm(y) W1) W2)
//! ```
//!
//! The products
//! with weights are the caller's; the rest is here, one launch each. Products are of one type, f32 or bf16, which
//! queries, keys, values and shares are rounded to; scores, sums and norms are f32.

pub mod arguments;
mod definition;
#[cfg(feature = "cuda")]
mod gpu;
pub mod plan;
mod types;

use candle_core::{DType, Device, Result, Tensor, bail};

pub use types::{Activation, Heads, Keep, Norm, Normalized, Pooling, RootNorm, Sentences, Turning};

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

/// The size of a head in rows of this many columns.
fn size_of_head(columns: usize, queries: usize, keys: usize) -> Result<usize> {
    let parts = queries + 2 * keys;
    if keys == 0 || !queries.is_multiple_of(keys) || !columns.is_multiple_of(parts) {
        bail!("{columns} columns are not {queries} queries, {keys} keys and as many values");
    }
    Ok(columns / parts)
}

/// What each token attends to, [tokens, queries size], from projections [tokens, (queries + 2 keys) size].
///
/// # Errors
/// If shapes or types do not go together, a sentence is longer than the reach, a window is empty, or the device fails.
pub fn attention(sentences: &Sentences, projected: &Tensor, heads: &Heads<'_>) -> Result<Tensor> {
    let columns = projected.dim(1)?;
    size_of_head(columns, heads.queries, heads.keys)?;
    expect(projected, &[sentences.tokens(), columns], projected.dtype())?;
    if let Some(bias) = heads.bias {
        expect(bias, &[columns], DType::F32)?;
    }
    if let Some(relative) = heads.relative {
        let reach = relative.dim(1)?.div_ceil(2);
        expect(relative, &[heads.queries, 2 * reach - 1], DType::F32)?;
        if sentences.longest() > reach {
            let longest = sentences.longest();
            bail!("a sentence of {longest} tokens exceeds the {reach} positions of the model");
        }
    }
    if heads.window == Some(0) {
        bail!("a token sees itself");
    }
    on_device!(projected, attention(sentences, projected, heads))
}

/// Projections [tokens, (queries + 2 keys) size] with queries and keys normalised and turned, as [`attention`] takes them;
/// of the heads, their numbers and the scale count here, which the attention shall not apply again.
///
/// # Errors
/// If shapes or types do not go together, a sentence has more tokens than there are places, or the device fails.
pub fn turn(
    sentences: &Sentences,
    projected: &Tensor,
    heads: &Heads<'_>,
    turning: &Turning,
) -> Result<Tensor> {
    let columns = projected.dim(1)?;
    let size = size_of_head(columns, heads.queries, heads.keys)?;
    expect(projected, &[sentences.tokens(), columns], projected.dtype())?;
    expect(&turning.query, &[size], DType::F32)?;
    expect(&turning.key, &[size], DType::F32)?;
    let places = turning.cosines.dim(0)?;
    if !size.is_multiple_of(2) || sentences.longest() > places {
        let longest = sentences.longest();
        bail!("{places} places do not turn sentences of {longest} tokens with heads of {size}");
    }
    expect(&turning.cosines, &[places, size / 2], DType::F32)?;
    expect(&turning.sines, &[places, size / 2], DType::F32)?;
    on_device!(projected, turn(sentences, projected, heads, turning))
}

/// activation(product + bias) of a product [rows, width] and a bias, f32 [width].
///
/// # Errors
/// If shapes or types do not go together, or the device fails.
pub fn activate(product: &Tensor, bias: &Tensor, activation: Activation) -> Result<Tensor> {
    expect(bias, &[product.dim(1)?], DType::F32)?;
    on_device!(product, activate(product, bias, activation))
}

/// activation(gate) up of a product [rows, 2 width], gates and then what they let through.
///
/// # Errors
/// If the product has an odd number of columns, or the device fails.
pub fn gate(product: &Tensor, activation: Activation) -> Result<Tensor> {
    let columns = product.dim(1)?;
    if !columns.is_multiple_of(2) {
        bail!("{columns} columns are not gates and as many states");
    }
    on_device!(product, gate(product, activation))
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

/// norm(stream + norm(product)) of a stream, f32 [rows, width], and perhaps a product [rows, width] with the weights of its
/// own norm, f32 [width]. Products are of type `dtype`.
///
/// # Errors
/// If shapes or types do not go together, or the device fails.
pub fn root_normalize(
    stream: &Tensor,
    product: Option<(&Tensor, &Tensor)>,
    norm: &RootNorm,
    keep: Keep,
    dtype: DType,
) -> Result<Normalized> {
    let (rows, width) = stream.dims2()?;
    expect(stream, &[rows, width], DType::F32)?;
    expect(&norm.weight, &[width], DType::F32)?;
    if let Some((product, inner)) = product {
        expect(product, &[rows, width], dtype)?;
        expect(inner, &[width], DType::F32)?;
    }
    on_device!(stream, root_normalize(stream, product, norm, keep, dtype))
}

/// One vector for each sentence, f32 [sentences, width], from states, f32 [tokens, width].
///
/// # Errors
/// If shapes or types do not go together, or the device fails.
pub fn pool(sentences: &Sentences, states: &Tensor, pooling: Pooling) -> Result<Tensor> {
    expect(states, &[sentences.tokens(), states.dim(1)?], DType::F32)?;
    on_device!(states, pool(sentences, states, pooling))
}
