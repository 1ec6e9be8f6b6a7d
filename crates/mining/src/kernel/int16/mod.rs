//! The 16-bit integer kernels.
//!
//! Unit rows are scaled by `SCALE` and rounded to `i16`. The processor multiplies pairs of them
//! and adds both products to a 32-bit sum: twice the products of an `f32` FMA per instruction,
//! while the rounding error stays near `sqrt(d / 3) / SCALE`. Sums never overflow: by the
//! Cauchy-Schwarz inequality every partial sum of a dot product is at most `(SCALE * (1 + r))²`,
//! below 2³¹ while `r < 0.4`.

#[macro_use]
mod register;

mod avx2;
mod avx512;
mod block;

use super::rounding::residual;
use super::stripe::{SOURCE_STRIPE, TARGET_STRIPE};
pub(crate) use block::Units;
use block::{Block, SCALE};

/// Rows of a panel of this side.
fn width(units: Units, target: bool) -> usize {
    match (units, target) {
        (Units::Avx2, false) => avx2::MR,
        (Units::Avx2, true) => avx2::NR,
        (Units::Avx512Vnni, false) => avx512::MR,
        (Units::Avx512Vnni, true) => avx512::NR,
    }
}

/// Rows in panels of the width of a register block; within a panel, for each pair of dimensions,
/// that pair of each row. Rows that are missing in the last panel are zero.
pub(crate) struct Panels {
    units: Units,
    /// Pairs of dimensions.
    depth: usize,
    panels: usize,
    pairs: Vec<[i16; 2]>,
}

pub(super) fn pack(
    units: Units,
    rows: &[f32],
    inverse: &[f64],
    dimensions: usize,
    target: bool,
) -> laser_memory::Result<(Panels, f64)> {
    let width = width(units, target);
    let depth = dimensions.div_ceil(2);
    let panels = inverse.len().div_ceil(width);
    let mut pairs = laser_memory::filled([0i16; 2], panels * width * depth)?;
    let mut rounded = laser_memory::filled(0i16, depth * 2)?;
    let mut worst = 0.0f64;
    for (at, (row, &inverse)) in rows.chunks_exact(dimensions).zip(inverse).enumerate() {
        avx2::round(row, inverse * SCALE, &mut rounded);
        let exact = rounded[..dimensions]
            .iter()
            .map(|&value| f64::from(value) / SCALE);
        worst = worst.max(residual(row, inverse, exact));
        let panel = &mut pairs[(at / width) * width * depth..][..width * depth];
        for (pair, values) in rounded.chunks_exact(2).enumerate() {
            panel[pair * width + at % width] = [values[0], values[1]];
        }
    }
    Ok((
        Panels {
            units,
            depth,
            panels,
            pairs,
        },
        worst,
    ))
}

pub(super) fn tile(source: &Panels, target: &Panels, out: &mut [f32]) {
    assert_eq!(source.units, target.units);
    match source.units {
        Units::Avx2 => {
            use avx2::{DEPTH, MR, NR, block};
            sweep::<MR, NR, DEPTH>(source, target, out, block);
        }
        Units::Avx512Vnni => {
            use avx512::{DEPTH, MR, NR, block};
            sweep::<MR, NR, DEPTH>(source, target, out, block);
        }
    }
}

/// `DEPTH` pairs of dimensions at a time, so that a target panel stays in the first-level cache.
fn sweep<const MR: usize, const NR: usize, const DEPTH: usize>(
    source: &Panels,
    target: &Panels,
    out: &mut [f32],
    block: impl Fn(Block<'_>),
) {
    assert_eq!(source.depth, target.depth);
    assert!(source.panels * MR <= SOURCE_STRIPE && target.panels * NR <= TARGET_STRIPE);
    assert_eq!(out.len(), SOURCE_STRIPE * TARGET_STRIPE);
    let sweeps = source.depth.div_ceil(DEPTH).max(1);
    let step = source.depth.div_ceil(sweeps);
    for sweep in 0..sweeps {
        let from = sweep * step;
        let depth = step.min(source.depth - from);
        for column in 0..target.panels {
            let b = &target.pairs[(column * target.depth + from) * NR..][..depth * NR];
            for row in 0..source.panels {
                block(Block {
                    a: &source.pairs[(row * source.depth + from) * MR..][..depth * MR],
                    b,
                    c: &mut out[row * MR * TARGET_STRIPE + column * NR..],
                    first: sweep == 0,
                    last: sweep + 1 == sweeps,
                });
            }
        }
    }
}
