//! Launches of the kernels in `kernels/lstm.cu`.
#![allow(unsafe_code)]

use std::ptr::null_mut;

use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdevice_attribute as Attribute, CUfunction_attribute,
};
use candle_core::cuda_backend::cudarc::driver::{
    DevicePtr, DevicePtrMut, DeviceRepr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaDevice, WrapErr};
use candle_core::{Result, Tensor};
use half::bf16;

use super::arguments::{Backward, Forward};
use super::plan::{Limits, Plan, THREADS, UNITS};
use super::types::{Gradient, Outputs, Pooling, Saved, Shape, Steps, Weights};
use crate::gpu::{attribute, multiplies_bf16, operand, ptx, tensor};

// SAFETY: plain C structs of addresses and numbers, which the kernels take by value.
unsafe impl DeviceRepr for Forward<bf16> {}
// SAFETY: as above.
unsafe impl DeviceRepr for Backward<bf16> {}

fn limits(device: &CudaDevice) -> Result<Limits> {
    let attribute = |a: Attribute| attribute(device, a);
    let cooperative = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)?;
    if !multiplies_bf16(device)? || cooperative == 0 {
        return Ok(Limits {
            multiprocessors: 0,
            shared: 0,
        });
    }
    let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    Ok(Limits {
        multiprocessors: multiprocessors as usize,
        shared: shared as usize,
    })
}

/// Whether layers of a shape fit on a GPU.
pub(super) fn supported(device: &CudaDevice, shape: Shape) -> bool {
    limits(device).is_ok_and(|limits| Plan::new(shape, 1, &limits).is_some())
}

fn plan(device: &CudaDevice, shape: Shape, steps: &Steps) -> Result<Plan> {
    let plan = Plan::new(shape, steps.sentences(), &limits(device)?);
    plan.ok_or_else(|| {
        candle_core::Error::Msg(format!(
            "an LSTM of {} units does not fit on this GPU",
            shape.hidden
        ))
    })
}

/// Launches a kernel that takes one struct.
///
/// # Safety
/// The addresses in `arguments` are of buffers as `kernels/lstm.cuh` describes them for this plan,
/// and live until the stream has come to the end of the launch.
unsafe fn launch<A: DeviceRepr>(
    device: &CudaDevice,
    name: &str,
    shape: Shape,
    plan: &Plan,
    arguments: &A,
) -> Result<()> {
    let name = format!("{name}_{}", plan.rows);
    let function = device.get_or_load_custom_func(&name, "laser_lstm", ptx::LSTM)?;
    let shared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    function.set_attribute(shared, plan.shared as i32).w()?;
    let mut builder = function.builder();
    builder.arg(arguments);
    let config = LaunchConfig {
        grid_dim: (
            (shape.hidden / UNITS) as u32,
            shape.directions as u32,
            plan.groups as u32,
        ),
        block_dim: (THREADS as u32, 1, 1),
        shared_mem_bytes: plan.shared as u32,
    };
    // SAFETY: the kernels take one struct of type A, and the caller vouches for what is in it. That
    // all blocks can run at the same time is checked by a cooperative launch.
    unsafe { builder.launch_cooperative(config) }.w()?;
    Ok(())
}

/// See [`super::forward`]; the shapes have been checked.
pub(super) fn forward(
    device: &CudaDevice,
    steps: &Steps,
    shape: Shape,
    products: &Tensor,
    weights: &Weights,
    pooling: Option<Pooling>,
    save: bool,
) -> Result<Outputs> {
    let plan = plan(device, shape, steps)?;
    let (tokens, sentences, width) = (steps.tokens(), steps.sentences(), shape.width());
    // SAFETY: the kernel writes every element of these, and of the cell before it reads it.
    let (mut states, mut cell) = unsafe {
        (
            device.alloc::<bf16>(tokens * width)?,
            device.alloc::<f32>(sentences * width)?,
        )
    };
    // SAFETY: likewise.
    let mut pooled = pooling
        .map(|_| unsafe { device.alloc::<f32>(sentences * width) })
        .transpose()?;
    let mut argmax = (save && pooling == Some(Pooling::Max))
        // SAFETY: likewise.
        .then(|| unsafe { device.alloc::<u32>(sentences * width) })
        .transpose()?;
    let mut gates = save
        // SAFETY: likewise.
        .then(|| unsafe { device.alloc::<bf16>(tokens * 4 * width) })
        .transpose()?;
    let mut cells = save
        // SAFETY: likewise.
        .then(|| unsafe { device.alloc::<f32>(tokens * width) })
        .transpose()?;
    let mut arrivals = device.alloc_zeros::<u32>(plan.groups * shape.directions)?;

    let operands = [
        operand(products)?,
        operand(&weights.recurrent)?,
        operand(&weights.bias)?,
        operand(&steps.on_device)?,
    ];
    let (products, recurrent) = (operands[0].view::<bf16>()?, operands[1].view::<bf16>()?);
    let (bias, offsets) = (operands[2].view::<f32>()?, operands[3].view::<u32>()?);
    {
        let stream = device.cuda_stream();
        // The guards that come with the addresses order the launch after what wrote the inputs and
        // before what reads the outputs.
        let (products, _products) = products.device_ptr(&stream);
        let (recurrent, _recurrent) = recurrent.device_ptr(&stream);
        let (bias, _bias) = bias.device_ptr(&stream);
        let (offsets, _offsets) = offsets.device_ptr(&stream);
        let (states, _states) = states.device_ptr_mut(&stream);
        let (cell, _cell) = cell.device_ptr_mut(&stream);
        let (arrivals, _arrivals) = arrivals.device_ptr_mut(&stream);
        let pooled = pooled.as_mut().map(|x| x.device_ptr_mut(&stream));
        let argmax = argmax.as_mut().map(|x| x.device_ptr_mut(&stream));
        let gates = gates.as_mut().map(|x| x.device_ptr_mut(&stream));
        let cells = cells.as_mut().map(|x| x.device_ptr_mut(&stream));
        let arguments = Forward::<bf16> {
            products: products as *const bf16,
            recurrent: recurrent as *const bf16,
            bias: bias as *const f32,
            offsets: offsets as *const u32,
            states: states as *mut bf16,
            cell: cell as *mut f32,
            arrivals: arrivals as *mut u32,
            pooled: pooled.as_ref().map_or(null_mut(), |x| x.0 as *mut f32),
            argmax: argmax.as_ref().map_or(null_mut(), |x| x.0 as *mut u32),
            gates: gates.as_ref().map_or(null_mut(), |x| x.0 as *mut bf16),
            cells: cells.as_ref().map_or(null_mut(), |x| x.0 as *mut f32),
            hidden: shape.hidden as u32,
            steps: steps.len() as u32,
            pooling: pooling.map_or(0, |pooling| pooling as u32),
        };
        // SAFETY: the buffers were made with these lengths above, or checked by the caller, and
        // are freed in the order of the stream.
        unsafe { launch(device, "lstm_forward", shape, &plan, &arguments) }?;
    }
    let saved = gates.zip(cells).map(|(gates, cells)| Saved {
        gates: tensor(device, gates, (tokens, 4 * width)),
        cells: tensor(device, cells, (tokens, width)),
        argmax: argmax.map(|argmax| tensor(device, argmax, (sentences, width))),
    });
    Ok(Outputs {
        states: tensor(device, states, (tokens, width)),
        pooled: pooled.map(|pooled| tensor(device, pooled, (sentences, width))),
        saved,
    })
}

