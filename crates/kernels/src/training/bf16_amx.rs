//! Tiles of products of bf16 with AMX: four of its tiles of 16 × 16 sums, each multiplied by 16 pairs of
//! neighbours along the inner dimension at once.
//!
//! The intrinsics are not stable yet, hence assembly (Intel, Architecture Instruction Set Extensions,
//! chapter 3).
#![allow(unsafe_code)]

use std::arch::asm;

use super::bf16_line::{COLUMNS, Line};
pub(super) use crate::dots::amx::Tiles;

/// Rows of a tile.
pub(super) const ROWS: usize = 32;

/// Pairs that are multiplied at once.
const DEPTH: usize = 16;

/// `c[r, 0..columns] = [c +] Σₚ a[r, p] · b[p, 0..columns]` for r below `rows`; the rows of c lie `stride`
/// apart. `a` holds ROWS rows of as many pairs as `b` has lines, a multiple of 16.
///
/// # Panics
/// If a slice is too short.
pub(super) fn tile(
    tiles: &Tiles,
    (rows, columns): (usize, usize),
    a: &[u32],
    b: &[Line],
    c: &mut [f32],
    stride: usize,
    add: bool,
) {
    let depth = b.len();
    assert!(
        depth > 0 && depth.is_multiple_of(DEPTH) && a.len() >= ROWS * depth,
        "left"
    );
    assert!(
        (1..=ROWS).contains(&rows) && (1..=COLUMNS).contains(&columns),
        "sizes"
    );
    assert!(
        columns <= stride && c.len() >= (rows - 1) * stride + columns,
        "sums"
    );
    if rows == ROWS && columns == COLUMNS {
        // SAFETY: `a` and `b` hold what they have to, c 32 rows of 32 columns.
        unsafe {
            whole(
                tiles,
                depth,
                a.as_ptr(),
                b.as_ptr(),
                c.as_mut_ptr(),
                stride,
                add,
            )
        };
        return;
    }
    let mut sums = [0f32; ROWS * COLUMNS];
    if add {
        for (to, from) in sums
            .chunks_exact_mut(COLUMNS)
            .zip(c.chunks(stride))
            .take(rows)
        {
            to[..columns].copy_from_slice(&from[..columns]);
        }
    }
    // SAFETY: as above, with sums of their own.
    unsafe {
        whole(
            tiles,
            depth,
            a.as_ptr(),
            b.as_ptr(),
            sums.as_mut_ptr(),
            COLUMNS,
            add,
        )
    };
    for (from, to) in sums
        .chunks_exact(COLUMNS)
        .zip(c.chunks_mut(stride))
        .take(rows)
    {
        to[..columns].copy_from_slice(&from[..columns]);
    }
}

/// # Safety
/// `a` holds 32 rows of `depth` pairs, a positive multiple of 16, `b` as many lines; c is valid for 32 rows of
/// 32 elements that lie `stride` apart.
unsafe fn whole(
    _: &Tiles,
    depth: usize,
    a: *const u32,
    b: *const Line,
    c: *mut f32,
    stride: usize,
    add: bool,
) {
    // SAFETY: the tiles have a shape, since there is a value of them; every step reads 64 bytes of each row
    // and 16 lines, as many as there are.
    unsafe {
        let low = c.add(16 * stride);
        asm!(
            "test {add}, {add}",
            "jz 3f",
            "tileloadd tmm0, [{c} + {ldc}]",
            "tileloadd tmm1, [{c} + {ldc} + 64]",
            "tileloadd tmm2, [{low} + {ldc}]",
            "tileloadd tmm3, [{low} + {ldc} + 64]",
            "jmp 2f",
            "3:",
            "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a} + {lda}]",
            "tileloadd tmm6, [{b} + {ldb}]",
            "tileloadd tmm7, [{b} + {ldb} + 64]",
            "tileloadd tmm5, [{a_low} + {lda}]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, 64",
            "add {a_low}, 64",
            "add {b}, 2048",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{c} + {ldc}], tmm0",
            "tilestored [{c} + {ldc} + 64], tmm1",
            "tilestored [{low} + {ldc}], tmm2",
            "tilestored [{low} + {ldc} + 64], tmm3",
            add = in(reg) usize::from(add),
            a = inout(reg) a => _,
            a_low = inout(reg) a.add(16 * depth) => _,
            b = inout(reg) b => _,
            lda = in(reg) 4 * depth,
            ldb = in(reg) 4 * COLUMNS,
            steps = inout(reg) depth / DEPTH => _,
            c = in(reg) c,
            low = in(reg) low,
            ldc = in(reg) 4 * stride,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
