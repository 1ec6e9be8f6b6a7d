//! The bfloat16 kernel: NumKong's packed products, which use AMX where it exists.

use half::bf16;
use laser_kernels::low_precision::{Line, Right, lines};

use super::rounding::residual;
use super::stripe::{SOURCE_STRIPE, TARGET_STRIPE};

/// Target rows, packed.
pub(crate) type Columns = Right<bf16, Vec<Line>>;

/// Rounded source rows, and the largest residual of one.
pub(super) fn pack_rows(
    rows: &[f32],
    inverse: &[f64],
    dimensions: usize,
) -> laser_memory::Result<(Vec<bf16>, f64)> {
    let mut rounded = laser_memory::with_capacity(rows.len())?;
    let mut worst = 0.0f64;
    for (row, &inverse) in rows.chunks_exact(dimensions).zip(inverse) {
        let from = rounded.len();
        rounded.extend(
            row.iter()
                .map(|&value| bf16::from_f64(f64::from(value) * inverse)),
        );
        worst = worst.max(residual(
            row,
            inverse,
            rounded[from..].iter().map(|&v| v.to_f64()),
        ));
    }
    Ok((rounded, worst))
}

/// The same of target rows.
pub(super) fn pack_columns(
    rows: &[f32],
    inverse: &[f64],
    dimensions: usize,
) -> laser_memory::Result<(Columns, f64)> {
    let (rounded, worst) = pack_rows(rows, inverse, dimensions)?;
    let count = rounded.len() / dimensions;
    let room = laser_memory::filled(Line::ZERO, lines::<bf16>(count, dimensions))?;
    Ok((Right::new((count, dimensions), &rounded, room), worst))
}

pub(super) fn tile(source: &[bf16], target: &Columns, dimensions: usize, out: &mut [f32]) {
    let height = source.len() / dimensions;
    assert!(height <= SOURCE_STRIPE && target.columns() <= TARGET_STRIPE);
    assert_eq!(out.len(), SOURCE_STRIPE * TARGET_STRIPE);
    target.multiply(height, source, out, TARGET_STRIPE);
}
