//! Encoders in the precision and on the device that are measured.

use std::path::Path;

use laser_encoder::{DeviceChoice, Encoder, EncoderError, LoadOptions, Precision};

/// On the processor.
pub fn load(folder: &Path, precision: Precision, threads: usize) -> Result<Encoder, EncoderError> {
    load_on(DeviceChoice::Cpu, folder, precision, threads)
}

pub fn load_on(
    device: DeviceChoice,
    folder: &Path,
    precision: Precision,
    threads: usize,
) -> Result<Encoder, EncoderError> {
    Encoder::load(
        folder,
        &LoadOptions {
            device,
            precision,
            threads,
        },
    )
}
