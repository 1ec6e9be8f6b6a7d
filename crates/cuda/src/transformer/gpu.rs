//! Launches of the kernels in `kernels/transformer.cu`.
#![allow(unsafe_code)]

use std::ptr::null;

use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute;
use candle_core::cuda_backend::cudarc::driver::{
    DevicePtr, DevicePtrMut, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaDevice, WrapErr};
use candle_core::{DType, Result, Tensor, bail};
use half::bf16;

use super::arguments;
use super::plan::{Plan, SIZES, THREADS, WIDEST};
use super::types::{
    Activation, Heads, Keep, Norm, Normalized, Pooling, RootNorm, Sentences, Turning,
};
use crate::gpu::{multiplies_bf16, operand, ptx, tensor};

// SAFETY: plain C structs of addresses and numbers, which the kernels take by value.
unsafe impl DeviceRepr for arguments::Attention<bf16> {}
// SAFETY: as above.
unsafe impl DeviceRepr for arguments::Turn<bf16> {}
// SAFETY: as above.
unsafe impl DeviceRepr for arguments::Activate<bf16> {}
// SAFETY: as above.
unsafe impl DeviceRepr for arguments::Gate<bf16> {}
// SAFETY: as above.
unsafe impl DeviceRepr for arguments::Normalize<bf16> {}
// SAFETY: as above.
unsafe impl DeviceRepr for arguments::RootNormalize<bf16> {}
// SAFETY: as above.
unsafe impl DeviceRepr for arguments::Pool {}

/// Whether a GPU can run the kernels.
pub(super) fn supported(device: &CudaDevice) -> bool {
    multiplies_bf16(device).unwrap_or(false)
}

/// Launches a kernel that takes one struct.
///
/// # Safety
/// The addresses in `arguments` are of buffers as `kernels/transformer.cuh` describes them, which live until the stream
/// has come to the end of the launch, and the plan is the one for their sizes.
unsafe fn launch<A: DeviceRepr>(
    device: &CudaDevice,
    name: &str,
    plan: &Plan,
    arguments: &A,
) -> Result<()> {
    let [x, y, z] = plan.grid;
    if y.max(z) > usize::from(u16::MAX) {
        bail!("a batch of {} sentences is too large for a GPU", y.max(z));
    }
    let function = device.get_or_load_custom_func(name, "laser_transformer", ptx::TRANSFORMER)?;
    // More than 48 KiB have to be asked for.
    if plan.shared > 48 << 10 {
        let shared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(shared, plan.shared as i32).w()?;
    }
    let mut builder = function.builder();
    builder.arg(arguments);
    let config = LaunchConfig {
        grid_dim: (x as u32, y as u32, z as u32),
        block_dim: (THREADS as u32, 1, 1),
        shared_mem_bytes: plan.shared as u32,
    };
    // SAFETY: the kernels take one struct of type A, and the caller vouches for what is in it.
    unsafe { builder.launch(config) }.w()?;
    Ok(())
}

fn rows(rows: usize) -> Result<u32> {
    u32::try_from(rows).map_err(|_| candle_core::Error::Msg(format!("{rows} rows are too many")))
}

/// See [`super::attention`]; the shapes have been checked.
pub(super) fn attention(
    device: &CudaDevice,
    sentences: &Sentences,
    projected: &Tensor,
    heads: &Heads<'_>,
) -> Result<Tensor> {
    let size = projected.dim(1)? / (heads.queries + 2 * heads.keys);
    let width = heads.queries * size;
    if !SIZES.contains(&size) {
        bail!("there is no kernel for heads of {size} columns");
    }
    if sentences.is_empty() {
        return projected.narrow(1, 0, width)?.contiguous();
    }
    // SAFETY: the kernel writes every element.
    let mut mixed = unsafe { device.alloc::<bf16>(sentences.tokens() * width)? };
    let operands = [operand(projected)?, operand(&sentences.on_device)?];
    let bias = heads.bias.map(operand).transpose()?;
    let relative = heads.relative.map(operand).transpose()?;
    {
        let stream = device.cuda_stream();
        let (projected, offsets) = (operands[0].view::<bf16>()?, operands[1].view::<u32>()?);
        let bias = bias.as_ref().map(|x| x.view::<f32>()).transpose()?;
        let relative = relative.as_ref().map(|x| x.view::<f32>()).transpose()?;
        // The guards that come with the addresses order the launch after what wrote the inputs and
        // before what reads the outputs.
        let (projected, _projected) = projected.device_ptr(&stream);
        let (offsets, _offsets) = offsets.device_ptr(&stream);
        let bias = bias.as_ref().map(|x| x.device_ptr(&stream));
        let relative = relative.as_ref().map(|x| x.device_ptr(&stream));
        let (mixed, _mixed) = mixed.device_ptr_mut(&stream);
        let arguments = arguments::Attention::<bf16> {
            projected: projected as *const bf16,
            bias: bias.as_ref().map_or(null(), |x| x.0 as *const f32),
            offsets: offsets as *const u32,
            relative: relative.as_ref().map_or(null(), |x| x.0 as *const f32),
            mixed: mixed as *mut bf16,
            scale: heads.scale,
            reach: heads.relative.map_or(0, |x| x.dims()[1].div_ceil(2) as u32),
            shared: heads.keys as u32,
            window: heads.window(),
        };
        let name = format!("transformer_attention_{size}");
        let plan = Plan::attention(sentences, heads.queries, size);
        // SAFETY: the buffers have the lengths that were checked by the caller or made above, and are freed in
        // the order of the stream; no sentence is longer than the reach.
        unsafe { launch(device, &name, &plan, &arguments) }?;
    }
    Ok(tensor(device, mixed, (sentences.tokens(), width)))
}

