//! Products with bf16 and int8 weights on AVX-512's dot-product units (VNNI, BF16): `C = A Wᵀ` with A
//! rounded to bf16, or quantised to int8 with one scale a row.
//!
//! The weights lie in blocks of four panels of 16 columns, so that a tile of [`ROWS`] rows keeps 24
//! accumulators and the processor's loads do not limit it. A line of a panel holds the next four
//! int8, or two bf16, of all its columns. `vpdpbusd` multiplies unsigned with signed bytes: rows of A
//! are stored with 128 added, and sums start at -128 times the sum of their column.
#![allow(unsafe_code)]

use std::ops::Range;

use half::bf16;

use super::gemm::{Start, check_output, check_rows};
use super::lstm::Recurrent;
use crate::encoder::Precision;

/// Rows of the largest tile.
const ROWS: usize = 6;

/// Columns of a block.
const BLOCK: usize = 64;

/// Bytes of a block's lines for one group of inner indices.
const GROUP: usize = 4 * 64;

/// Rows of A of one pass over all blocks: they stay in the second-level cache.
const M_BLOCK: usize = 240;

/// The next four int8 or two bf16 of 16 columns.
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Line([u8; 64]);

/// What int8 sums are turned into values with, by column, padded to whole blocks.
struct Scales {
    /// The factor of each column.
    factor: Vec<f32>,
    /// -128 times the sum of each column's bytes.
    start: Vec<i32>,
}

/// A matrix W of n x k, packed.
pub struct Dots {
    n: usize,
    k: usize,
    /// Groups of inner indices, the last one padded with zeros.
    groups: usize,
    lines: Vec<Line>,
    /// int8; none for bf16.
    scales: Option<Scales>,
}

/// Whether this processor has a unit for products in this precision.
pub fn available(precision: Precision) -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        super::Isa::detect() == super::Isa::Avx512
            && match precision {
                Precision::I8 => is_x86_feature_detected!("avx512vnni"),
                Precision::Bf16 => is_x86_feature_detected!("avx512bf16"),
                Precision::F32 | Precision::Auto => false,
            }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = precision;
        false
    }
}

/// Rows of A, rounded or quantised as the kernels read them.
pub struct Rows {
    k: usize,
    is_i8: bool,
    /// Groups of four bytes a row.
    groups: usize,
    data: Vec<u32>,
    /// int8: the factor of each row.
    factor: Vec<f32>,
}

impl Rows {
    /// Drops rows, or adds some that have to be [`set`](Self::set).
    pub fn resize(&mut self, rows: usize) {
        self.data.resize(rows * self.groups, 0);
        self.factor.resize(rows, 0.0);
    }

