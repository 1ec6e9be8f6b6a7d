//! Products in any precision.

use std::ops::Range;

use super::Isa;
use super::arena::Arena;
use super::dots::{self, Dots, Unit};
use super::gemm::{self, Packed, Start, Storage, check_rows};
use super::lstm::{self, Complete, Floats, Step, padded};
use super::quantized::{self, Quantized};
use super::units;
use crate::Precision;

/// Weights packed for one precision.
pub enum Weights {
    /// f32 arithmetic, weights f32 or bf16.
    Float(Packed),
    /// bf16 or int8 arithmetic on units for dot products.
    Dots(Dots),
    /// bf16 or int8 arithmetic through NumKong.
    Quantized(Quantized),
}

/// Rows of A, converted once for all products with weights of one precision and depth.
pub enum Operand {
    /// f32 with a stride of whole blocks of units, so that recurrent steps can write their states.
    Float {
        /// Length of a row.
        depth: usize,
        /// `padded(depth)` values a row.
        values: Vec<f32>,
    },
    /// For [`Weights::Dots`].
    Dots(dots::Rows),
    /// For [`Weights::Quantized`].
    Quantized(quantized::Rows),
}

impl Operand {
    /// Converts rows of stride `lda` into `range`.
    ///
    /// # Panics
    /// If the range does not exist or `a` is too short.
    pub fn set(&mut self, range: Range<usize>, a: &[f32], lda: usize) {
        match self {
            Self::Float { depth, values } => {
                check_rows(range.len(), *depth, a, lda);
                let width = padded(*depth).max(1);
                let to = &mut values[range.start * width..range.end * width];
                for (row, to) in a.chunks(lda.max(1)).zip(to.chunks_exact_mut(width)) {
                    to[..*depth].copy_from_slice(&row[..*depth]);
                }
            }
            Self::Dots(rows) => rows.set(range, a, lda),
            Self::Quantized(rows) => rows.set(range, a, lda),
        }
    }
}

/// What products use that eight bits are too few for, where the others use int8: bf16 if the processor
/// has a unit for it, else int8 as well.
pub fn finer(isa: Isa, precision: Precision) -> Precision {
    let unit = || Unit::of(isa, Precision::Bf16).is_some() || units::has_bf16_unit();
    if precision == Precision::I8 && unit() {
        Precision::Bf16
    } else {
        precision
    }
}

/// Whether int8 products round the rows that come to eight bits, as their weights. Processors without units for bytes
/// multiply sixteen bits as fast, and rows keep these.
pub fn rounds_rows_to_eight_bits(isa: Isa) -> bool {
    Unit::of(isa, Precision::I8) != Some(Unit::Words)
}

/// The weights' and the operand's kinds differ.
fn mismatch() -> ! {
    panic!("rows converted for weights of another precision")
}

impl Weights {
    /// Packs `n` rows of length `k`, as [`Packed::new`], for what `isa` has.
    ///
    /// # Errors
    /// As [`Packed::new`].
    pub fn new(
        arena: &Arena,
        isa: Isa,
        n: usize,
        k: usize,
        precision: Precision,
        row: impl FnMut(usize, &mut [f32]) -> bool,
    ) -> laser_memory::Result<Self> {
        let exact = matches!(precision, Precision::F32 | Precision::Auto);
        if exact {
            return Packed::new(arena, n, k, Storage::F32, row).map(Self::Float);
        }
        if let Some(unit) = Unit::of(isa, precision) {
            return Dots::new(arena, n, k, unit, row).map(Self::Dots);
        }
        if precision == Precision::Bf16 && !units::has_bf16_unit() {
            return Packed::new(arena, n, k, Storage::Bf16, row).map(Self::Float);
        }
        Quantized::new(arena, n, k, precision, row).map(Self::Quantized)
    }

    /// Output columns.
    pub fn columns(&self) -> usize {
        match self {
            Self::Float(w) => w.columns(),
            Self::Dots(w) => w.columns(),
            Self::Quantized(w) => w.columns(),
        }
    }

    /// Inner dimension.
    pub fn depth(&self) -> usize {
        match self {
            Self::Float(w) => w.depth(),
            Self::Dots(w) => w.depth(),
            Self::Quantized(w) => w.depth(),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Float(w) => w.bytes(),
            Self::Dots(w) => w.bytes(),
            Self::Quantized(w) => w.bytes(),
        }
    }

