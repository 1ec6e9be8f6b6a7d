//! Choice of the device.

use candle_core::Device;
use laser_kernels::Isa;
use laser_model::Config;
use laser_model::config::Architecture;

use crate::EncoderError;

/// Where a model runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if this build supports one, one is present and the architecture profits; else the CPU.
    #[default]
    Auto,
    /// The CPU, also where there is a GPU.
    Cpu,
    /// The CUDA device of this number.
    Cuda(usize),
}

impl std::str::FromStr for DeviceChoice {
    type Err = EncoderError;

    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    fn from_str(name: &str) -> Result<Self, EncoderError> {
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => name
                .strip_prefix("cuda:")
                .and_then(|n| n.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| EncoderError::Device(format!("unknown device \"{name}\""))),
        }
    }
}

/// The device for a model, and why it is not the GPU that it would profit from.
pub(crate) fn choose(
    choice: DeviceChoice,
    config: &Config,
) -> Result<(Device, Option<String>), EncoderError> {
    // Sums of table rows take less time than copying their result from a GPU.
    let profits = !matches!(config.encoder, Architecture::Mean(_));
    match choice {
        // A build without CUDA has nothing to complain of.
        DeviceChoice::Auto if profits && cfg!(feature = "cuda") => match cuda(0) {
            Ok(device) => Ok((device, None)),
            Err(error) => Ok((Device::Cpu, Some(error.to_string()))),
        },
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok((Device::Cpu, None)),
        DeviceChoice::Cuda(n) => Ok((cuda(n)?, None)),
    }
}

/// Bytes of a GPU's memory that are kept between batches: a batch of a transformer of 768 columns takes about as much.
#[cfg(feature = "cuda")]
const KEPT: u64 = 1 << 30;

#[cfg(feature = "cuda")]
fn cuda(n: usize) -> Result<Device, EncoderError> {
    let device = Device::new_cuda_with_stream(n)
        .map_err(|e| EncoderError::Device(format!("could not use CUDA device {n}: {e}")))?;
    // Without it batches only take longer.
    let _ = laser_cuda::keep_freed_memory(&device, KEPT);
    Ok(device)
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
            format!("cpu ({})", Isa::detect().name())
        }
        candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        candle_core::DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}