/// See [`super::backward`]; the shapes have been checked.
pub(super) fn backward(
    device: &CudaDevice,
    steps: &Steps,
    shape: Shape,
    recurrent: &Tensor,
    saved: &Saved,
    gradient: Gradient<'_>,
) -> Result<Tensor> {
    let plan = plan(device, shape, steps)?;
    let (tokens, sentences, width) = (steps.tokens(), steps.sentences(), shape.width());
    // SAFETY: the kernel writes every element of the first, and of the second before it reads it.
    let (mut d_products, mut d_cell) = unsafe {
        (
            device.alloc::<bf16>(tokens * 4 * width)?,
            device.alloc::<f32>(sentences * width)?,
        )
    };
    let mut arrivals = device.alloc_zeros::<u32>(plan.groups * shape.directions)?;

    let transposed = recurrent.transpose(1, 2)?.contiguous()?;
    let operands = [
        operand(&transposed)?,
        operand(&steps.on_device)?,
        operand(&saved.gates)?,
        operand(&saved.cells)?,
    ];
    let (recurrent, offsets) = (operands[0].view::<bf16>()?, operands[1].view::<u32>()?);
    let (gates, cells) = (operands[2].view::<bf16>()?, operands[3].view::<f32>()?);
    let (states, pooled, pooling) = match gradient {
        Gradient::States(d) => (Some(operand(d)?), None, 0),
        Gradient::Pooled(d, pooling) => (None, Some(operand(d)?), pooling as u32),
    };
    let argmax = saved.argmax.as_ref().map(operand).transpose()?;
    let states = states.as_ref().map(|x| x.view::<bf16>()).transpose()?;
    let pooled = pooled.as_ref().map(|x| x.view::<f32>()).transpose()?;
    let argmax = argmax.as_ref().map(|x| x.view::<u32>()).transpose()?;
    {
        let stream = device.cuda_stream();
        // As in the forward pass.
        let (recurrent, _recurrent) = recurrent.device_ptr(&stream);
        let (offsets, _offsets) = offsets.device_ptr(&stream);
        let (gates, _gates) = gates.device_ptr(&stream);
        let (cells, _cells) = cells.device_ptr(&stream);
        let states = states.as_ref().map(|x| x.device_ptr(&stream));
        let pooled = pooled.as_ref().map(|x| x.device_ptr(&stream));
        let argmax = argmax.as_ref().map(|x| x.device_ptr(&stream));
        let (d_products, _d_products) = d_products.device_ptr_mut(&stream);
        let (d_cell, _d_cell) = d_cell.device_ptr_mut(&stream);
        let (arrivals, _arrivals) = arrivals.device_ptr_mut(&stream);
        let arguments = Backward::<bf16> {
            recurrent: recurrent as *const bf16,
            offsets: offsets as *const u32,
            gates: gates as *const bf16,
            cells: cells as *const f32,
            d_states: states.as_ref().map_or(null_mut(), |x| x.0 as *mut bf16),
            d_pooled: pooled.as_ref().map_or(null_mut(), |x| x.0 as *mut f32),
            argmax: argmax.as_ref().map_or(null_mut(), |x| x.0 as *mut u32),
            d_products: d_products as *mut bf16,
            d_cell: d_cell as *mut f32,
            arrivals: arrivals as *mut u32,
            hidden: shape.hidden as u32,
            steps: steps.len() as u32,
            pooling,
        };
        // SAFETY: as in the forward pass.
        unsafe { launch(device, "lstm_backward", shape, &plan, &arguments) }?;
    }
    Ok(tensor(device, d_products, (tokens, 4 * width)))
}
