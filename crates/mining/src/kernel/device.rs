//! A processor beside the CPU, such as a GPU, that multiplies `f32` matrices through candle.
//!
//! A tile of cosines stays on the device; what comes back is little. With `threshold(i, j)` the lower of
//! the thresholds of row `i` and column `j`, the device computes `cosine(i, j) - threshold(i, j)` and the
//! maximum of it over strips of [`STRIP`] rows of one column. A strip whose maximum is negative
//! has no candidate (a difference of two `f32` has the sign of the exact one); the cosines of the
//! others are fetched. All of it are operations that candle has for every device, on contiguous
//! memory.
//!
//! Exactness is that of the other kernels: unit rows are rounded to `f32`, and products are sums
//! of `f32` in an unknown order. Reduced precision (TF32) would break the bound; a device is
//! refused unless products of known rows are within it.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "devices are used in the encoder process, which ends alone"
)]

use crate::Error;
use crate::tile::Hit;

/// A device for [`crate::knn::Options`]. Without the feature `candle` there is none.
#[derive(Debug)]
pub struct Device(Backend);

#[derive(Debug)]
enum Backend {
    #[cfg(feature = "candle")]
    Candle(candle::Candle),
}

/// Rows of one stripe on the device.
pub(crate) enum DeviceRows {
    #[cfg(feature = "candle")]
    Candle(candle::Rows),
}

#[cfg(feature = "candle")]
impl Device {
    /// A device of candle.
    ///
    /// # Errors
    /// [`Error::Device`] if it fails, or multiplies less precisely than `f32` allows.
    pub fn new(device: candle_core::Device) -> Result<Self, Error> {
        candle::Candle::new(device).map(|device| Device(Backend::Candle(device)))
    }

    /// The GPU of that number.
    ///
    /// # Errors
    /// As [`Device::new`].
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: usize) -> Result<Self, Error> {
        Device::new(candle_core::Device::new_cuda_with_stream(ordinal).map_err(candle::failed)?)
    }
}

#[cfg_attr(
    not(feature = "candle"),
    allow(unused_variables, reason = "nobody has a device")
)]
impl Device {
    /// A short name, such as "cuda:0".
    pub fn name(&self) -> String {
        match self.0 {
            #[cfg(feature = "candle")]
            Backend::Candle(ref device) => device.name(),
        }
    }

    /// Copies unit rows to the device.
    pub(crate) fn upload(&self, unit: Vec<f32>, dimensions: usize) -> Result<DeviceRows, Error> {
        match self.0 {
            #[cfg(feature = "candle")]
            Backend::Candle(ref device) => device.upload(unit, dimensions).map(DeviceRows::Candle),
        }
    }

    /// Finds all cosines of source and target rows that are at or above the threshold of their row or of
    /// their column, and some others; hands them on batch by batch.
    pub(crate) fn hits(
        &self,
        source: &DeviceRows,
        target: &DeviceRows,
        row_thresholds: &[f32],
        column_thresholds: &[f32],
        each: impl FnMut(&[Hit]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match self.0 {
            #[cfg(feature = "candle")]
            Backend::Candle(ref device) => {
                let (DeviceRows::Candle(source), DeviceRows::Candle(target)) = (source, target);
                device.hits(source, target, (row_thresholds, column_thresholds), each)
            }
        }
    }
}

#[cfg(feature = "candle")]
mod candle {
    use candle_core::{DeviceLocation, Tensor};
    use laser_kernels::slices::dot_f64;

    use crate::Error;
    use crate::kernel::rounding::error_of_sums;
    use crate::tile::Hit;

    /// Rows of a strip, a power of two.
    const STRIP: usize = 64;
    /// Strips that are fetched at a time: 8 MiB of cosines.
    const BATCH: usize = 1 << 15;

    pub(super) fn failed(error: candle_core::Error) -> Error {
        Error::Device(error.to_string())
    }

    #[derive(Debug)]
    pub struct Candle(candle_core::Device);

    /// Unit rows, row-major; those that are missing in the last strip are zero.
    pub struct Rows {
        count: usize,
        rows: Tensor,
    }

    impl Candle {
        pub fn new(device: candle_core::Device) -> Result<Self, Error> {
            let device = Candle(device);
            device.check_precision()?;
            Ok(device)
        }

        pub fn name(&self) -> String {
            match self.0.location() {
                DeviceLocation::Cpu => "cpu".into(),
                DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
                DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
            }
        }

        pub fn upload(&self, mut unit: Vec<f32>, dimensions: usize) -> Result<Rows, Error> {
            let count = unit.len() / dimensions;
            let padded = count.next_multiple_of(STRIP);
            unit.resize(padded * dimensions, 0.0);
            let rows = Tensor::from_vec(unit, (padded, dimensions), &self.0).map_err(failed)?;
            Ok(Rows { count, rows })
        }

