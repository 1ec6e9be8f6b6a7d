//! Products in any precision.

use super::Isa;
use super::dots::{self, Dots};
use super::gemm::{self, Packed, Start, Storage};
use super::lstm::{self, Complete, Floats, Step};
use super::quantized::{self, Quantized};
use crate::encoder::Precision;

/// Weights packed for one precision.
pub enum Weights {
    /// f32 arithmetic, weights f32 or bf16.
    Float(Packed),
    /// bf16 or int8 arithmetic on AVX-512's dot-product units.
    Dots(Dots),
    /// bf16 or int8 arithmetic through NumKong.
    Quantized(Quantized),
}

impl Weights {
    /// Packs `n` rows of length `k`, as [`Packed::new`].
    pub fn new(
        n: usize,
        k: usize,
        precision: Precision,
        row: impl FnMut(usize, &mut [f32]) -> bool,
    ) -> Self {
        match precision {
            Precision::F32 | Precision::Auto => Self::Float(Packed::new(n, k, Storage::F32, row)),
            _ if dots::available(precision) && !quantized::has_matrix_unit() => {
                Self::Dots(Dots::new(n, k, precision, row))
            }
            Precision::Bf16 if !quantized::has_bf16_unit() => {
                Self::Float(Packed::new(n, k, Storage::Bf16, row))
            }
            Precision::Bf16 | Precision::I8 => {
                Self::Quantized(Quantized::new(n, k, precision, row))
            }
        }
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

    /// As [`gemm::matmul`].
    #[allow(clippy::too_many_arguments)]
    pub fn matmul(
        &self,
        isa: Isa,
        m: usize,
        a: &[f32],
        lda: usize,
        start: Start<'_>,
        c: &mut [f32],
        ldc: usize,
    ) {
        match self {
            Self::Float(w) => gemm::matmul(isa, m, a, lda, w, start, c, ldc),
            Self::Dots(w) => w.matmul(m, a, lda, start, c, ldc),
            Self::Quantized(w) => w.matmul(m, a, lda, start, c, ldc),
        }
    }

    /// One recurrent step with these weights (depth H, `4 * padded(H)` interleaved columns) over
    /// `rows` sentences. `previous` has rows of `padded(H)`; sentences that it has no row for start
    /// from zero. `input` holds the input products with biases, which are used up.
    #[allow(clippy::too_many_arguments)]
    pub fn step(
        &self,
        isa: Isa,
        rows: usize,
        input: &mut [f32],
        previous: &[f32],
        cell: &mut [f32],
        state: &mut [f32],
        maximum: Option<&mut [f32]>,
    ) {
        let columns = self.columns();
        let width = columns / 4;
        let continuing = (previous.len() / width).min(rows);
        if let Self::Quantized(w) = self {
            let start = Start::Accumulate;
            w.matmul(continuing, previous, width, start, input, columns);
        }
        let step = Step {
            input,
            cell,
            state,
            maximum,
        };
        match self {
            Self::Float(w) => {
                lstm::step(isa, rows, columns, &Floats::new(isa, w, previous), step);
            }
            Self::Dots(w) => w.recurrent(continuing, previous, width, |products| {
                lstm::step(isa, rows, columns, products, step);
            }),
            Self::Quantized(_) => lstm::step(isa, rows, columns, &Complete, step),
        }
    }
}
