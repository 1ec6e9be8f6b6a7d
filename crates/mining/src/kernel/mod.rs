//! Approximate cosines of a tile of rows and columns, with a proven bound on their error.
//!
//! Every kernel rounds the unit rows `u` to representable `û` and multiplies those. With
//! `r(u) = |u - û|`, measured in `f64` for each row, the Cauchy-Schwarz inequality gives
//!
//! ```text
//! |u·v - û·v̂| = |(u - û)·v + û·(v - v̂)| <= r(u) + (1 + r(u)) r(v)
//! ```
//!
//! since unit vectors have norm 1 and `|û| <= 1 + r(u)`. What the products themselves lose is
//! added: nothing for integer products, the standard bound `γ_d` for floating-point sums of `d`
//! products (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1).

mod bf16;
mod device;
mod float;
#[cfg(target_arch = "x86_64")]
mod int16;
mod rounding;
pub(crate) mod stripe;

use half::bf16 as Bf16;

pub use device::Device;
pub(crate) use device::DeviceRows;
pub(crate) use float::unit_rows;

use crate::cosine::COSINE_QUANTUM;
use rounding::{UNIT_ROUNDOFF, error_of_sums};
use stripe::{SOURCE_STRIPE, TARGET_STRIPE};

/// How approximate cosines are computed. Results never depend on it, only the time does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Kernel {
    /// The fastest of this processor.
    #[default]
    Auto,
    /// `f32` products; every processor.
    F32,
    /// 16-bit integer products, two per lane and instruction; needs AVX2.
    I16,
    /// The same on vectors twice as long; needs AVX-512 VNNI.
    I16Vnni,
    /// bfloat16 products by NumKong; pays where the processor has units for them (AMX).
    Bf16,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Kernel; 5] = [
        Kernel::Auto,
        Kernel::F32,
        Kernel::I16,
        Kernel::I16Vnni,
        Kernel::Bf16,
    ];

    /// The kernel that is run: `Auto` and kernels that this processor lacks become one that it
    /// has.
    pub fn resolve(self) -> Kernel {
        match self {
            Kernel::Auto if laser_kernels::units::has_matrix_unit() => Kernel::Bf16,
            Kernel::Bf16 => Kernel::Bf16,
            Kernel::F32 => Kernel::F32,
            #[cfg(target_arch = "x86_64")]
            Kernel::Auto | Kernel::I16Vnni if int16::Units::Avx512Vnni.exist() => Kernel::I16Vnni,
            #[cfg(target_arch = "x86_64")]
            Kernel::Auto | Kernel::I16 | Kernel::I16Vnni if int16::Units::Avx2.exist() => {
                Kernel::I16
            }
            _ => Kernel::F32,
        }
    }

    /// A short name.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Auto => "auto",
            Kernel::F32 => "f32",
            Kernel::I16 => "i16",
            Kernel::I16Vnni => "i16-vnni",
            Kernel::Bf16 => "bf16",
        }
    }

    /// Bytes that one packed value takes.
    pub(crate) fn value_bytes(self) -> usize {
        if self == Kernel::F32 { 4 } else { 2 }
    }

    /// Rounds and packs one stripe of rows. `inverse` are the inverse norms. Returns the packed
    /// rows and the largest `r(u)`.
    pub(crate) fn pack(
        self,
        rows: &[f32],
        inverse: &[f64],
        dimensions: usize,
        target: bool,
    ) -> laser_memory::Result<(Packed, f64)> {
        Ok(match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::I16 | Kernel::I16Vnni => {
                let units = match self {
                    Kernel::I16 => int16::Units::Avx2,
                    _ => int16::Units::Avx512Vnni,
                };
                let (panels, worst) = int16::pack(units, rows, inverse, dimensions, target)?;
                (Packed::Int16(panels), worst)
            }
            Kernel::Bf16 if target => {
                let (columns, worst) = bf16::pack_columns(rows, inverse, dimensions)?;
                (Packed::Bf16Columns(columns), worst)
            }
            Kernel::Bf16 => {
                let (rows, worst) = bf16::pack_rows(rows, inverse, dimensions)?;
                (Packed::Bf16(rows), worst)
            }
            _ => {
                let (unit, worst) = unit_rows(rows, inverse, dimensions)?;
                (Packed::Float(unit), worst)
            }
        })
    }

    /// Bound on the error of an approximate cosine, given the largest `r` of both sides.
    pub(crate) fn error_bound(self, source: f64, target: f64, dimensions: usize) -> f64 {
        let rounding = source + (1.0 + source) * target;
        let products = match self {
            // The sum is exact; its conversion to f32, the scale and the scaling round once each.
            Kernel::I16 | Kernel::I16Vnni => 4.0 * UNIT_ROUNDOFF,
            _ => error_of_sums(dimensions),
        };
        // The last terms cover the f64 arithmetic of norms, residuals and exact cosines, and the
        // quantum of the latter.
        (rounding + products * (1.0 + rounding)) * 1.000_001
            + 1e-13 * dimensions as f64
            + COSINE_QUANTUM
    }

    /// Approximate cosines of a source stripe and a target stripe into `out`, row-major with
    /// [`TARGET_STRIPE`] values a row. Values outside the two stripes' rows are meaningless.
    pub(crate) fn tile(self, source: &Packed, target: &Packed, dimensions: usize, out: &mut [f32]) {
        debug_assert_eq!(out.len(), SOURCE_STRIPE * TARGET_STRIPE);
        match (source, target) {
            #[cfg(target_arch = "x86_64")]
            (Packed::Int16(source), Packed::Int16(target)) => int16::tile(source, target, out),
            (Packed::Bf16(source), Packed::Bf16Columns(target)) => {
                bf16::tile(source, target, dimensions, out);
            }
            (Packed::Float(source), Packed::Float(target)) => {
                float::tile(source, target, dimensions, out);
            }
            _ => unreachable!("stripes packed for different kernels"),
        }
    }
}

/// A stripe of rounded rows in the layout of a kernel.
pub(crate) enum Packed {
    Float(Vec<f32>),
    Bf16(Vec<Bf16>),
    Bf16Columns(bf16::Columns),
    #[cfg(target_arch = "x86_64")]
    Int16(int16::Panels),
    Device(DeviceRows),
}
