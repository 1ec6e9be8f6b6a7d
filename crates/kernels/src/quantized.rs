//! Products with bf16 and int8 weights through NumKong, for processors that [`super::dots`] has no
//! kernels for: `C = A Wᵀ` with A rounded to bf16, or quantised to int8 with one scale a row.
//!
//! NumKong chooses the instructions at run time.

use std::cell::RefCell;
use std::ops::Range;

use half::bf16;

use super::arena::{Arena, Block};
use super::gemm::{Start, check_output, check_rows};
use super::int8;
use super::low_precision::{self, Line, Right};
use crate::Precision;

/// A matrix W of n x k, packed by NumKong.
pub struct Quantized(Weights);

enum Weights {
    Bf16(Right<bf16, Block<Line>>),
    I8 {
        packed: Right<i8, Block<Line>>,
        /// The factor of each of the n rows.
        scale: Vec<f32>,
    },
}

/// Working memory of a thread.
#[derive(Default)]
struct Scratch {
    sums: Vec<i32>,
    products: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Rows of A, rounded or quantised.
pub struct Rows {
    k: usize,
    /// bf16; else empty.
    halves: Vec<bf16>,
    /// int8; else empty.
    bytes: Vec<i8>,
    /// int8: the factor of each row.
    scale: Vec<f32>,
    is_i8: bool,
    len: usize,
}

impl Rows {
    /// Converts rows of stride `lda` into `range`.
    ///
    /// # Panics
    /// If the range does not exist or `a` is too short.
    pub fn set(&mut self, range: Range<usize>, a: &[f32], lda: usize) {
        let k = self.k;
        check_rows(range.len(), k, a, lda);
        assert!(range.end <= self.len, "rows");
        for (r, row) in range.zip(a.chunks(lda.max(1))) {
            let (row, at) = (&row[..k], r * k..(r + 1) * k);
            if self.is_i8 {
                self.scale[r] = int8::quantize(row, &mut self.bytes[at], |bits| bits as i8);
            } else {
                for (y, x) in self.halves[at].iter_mut().zip(row) {
                    *y = bf16::from_f32(*x);
                }
            }
        }
    }
}

impl Quantized {
    /// Packs `n` rows of length `k`, as [`super::gemm::Packed::new`]; `precision` must be
    /// [`Precision::Bf16`] or [`Precision::I8`].
    ///
    /// # Errors
    /// As [`super::gemm::Packed::new`].
    pub fn new(
        arena: &Arena,
        n: usize,
        k: usize,
        precision: Precision,
        mut row: impl FnMut(usize, &mut [f32]) -> bool,
    ) -> laser_memory::Result<Self> {
        let mut buffer = vec![0f32; k];
        if precision == Precision::I8 {
            let mut bytes = vec![0i8; n * k];
            let mut scale = vec![0f32; n];
            for j in 0..n {
                if row(j, &mut buffer) {
                    let bytes = &mut bytes[j * k..(j + 1) * k];
                    scale[j] = int8::quantize(&buffer, bytes, |bits| bits as i8);
                }
            }
            let lines = arena.zeroed(low_precision::lines::<i8>(n, k))?;
            let packed = Right::new((n, k), &bytes, lines);
            return Ok(Self(Weights::I8 { packed, scale }));
        }
        let mut halves = vec![bf16::ZERO; n * k];
        for j in 0..n {
            if row(j, &mut buffer) {
                for (y, x) in halves[j * k..(j + 1) * k].iter_mut().zip(&buffer) {
                    *y = bf16::from_f32(*x);
                }
            }
        }
        let lines = arena.zeroed(low_precision::lines::<bf16>(n, k))?;
        let packed = Right::new((n, k), &halves, lines);
        Ok(Self(Weights::Bf16(packed)))
    }

    /// Output columns n.
    pub fn columns(&self) -> usize {
        match &self.0 {
            Weights::Bf16(packed) => packed.columns(),
            Weights::I8 { packed, .. } => packed.columns(),
        }
    }

