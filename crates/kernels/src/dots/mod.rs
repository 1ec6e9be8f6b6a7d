//! Products with bf16 and int8 weights on the processor's units for dot products: `C = A Wᵀ` with A
//! rounded to bf16, or quantised to eight bits with one scale and one step of zero a row.
//!
//! The weights lie in blocks of panels of 16 columns, as many panels as a tile has, so that a tile's
//! sums stay in registers and loads do not limit it. A line of a panel holds the next four bytes of
//! each of its columns, a row of A the same four bytes: four int8, two bf16, or two int8 in 16 bits.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
#[macro_use]
mod integers;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::ops::Range;

use half::bf16;

use super::arena::{Arena, Block};
use super::gemm::{PANEL, Start, check_output, check_rows};
use super::lstm::{Recurrent, UNITS};
use super::{Isa, int8, units};
use crate::Precision;

/// Rows of the largest tile in vector registers.
const ROWS: usize = 6;

/// Rows of the largest tile of all.
const TALLEST: usize = 32;

/// Columns of the widest tile.
const WIDEST: usize = 64;

/// Rows of A of one pass over all blocks: they stay in the second-level cache.
const M_BLOCK: usize = 240;

/// The instructions that multiply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// AMX's `tdpbusd`, of the same bytes as [`Unit::Vnni`].
    AmxInt8,
    /// AMX's `tdpbf16ps`.
    AmxBf16,
    /// AVX-512's `vpdpbusd`, of unsigned with signed bytes. The row's step of zero times the sum of
    /// the column is taken off in the end.
    Vnni,
    /// The same on vectors of 256 bits, which processors without AVX-512 may have (AVX-VNNI).
    AvxVnni,
    /// AVX2's `vpmaddwd`, of 16 bits: int8 weights, and rows as fine as the sums have room for.
    Words,
    /// AVX-512's `vdpbf16ps`.
    Bf16,
}

impl Unit {
    /// The best of these instruction sets for a precision, if this processor has it.
    pub fn of(isa: Isa, precision: Precision) -> Option<Self> {
        let candidates: &[Self] = match precision {
            Precision::I8 => &[Self::AmxInt8, Self::Vnni, Self::AvxVnni, Self::Words],
            Precision::Bf16 => &[Self::AmxBf16, Self::Bf16],
            Precision::F32 | Precision::Auto => &[],
        };
        candidates.iter().copied().find(|unit| unit.exists(isa))
    }

    /// Whether this processor has it, of these instruction sets.
    fn exists(self, isa: Isa) -> bool {
        match self {
            Self::AmxInt8 => isa == Isa::Avx512 && units::has_matrix_unit(),
            Self::AmxBf16 => Self::Bf16.exists(isa) && units::has_matrix_unit(),
            Self::Vnni => isa == Isa::Avx512 && laser_cpu::has_vnni(),
            Self::Bf16 => isa == Isa::Avx512 && laser_cpu::has_avx512_bf16(),
            Self::AvxVnni => isa != Isa::Portable && laser_cpu::has_avx_vnni(),
            Self::Words => isa != Isa::Portable,
        }
    }

    /// Inner indices of a group: what four bytes hold.
    fn per_group(self) -> usize {
        match self {
            Self::AmxInt8 | Self::Vnni | Self::AvxVnni => 4,
            Self::AmxBf16 | Self::Bf16 | Self::Words => 2,
        }
    }

    /// Groups of `depth` inner indices, in whole tiles.
    fn groups(self, depth: usize) -> usize {
        let groups = depth.div_ceil(self.per_group());
        if self.is_matrix() {
            groups.max(1).next_multiple_of(16)
        } else {
            groups
        }
    }

    /// Whether it multiplies matrices and not vectors.
    fn is_matrix(self) -> bool {
        matches!(self, Self::AmxInt8 | Self::AmxBf16)
    }

    /// Rows of the largest tile.
    fn height(self) -> usize {
        if self.is_matrix() { TALLEST } else { ROWS }
    }

    /// Panels of a block, and of a tile.
    fn panels(self) -> usize {
        match self {
            Self::AmxInt8 | Self::AmxBf16 | Self::Vnni | Self::Bf16 => 4,
            Self::AvxVnni | Self::Words => 1,
        }
    }

