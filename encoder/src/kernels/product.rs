//! Products in any precision.

use super::Isa;
use super::gemm::{self, Packed, Start, Storage};
use super::lstm::{self, Step};
use super::quantized::{self, Quantized};
use crate::encoder::Precision;

/// Weights packed for one precision.
pub enum Weights {
    /// f32 arithmetic, weights f32 or bf16.
    Float(Packed),
    /// bf16 or int8 arithmetic.
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
            Self::Quantized(w) => w.columns(),
        }
    }

    /// Inner dimension.
    pub fn depth(&self) -> usize {
        match self {
            Self::Float(w) => w.depth(),
            Self::Quantized(w) => w.depth(),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Float(w) => w.bytes(),
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
            Self::Quantized(w) => w.matmul(m, a, lda, start, c, ldc),
        }
    }

    /// One recurrent step with these weights, as [`lstm::step`]. The input products are used up.
    pub fn step(&self, isa: Isa, rows: usize, step: Step<'_>) {
        match self {
            Self::Float(w) => lstm::step(isa, rows, w, step),
            Self::Quantized(w) => {
                let columns = w.columns();
                let width = columns / 4;
                let continuing = (step.previous.len() / width).min(rows);
                let Step {
                    input, previous, ..
                } = step;
                w.matmul(
                    continuing,
                    previous,
                    width,
                    Start::Accumulate,
                    input,
                    columns,
                );
                lstm::gates(
                    isa,
                    rows,
                    columns,
                    Step {
                        input,
                        previous: &[],
                        ..step
                    },
                );
            }
        }
    }
}