/// See [`super::turn`]; the shapes have been checked.
pub(super) fn turn(
    device: &CudaDevice,
    sentences: &Sentences,
    projected: &Tensor,
    heads: &Heads<'_>,
    turning: &Turning,
) -> Result<Tensor> {
    let columns = projected.dim(1)?;
    let parts = heads.queries + 2 * heads.keys;
    let size = columns / parts;
    if !SIZES.contains(&size) {
        bail!("there is no kernel for heads of {size} columns");
    }
    if sentences.is_empty() {
        return Ok(projected.clone());
    }
    // SAFETY: the kernel writes every element.
    let mut out = unsafe { device.alloc::<bf16>(sentences.tokens() * columns)? };
    let operands = [
        operand(projected)?,
        operand(&turning.query)?,
        operand(&turning.key)?,
        operand(&turning.cosines)?,
        operand(&turning.sines)?,
        operand(&sentences.on_device)?,
    ];
    {
        let stream = device.cuda_stream();
        let (projected, query) = (operands[0].view::<bf16>()?, operands[1].view::<f32>()?);
        let (key, cosines) = (operands[2].view::<f32>()?, operands[3].view::<f32>()?);
        let (sines, offsets) = (operands[4].view::<f32>()?, operands[5].view::<u32>()?);
        // As in the attention.
        let (projected, _projected) = projected.device_ptr(&stream);
        let (query, _query) = query.device_ptr(&stream);
        let (key, _key) = key.device_ptr(&stream);
        let (cosines, _cosines) = cosines.device_ptr(&stream);
        let (sines, _sines) = sines.device_ptr(&stream);
        let (offsets, _offsets) = offsets.device_ptr(&stream);
        let (out, _out) = out.device_ptr_mut(&stream);
        let arguments = arguments::Turn::<bf16> {
            projected: projected as *const bf16,
            query: query as *const f32,
            key: key as *const f32,
            cosines: cosines as *const f32,
            sines: sines as *const f32,
            offsets: offsets as *const u32,
            out: out as *mut bf16,
            heads: heads.queries as u32,
            shared: heads.keys as u32,
            size: size as u32,
            scale: heads.scale,
            epsilon: turning.epsilon,
        };
        let plan = Plan::turn(sentences, parts);
        // SAFETY: as in the attention; no sentence has more tokens than there are places.
        unsafe { launch(device, "transformer_turn", &plan, &arguments) }?;
    }
    Ok(tensor(device, out, (sentences.tokens(), columns)))
}

/// See [`super::activate`]; the shapes have been checked.
pub(super) fn activate(
    device: &CudaDevice,
    product: &Tensor,
    bias: &Tensor,
    activation: Activation,
) -> Result<Tensor> {
    let (n, width) = product.dims2()?;
    if !width.is_multiple_of(8) {
        bail!("there is no kernel for {width} columns");
    }
    if n == 0 {
        return Ok(product.clone());
    }
    // SAFETY: the kernel writes every element.
    let mut out = unsafe { device.alloc::<bf16>(n * width)? };
    let operands = [operand(product)?, operand(bias)?];
    {
        let stream = device.cuda_stream();
        let (product, bias) = (operands[0].view::<bf16>()?, operands[1].view::<f32>()?);
        // As in the attention.
        let (product, _product) = product.device_ptr(&stream);
        let (bias, _bias) = bias.device_ptr(&stream);
        let (out, _out) = out.device_ptr_mut(&stream);
        let arguments = arguments::Activate::<bf16> {
            product: product as *const bf16,
            bias: bias as *const f32,
            out: out as *mut bf16,
            rows: rows(n)?,
            width: width as u32,
            activation: activation as u32,
        };
        // SAFETY: as in the attention.
        unsafe {
            launch(
                device,
                "transformer_activate",
                &Plan::activate(n * width),
                &arguments,
            )
        }?;
    }
    Ok(tensor(device, out, (n, width)))
}

