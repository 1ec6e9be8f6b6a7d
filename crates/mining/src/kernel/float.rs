//! The `f32` kernel: one matrix product per tile.

use laser_kernels::strided::product;

use super::rounding::residual;
use super::stripe::{SOURCE_STRIPE, TARGET_STRIPE};

/// Rows of norm 1, rounded, and the largest residual of one.
pub(crate) fn unit_rows(
    rows: &[f32],
    inverse: &[f64],
    dimensions: usize,
) -> laser_memory::Result<(Vec<f32>, f64)> {
    let mut unit = laser_memory::with_capacity(rows.len())?;
    let mut worst = 0.0f64;
    for (row, &inverse) in rows.chunks_exact(dimensions).zip(inverse) {
        let from = unit.len();
        unit.extend(row.iter().map(|&value| (f64::from(value) * inverse) as f32));
        worst = worst.max(residual(
            row,
            inverse,
            unit[from..].iter().map(|&v| f64::from(v)),
        ));
    }
    Ok((unit, worst))
}

pub(super) fn tile(source: &[f32], target: &[f32], dimensions: usize, out: &mut [f32]) {
    let (m, n) = (source.len() / dimensions, target.len() / dimensions);
    assert!(m <= SOURCE_STRIPE && n <= TARGET_STRIPE && out.len() == SOURCE_STRIPE * TARGET_STRIPE);
    product(
        (m, n, dimensions),
        (source, dimensions, 1),
        (target, 1, dimensions),
        (out, TARGET_STRIPE),
        false,
        1.0,
    );
}
