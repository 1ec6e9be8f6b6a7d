//! Products of bf16 matrices in blocks, for processors with AVX-512 BF16: the tiles by AMX where it is there
//! ([`bf16_amx`]), else by VDPBF16PS ([`bf16_dot`]).
//!
//! The right operand is packed into panels of 32 columns, the left one block by block into tiles of rows, both
//! as pairs of neighbours along the inner dimension, which is what both units multiply. A panel's part stays
//! in the first-level cache, the left block in the second-level cache (Goto and van de Geijn, ACM TOMS 34.3,
//! 2008).
#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::cell::RefCell;

use super::bf16_line::{COLUMNS, Line};
use super::{bf16_amx, bf16_dot};
use crate::{amx, bf16_pairs, units};

/// Pairs of one pass: a panel's part takes 24 KiB.
const DEPTH: usize = 192;
/// Rows of the left operand of one pass over all panels, tiles of AMX or of VDPBF16PS: about 190 KiB.
const BLOCKS: (usize, usize) = (8 * bf16_amx::ROWS, 20 * bf16_dot::ROWS);
/// Pairs that a transposition takes at a time; a tile of AMX is as deep.
const SIDE: usize = 16;

/// Pairs of two rows: element i is (even[i], odd[i]); `odd` may be empty, for zeros.
///
/// # Safety
/// The processor has AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn interleave(even: &[f32], odd: &[f32], to: &mut [u32]) {
    let n = even.len();
    assert!(
        to.len() >= n && (odd.is_empty() || odd.len() == n),
        "room for pairs"
    );
    // SAFETY: what masks leave out is not touched; registers have the same size.
    unsafe {
        let mut order = [0u16; 32];
        for (i, pair) in order.chunks_exact_mut(2).enumerate() {
            (pair[0], pair[1]) = (i as u16, i as u16 + 16);
        }
        let order = _mm512_loadu_si512(order.as_ptr().cast());
        for at in (0..n).step_by(16) {
            let mask = ((1u32 << (n - at).min(16)) - 1) as u16;
            let low = _mm512_maskz_loadu_ps(mask, even.as_ptr().add(at));
            let high = if odd.is_empty() {
                _mm512_setzero_ps()
            } else {
                _mm512_maskz_loadu_ps(mask, odd.as_ptr().add(at))
            };
            let both = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            let both = _mm512_permutexvar_epi16(order, both);
            _mm512_mask_storeu_epi32(to.as_mut_ptr().add(at).cast(), mask, both);
        }
    }
}

/// Transposes 16 rows of 16 pairs.
///
/// # Safety
/// The processor has AVX-512. Rows are valid for 16 elements, `from_stride` and `to_stride` elements apart.
#[target_feature(enable = "avx512f")]
unsafe fn turn(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
    // SAFETY: the caller vouches for the rows.
    unsafe {
        let r: [__m512i; 16] =
            std::array::from_fn(|i| _mm512_loadu_si512(from.add(i * from_stride).cast()));
        // Within lanes: pairs of rows, then fours.
        let t: [__m512i; 16] = std::array::from_fn(|i| match i % 2 {
            0 => _mm512_unpacklo_epi32(r[i], r[i + 1]),
            _ => _mm512_unpackhi_epi32(r[i - 1], r[i]),
        });
        let r: [__m512i; 16] = std::array::from_fn(|i| {
            let (first, second) = (i / 4 * 4 + i % 4 / 2, i / 4 * 4 + i % 4 / 2 + 2);
            match i % 2 {
                0 => _mm512_unpacklo_epi64(t[first], t[second]),
                _ => _mm512_unpackhi_epi64(t[first], t[second]),
            }
        });
        // Lane L of r[4 g + j] holds column 4 L + j of the rows from 4 g on.
        for j in 0..4 {
            let a = _mm512_shuffle_i32x4::<0x88>(r[j], r[4 + j]);
            let b = _mm512_shuffle_i32x4::<0x88>(r[8 + j], r[12 + j]);
            let c = _mm512_shuffle_i32x4::<0xdd>(r[j], r[4 + j]);
            let d = _mm512_shuffle_i32x4::<0xdd>(r[8 + j], r[12 + j]);
            let columns = [
                _mm512_shuffle_i32x4::<0x88>(a, b),
                _mm512_shuffle_i32x4::<0x88>(c, d),
                _mm512_shuffle_i32x4::<0xdd>(a, b),
                _mm512_shuffle_i32x4::<0xdd>(c, d),
            ];
            for (i, column) in columns.into_iter().enumerate() {
                _mm512_storeu_si512(to.add((4 * i + j) * to_stride).cast(), column);
            }
        }
    }
}