    /// Columns of a block.
    fn width(self) -> usize {
        self.panels() * PANEL
    }
}

/// A group of 16 columns.
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Line([u8; 64]);

/// What int8 sums are turned into values with, by column, padded to whole blocks; not used in bf16.
struct Scales {
    /// The factor of each column.
    factor: Vec<f32>,
    /// The sum of each column's bytes.
    sum: Vec<f32>,
}

/// A matrix W of n x k, packed.
pub struct Dots {
    unit: Unit,
    n: usize,
    k: usize,
    /// Groups of inner indices, the last one padded with zeros.
    groups: usize,
    lines: Block<Line>,
    scales: Scales,
}

/// Rows of A, rounded or quantised as the kernels read them.
pub struct Rows {
    unit: Unit,
    k: usize,
    /// Groups of four bytes a row.
    groups: usize,
    data: Vec<u32>,
    /// int8: the factor of each row.
    factor: Vec<f32>,
    /// int8: the step that stands for zero in each row.
    zero: Vec<f32>,
}

impl Rows {
    /// Converts rows of stride `lda` into `range`.
    ///
    /// # Panics
    /// If the range does not exist or `a` is too short.
    pub fn set(&mut self, range: Range<usize>, a: &[f32], lda: usize) {
        check_rows(range.len(), self.k, a, lda);
        let data = &mut self.data[range.start * self.groups..range.end * self.groups];
        let rows = a.chunks(lda.max(1)).map(|row| &row[..self.k]);
        for (((row, out), factor), zero) in rows
            .zip(data.chunks_exact_mut(self.groups.max(1)))
            .zip(&mut self.factor[range.clone()])
            .zip(&mut self.zero[range])
        {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: rows are made for `Dots` only, which has checked the processor; `out` has
            // room for the row, padded to whole groups.
            unsafe {
                match self.unit {
                    Unit::AmxInt8 | Unit::Vnni => (*factor, *zero) = avx512::quantize(row, out),
                    Unit::AmxBf16 | Unit::Bf16 => crate::bf16_pairs::round(row, out),
                    Unit::AvxVnni => (*factor, *zero) = avx2::quantize_bytes(row, out),
                    Unit::Words => *factor = avx2::quantize_words(row, out),
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            unreachable!("{row:?} {out:?} {factor} {zero}");
        }
    }
}

impl Dots {
    /// Packs `n` rows of length `k`, as [`super::gemm::Packed::new`], for a unit that
    /// [`Unit::of`] gave.
    ///
    /// # Errors
    /// As [`super::gemm::Packed::new`].
    ///
    /// # Panics
    /// If this processor lacks the unit.
    pub fn new(
        arena: &Arena,
        n: usize,
        k: usize,
        unit: Unit,
        mut row: impl FnMut(usize, &mut [f32]) -> bool,
    ) -> laser_memory::Result<Self> {
        assert!(unit.exists(Isa::detect()), "unit for dot products");
        let (per_group, panels, width) = (unit.per_group(), unit.panels(), unit.width());
        let groups = unit.groups(k);
        let columns = n.next_multiple_of(width);
        let mut lines = arena.zeroed::<Line>(columns / PANEL * groups)?;
        let mut scales = Scales {
            factor: vec![0.0; columns],
            sum: vec![0.0; columns],
        };
        let mut buffer = vec![0f32; k];
        for j in 0..n {
            if !row(j, &mut buffer) {
                continue;
            }
            let (block, panel, lane) = (j / width, j % width / PANEL, j % PANEL);
            let (inverse, back) = int8::factors(int8::largest(&buffer));
            scales.factor[j] = back;
            for (p, x) in buffer.iter().enumerate() {
                let line = &mut lines[(block * groups + p / per_group) * panels + panel].0;
                let at = lane * 4 + p % per_group * (4 / per_group);
                let byte = || (x * inverse).round() as i8;
                let two = match unit {
                    Unit::AmxInt8 | Unit::Vnni | Unit::AvxVnni => {
                        let byte = byte();
                        scales.sum[j] += f32::from(byte);
                        line[at] = byte as u8;
                        continue;
                    }
                    Unit::AmxBf16 | Unit::Bf16 => bf16::from_f32(*x).to_le_bytes(),
                    Unit::Words => i16::from(byte()).to_le_bytes(),
                };
                line[at..at + 2].copy_from_slice(&two);
            }
        }
        Ok(Self {
            unit,
            n,
            k,
            groups,
            lines,
            scales,
        })
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
        self.lines.len() * size_of::<Line>() + 8 * self.scales.factor.len()
    }

    /// Whether a unit for matrices multiplies, which a recurrent step need not be split for.
    pub(super) fn is_matrix(&self) -> bool {
        self.unit.is_matrix()
    }

    /// Room for rows of A, which have to be [`set`](Rows::set).
    pub fn rows(&self, count: usize) -> Rows {
        // A matrix unit reads whole tiles, and computes what nobody looks at.
        let behind = if self.is_matrix() { TALLEST } else { 0 };
        Rows {
            unit: self.unit,
            k: self.k,
            groups: self.groups,
            data: vec![0; (count + behind) * self.groups],
            factor: vec![0.0; count],
            zero: vec![0.0; count],
        }
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
        let mut tail = [0f32; TALLEST * WIDEST];
        let (whole, height) = (self.unit.width(), self.unit.height());
        let mut tiles = self.unit.is_matrix().then(Tiles::new);
        let of = |tile: &Range<usize>| range.start + tile.start..range.start + tile.end;
        for first in (0..m).step_by(M_BLOCK) {
            let last = (first + M_BLOCK).min(m);
            for block in 0..n.div_ceil(whole) {
                let columns = block * whole..n.min((block + 1) * whole);
                let width = columns.len();
                for r in (first..last).step_by(height) {
                    let tile = r..(r + height).min(last);
                    let at = r * ldc + columns.start;
                    if width < whole {
                        for i in 0..tile.len() {
                            let to = &mut tail[i * whole..i * whole + width];
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
                        unsafe {
                            self.tile(
                                &mut tiles,
                                rows,
                                block,
                                of(&tile),
                                (sums, whole),
                                sums,
                                whole,
                            );
                        }
                        for i in 0..tile.len() {
                            c[at + i * ldc..][..width]
                                .copy_from_slice(&tail[i * whole..i * whole + width]);
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
                    unsafe { self.tile(&mut tiles, rows, block, of(&tile), init, out, ldc) };
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
        assert!(
            self.n.is_multiple_of(GATES) && !self.is_matrix(),
            "whole blocks of units"
        );
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
            rows.k == self.k && rows.unit == self.unit,
            "rows of another kind"
        );
    }

    /// `out[i] = init[i] + A[rows][i] Wᵀ` for one block; `init` has a stride (0 repeats one row; a
    /// null pointer stands for zeros) and may equal `out`.
    ///
    /// # Safety
    /// `rows` (1 to the unit's height) and `block` exist; `init` and `out` hold the rows' columns of
    /// the block. A matrix unit has its tiles.
    #[allow(clippy::too_many_arguments)]
    unsafe fn tile(
        &self,
        tiles: &mut Option<Tiles>,
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
            let (groups, first) = (self.groups, block * self.unit.width());
            let data = a.data[rows.start * groups..].as_ptr();
            let lines: *const Line = self.lines[first / PANEL * groups..].as_ptr();
            let lines: *const u8 = lines.cast();
            let row = a.factor[rows.start..].as_ptr();
            let column = self.scales.factor[first..].as_ptr();
            let zero = a.zero[rows.start..].as_ptr();
            let sum = self.scales.sum[first..].as_ptr();
            let (init, ldi) = init;
            if let Some(Tiles { shaped, sums }) = tiles {
                let (n, wide) = (rows.len(), rows.len() > TALLEST / 2);
                debug_assert!((rows.end + TALLEST / 2) * groups <= a.data.len());
                // SAFETY: as below; behind the rows there is room for whole tiles.
                unsafe {
                    if self.unit == Unit::AmxInt8 {
                        amx::int8(shaped, groups, data, wide, lines, sums);
                        amx::finish_int8(sums, n, init, ldi, out, ldo, row, zero, column, sum);
                    } else {
                        amx::bf16(shaped, groups, data, wide, lines, sums);
                        amx::finish_bf16(sums, n, init, ldi, out, ldo);
                    }
                }
                return;
            }
            macro_rules! by_rows {
                ($($r:literal)*) => {
                    // SAFETY: pointers hold what the kernels read, as the caller vouches and as
                    // the packing has made it; the processor has the unit.
                    unsafe {
                        match (self.unit, rows.len()) {
                            $((Unit::Vnni, $r) => avx512::vnni::tile::<$r>(
                                groups, data, lines, init, ldi, out, ldo, row, zero, column, sum,
                            ),)*
                            $((Unit::AvxVnni, $r) => avx2::vnni::tile::<$r>(
                                groups, data, lines, init, ldi, out, ldo, row, zero, column, sum,
                            ),)*
                            $((Unit::Words, $r) => avx2::words::tile::<$r>(
                                groups, data, lines, init, ldi, out, ldo, row, zero, column, sum,
                            ),)*
                            $((Unit::Bf16, $r) => avx512::tile_bf16::<$r>(
                                groups, data, lines, init, ldi, out, ldo,
                            ),)*
                            _ => unreachable!("tile rows"),
                        }
                    }
                };
            }
            by_rows!(1 2 3 4 5 6);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{block} {rows:?} {init:?} {out:?} {ldo}");
    }
}

/// The tile registers, and memory for what comes out of them.
struct Tiles {
    #[cfg(target_arch = "x86_64")]
    shaped: crate::amx::Tiles,
    #[cfg(target_arch = "x86_64")]
    sums: amx::Sums,
}

impl Tiles {
    /// For a unit that exists.
    fn new() -> Self {
        units::configure_thread();
        Self {
            // SAFETY: the processor has matrix units, and the thread has asked for them.
            #[cfg(target_arch = "x86_64")]
            shaped: unsafe { crate::amx::Tiles::shaped() },
            #[cfg(target_arch = "x86_64")]
            sums: amx::Sums::new(),
        }
    }
}

/// Columns of a block of units: one panel a gate.
const GATES: usize = 4 * UNITS;

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
        let (width, columns) = (self.weights.unit.width(), self.weights.n);
        for part in 0..GATES / width {
            // SAFETY: a block of gates is a whole number of blocks of columns; the caller vouches
            // for the pointers and for rows below `continuing`, which are in the range that was
            // checked.
            unsafe {
                let init = (input.add(part * width), columns);
                let gates = gates.add(part * width);
                let block = block * (GATES / width) + part;
                self.weights.tile(
                    &mut None,
                    self.rows,
                    block,
                    rows.clone(),
                    init,
                    gates,
                    GATES,
                );
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
            m in 1usize..70, n in 1usize..140, k in 0usize..200, pad in 0usize..3, seed: u64,
        ) {
            let value = |i: usize| {
                let x = (i as u64 + seed % 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (x >> 40) as f32 / (1u32 << 23) as f32 - 1.0
            };
            let lda = k + pad;
            let a: Vec<f32> = (0..m * lda).map(value).collect();
            let w: Vec<f32> = (0..n * k).map(|i| value(i + 7919)).collect();
            let bias: Vec<f32> = (0..n).map(|i| value(i + 104_729)).collect();
            for unit in [
                Unit::AmxInt8, Unit::AmxBf16, Unit::Vnni, Unit::AvxVnni, Unit::Words, Unit::Bf16,
            ] {
                if !unit.exists(Isa::detect()) {
                    continue;
                }
                let tolerance = if matches!(unit, Unit::Bf16 | Unit::AmxBf16) { 0.01 } else { 0.02 };
                let packed = Dots::new(&Arena::default(), n, k, unit, |j, row| {
                    row.copy_from_slice(&w[j * k..(j + 1) * k]);
                    true
                })
                .expect("memory");
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
                        prop_assert!(error.abs() < limit, "{unit:?} {error}");
                        let error = f64::from(alone[i * n + j]) - dot;
                        prop_assert!(error.abs() < limit, "{unit:?} {error}");
                    }
                }
            }
        }
    }
}
