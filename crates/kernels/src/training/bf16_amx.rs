//! Tiles of products of bf16 with AMX: four of its tiles, each multiplied by 16 pairs of neighbours along the
//! inner dimension at once.
#![allow(unsafe_code)]

use super::bf16_line::{COLUMNS, Line};
use crate::amx::{self, DEPTH, SIDE, Tiles};

/// Rows of a tile.
pub(super) const ROWS: usize = SIDE;

const _: () = assert!(COLUMNS == SIDE);

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
    let whole = |c: *mut f32, stride: usize| {
        let b = (b.as_ptr().cast(), size_of::<Line>());
        let c = (c.cast(), stride * size_of::<f32>());
        // SAFETY: `a` and `b` hold what they have to. This is called with c of 32 rows of 32 columns, which were
        // asserted above, or are those of `sums`.
        unsafe { amx::bf16(tiles, depth, a.as_ptr(), b, c, add) };
    };
    if rows == ROWS && columns == COLUMNS {
        whole(c.as_mut_ptr(), stride);
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
    whole(sums.as_mut_ptr(), COLUMNS);
    for (from, to) in sums
        .chunks_exact(COLUMNS)
        .zip(c.chunks_mut(stride))
        .take(rows)
    {
        to[..columns].copy_from_slice(&from[..columns]);
    }
}