/// A right operand, k×n.
#[derive(Default)]
pub struct Panels {
    /// Panel by panel, pair by pair; columns beyond n and pairs beyond k are zero.
    lines: Vec<Line>,
    n: usize,
    k: usize,
}

/// Pairs of a panel: whole tiles.
fn depth_of(k: usize) -> usize {
    k.div_ceil(2).next_multiple_of(SIDE)
}

impl Panels {
    fn resize(&mut self, n: usize, k: usize) {
        assert!(
            laser_cpu::has_avx512_bf16(),
            "this processor has no AVX-512 BF16"
        );
        (self.n, self.k) = (n, k);
        let lines = n.div_ceil(COLUMNS) * depth_of(k);
        self.lines.resize(lines, Line([0; COLUMNS]));
    }

    /// From its transpose b, n×k.
    pub fn transposed(n: usize, k: usize, b: &[f32]) -> Self {
        let mut panels = Self::default();
        panels.resize(n, k);
        let depth = depth_of(k);
        let mut rows = vec![0u32; SIDE * depth];
        for j in (0..n).step_by(SIDE) {
            for (i, row) in rows.chunks_exact_mut(depth).enumerate() {
                match b.get((j + i) * k..(j + i + 1) * k).filter(|_| j + i < n) {
                    // SAFETY: `resize` made sure of the instructions.
                    Some(from) => unsafe { bf16_pairs::round(from, row) },
                    None => row.fill(0),
                }
            }
            let lines = &mut panels.lines[j / COLUMNS * depth..][..depth];
            for p in (0..depth).step_by(SIDE) {
                let to = lines[p].0[j % COLUMNS..].as_mut_ptr();
                // SAFETY: `rows` holds 16 rows of `depth`, a multiple of 16; 16 lines follow one another from
                // p on, and 16 of a line's columns from `j % COLUMNS`, which is 0 or 16.
                unsafe { turn(rows.as_ptr().add(p), depth, to, COLUMNS) };
            }
        }
        panels
    }

    /// From b, k×n.
    pub fn plain(k: usize, n: usize, b: &[f32]) -> Self {
        let mut panels = Self::default();
        panels.set(k, n, b);
        panels
    }

    /// Becomes b, k×n.
    fn set(&mut self, k: usize, n: usize, b: &[f32]) {
        self.resize(n, k);
        let depth = depth_of(k);
        let width = n.next_multiple_of(COLUMNS);
        let mut row = vec![0u32; width];
        for p in 0..depth {
            if 2 * p < k {
                let (even, odd) = (row_of(b, 2 * p, n, k), row_of(b, 2 * p + 1, n, k));
                // SAFETY: `resize` made sure of the instructions.
                unsafe { interleave(even, odd, &mut row) };
            } else {
                row.fill(0);
            }
            for (panel, columns) in row.as_chunks::<COLUMNS>().0.iter().enumerate() {
                self.lines[panel * depth + p].0 = *columns;
            }
        }
    }
}

/// Row i of a matrix of `rows` rows, empty beyond them.
fn row_of(matrix: &[f32], i: usize, width: usize, rows: usize) -> &[f32] {
    if i < rows {
        &matrix[i * width..(i + 1) * width]
    } else {
        &[]
    }
}