    /// Inner dimension k.
    pub fn depth(&self) -> usize {
        match &self.0 {
            Weights::Bf16(packed) => packed.depth(),
            Weights::I8 { packed, .. } => packed.depth(),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Weights::Bf16(packed) => packed.bytes(),
            Weights::I8 { packed, scale } => packed.bytes() + scale.len() * 4,
        }
    }

    /// Room for rows of A, which have to be [`set`](Rows::set).
    pub fn rows(&self, count: usize) -> Rows {
        let is_i8 = matches!(self.0, Weights::I8 { .. });
        let (bytes, halves) = if is_i8 { (count, 0) } else { (0, count) };
        let k = self.depth();
        Rows {
            k,
            halves: vec![bf16::ZERO; halves * k],
            bytes: vec![0; bytes * k],
            scale: vec![0.0; bytes],
            is_i8,
            len: count,
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
        let (m, n, k) = (range.len(), self.columns(), self.depth());
        if m == 0 || n == 0 {
            return;
        }
        check_output(m, n, start, c, ldc);
        assert!(range.end <= rows.len, "rows");
        let is_i8 = matches!(self.0, Weights::I8 { .. });
        assert!(rows.k == k && rows.is_i8 == is_i8, "rows of another kind");
        for row in c.chunks_mut(ldc).take(m) {
            match start {
                Start::Zero => row[..n].fill(0.0),
                Start::Bias(bias) => row[..n].copy_from_slice(&bias[..n]),
                Start::Accumulate => {}
            }
        }
        let values = range.start * k..range.end * k;
        SCRATCH.with_borrow_mut(|Scratch { sums, products }| match &self.0 {
            Weights::Bf16(packed) => {
                products.resize(m * n, 0.0);
                packed.multiply(m, &rows.halves[values], products, n);
                for (c, products) in c.chunks_mut(ldc).zip(products.chunks_exact(n)) {
                    for (c, x) in c.iter_mut().zip(products) {
                        *c += x;
                    }
                }
            }
            Weights::I8 { packed, scale } => {
                sums.resize(m * n, 0);
                packed.multiply(m, &rows.bytes[values], sums, n);
                let rows = sums.chunks_exact(n).zip(&rows.scale[range]);
                for (c, (sums, row)) in c.chunks_mut(ldc).zip(rows) {
                    for ((c, &x), &s) in c.iter_mut().zip(sums).zip(scale) {
                        *c += x as f32 * (s * row);
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_close_to_exact_ones() {
        let value = |i: usize| ((i * 7919 % 1000) as f32 - 500.0) / 500.0;
        for (m, n, k) in [(1, 64, 16), (5, 33, 70), (17, 128, 320)] {
            let a: Vec<f32> = (0..m * (k + 3)).map(value).collect();
            let w: Vec<f32> = (0..n * k).map(|i| value(i + 17)).collect();
            let bias: Vec<f32> = (0..n).map(value).collect();
            for (precision, tolerance) in [(Precision::Bf16, 0.01), (Precision::I8, 0.02)] {
                let packed = Quantized::new(&Arena::default(), n, k, precision, |j, row| {
                    row.copy_from_slice(&w[j * k..(j + 1) * k]);
                    true
                })
                .expect("memory");
                // Behind one row that is not used.
                let mut rows = packed.rows(1 + m);
                rows.set(1..1 + m, &a, k + 3);
                let mut c = vec![9f32; m * n];
                packed.matmul(&rows, 1..1 + m, Start::Bias(&bias), &mut c, n);
                packed.matmul(&rows, 1..1 + m, Start::Accumulate, &mut c, n);
                for i in 0..m {
                    for j in 0..n {
                        let dot: f64 = (0..k)
                            .map(|p| f64::from(a[i * (k + 3) + p]) * f64::from(w[j * k + p]))
                            .sum();
                        let exact = f64::from(bias[j]) + 2.0 * dot;
                        let error = (f64::from(c[i * n + j]) - exact).abs();
                        assert!(
                            error < tolerance * (k as f64).sqrt(),
                            "{precision:?} {error}"
                        );
                    }
                }
            }
        }
    }
}