    /// Converts rows of stride `lda` into `range`.
    ///
    /// # Panics
    /// If the range does not exist or `a` is too short.
    pub fn set(&mut self, range: Range<usize>, a: &[f32], lda: usize) {
        check_rows(range.len(), self.k, a, lda);
        let data = &mut self.data[range.start * self.groups..range.end * self.groups];
        let rows = a.chunks(lda.max(1)).map(|row| &row[..self.k]);
        for ((row, out), factor) in rows
            .zip(data.chunks_exact_mut(self.groups.max(1)))
            .zip(&mut self.factor[range])
        {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: rows are made for `Dots` only, which has checked the processor; `out` has
            // room for the row, padded to whole groups.
            unsafe {
                if self.is_i8 {
                    *factor = x86::quantize(row, out);
                } else {
                    x86::round(row, out);
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            unreachable!("{row:?} {out:?} {factor} {}", self.is_i8);
        }
    }
}

impl Dots {
    /// Packs `n` rows of length `k`, as [`super::gemm::Packed::new`].
    ///
    /// # Panics
    /// Unless the unit is [`available`].
    pub fn new(
        n: usize,
        k: usize,
        precision: Precision,
        mut row: impl FnMut(usize, &mut [f32]) -> bool,
    ) -> Self {
        assert!(available(precision), "dot-product unit");
        let is_i8 = precision == Precision::I8;
        let per_group = if is_i8 { 4 } else { 2 };
        let groups = k.div_ceil(per_group);
        let columns = n.next_multiple_of(BLOCK);
        let mut lines = vec![Line([0; 64]); columns / 16 * groups];
        let mut scales = Scales {
            factor: vec![0.0; columns],
            start: vec![0; columns],
        };
        let mut buffer = vec![0f32; k];
        for j in 0..n {
            if !row(j, &mut buffer) {
                continue;
            }
            let (block, panel, lane) = (j / BLOCK, j % BLOCK / 16, j % 16);
            let largest = buffer.iter().fold(0f32, |m, x| m.max(x.abs()));
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            scales.factor[j] = largest / 127.0;
            for (p, x) in buffer.iter().enumerate() {
                let line = &mut lines[(block * groups + p / per_group) * 4 + panel].0;
                let at = lane * 4 + p % per_group * (4 / per_group);
                if is_i8 {
                    let byte = (x * inverse).round() as i8;
                    scales.start[j] -= 128 * i32::from(byte);
                    line[at] = byte as u8;
                } else {
                    line[at..at + 2].copy_from_slice(&bf16::from_f32(*x).to_le_bytes());
                }
            }
        }
        Self {
            n,
            k,
            groups,
            lines,
            scales: is_i8.then_some(scales),
        }
    }

    /// Output columns n.
    pub fn columns(&self) -> usize {
        self.n
    }

    /// Inner dimension k.
    pub fn depth(&self) -> usize {
        self.k
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let scales = self.scales.as_ref().map_or(0, |s| 8 * s.factor.len());
        self.lines.len() * size_of::<Line>() + scales
    }

    /// Room for rows of A.
    pub fn rows(&self, count: usize) -> Rows {
        let mut rows = Rows {
            k: self.k,
            is_i8: self.scales.is_some(),
            groups: self.groups,
            data: Vec::new(),
            factor: Vec::new(),
        };
        rows.resize(count);
        rows
    }

    /// As [`super::gemm::matmul`], of some rows.
    ///
    /// # Panics
    /// If the rows do not exist, are of another kind, or a slice is too short.
    pub fn matmul(
        &self,
        rows: &Rows,
        range: Range<usize>,
        start: Start<'_>,
        c: &mut [f32],
        ldc: usize,
    ) {
        let (m, n) = (range.len(), self.n);
        if m == 0 || n == 0 {
            return;
        }
        check_output(m, n, start, c, ldc);
        self.check(rows, &range);
        // The last, partly filled block goes through this.
        let mut tail = [0f32; ROWS * BLOCK];
        let of = |tile: &Range<usize>| range.start + tile.start..range.start + tile.end;
        for first in (0..m).step_by(M_BLOCK) {
            let last = (first + M_BLOCK).min(m);
            for block in 0..n.div_ceil(BLOCK) {
                let columns = block * BLOCK..n.min((block + 1) * BLOCK);
                let width = columns.len();
                for r in (first..last).step_by(ROWS) {
                    let tile = r..(r + ROWS).min(last);
                    let at = r * ldc + columns.start;
                    if width < BLOCK {
                        for i in 0..tile.len() {
                            let to = &mut tail[i * BLOCK..i * BLOCK + width];
                            match start {
                                Start::Zero => to.fill(0.0),
                                Start::Bias(bias) => to.copy_from_slice(&bias[columns.clone()]),
                                Start::Accumulate => {
                                    to.copy_from_slice(&c[at + i * ldc..][..width]);
                                }
                            }
                        }
                        let sums = tail.as_mut_ptr();
                        // SAFETY: `tail` holds whole blocks of the tile's rows.
                        unsafe { self.tile(rows, block, of(&tile), (sums, BLOCK), sums, BLOCK) };
                        for i in 0..tile.len() {
                            c[at + i * ldc..][..width]
                                .copy_from_slice(&tail[i * BLOCK..i * BLOCK + width]);
                        }
                        continue;
                    }
                    let out = c[at..].as_mut_ptr();
                    let init = match start {
                        Start::Zero => (std::ptr::null(), 0),
                        Start::Bias(bias) => (bias[columns.start..].as_ptr(), 0),
                        Start::Accumulate => (out.cast_const(), ldc),
                    };
                    // SAFETY: the block's columns of these rows are in `c` and in the bias
                    // (checked above).
                    unsafe { self.tile(rows, block, of(&tile), init, out, ldc) };
                }
            }
        }
    }

    /// `range` as the recurrent products of a step.
    pub(super) fn recurrent<'a>(
        &'a self,
        rows: &'a Rows,
        range: Range<usize>,
    ) -> RecurrentRows<'a> {
        assert!(self.n.is_multiple_of(BLOCK), "whole blocks");
        self.check(rows, &range);
        RecurrentRows {
            weights: self,
            rows,
            range,
        }
    }