/// A left operand, m×k, as it lies in memory.
#[derive(Clone, Copy)]
pub enum Left<'a> {
    /// Row-major.
    Rows(&'a [f32]),
    /// Its transpose, k×m, row-major.
    Columns(&'a [f32]),
}

/// Working memory, kept between products.
#[derive(Default)]
struct Scratch {
    packed: Vec<u32>,
    lines: Vec<u32>,
    right: Panels,
}

impl Left<'_> {
    /// Packs rows `r0..r1`, pairs `p0..p1` into tiles of VDPBF16PS: pair p of row r lies at
    /// `[(r − r0) / ROWS][p − p0][(r − r0) % ROWS]`.
    ///
    /// # Safety
    /// The processor has AVX-512 BF16.
    unsafe fn pack_dot(
        self,
        (m, k): (usize, usize),
        (r0, r1): (usize, usize),
        (p0, p1): (usize, usize),
        scratch: &mut Vec<u32>,
        to: &mut Vec<u32>,
    ) {
        const ROWS: usize = bf16_dot::ROWS;
        let depth = p1 - p0;
        to.clear();
        to.resize((r1 - r0).div_ceil(ROWS) * depth * ROWS, 0);
        match self {
            Self::Rows(a) => {
                scratch.resize(depth, 0);
                for r in r0..r1 {
                    let row = &a[r * k + 2 * p0..r * k + k.min(2 * p1)];
                    // SAFETY: passed on from the caller.
                    unsafe { bf16_pairs::round(row, scratch) };
                    let (tile, at) = ((r - r0) / ROWS, (r - r0) % ROWS);
                    let tile = &mut to[tile * depth * ROWS..][..depth * ROWS];
                    for (line, pair) in tile.chunks_exact_mut(ROWS).zip(&*scratch) {
                        line[at] = *pair;
                    }
                }
            }
            Self::Columns(a) => {
                scratch.resize(r1 - r0, 0);
                for p in p0..p1 {
                    let part = |i: usize| row_of(a, i, m, k).get(r0..r1).unwrap_or(&[]);
                    // SAFETY: passed on from the caller.
                    unsafe { interleave(part(2 * p), part(2 * p + 1), scratch) };
                    for (tile, pairs) in scratch.chunks(ROWS).enumerate() {
                        let at = (tile * depth + p - p0) * ROWS;
                        to[at..at + pairs.len()].copy_from_slice(pairs);
                    }
                }
            }
        }
    }

    /// Packs the same as rows of `depth` pairs, a multiple of 16, for AMX; rows beyond r1 fill the last tile
    /// with anything, pairs beyond k are zero.
    ///
    /// # Safety
    /// The processor has AVX-512 BF16.
    unsafe fn pack_matrix(
        self,
        (m, k): (usize, usize),
        (r0, r1): (usize, usize),
        (p0, p1): (usize, usize),
        scratch: &mut Vec<u32>,
        to: &mut Vec<u32>,
    ) {
        let depth = p1 - p0;
        let rows = (r1 - r0).next_multiple_of(bf16_amx::ROWS);
        to.resize(rows * depth, 0);
        match self {
            Self::Rows(a) => {
                for (row, r) in to.chunks_exact_mut(depth).zip(r0..r1) {
                    let from = &a[r * k + (2 * p0).min(k)..r * k + k.min(2 * p1)];
                    // SAFETY: passed on from the caller.
                    unsafe { bf16_pairs::round(from, row) };
                    row[from.len().div_ceil(2)..].fill(0);
                }
            }
            Self::Columns(a) => {
                scratch.clear();
                scratch.resize(SIDE * rows, 0);
                for p in (p0..p1).step_by(SIDE) {
                    for (i, line) in scratch.chunks_exact_mut(rows).enumerate() {
                        let at = 2 * (p + i);
                        let part = |i: usize| row_of(a, i, m, k).get(r0..r1).unwrap_or(&[]);
                        if at < k {
                            // SAFETY: passed on from the caller.
                            unsafe { interleave(part(at), part(at + 1), line) };
                        } else {
                            line.fill(0);
                        }
                    }
                    for r in (0..rows).step_by(SIDE) {
                        let to = to[r * depth + p - p0..].as_mut_ptr();
                        // SAFETY: `scratch` holds 16 lines of `rows`, a multiple of 16, and `to` as many rows of
                        // `depth`, a multiple of 16.
                        unsafe { turn(scratch.as_ptr().add(r), rows, to, depth) };
                    }
                }
            }
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = {
        units::configure_thread();
        RefCell::default()
    };
}

/// `c = [c +] left right`: c is m×n, row-major.
///
/// # Panics
/// If the processor lacks the instruction, or a matrix is too short for its sizes.
pub fn multiply(m: usize, left: Left<'_>, right: &Panels, c: &mut [f32], add: bool) {
    SCRATCH.with_borrow_mut(|s| {
        let matrix = units::has_matrix_unit();
        multiply_by(
            matrix,
            m,
            left,
            right,
            c,
            add,
            (&mut s.packed, &mut s.lines),
        );
    });
}

/// `c = [c +] aᵀ b`: a is k×m, b is k×n.
///
/// # Panics
/// As [`multiply`].
pub fn tn((m, n, k): (usize, usize, usize), a: &[f32], b: &[f32], c: &mut [f32], add: bool) {
    SCRATCH.with_borrow_mut(|s| {
        s.right.set(k, n, b);
        let scratch = (&mut s.packed, &mut s.lines);
        let matrix = units::has_matrix_unit();
        multiply_by(matrix, m, Left::Columns(a), &s.right, c, add, scratch);
    });
}

/// [`multiply`] by AMX, if `matrix`, or by VDPBF16PS.
fn multiply_by(
    matrix: bool,
    m: usize,
    left: Left<'_>,
    right: &Panels,
    c: &mut [f32],
    add: bool,
    (packed, lines): (&mut Vec<u32>, &mut Vec<u32>),
) {
    assert!(
        laser_cpu::has_avx512_bf16(),
        "this processor has no AVX-512 BF16"
    );
    assert!(
        !matrix || units::has_matrix_unit(),
        "this processor has no AMX"
    );
    let (n, k) = (right.n, right.k);
    let (Left::Rows(a) | Left::Columns(a)) = left;
    assert!(a.len() >= m * k, "the left operand is too short");
    assert!(c.len() >= m * n, "the result is too short");
    let pairs = if matrix { depth_of(k) } else { k.div_ceil(2) };
    if pairs == 0 && !add {
        c[..m * n].fill(0.0);
    }
    // SAFETY: the processor has AMX, for which the thread was configured with `SCRATCH`.
    let tiles = matrix.then(|| unsafe { amx::Tiles::shaped() });
    let stride = depth_of(k);
    let block = if matrix { BLOCKS.0 } else { BLOCKS.1 };
    for r0 in (0..m).step_by(block) {
        let r1 = m.min(r0 + block);
        for p0 in (0..pairs).step_by(DEPTH) {
            let p1 = pairs.min(p0 + DEPTH);
            let depth = p1 - p0;
            let add = add || p0 > 0;
            let (sizes, rows, part) = ((m, k), (r0, r1), (p0, p1));
            // SAFETY: the processor has AVX-512 BF16.
            unsafe {
                match tiles {
                    Some(_) => left.pack_matrix(sizes, rows, part, lines, packed),
                    None => left.pack_dot(sizes, rows, part, lines, packed),
                }
            }
            let height = if tiles.is_some() {
                bf16_amx::ROWS
            } else {
                bf16_dot::ROWS
            };
            for panel in 0..n.div_ceil(COLUMNS) {
                let lines = &right.lines[panel * stride + p0..panel * stride + p1];
                let columns = COLUMNS.min(n - panel * COLUMNS);
                for (first, a) in (r0..r1)
                    .step_by(height)
                    .zip(packed.chunks_exact(depth * height))
                {
                    let rows = height.min(r1 - first);
                    let c = &mut c[first * n + panel * COLUMNS..];
                    match &tiles {
                        Some(tiles) => bf16_amx::tile(tiles, (rows, columns), a, lines, c, n, add),
                        // SAFETY: the processor has the instruction. `a` holds `depth` lines of ROWS pairs,
                        // `lines` as many of COLUMNS; c reaches to the end of the result, of which rows
                        // `first..first + rows` exist with n ≥ `columns` elements from here on.
                        None => unsafe { bf16_dot::by_rows(rows, columns, a, lines, c, n, add) },
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_edges_agree_with_the_definition() {
        if !laser_cpu::has_avx512_bf16() {
            eprintln!("skipped: this processor has no AVX-512 BF16");
            return;
        }
        units::configure_thread();
        // Small integers are exact in bf16 and in every sum.
        let number = |i: usize| ((i * 7 + i / 5) % 11) as f32 - 5.0;
        let sizes = [
            (1, 1, 1),
            (13, 33, 7),
            (12, 32, 384),
            (251, 70, 801),
            (300, 64, 64),
            (64, 17, 33),
        ];
        for (m, n, k) in sizes {
            let a: Vec<f32> = (0..m * k).map(number).collect();
            let b: Vec<f32> = (0..k * n).map(|i| number(i + 3)).collect();
            let at: Vec<f32> = (0..k * m).map(|i| a[(i % m) * k + i / m]).collect();
            let bt: Vec<f32> = (0..n * k).map(|i| b[(i % k) * n + i / k]).collect();
            let expected: Vec<f32> = (0..m * n)
                .map(|i| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum())
                .collect();
            // What a product of another size leaves behind has no effect.
            let mut used = Panels::plain(500, 90, &vec![f32::NAN; 500 * 90]);
            used.set(k, n, &b);
            for right in [Panels::plain(k, n, &b), Panels::transposed(n, k, &bt), used] {
                for left in [Left::Rows(&a), Left::Columns(&at)] {
                    for matrix in [false, true] {
                        if matrix && !units::has_matrix_unit() {
                            eprintln!("skipped: this processor has no AMX");
                            continue;
                        }
                        let multiply = |c: &mut [f32], add| {
                            let (mut packed, mut lines) = (vec![3; 7], vec![4; 9]);
                            let scratch = (&mut packed, &mut lines);
                            multiply_by(matrix, m, left, &right, c, add, scratch);
                        };
                        let mut c = vec![2f32; m * n];
                        multiply(&mut c, false);
                        assert_eq!(c, expected, "{m} {n} {k}");
                        multiply(&mut c, true);
                        assert!(c.iter().zip(&expected).all(|(c, e)| *c == 2.0 * e));
                    }
                }
            }
            let mut c = vec![2f32; m * n];
            tn((m, n, k), &at, &b, &mut c, false);
            assert_eq!(c, expected, "{m} {n} {k}");
        }
    }
}