        pub fn hits(
            &self,
            source: &Rows,
            target: &Rows,
            thresholds: (&[f32], &[f32]),
            mut each: impl FnMut(&[Hit]) -> Result<(), Error>,
        ) -> Result<(), Error> {
            let tile = self.tile(source, target, thresholds).map_err(failed)?;
            let mut hits = Vec::new();
            for strips in tile.above.chunks(BATCH) {
                let cosines = tile.fetch(strips, &self.0).map_err(failed)?;
                hits.clear();
                for (within, cosines) in cosines.chunks_exact(strips.len()).enumerate() {
                    for (&strip, &cosine) in strips.iter().zip(cosines) {
                        let (first, column) = (strip / tile.width, strip % tile.width);
                        let row = first + within as u32 * tile.step;
                        if (row as usize) < source.count && (column as usize) < target.count {
                            hits.push((row, column, cosine));
                        }
                    }
                }
                each(&hits)?;
            }
            Ok(())
        }

        fn tile(
            &self,
            source: &Rows,
            target: &Rows,
            (row_thresholds, column_thresholds): (&[f32], &[f32]),
        ) -> candle_core::Result<Tile> {
            let cosines = source.rows.matmul(&target.rows.t()?)?;
            let (height, width) = cosines.dims2()?;
            let thresholds = self
                .thresholds(row_thresholds, height)?
                .reshape((height, 1))?
                .broadcast_minimum(
                    &self
                        .thresholds(column_thresholds, width)?
                        .reshape((1, width))?,
                )?;
            let mut over = (&cosines - thresholds)?;
            let step = height / STRIP;
            let mut rows = height;
            while rows > step {
                rows /= 2;
                over = over
                    .narrow(0, 0, rows)?
                    .maximum(&over.narrow(0, rows, rows)?)?;
            }
            let over: Vec<f32> = over.flatten_all()?.to_vec1()?;
            let above = (0u32..)
                .zip(&over)
                .filter(|&(_, &over)| over >= 0.0)
                .map(|(strip, _)| strip)
                .collect();
            Ok(Tile {
                cosines: cosines.reshape((STRIP, step * width))?,
                step: step as u32,
                width: width as u32,
                above,
            })
        }

        /// Rows that do not exist have no candidates.
        fn thresholds(&self, thresholds: &[f32], padded: usize) -> candle_core::Result<Tensor> {
            let mut thresholds = thresholds.to_vec();
            thresholds.resize(padded, f32::INFINITY);
            Tensor::from_vec(thresholds, padded, &self.0)
        }

        /// Compares products with those in `f64`. Only few components of each row are not zero, so
        /// that the bound is far below what TF32 or `bf16` lose.
        fn check_precision(&self) -> Result<(), Error> {
            const ROWS: usize = STRIP;
            const DIMENSIONS: usize = 1021;
            const FILLED: usize = 8;
            // A linear congruential generator (Knuth's MMIX) fills the mantissas.
            let mut state = 1u64;
            let mut unit = vec![0.0f32; ROWS * DIMENSIONS];
            for row in unit.chunks_exact_mut(DIMENSIONS) {
                row[..FILLED].fill_with(|| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    ((state >> 40) as f32 / (1 << 24) as f32) / (FILLED as f32).sqrt()
                });
            }
            let rows = self.upload(unit.clone(), DIMENSIONS)?;
            let thresholds = [f32::NEG_INFINITY; ROWS];
            let bound = error_of_sums(FILLED);
            let mut seen = 0;
            self.hits(&rows, &rows, (&thresholds[..], &thresholds[..]), |hits| {
                for &(row, column, cosine) in hits {
                    let row = &unit[row as usize * DIMENSIONS..][..DIMENSIONS];
                    let column = &unit[column as usize * DIMENSIONS..][..DIMENSIONS];
                    let error = (f64::from(cosine) - dot_f64(row, column)).abs();
                    // An error that is not a number is one as well.
                    if error.is_nan() || error > bound {
                        return Err(Error::Device(format!(
                            "{} multiplies with an error of {error:.1e}, f32 has at most {bound:.1e}",
                            self.name(),
                        )));
                    }
                    seen += 1;
                }
                Ok(())
            })?;
            if seen == ROWS * ROWS {
                Ok(())
            } else {
                Err(Error::Device(format!("{} loses products", self.name())))
            }
        }
    }

    /// A tile of cosines on the device.
    struct Tile {
        /// One row for each place in a strip, one column for each strip.
        cosines: Tensor,
        /// Distance of the rows of a strip, which is also the number of strips of a column.
        step: u32,
        /// Columns of the tile. Strip `i * width + j` begins in row `i` and is in column `j`.
        width: u32,
        /// The strips that may have candidates.
        above: Vec<u32>,
    }

    impl Tile {
        /// The cosines of some strips, by place in the strip.
        fn fetch(
            &self,
            strips: &[u32],
            device: &candle_core::Device,
        ) -> candle_core::Result<Vec<f32>> {
            let strips = Tensor::from_slice(strips, strips.len(), device)?;
            self.cosines
                .index_select(&strips, 1)?
                .flatten_all()?
                .to_vec1()
        }
    }
}
