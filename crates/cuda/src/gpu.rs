//! What launches have in common.
#![allow(unsafe_code)]

use std::ops::{Deref, Range};

use candle_core::cuda_backend::cudarc::driver::result;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdevice_attribute as Attribute, CUmemPool_attribute,
};
use candle_core::cuda_backend::cudarc::driver::{CudaSlice, CudaView};
use candle_core::cuda_backend::{CudaDType, CudaDevice, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, Result, Shape, Storage, Tensor, bail};

/// The kernels, compiled.
pub(crate) mod ptx {
    include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
}

/// A number that the driver knows of a device.
pub(crate) fn attribute(device: &CudaDevice, attribute: Attribute) -> Result<i32> {
    device.cuda_stream().context().attribute(attribute).w()
}

/// See [`super::keep_freed_memory`].
pub(crate) fn keep_freed_memory(device: &CudaDevice, mut bytes: u64) -> Result<()> {
    let stream = device.cuda_stream();
    let context = stream.context();
    context.bind_to_thread().w()?;
    let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device is open, its pool lives as long as the process, and the attribute is a 64-bit number.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device()).w()?;
        result::mem_pool::set_attribute(pool, threshold, (&raw mut bytes).cast()).w()
    }
}

/// Whether a GPU has products in bf16 and asynchronous copies, which came with compute capability 8.
pub(crate) fn multiplies_bf16(device: &CudaDevice) -> Result<bool> {
    let major = Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    Ok(attribute(device, major)? >= 8)
}

/// A contiguous tensor whose storage is locked for reading.
pub(crate) struct Operand<G> {
    storage: G,
    range: Range<usize>,
}

/// Locks the storage of a tensor.
///
/// # Errors
/// If it is not contiguous, or begins where kernels cannot read several elements at once.
pub(crate) fn operand(tensor: &Tensor) -> Result<Operand<impl Deref<Target = Storage>>> {
    let (storage, layout) = tensor.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else {
        bail!("the tensors of a kernel are contiguous");
    };
    if !start.is_multiple_of(8) {
        bail!("the tensors of a kernel begin at a multiple of eight elements");
    }
    Ok(Operand {
        storage,
        range: start..end,
    })
}

impl<G: Deref<Target = Storage>> Operand<G> {
    /// The elements on the device.
    pub(crate) fn view<T: CudaDType>(&self) -> Result<CudaView<'_, T>> {
        match &*self.storage {
            Storage::Cuda(storage) => Ok(storage.as_cuda_slice::<T>()?.slice(self.range.clone())),
            _ => bail!("the tensors of a kernel are on one device"),
        }
    }
}

/// A tensor of what a kernel wrote.
pub(crate) fn tensor<T: CudaDType>(
    device: &CudaDevice,
    slice: CudaSlice<T>,
    shape: impl Into<Shape>,
) -> Tensor {
    let storage = CudaStorage::wrap_cuda_slice(slice, device.clone());
    Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false)
}
