//! Products of bf16 matrices with AVX-512's VDPBF16PS, for processors that have it and no AMX: twice
//! the products of f32 in the same time.
//!
//! The right operand is packed into panels of 32 columns, the left one block by block into tiles of
//! 12 rows, both as pairs of neighbours along the inner dimension, which is what the instruction
//! multiplies: `c += a₂ₚ b₂ₚ + a₂ₚ₊₁ b₂ₚ₊₁` in every lane. A tile's 24 sums stay in registers, a panel's
//! part in the first-level cache, the left block in the second-level cache (Goto and van de Geijn, ACM
//! TOMS 34.3, 2008).
#![allow(unsafe_code)]

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_load_si512, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_setzero_ps,
};
use std::cell::RefCell;

use laser_cpu::simd;

use super::rounding::bits;

/// Columns of a panel: two registers.
const COLUMNS: usize = 32;
/// Rows of a tile.
const ROWS: usize = 12;
/// Pairs of one pass: a panel's part takes 24 KiB.
const DEPTH: usize = 192;
/// Rows of the left operand of one pass over all panels: 180 KiB.
const BLOCK: usize = 20 * ROWS;

simd! {
    /// Pairs of two rows: element i is (even[i], odd[i]), zero where `odd` is too short.
    fn interleave(even: &[f32], odd: &[f32], to: &mut [u32]) {
        if odd.is_empty() {
            for (to, a) in to.iter_mut().zip(even) {
                *to = bits(*a);
            }
        } else {
            for ((to, a), b) in to.iter_mut().zip(even).zip(odd) {
                *to = bits(*a) | bits(*b) << 16;
            }
        }
    }
}

simd! {
    /// Pairs of neighbours in one row; the last is filled with zero.
    fn neighbours(row: &[f32], to: &mut [u32]) {
        let pairs = row.chunks_exact(2);
        if let ([last], Some(to)) = (pairs.remainder(), to.get_mut(row.len() / 2)) {
            *to = bits(*last);
        }
        for (to, pair) in to.iter_mut().zip(pairs) {
            *to = bits(pair[0]) | bits(pair[1]) << 16;
        }
    }
}

/// One pair of each column of a panel.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u32; COLUMNS]);

/// A right operand, k×n.
pub struct Panels {
    /// Panel by panel, pair by pair; columns beyond n are zero.
    lines: Vec<Line>,
    n: usize,
    k: usize,
}

impl Panels {
    fn empty(n: usize, k: usize) -> Self {
        let lines = vec![Line([0; COLUMNS]); n.div_ceil(COLUMNS) * k.div_ceil(2)];
        Self { lines, n, k }
    }

    /// From its transpose b, n×k.
    pub fn transposed(n: usize, k: usize, b: &[f32]) -> Self {
        let mut panels = Self::empty(n, k);
        let pairs = k.div_ceil(2);
        let mut column = vec![0u32; pairs];
        for j in 0..n {
            neighbours(&b[j * k..(j + 1) * k], &mut column);
            let panel = &mut panels.lines[j / COLUMNS * pairs..][..pairs];
            for (line, pair) in panel.iter_mut().zip(&column) {
                line.0[j % COLUMNS] = *pair;
            }
        }
        panels
    }

