//! Choice of the device.

use candle_core::Device;

use crate::config::Architecture;
use crate::kernels::Isa;
use crate::{Config, DeviceChoice, EncoderError};

/// The device for a model.
pub(crate) fn choose(choice: DeviceChoice, config: &Config) -> Result<Device, EncoderError> {
    // Sums of table rows take less time than copying their result from a GPU.
    let profits = !matches!(config.encoder, Architecture::Mean(_));
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Auto if profits => Ok(cuda(0).unwrap_or(Device::Cpu)),
        DeviceChoice::Auto => Ok(Device::Cpu),
        DeviceChoice::Cuda(n) => cuda(n),
    }
}

#[cfg(feature = "cuda")]
fn cuda(n: usize) -> Result<Device, EncoderError> {
    Device::new_cuda_with_stream(n)
        .map_err(|e| EncoderError::Device(format!("could not use CUDA device {n}: {e}")))
}

#[cfg(not(feature = "cuda"))]
fn cuda(n: usize) -> Result<Device, EncoderError> {
    Err(EncoderError::Device(format!(
        "could not use CUDA device {n}: this build has no CUDA support"
    )))
}

/// What to call it.
pub(crate) fn name(device: &Device) -> String {
    match device.location() {
        candle_core::DeviceLocation::Cpu => {
            let isa = match Isa::detect() {
                Isa::Portable => "portable",
                Isa::Avx2 => "avx2",
                Isa::Avx512 => "avx512",
            };
            format!("cpu ({isa})")
        }
        candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        candle_core::DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}
