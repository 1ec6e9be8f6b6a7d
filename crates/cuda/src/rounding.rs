//! Numbers of tensors, and how they are rounded, for the definitions on candle's CPU device.

use candle_core::{DType, Device, Result, Tensor, bail};
use half::bf16;

/// A tensor's numbers.
pub(crate) fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// How elements of a type are rounded.
pub(crate) fn rounding(dtype: DType) -> Result<fn(f32) -> f32> {
    match dtype {
        DType::F32 => Ok(|x| x),
        DType::BF16 => Ok(|x| bf16::from_f32(x).to_f32()),
        other => bail!("elements are f32 or bf16, not {other:?}"),
    }
}

/// A matrix of rows of this width.
pub(crate) fn tensor(values: Vec<f32>, width: usize, dtype: DType) -> Result<Tensor> {
    let rows = values.len() / width;
    Tensor::from_vec(values, (rows, width), &Device::Cpu)?.to_dtype(dtype)
}
