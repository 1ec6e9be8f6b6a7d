//! What a register block works on, whatever the instructions.

use laser_cpu::Isa;

/// Value of a component of 1. Its square, with room for rounding, fits into 31 bits, and
/// components fit into 15.
pub(super) const SCALE: f64 = 32000.0;

/// The instructions that multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Units {
    /// `vpmaddwd` and an addition on eight lanes.
    Avx2,
    /// `vpdpwssd` on sixteen lanes.
    Avx512Vnni,
}

impl Units {
    /// Whether this processor has them.
    pub fn exist(self) -> bool {
        match self {
            Units::Avx2 => Isa::detect() != Isa::Portable,
            Units::Avx512Vnni => laser_cpu::has_vnni(),
        }
    }
}

/// One register block of a tile: `MR` source rows and `NR` target rows.
pub(super) struct Block<'a> {
    /// For each pair of dimensions of the sweep, that pair of `MR` source rows.
    pub a: &'a [[i16; 2]],
    /// For each of them, that pair of `NR` target rows.
    pub b: &'a [[i16; 2]],
    /// `MR` rows of `NR` values at a distance of [`TARGET_STRIPE`](super::super::stripe::TARGET_STRIPE): the bits of `i32` sums until
    /// the last sweep turns them into `f32` cosines.
    pub c: &'a mut [f32],
    /// Whether the sums begin with zero.
    pub first: bool,
    /// Whether they end.
    pub last: bool,
}