    /// From b, k×n.
    pub fn plain(k: usize, n: usize, b: &[f32]) -> Self {
        let mut panels = Self::empty(n, k);
        let pairs = k.div_ceil(2);
        let mut row = vec![0u32; n];
        for p in 0..pairs {
            interleave(row_of(b, 2 * p, n, k), row_of(b, 2 * p + 1, n, k), &mut row);
            for (panel, columns) in row.chunks(COLUMNS).enumerate() {
                panels.lines[panel * pairs + p].0[..columns.len()].copy_from_slice(columns);
            }
        }
        panels
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

impl Left<'_> {
    /// Packs rows `r0..r1`, pairs `p0..p1` into tiles: pair p of row r lies at
    /// `[(r − r0) / ROWS][p − p0][(r − r0) % ROWS]`.
    fn pack(
        self,
        (m, k): (usize, usize),
        (r0, r1): (usize, usize),
        (p0, p1): (usize, usize),
        scratch: &mut Vec<u32>,
        to: &mut Vec<u32>,
    ) {
        let depth = p1 - p0;
        to.clear();
        to.resize((r1 - r0).div_ceil(ROWS) * depth * ROWS, 0);
        match self {
            Self::Rows(a) => {
                scratch.resize(depth, 0);
                for r in r0..r1 {
                    let row = &a[r * k + 2 * p0..r * k + k.min(2 * p1)];
                    neighbours(row, scratch);
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
                    interleave(part(2 * p), part(2 * p + 1), scratch);
                    for (tile, pairs) in scratch.chunks(ROWS).enumerate() {
                        let at = (tile * depth + p - p0) * ROWS;
                        to[at..at + pairs.len()].copy_from_slice(pairs);
                    }
                }
            }
        }
    }
}

thread_local! {
    /// A packed left block and a row, kept between products.
    static BLOCKS: RefCell<(Vec<u32>, Vec<u32>)> = RefCell::default();
}

/// `c = [c +] left right`: c is m×n, row-major.
///
/// # Panics
/// If the processor lacks the instruction, or a matrix is too short for its sizes.
pub fn multiply(m: usize, left: Left<'_>, right: &Panels, c: &mut [f32], add: bool) {
    assert!(laser_cpu::has_bf16(), "this processor has no AVX-512 BF16");
    let (n, k) = (right.n, right.k);
    let (Left::Rows(a) | Left::Columns(a)) = left;
    assert!(a.len() >= m * k, "the left operand is too short");
    assert!(c.len() >= m * n, "the result is too short");
    let pairs = k.div_ceil(2);
    if pairs == 0 && !add {
        c[..m * n].fill(0.0);
    }
    BLOCKS.with_borrow_mut(|(packed, scratch)| {
        for r0 in (0..m).step_by(BLOCK) {
            let r1 = m.min(r0 + BLOCK);
            for p0 in (0..pairs).step_by(DEPTH) {
                let p1 = pairs.min(p0 + DEPTH);
                left.pack((m, k), (r0, r1), (p0, p1), scratch, packed);
                let depth = p1 - p0;
                for panel in 0..n.div_ceil(COLUMNS) {
                    let lines = &right.lines[panel * pairs + p0..panel * pairs + p1];
                    let columns = COLUMNS.min(n - panel * COLUMNS);
                    for (tile, a) in packed.chunks_exact(depth * ROWS).enumerate() {
                        let first = r0 + tile * ROWS;
                        let rows = ROWS.min(r1 - first);
                        let c = &mut c[first * n + panel * COLUMNS..];
                        // SAFETY: the processor has the instruction. `a` holds `depth` lines of
                        // ROWS pairs, `lines` as many of COLUMNS; c reaches to the end of the
                        // result, of which rows `first..first + rows` exist with n ≥ `columns`
                        // elements from here on.
                        unsafe { by_rows(rows, columns, a, lines, c, n, add || p0 > 0) };
                    }
                }
            }
        }
    });
}

/// One tile: chooses the kernel for its number of rows.
///
/// # Safety
/// As [`tile`], with 1 to [`ROWS`] rows.
unsafe fn by_rows(
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
    // SAFETY: masked elements are not touched, the others exist; lines are aligned to 64 bytes; pair
    // registers and integer registers have the same size, and every bit pattern is valid for both.
    unsafe {
        if add {
            for (r, sums) in sums.iter_mut().enumerate() {
                for (half, sum) in sums.iter_mut().enumerate() {
                    *sum =
                        _mm512_maskz_loadu_ps(masks[half], c.wrapping_add(r * stride + 16 * half));
                }
            }
        }
        let mut left = a.as_ptr();
        for line in b {
            let at = line.0.as_ptr().cast();
            let low = std::mem::transmute::<__m512i, __m512bh>(_mm512_load_si512(at));
            let high = std::mem::transmute::<__m512i, __m512bh>(_mm512_load_si512(at.add(1)));
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(left.add(r).read() as i32);
                let x = std::mem::transmute::<__m512i, __m512bh>(x);
                sums[0] = _mm512_dpbf16_ps(sums[0], x, low);
                sums[1] = _mm512_dpbf16_ps(sums[1], x, high);
            }
            left = left.add(ROWS);
        }
        for (r, sums) in sums.iter().enumerate() {
            for (half, sum) in sums.iter().enumerate() {
                _mm512_mask_storeu_ps(c.wrapping_add(r * stride + 16 * half), masks[half], *sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_edges_agree_with_the_definition() {
        if !laser_cpu::has_bf16() {
            eprintln!("skipped: this processor has no AVX-512 BF16");
            return;
        }
        // Small integers are exact in bf16 and in every sum.
        let number = |i: usize| ((i * 7 + i / 5) % 11) as f32 - 5.0;
        for (m, n, k) in [(1, 1, 1), (13, 33, 7), (12, 32, 384), (251, 70, 801)] {
            let a: Vec<f32> = (0..m * k).map(number).collect();
            let b: Vec<f32> = (0..k * n).map(|i| number(i + 3)).collect();
            let at: Vec<f32> = (0..k * m).map(|i| a[(i % m) * k + i / m]).collect();
            let bt: Vec<f32> = (0..n * k).map(|i| b[(i % k) * n + i / k]).collect();
            let expected: Vec<f32> = (0..m * n)
                .map(|i| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum())
                .collect();
            for right in [Panels::plain(k, n, &b), Panels::transposed(n, k, &bt)] {
                for left in [Left::Rows(&a), Left::Columns(&at)] {
                    let mut c = vec![2f32; m * n];
                    multiply(m, left, &right, &mut c, false);
                    assert_eq!(c, expected, "{m} {n} {k}");
                    multiply(m, left, &right, &mut c, true);
                    assert!(c.iter().zip(&expected).all(|(c, e)| *c == 2.0 * e));
                }
            }
        }
    }
}
