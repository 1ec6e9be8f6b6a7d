//! Rows of embedding tables: dequantised, copied or summed straight from the mapped file.
#![allow(unsafe_code)]

use super::Isa;
use crate::folder::{Matrix, Values};

/// `out += weight * table[row]`.
///
/// # Panics
/// If `row` is not below `table.rows()` or `out` is shorter than a row.
pub fn add_row(isa: Isa, table: &Matrix, row: usize, weight: f32, out: &mut [f32]) {
    let n = table.columns();
    let out = &mut out[..n];
    let range = row * n..(row + 1) * n;
    match table.values() {
        Values::F32(data) => add_f32(isa, &data[range], weight, out),
        Values::I8 { data, scale } => add_i8(isa, &data[range], weight * scale[row], out),
        Values::Bf16(data) => {
            for (y, x) in out.iter_mut().zip(&data[range]) {
                *y += weight * x.to_f32();
            }
        }
        Values::F16(data) => {
            for (y, x) in out.iter_mut().zip(&data[range]) {
                *y += weight * x.to_f32();
            }
        }
    }
}

/// `out = table[row]`.
///
/// # Panics
/// As [`add_row`].
pub fn copy_row(isa: Isa, table: &Matrix, row: usize, out: &mut [f32]) {
    let n = table.columns();
    if let Values::F32(data) = table.values() {
        out[..n].copy_from_slice(&data[row * n..(row + 1) * n]);
    } else {
        out[..n].fill(0.0);
        add_row(isa, table, row, 1.0, out);
    }
}

fn add_f32(isa: Isa, x: &[f32], weight: f32, y: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Portable {
        #[target_feature(enable = "avx2,fma")]
        fn inner(x: &[f32], weight: f32, y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y = weight.mul_add(*x, *y);
            }
        }
        // SAFETY: `isa` says that AVX2 and FMA are there.
        return unsafe { inner(x, weight, y) };
    }
    let _ = isa;
    for (y, x) in y.iter_mut().zip(x) {
        *y += weight * x;
    }
}

fn add_i8(isa: Isa, x: &[i8], weight: f32, y: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Portable {
        #[target_feature(enable = "avx2,fma")]
        fn inner(x: &[i8], weight: f32, y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y = weight.mul_add(f32::from(*x), *y);
            }
        }
        // SAFETY: `isa` says that AVX2 and FMA are there.
        return unsafe { inner(x, weight, y) };
    }
    let _ = isa;
    for (y, x) in y.iter_mut().zip(x) {
        *y += weight * f32::from(*x);
    }
}