/// See [`super::gate`]; the shape has been checked.
pub(super) fn gate(
    device: &CudaDevice,
    product: &Tensor,
    activation: Activation,
) -> Result<Tensor> {
    let (n, columns) = product.dims2()?;
    let width = columns / 2;
    if !width.is_multiple_of(8) {
        bail!("there is no kernel for gates of {width} columns");
    }
    if n == 0 {
        return product.narrow(1, 0, width);
    }
    // SAFETY: the kernel writes every element.
    let mut out = unsafe { device.alloc::<bf16>(n * width)? };
    let operand = operand(product)?;
    {
        let stream = device.cuda_stream();
        let product = operand.view::<bf16>()?;
        // As in the attention.
        let (product, _product) = product.device_ptr(&stream);
        let (out, _out) = out.device_ptr_mut(&stream);
        let arguments = arguments::Gate::<bf16> {
            product: product as *const bf16,
            out: out as *mut bf16,
            rows: rows(n)?,
            width: width as u32,
            activation: activation as u32,
        };
        let plan = Plan::activate(n * width);
        // SAFETY: as in the attention.
        unsafe { launch(device, "transformer_gate", &plan, &arguments) }?;
    }
    Ok(tensor(device, out, (n, width)))
}

/// See [`super::normalize`]; the shapes have been checked.
pub(super) fn normalize(
    device: &CudaDevice,
    stream: &Tensor,
    product: Option<(&Tensor, &Tensor)>,
    norm: &Norm,
    keep: Keep,
    dtype: DType,
) -> Result<Normalized> {
    let (n, width) = stream.dims2()?;
    if !width.is_multiple_of(4) || width > WIDEST || dtype != DType::BF16 {
        bail!("there is no kernel for {width} columns of {dtype:?}");
    }
    if n == 0 {
        return Ok(Normalized {
            stream: stream.clone(),
            out: stream.to_dtype(dtype)?,
        });
    }
    // SAFETY: the kernel writes every element of both.
    let (mut kept, mut out) = unsafe {
        (
            device.alloc::<f32>(n * width)?,
            device.alloc::<bf16>(n * width)?,
        )
    };
    let operands = [
        operand(stream)?,
        operand(&norm.weight)?,
        operand(&norm.shift)?,
    ];
    let added = product
        .map(|(product, bias)| Ok::<_, candle_core::Error>((operand(product)?, operand(bias)?)))
        .transpose()?;
    {
        let queue = device.cuda_stream();
        let (stream, weight) = (operands[0].view::<f32>()?, operands[1].view::<f32>()?);
        let shift = operands[2].view::<f32>()?;
        let added = added
            .as_ref()
            .map(|(product, bias)| {
                Ok::<_, candle_core::Error>((product.view::<bf16>()?, bias.view::<f32>()?))
            })
            .transpose()?;
        // As in the attention.
        let (stream, _stream) = stream.device_ptr(&queue);
        let (weight, _weight) = weight.device_ptr(&queue);
        let (shift, _shift) = shift.device_ptr(&queue);
        let product = added
            .as_ref()
            .map(|(product, _)| product.device_ptr(&queue));
        let bias = added.as_ref().map(|(_, bias)| bias.device_ptr(&queue));
        let (kept, _kept) = kept.device_ptr_mut(&queue);
        let (out, _out) = out.device_ptr_mut(&queue);
        let arguments = arguments::Normalize::<bf16> {
            stream: stream as *const f32,
            product: product.as_ref().map_or(null(), |x| x.0 as *const bf16),
            bias: bias.as_ref().map_or(null(), |x| x.0 as *const f32),
            weight: weight as *const f32,
            shift: shift as *const f32,
            kept: kept as *mut f32,
            out: out as *mut bf16,
            rows: rows(n)?,
            width: width as u32,
            epsilon: norm.epsilon,
            normalized: u32::from(keep == Keep::Norm),
        };
        // SAFETY: as in the attention.
        unsafe {
            launch(
                device,
                "transformer_normalize",
                &Plan::normalize(n, width),
                &arguments,
            )
        }?;
    }
    Ok(Normalized {
        stream: tensor(device, kept, (n, width)),
        out: tensor(device, out, (n, width)),
    })
}

