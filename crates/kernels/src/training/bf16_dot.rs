//! Tiles of products of bf16 with AVX-512's VDPBF16PS; the 24 sums of a tile stay in registers.
#![allow(unsafe_code)]

use std::arch::x86_64::{_mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_setzero_ps};

use super::bf16_line::{COLUMNS, Line};
use crate::bf16_pairs::multiply_add;

/// Rows of a tile.
pub(super) const ROWS: usize = 12;

/// One tile: chooses the kernel for its number of rows.
///
/// # Safety
/// As [`tile`], with 1 to [`ROWS`] rows.
pub(super) unsafe fn by_rows(
    rows: usize,
    columns: usize,
    a: &[u32],
    b: &[Line],
    c: &mut [f32],
    stride: usize,
    add: bool,
) {
    macro_rules! choose {
        ($($r:literal)*) => {
            match rows {
                // SAFETY: passed on from the caller.
                $($r => unsafe { tile::<$r>(columns, a, b, c.as_mut_ptr(), stride, add) },)*
                _ => unreachable!("rows of a tile"),
            }
        };
    }
    choose!(1 2 3 4 5 6 7 8 9 10 11 12);
}

/// `c[r, 0..columns] = [c +] Σₚ a[p, r] · b[p, 0..columns]` for r below R.
///
/// # Safety
/// The processor has AVX-512 BF16; `a` holds ROWS pairs for each line of `b`; `c` is valid for R rows
/// of `columns` (at most COLUMNS) elements that lie `stride` apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn tile<const R: usize>(
    columns: usize,
    a: &[u32],
    b: &[Line],
    c: *mut f32,
    stride: usize,
    add: bool,
) {
    debug_assert!(a.len() >= b.len() * ROWS && columns <= COLUMNS);
    let mask = (1u64 << columns) - 1;
    let masks = [mask as u16, (mask >> 16) as u16];
    let mut sums = [[_mm512_setzero_ps(); 2]; R];
    // SAFETY: masked elements are not touched, the others exist; lines are aligned to 64 bytes.
    unsafe {
        if add {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (half, sum) in sums.iter_mut().enumerate() {
                    *sum =
                        _mm512_maskz_loadu_ps(masks[half], c.wrapping_add(r * stride + 16 * half));
                }
            }
        }
        let left = (a.as_ptr(), 1, ROWS);
        multiply_add(&mut sums, b.len(), left, b.as_ptr().cast());
        for (r, sums) in sums.iter().enumerate() {
            for (half, sum) in sums.iter().enumerate() {
                _mm512_mask_storeu_ps(c.wrapping_add(r * stride + 16 * half), masks[half], *sum);
            }
        }
    }
}
