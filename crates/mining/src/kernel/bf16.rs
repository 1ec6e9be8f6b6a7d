//! The bfloat16 kernel: NumKong's packed products, which use AMX where it exists.
#![allow(unsafe_code)]

use half::bf16;
use numkong::Dots;

use super::rounding::residual;
use super::stripe::{SOURCE_STRIPE, TARGET_STRIPE};

/// Target rows in the layout of NumKong's `dots_pack`.
pub(crate) struct Columns {
    rows: usize,
    /// Over-allocated so that the packed bytes can start at a cache line.
    bytes: Vec<Line>,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

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
    let size = numkong::bf16::dots_packed_size(count, dimensions);
    let mut bytes = laser_memory::filled(Line([0; 64]), size.div_ceil(64))?;
    // SAFETY: `rounded` holds `count` rows of `dimensions` bfloat16 values, two bytes each in the
    // same representation, and `bytes` at least `dots_packed_size` bytes.
    unsafe {
        numkong::bf16::dots_pack(
            rounded.as_ptr().cast(),
            count,
            dimensions,
            dimensions * size_of::<bf16>(),
            bytes.as_mut_ptr().cast(),
        );
    }
    Ok((Columns { rows: count, bytes }, worst))
}

pub(super) fn tile(source: &[bf16], target: &Columns, dimensions: usize, out: &mut [f32]) {
    let height = source.len() / dimensions;
    assert!(height <= SOURCE_STRIPE && target.rows <= TARGET_STRIPE);
    assert_eq!(out.len(), SOURCE_STRIPE * TARGET_STRIPE);
    // SAFETY: `source` holds `height` rows, `target` was packed from `target.rows` rows of the
    // same dimensions, and `out` has room for `height` rows of TARGET_STRIPE values; strides are
    // in bytes.
    unsafe {
        numkong::bf16::dots_packed(
            source.as_ptr().cast(),
            target.bytes.as_ptr().cast(),
            out.as_mut_ptr(),
            height,
            target.rows,
            dimensions,
            dimensions * size_of::<bf16>(),
            TARGET_STRIPE * size_of::<f32>(),
        );
    }
}