/// See [`super::root_normalize`]; the shapes have been checked.
pub(super) fn root_normalize(
    device: &CudaDevice,
    stream: &Tensor,
    product: Option<(&Tensor, &Tensor)>,
    norm: &RootNorm,
    keep: Keep,
    dtype: DType,
) -> Result<Normalized> {
    let (n, width) = stream.dims2()?;
    if !width.is_multiple_of(4) || width > WIDEST || dtype != DType::BF16 {
        bail!("there is no kernel for {width} columns of {dtype:?}");
    }
    if n == 0 {
        return Ok(Normalized {
            stream: stream.clone(),
            out: stream.to_dtype(dtype)?,
        });
    }
    // SAFETY: the kernel writes every element of both.
    let (mut kept, mut out) = unsafe {
        (
            device.alloc::<f32>(n * width)?,
            device.alloc::<bf16>(n * width)?,
        )
    };
    let operands = [operand(stream)?, operand(&norm.weight)?];
    let added = product
        .map(|(product, inner)| Ok::<_, candle_core::Error>((operand(product)?, operand(inner)?)))
        .transpose()?;
    {
        let queue = device.cuda_stream();
        let (stream, weight) = (operands[0].view::<f32>()?, operands[1].view::<f32>()?);
        let added = added
            .as_ref()
            .map(|(product, inner)| {
                Ok::<_, candle_core::Error>((product.view::<bf16>()?, inner.view::<f32>()?))
            })
            .transpose()?;
        // As in the attention.
        let (stream, _stream) = stream.device_ptr(&queue);
        let (weight, _weight) = weight.device_ptr(&queue);
        let product = added
            .as_ref()
            .map(|(product, _)| product.device_ptr(&queue));
        let inner = added.as_ref().map(|(_, inner)| inner.device_ptr(&queue));
        let (kept, _kept) = kept.device_ptr_mut(&queue);
        let (out, _out) = out.device_ptr_mut(&queue);
        let arguments = arguments::RootNormalize::<bf16> {
            stream: stream as *const f32,
            product: product.as_ref().map_or(null(), |x| x.0 as *const bf16),
            inner: inner.as_ref().map_or(null(), |x| x.0 as *const f32),
            weight: weight as *const f32,
            kept: kept as *mut f32,
            out: out as *mut bf16,
            rows: rows(n)?,
            width: width as u32,
            epsilon: norm.epsilon,
            normalized: u32::from(keep == Keep::Norm),
        };
        let plan = Plan::normalize(n, width);
        // SAFETY: as in the attention.
        unsafe { launch(device, "transformer_root_normalize", &plan, &arguments) }?;
    }
    Ok(Normalized {
        stream: tensor(device, kept, (n, width)),
        out: tensor(device, out, (n, width)),
    })
}

/// See [`super::pool`]; the shapes have been checked.
pub(super) fn pool(
    device: &CudaDevice,
    sentences: &Sentences,
    states: &Tensor,
    pooling: Pooling,
) -> Result<Tensor> {
    let width = states.dim(1)?;
    if sentences.is_empty() {
        return states.narrow(0, 0, 0);
    }
    // SAFETY: the kernel writes every element.
    let mut out = unsafe { device.alloc::<f32>(sentences.len() * width)? };
    let operands = [operand(states)?, operand(&sentences.on_device)?];
    {
        let stream = device.cuda_stream();
        let (states, offsets) = (operands[0].view::<f32>()?, operands[1].view::<u32>()?);
        // As in the attention.
        let (states, _states) = states.device_ptr(&stream);
        let (offsets, _offsets) = offsets.device_ptr(&stream);
        let (out, _out) = out.device_ptr_mut(&stream);
        let arguments = arguments::Pool {
            states: states as *const f32,
            offsets: offsets as *const u32,
            out: out as *mut f32,
            width: width as u32,
            pooling: pooling as u32,
        };
        // SAFETY: as in the attention.
        unsafe {
            launch(
                device,
                "transformer_pool",
                &Plan::pool(sentences, width),
                &arguments,
            )
        }?;
    }
    Ok(tensor(device, out, (sentences.len(), width)))
}