    /// Whether the kernels can read the rows.
    fn check(&self, rows: &Rows, range: &Range<usize>) {
        assert!(range.end <= rows.factor.len(), "rows");
        assert!(
            rows.k == self.k && rows.is_i8 == self.scales.is_some(),
            "rows of another kind"
        );
    }

    /// `out[i] = init[i] + A[rows][i] Wᵀ` for one block; `init` has a stride (0 repeats one row; a
    /// null pointer stands for zeros) and may equal `out`.
    ///
    /// # Safety
    /// `rows` (1 to [`ROWS`]) and `block` exist; `init` and `out` hold the rows' 64 columns.
    unsafe fn tile(
        &self,
        a: &Rows,
        block: usize,
        rows: Range<usize>,
        init: (*const f32, usize),
        out: *mut f32,
        ldo: usize,
    ) {
        debug_assert!(rows.end * a.groups <= a.data.len() && a.groups == self.groups);
        #[cfg(target_arch = "x86_64")]
        {
            let data = a.data[rows.start * a.groups..].as_ptr();
            let lines: *const Line = self.lines[block * 4 * self.groups..].as_ptr();
            let (init, ldi) = init;
            macro_rules! by_rows {
                ($($r:literal)*) => {
                    // SAFETY: pointers hold what the kernels read, as the caller vouches and as
                    // the packing has made it; `new` has checked the processor.
                    unsafe {
                        match (&self.scales, rows.len()) {
                            $((Some(s), $r) => x86::tile_i8::<$r>(
                                self.groups, data, lines.cast(), init, ldi, out, ldo,
                                a.factor[rows.start..].as_ptr(),
                                s.factor[block * BLOCK..].as_ptr(),
                                s.start[block * BLOCK..].as_ptr(),
                            ),)*
                            $((None, $r) => x86::tile_bf16::<$r>(
                                self.groups, data, lines.cast(), init, ldi, out, ldo,
                            ),)*
                            _ => unreachable!("tile rows"),
                        }
                    }
                };
            }
            by_rows!(1 2 3 4 5 6);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{block} {rows:?} {init:?} {out:?} {ldo} {GROUP}");
    }
}

/// Converted states of the step before, with the weights they are multiplied by.
pub(super) struct RecurrentRows<'a> {
    weights: &'a Dots,
    rows: &'a Rows,
    range: Range<usize>,
}

