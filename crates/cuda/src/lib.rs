//! Kernels for NVIDIA GPUs, as operations of candle.
//!
//! Sources in CUDA C++ lie in `kernels/`; with the feature `cuda` the build compiles them to PTX.
//! Every operation has an implementation for candle's CPU device, which says what it computes.
//! The tests compile the same sources for a processor (`emulation/`) and compare, so that the
//! kernels are tested on machines without a GPU; a test on a device runs where there is one.

#[cfg(feature = "cuda")]
mod gpu;
pub mod lstm;
mod rounding;
pub mod transformer;

use candle_core::{Device, Result};

/// Lets a process keep this many bytes of a GPU's freed memory for what comes next. By default the driver takes all of it
/// back whenever the host waits for a result, and small batches wait longer for memory than they compute.
///
/// # Errors
/// If the driver refuses.
#[cfg_attr(
    not(feature = "cuda"),
    expect(unused_variables, reason = "a processor has no such pool")
)]
pub fn keep_freed_memory(device: &Device, bytes: u64) -> Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => gpu::keep_freed_memory(device, bytes),
        _ => Ok(()),
    }
}