    /// Room for rows of A, which have to be [`set`](Operand::set).
    pub fn operand(&self, rows: usize) -> Operand {
        match self {
            Self::Float(w) => Operand::Float {
                depth: w.depth(),
                values: vec![0.0; rows * padded(w.depth())],
            },
            Self::Dots(w) => Operand::Dots(w.rows(rows)),
            Self::Quantized(w) => Operand::Quantized(w.rows(rows)),
        }
    }

    /// As [`gemm::matmul`], of some rows of an operand.
    ///
    /// # Panics
    /// If the operand was made for weights of another precision or depth, or a slice is too short.
    pub fn matmul(
        &self,
        isa: Isa,
        a: &Operand,
        range: Range<usize>,
        start: Start<'_>,
        c: &mut [f32],
        ldc: usize,
    ) {
        match (self, a) {
            (Self::Float(w), Operand::Float { depth, values }) => {
                assert_eq!(*depth, w.depth(), "depth");
                let stride = padded(*depth);
                let rows = &values[range.start * stride..range.end * stride];
                gemm::matmul(isa, range.len(), rows, stride, w, start, c, ldc);
            }
            (Self::Dots(w), Operand::Dots(rows)) => w.matmul(rows, range, start, c, ldc),
            (Self::Quantized(w), Operand::Quantized(rows)) => {
                w.matmul(rows, range, start, c, ldc);
            }
            _ => mismatch(),
        }
    }

    /// One recurrent step with these weights (depth H, `4 * padded(H)` interleaved columns): from
    /// the rows `previous` of `states` to the rows `at`, of which those that have no row in
    /// `previous` start from zero. Returns the new states, rows of `padded(H)`, which are in
    /// `scratch` where they were converted.
    ///
    /// # Panics
    /// If the two ranges meet, or as [`Self::matmul`].
    pub fn step<'a>(
        &self,
        isa: Isa,
        states: &'a mut Operand,
        previous: Range<usize>,
        at: Range<usize>,
        sums: Sums<'_>,
        scratch: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let (rows, columns) = (at.len(), self.columns());
        let width = columns / 4;
        assert!(
            previous.is_empty() || previous.end <= at.start || at.end <= previous.start,
            "states of different steps"
        );
        let Sums {
            input,
            cell,
            maximum,
        } = sums;
        let step = |input, state| Step {
            input,
            cell,
            state,
            maximum,
        };
        match (self, states) {
            (Self::Float(w), Operand::Float { values, .. }) => {
                let here = at.start * width..at.end * width;
                let before = previous.start * width..previous.end * width;
                let (previous, state) = if before.is_empty() {
                    (&[][..], &mut values[here])
                } else if before.end <= here.start {
                    let (low, high) = values.split_at_mut(here.start);
                    (&low[before], &mut high[..rows * width])
                } else {
                    let (low, high) = values.split_at_mut(before.start);
                    (&high[..before.len()], &mut low[here])
                };
                let recurrent = Floats::new(isa, w, previous);
                lstm::step(isa, rows, columns, &recurrent, step(input, &mut *state));
                state
            }
            (Self::Dots(w), Operand::Dots(states)) => {
                scratch.resize(rows * width, 0.0);
                if w.is_matrix() {
                    w.matmul(states, previous, Start::Accumulate, input, columns);
                    lstm::step(isa, rows, columns, &Complete, step(input, scratch));
                } else {
                    let recurrent = w.recurrent(states, previous);
                    lstm::step(isa, rows, columns, &recurrent, step(input, scratch));
                }
                states.set(at, scratch, width);
                scratch
            }
            (Self::Quantized(w), Operand::Quantized(states)) => {
                scratch.resize(rows * width, 0.0);
                w.matmul(states, previous, Start::Accumulate, input, columns);
                lstm::step(isa, rows, columns, &Complete, step(input, scratch));
                states.set(at, scratch, width);
                scratch
            }
            _ => mismatch(),
        }
    }
}

/// What a recurrent step adds to.
pub struct Sums<'a> {
    /// Input products with biases, rows of `4 * padded(H)`, which are used up.
    pub input: &'a mut [f32],
    /// Cell states, rows of `padded(H)`, updated; zero for rows that start.
    pub cell: &'a mut [f32],
    /// Running maximum of the states, rows of `padded(H)`, if wanted.
    pub maximum: Option<&'a mut [f32]>,
}