impl Recurrent for RecurrentRows<'_> {
    fn continuing(&self) -> usize {
        self.range.len()
    }

    fn height(&self) -> usize {
        ROWS
    }

    unsafe fn tile(&self, block: usize, rows: Range<usize>, input: *const f32, gates: *mut f32) {
        let rows = self.range.start + rows.start..self.range.start + rows.end;
        // SAFETY: a block of gates is a block of columns; the caller vouches for the pointers and
        // for rows below `continuing`, which are in the range that was checked.
        unsafe {
            let init = (input, self.weights.n);
            self.weights
                .tile(self.rows, block, rows, init, gates, BLOCK);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::GROUP;

    /// The lanes below `len`, at most 16.
    fn lanes(len: usize) -> __mmask16 {
        if len >= 16 { !0 } else { (1 << len) - 1 }
    }

    /// Largest magnitude becomes 127; bytes are stored with 128 added. Returns the row's factor.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW; `out` holds the row's bytes in whole groups.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn quantize(row: &[f32], out: &mut [u32]) -> f32 {
        debug_assert!(out.len() * 4 >= row.len());
        // Whole vectors without masks, then the rest.
        let whole = row.len() / 16 * 16;
        let to: *mut i8 = out.as_mut_ptr().cast();
        // SAFETY: whole vectors and masks keep loads inside the row and stores inside `out`.
        unsafe {
            let load = |p: usize| _mm512_loadu_ps(row.as_ptr().add(p));
            let rest = _mm512_maskz_loadu_ps(lanes(row.len() - whole), row.as_ptr().add(whole));
            // Several maxima at once hide the time each takes.
            let mut most = [_mm512_abs_ps(rest); 4];
            for (i, p) in (0..whole).step_by(16).enumerate() {
                most[i % 4] = _mm512_max_ps(most[i % 4], _mm512_abs_ps(load(p)));
            }
            let most = most.into_iter().reduce(|a, b| _mm512_max_ps(a, b));
            let largest = most.map_or(0.0, |m| _mm512_reduce_max_ps(m));
            let inverse = _mm512_set1_ps(if largest > 0.0 { 127.0 / largest } else { 0.0 });
            let bytes = |x| {
                let scaled = _mm512_cvtps_epi32(_mm512_mul_ps(x, inverse));
                _mm512_cvtepi32_epi8(_mm512_add_epi32(scaled, _mm512_set1_epi32(128)))
            };
            for p in (0..whole).step_by(16) {
                _mm_storeu_si128(to.add(p).cast(), bytes(load(p)));
            }
            _mm_mask_storeu_epi8(to.add(whole), lanes(out.len() * 4 - whole), bytes(rest));
            largest / 127.0
        }
    }

    /// Rounds to bf16.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW and BF16; `out` holds the row in whole groups.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub(super) unsafe fn round(row: &[f32], out: &mut [u32]) {
        debug_assert!(out.len() * 2 >= row.len());
        let to: *mut i16 = out.as_mut_ptr().cast();
        for p in (0..row.len()).step_by(16) {
            // SAFETY: masks keep loads inside the row and stores inside `out`.
            unsafe {
                let x = _mm512_maskz_loadu_ps(lanes(row.len() - p), row.as_ptr().add(p));
                let halves: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(x));
                _mm256_mask_storeu_epi16(to.add(p), lanes(out.len() * 2 - p), halves);
            }
        }
    }

    /// # Safety
    /// The processor has AVX-512 VNNI. `a` holds R rows of `groups`, `b` a block's lines, `init`
    /// (unless null) and `out` 64 columns of R rows, `row` R factors, `column` and `start` 64.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn tile_i8<const R: usize>(
        groups: usize,
        a: *const u32,
        b: *const u8,
        init: *const f32,
        ldi: usize,
        out: *mut f32,
        ldo: usize,
        row: *const f32,
        column: *const f32,
        start: *const i32,
    ) {
        // SAFETY: the caller vouches for the pointers.
        unsafe {
            let first: [__m512i; 4] =
                std::array::from_fn(|p| _mm512_loadu_si512(start.add(16 * p).cast()));
            let mut acc = [first; R];
            for g in 0..groups {
                let line: [__m512i; 4] =
                    std::array::from_fn(|p| _mm512_load_si512(b.add(g * GROUP + 64 * p).cast()));
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32(*a.add(r * groups + g) as i32);
                    for p in 0..4 {
                        acc[p] = _mm512_dpbusd_epi32(acc[p], x, line[p]);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                let row = _mm512_set1_ps(*row.add(r));
                for (p, acc) in acc.iter().enumerate() {
                    let factor = _mm512_mul_ps(row, _mm512_loadu_ps(column.add(16 * p)));
                    let sum = _mm512_cvtepi32_ps(*acc);
                    let sum = if init.is_null() {
                        _mm512_mul_ps(sum, factor)
                    } else {
                        let init = _mm512_loadu_ps(init.add(r * ldi + 16 * p));
                        _mm512_fmadd_ps(sum, factor, init)
                    };
                    _mm512_storeu_ps(out.add(r * ldo + 16 * p), sum);
                }
            }
        }
    }

    /// # Safety
    /// As [`tile_i8`], with AVX-512 BF16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
    pub(super) unsafe fn tile_bf16<const R: usize>(
        groups: usize,
        a: *const u32,
        b: *const u8,
        init: *const f32,
        ldi: usize,
        out: *mut f32,
        ldo: usize,
    ) {
        // SAFETY: the caller vouches for the pointers; `__m512bh` and `__m512i` are the same bits.
        unsafe {
            let mut acc = [[_mm512_setzero_ps(); 4]; R];
            if !init.is_null() {
                for (r, acc) in acc.iter_mut().enumerate() {
                    *acc = std::array::from_fn(|p| _mm512_loadu_ps(init.add(r * ldi + 16 * p)));
                }
            }
            for g in 0..groups {
                let line: [__m512bh; 4] = std::array::from_fn(|p| {
                    std::mem::transmute(_mm512_load_si512(b.add(g * GROUP + 64 * p).cast()))
                });
                for (r, acc) in acc.iter_mut().enumerate() {
                    let x: __m512bh =
                        std::mem::transmute(_mm512_set1_epi32(*a.add(r * groups + g) as i32));
                    for p in 0..4 {
                        acc[p] = _mm512_dpbf16_ps(acc[p], x, line[p]);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                for (p, acc) in acc.iter().enumerate() {
                    _mm512_storeu_ps(out.add(r * ldo + 16 * p), *acc);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn products_are_close_to_exact_ones(
            m in 1usize..20, n in 1usize..140, k in 0usize..200, pad in 0usize..3, seed: u64,
        ) {
            let value = |i: usize| {
                let x = (i as u64 + seed % 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (x >> 40) as f32 / (1u32 << 23) as f32 - 1.0
            };
            let lda = k + pad;
            let a: Vec<f32> = (0..m * lda).map(value).collect();
            let w: Vec<f32> = (0..n * k).map(|i| value(i + 7919)).collect();
            let bias: Vec<f32> = (0..n).map(|i| value(i + 104_729)).collect();
            for (precision, tolerance) in [(Precision::Bf16, 0.01), (Precision::I8, 0.02)] {
                if !available(precision) {
                    continue;
                }
                let packed = Dots::new(n, k, precision, |j, row| {
                    row.copy_from_slice(&w[j * k..(j + 1) * k]);
                    true
                });
                // Rows in two parts, behind one that is not used.
                let mut rows = packed.rows(1 + m);
                rows.set(1..1 + m / 2, &a, lda);
                rows.set(1 + m / 2..1 + m, &a[m / 2 * lda..], lda);
                let mut c = vec![9f32; m * n];
                packed.matmul(&rows, 1..1 + m, Start::Bias(&bias), &mut c, n);
                packed.matmul(&rows, 1..1 + m, Start::Accumulate, &mut c, n);
                let mut alone = vec![9f32; m * n];
                packed.matmul(&rows, 1..1 + m, Start::Zero, &mut alone, n);
                for i in 0..m {
                    for j in 0..n {
                        let dot: f64 = (0..k)
                            .map(|p| f64::from(a[i * lda + p]) * f64::from(w[j * k + p]))
                            .sum();
                        let limit = tolerance * (k as f64).sqrt() + 1e-6;
                        let error = f64::from(c[i * n + j]) - f64::from(bias[j]) - 2.0 * dot;
                        prop_assert!(error.abs() < limit, "{precision:?} {error}");
                        let error = f64::from(alone[i * n + j]) - dot;
                        prop_assert!(error.abs() < limit, "{precision:?} {error}");
                    }
                }
            }
        }
    }
}
