//! Products of row-major matrices on one thread.
//!
//! [`Arithmetic`] chooses between f32 products ([`product`]) and bf16 products with f32
//! accumulation ([`bf16`]), which only pay on processors with bf16 units.

use super::bf16;
use crate::strided::product;
use crate::units;

/// How the operands of a product are rounded. Sums are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// f32 operands.
    F32,
    /// Operands rounded to bf16.
    Bf16,
}

impl Arithmetic {
    /// bf16 where the processor multiplies bf16 in hardware, f32 elsewhere.
    pub fn detect() -> Self {
        if units::has_bf16_unit() {
            Arithmetic::Bf16
        } else {
            Arithmetic::F32
        }
    }

    /// `c = a bᵀ` (or `c += a bᵀ`): a is m×k, b is n×k, c is m×n.
    pub fn nt(
        self,
        (m, n, k): (usize, usize, usize),
        a: &[f32],
        b: &[f32],
        c: &mut [f32],
        add: bool,
    ) {
        match self {
            Arithmetic::F32 => product((m, n, k), (a, k, 1), (b, 1, k), (c, n), add, 1.0),
            Arithmetic::Bf16 => bf16::nt((m, n, k), a, b, c, add),
        }
    }

    /// `c = a b` (or `c += a b`): a is m×k, b is k×n, c is m×n.
    pub fn nn(
        self,
        (m, n, k): (usize, usize, usize),
        a: &[f32],
        b: &[f32],
        c: &mut [f32],
        add: bool,
    ) {
        match self {
            Arithmetic::F32 => product((m, n, k), (a, k, 1), (b, n, 1), (c, n), add, 1.0),
            Arithmetic::Bf16 => bf16::nn((m, n, k), a, b, c, add),
        }
    }

    /// `c = aᵀ b` (or `c += aᵀ b`): a is k×m, b is k×n, c is m×n.
    pub fn tn(
        self,
        (m, n, k): (usize, usize, usize),
        a: &[f32],
        b: &[f32],
        c: &mut [f32],
        add: bool,
    ) {
        match self {
            Arithmetic::F32 => product((m, n, k), (a, 1, m), (b, n, 1), (c, n), add, 1.0),
            Arithmetic::Bf16 => bf16::tn((m, n, k), a, b, c, add),
        }
    }
}

/// The right operand of several products, prepared once.
pub enum Right<'a> {
    /// Elements with the strides of k and of n.
    F32 {
        /// Elements of B, [K, N] by the strides.
        b: &'a [f32],
        /// Strides of k and of n.
        strides: (usize, usize),
        /// Sizes n and k.
        sizes: (usize, usize),
    },
    /// Rounded and packed.
    Bf16(bf16::Packed),
}

impl Arithmetic {
    /// Prepares b, n×k, for `a bᵀ`.
    pub fn right_transposed(self, n: usize, k: usize, b: &[f32]) -> Right<'_> {
        match self {
            Arithmetic::F32 => Right::F32 {
                b,
                strides: (1, k),
                sizes: (n, k),
            },
            Arithmetic::Bf16 => Right::Bf16(bf16::Packed::transposed(n, k, b)),
        }
    }

    /// Prepares b, k×n, for `a b`.
    pub fn right(self, k: usize, n: usize, b: &[f32]) -> Right<'_> {
        match self {
            Arithmetic::F32 => Right::F32 {
                b,
                strides: (n, 1),
                sizes: (n, k),
            },
            Arithmetic::Bf16 => Right::Bf16(bf16::Packed::plain(k, n, b)),
        }
    }
}

impl Right<'_> {
    /// `c = [c +] a ·` this: a is m×k, c is m×n.
    pub fn multiply(&self, m: usize, a: &[f32], c: &mut [f32], add: bool) {
        match self {
            Right::F32 {
                b,
                strides,
                sizes: (n, k),
            } => {
                let b = (*b, strides.0, strides.1);
                product((m, *n, *k), (a, *k, 1), b, (c, *n), add, 1.0);
            }
            Right::Bf16(packed) => packed.multiply(m, a, c, add),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (x >> 8) as f32 / (1 << 24) as f32 - 0.5
            })
            .collect()
    }

    fn transpose(a: &[f32], rows: usize, columns: usize) -> Vec<f32> {
        (0..columns * rows)
            .map(|i| a[(i % rows) * columns + i / rows])
            .collect()
    }

    #[test]
    fn all_products_agree_with_the_definition() {
        let (m, n, k) = (13, 9, 21);
        let (a, b) = (numbers(m * k, 1), numbers(n * k, 2));
        let mut expected = vec![0f32; m * n];
        for i in 0..m {
            for j in 0..n {
                expected[i * n + j] = (0..k).map(|l| a[i * k + l] * b[j * k + l]).sum();
            }
        }
        let (at, bt) = (transpose(&a, m, k), transpose(&b, n, k));
        for (arithmetic, tolerance) in [(Arithmetic::F32, 1e-5), (Arithmetic::Bf16, 2e-2)] {
            for add in [false, true] {
                let start = if add { 1.0 } else { 0.0 };
                let mut results = vec![vec![start; m * n]; 5];
                arithmetic.nt((m, n, k), &a, &b, &mut results[0], add);
                arithmetic.nn((m, n, k), &a, &bt, &mut results[1], add);
                arithmetic.tn((m, n, k), &at, &bt, &mut results[2], add);
                arithmetic
                    .right_transposed(n, k, &b)
                    .multiply(m, &a, &mut results[3], add);
                arithmetic
                    .right(k, n, &bt)
                    .multiply(m, &a, &mut results[4], add);
                for result in results {
                    for (r, e) in result.iter().zip(&expected) {
                        assert!((r - e - start).abs() < tolerance, "{arithmetic:?} {r} {e}");
                    }
                }
            }
        }
    }
}
