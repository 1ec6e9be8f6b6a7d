//! What computes the approximate cosines of a search, and how many rows it takes at a time.

use std::sync::Mutex;

use crate::kernel::stripe::{SOURCE_STRIPE, TARGET_STRIPE};
use crate::kernel::{Device, Kernel, Packed, unit_rows};
use crate::tile::{self, Exact, Hit, Stripe};
use crate::{Error, Side};

/// Stripes of a device, source and target: a tile of cosines takes 64 MiB there.
const DEVICE_STRIPES: [usize; 2] = [2048, 8192];
/// The least that such stripes are cut down to when memory is short.
const MIN_DEVICE_STRIPE: usize = 64;
/// Tiles that a device has in work at a time; several, so that it computes one while the
/// candidates of others are decided.
const DEVICE_TILES: usize = 4;

/// A kernel of this processor or a device beside it.
#[derive(Clone, Copy, Debug)]
enum Units<'a> {
    Kernel(Kernel),
    Device(&'a Device),
}

/// What computes approximate cosines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engine<'a> {
    units: Units<'a>,
    stripes: [usize; 2],
}

impl<'a> Engine<'a> {
    /// The device, or the kernel without one. `memory` bounds the stripes.
    pub fn new(
        kernel: Kernel,
        device: Option<&'a Device>,
        dimensions: usize,
        memory: Option<usize>,
    ) -> Self {
        let Some(device) = device else {
            return Engine {
                units: Units::Kernel(kernel.resolve()),
                stripes: [SOURCE_STRIPE, TARGET_STRIPE],
            };
        };
        let mut stripes = DEVICE_STRIPES;
        if let Some(memory) = memory {
            // Read, made to unit rows, and on the device.
            let bytes = |stripes: [usize; 2]| {
                let rows: usize = stripes.iter().sum();
                rows.saturating_mul(dimensions).saturating_mul(12)
            };
            while bytes(stripes) > memory / 2 && stripes[0] > MIN_DEVICE_STRIPE {
                stripes = stripes.map(|rows| (rows / 2).max(MIN_DEVICE_STRIPE));
            }
        }
        Engine {
            units: Units::Device(device),
            stripes,
        }
    }

    /// Rows of a stripe of this side.
    pub fn stripe(&self, side: Side) -> usize {
        self.stripes[side as usize]
    }

    /// Bytes that one packed value takes.
    pub fn value_bytes(&self) -> usize {
        match self.units {
            Units::Kernel(kernel) => kernel.value_bytes(),
            Units::Device(_) => size_of::<f32>(),
        }
    }

    /// Bytes that each thread needs beside the rows.
    pub fn scratch_bytes(&self) -> usize {
        match self.units {
            Units::Kernel(_) => SOURCE_STRIPE * TARGET_STRIPE * size_of::<f32>(),
            Units::Device(_) => 0,
        }
    }

    /// Threads that this many tiles are worth.
    pub fn threads(&self, wanted: usize) -> usize {
        match self.units {
            Units::Kernel(_) => wanted,
            Units::Device(_) => wanted.min(DEVICE_TILES),
        }
    }

    /// Rounds and packs one stripe of rows. `inverse` are the inverse norms. Returns the packed
    /// rows and the largest residual.
    pub fn pack(
        &self,
        rows: &[f32],
        inverse: &[f64],
        dimensions: usize,
        side: Side,
    ) -> Result<(Packed, f64), Error> {
        match self.units {
            Units::Kernel(kernel) => {
                Ok(kernel.pack(rows, inverse, dimensions, side == Side::Target)?)
            }
            Units::Device(device) => {
                let (unit, worst) = unit_rows(rows, inverse, dimensions)?;
                Ok((Packed::Device(device.upload(unit, dimensions)?), worst))
            }
        }
    }

    /// Bound on the error of an approximate cosine, given the largest residuals of both sides.
    pub fn error_bound(&self, source: f64, target: f64, dimensions: usize) -> f64 {
        let kernel = match self.units {
            Units::Kernel(kernel) => kernel,
            Units::Device(_) => Kernel::F32,
        };
        kernel.error_bound(source, target, dimensions)
    }

    /// Compares a source stripe with a target stripe, and keeps the candidates. `check` fails when
    /// the search is to stop.
    pub fn compare(
        &self,
        (source, rows, own): (&Packed, &Mutex<Stripe>, &Exact<'_>),
        (target, columns, others): (&Packed, &Mutex<Stripe>, &Exact<'_>),
        scratch: &mut Vec<f32>,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        // Always in this order: a thread that holds a column never waits for a row.
        let lock = || {
            let rows = rows.lock().expect("not poisoned");
            (rows, columns.lock().expect("not poisoned"))
        };
        match (self.units, source, target) {
            (Units::Device(device), Packed::Device(source), Packed::Device(target)) => {
                let thresholds = {
                    let (rows, columns) = lock();
                    (
                        laser_memory::copied(rows.thresholds())?,
                        laser_memory::copied(columns.thresholds())?,
                    )
                };
                let keep = |hits: &[Hit]| {
                    check()?;
                    let (mut rows, mut columns) = lock();
                    tile::keep(hits, &mut rows, &mut columns, own, others);
                    Ok(())
                };
                device.hits(source, target, &thresholds.0, &thresholds.1, keep)
            }
            (Units::Kernel(kernel), ..) => {
                if scratch.is_empty() {
                    *scratch = laser_memory::filled(0.0, SOURCE_STRIPE * TARGET_STRIPE)?;
                }
                kernel.tile(source, target, own.dimensions, scratch);
                let (mut rows, mut columns) = lock();
                tile::filter_candidates(scratch, &mut rows, &mut columns, own, others);
                Ok(())
            }
            _ => unreachable!("stripes packed for a kernel"),
        }
    }
}
