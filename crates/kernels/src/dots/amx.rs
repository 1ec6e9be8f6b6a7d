//! The kernels for AMX. The packed lines are those of the other units: 16 groups of one panel are a tile.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::*;

use crate::amx::{self, DEPTH, SIDE, Tiles};

/// Rows that a block of sums has at most.
pub(super) const ROWS: usize = SIDE;

/// Columns of a block: four panels.
pub(super) const COLUMNS: usize = 64;

/// Bytes from one group's lines to the next one's.
const LINE_STRIDE: usize = 4 * 64;

/// Sums of a block, f32 or i32.
#[repr(C, align(64))]
pub(super) struct Sums([u32; ROWS * COLUMNS]);

impl Sums {
    pub(super) fn new() -> Self {
        Self([0; ROWS * COLUMNS])
    }
}

/// Defines a function that computes a block of sums with `$multiply`.
macro_rules! block {
    ($name:ident, $multiply:literal) => {
        /// `sums = A Wᵀ` for 16 rows, or 32 if `wide`, and a block's 64 columns.
        ///
        /// # Safety
        /// The tiles are shaped. `a` holds the rows of `groups` (a positive multiple of [`DEPTH`])
        /// numbers, `b` the block's lines.
        pub(super) unsafe fn $name(
            tiles: &Tiles,
            groups: usize,
            a: *const u32,
            wide: bool,
            b: *const u8,
            sums: &mut Sums,
        ) {
            debug_assert!(groups > 0 && groups.is_multiple_of(DEPTH));
            let (stride, steps) = (4 * groups, groups / DEPTH);
            let sums = sums.0.as_mut_ptr();
            // SAFETY: every step reads 64 bytes of each row and 16 groups of lines, as many as there
            // are; the sums of 32 rows of 64 columns are written within `sums`.
            unsafe {
                if wide {
                    for half in [0, 4 * SIDE] {
                        let b = (b.add(half), LINE_STRIDE);
                        let sums = (sums.cast::<u8>().add(half), 4 * COLUMNS);
                        amx::$name(tiles, groups, a, b, sums, false);
                    }
                } else {
                    asm!(
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "2:",
                        "tileloadd tmm4, [{a} + {lda}]",
                        "tileloadd tmm5, [{b} + {ldb}]",
                        "tileloadd tmm6, [{b} + {ldb} + 64]",
                        "tileloadd tmm7, [{b} + {ldb} + 128]",
                        concat!($multiply, " tmm0, tmm4, tmm5"),
                        "tileloadd tmm5, [{b} + {ldb} + 192]",
                        concat!($multiply, " tmm1, tmm4, tmm6"),
                        concat!($multiply, " tmm2, tmm4, tmm7"),
                        concat!($multiply, " tmm3, tmm4, tmm5"),
                        "add {a}, 64",
                        "add {b}, 4096",
                        "dec {steps}",
                        "jnz 2b",
                        "tilestored [{c} + {ldb}], tmm0",
                        "tilestored [{c} + {ldb} + 64], tmm1",
                        "tilestored [{c} + {ldb} + 128], tmm2",
                        "tilestored [{c} + {ldb} + 192], tmm3",
                        a = inout(reg) a => _,
                        b = inout(reg) b => _,
                        lda = in(reg) stride,
                        ldb = in(reg) LINE_STRIDE,
                        steps = inout(reg) steps => _,
                        c = in(reg) sums,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }
        }
    };
}
block!(int8, "tdpbusd");
block!(bf16, "tdpbf16ps");

/// Turns the first `rows` sums of int8 products into `out = init + factors * (sums - zeros * weights)`,
/// as `vnni::tile` does.
///
/// # Safety
/// The processor has AVX-512. `init` (unless null) and `out` hold the 64 columns of the rows, `row`
/// and `zeros` a value of each, `column` and `weights` a value a column.
#[target_feature(enable = "avx512f")]
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn finish_int8(
    sums: &Sums,
    rows: usize,
    init: *const f32,
    ldi: usize,
    out: *mut f32,
    ldo: usize,
    row: *const f32,
    zeros: *const f32,
    column: *const f32,
    weights: *const f32,
) {
    debug_assert!(rows <= ROWS);
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        for p in (0..COLUMNS).step_by(16) {
            let weights = _mm512_loadu_ps(weights.add(p));
            let column = _mm512_loadu_ps(column.add(p));
            for r in 0..rows {
                let sum = _mm512_load_si512(sums.0.as_ptr().add(r * COLUMNS + p).cast());
                let zero = _mm512_set1_ps(*zeros.add(r));
                let sum = _mm512_fnmadd_ps(zero, weights, _mm512_cvtepi32_ps(sum));
                let factor = _mm512_mul_ps(column, _mm512_set1_ps(*row.add(r)));
                let sum = if init.is_null() {
                    _mm512_mul_ps(sum, factor)
                } else {
                    _mm512_fmadd_ps(sum, factor, _mm512_loadu_ps(init.add(r * ldi + p)))
                };
                _mm512_storeu_ps(out.add(r * ldo + p), sum);
            }
        }
    }
}

/// The same of bf16 products: `out = init + sums`.
///
/// # Safety
/// As [`finish_int8`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn finish_bf16(
    sums: &Sums,
    rows: usize,
    init: *const f32,
    ldi: usize,
    out: *mut f32,
    ldo: usize,
) {
    debug_assert!(rows <= ROWS);
    // SAFETY: the caller vouches for the pointers.
    unsafe {
        for r in 0..rows {
            for p in (0..COLUMNS).step_by(16) {
                let mut sum = _mm512_load_ps(sums.0.as_ptr().add(r * COLUMNS + p).cast());
                if !init.is_null() {
                    sum = _mm512_add_ps(sum, _mm512_loadu_ps(init.add(r * ldi + p)));
                }
                _mm512_storeu_ps(out.add(r * ldo + p), sum);
            }
        }
    }
}
