//! Products with bf16 operands and f32 sums: with kernels of our own where the processor has AVX-512 BF16,
//! with or without AMX, elsewhere through NumKong, which picks AVX2 or Arm code at run time.
//!
//! NumKong multiplies A by a packed Bᵀ whose rows are contiguous; operands that lie the other way
//! are transposed while they are rounded. Worth it only where the processor multiplies bf16
//! ([`crate::units::has_bf16_unit`]); elsewhere the results are the same and slower than f32.

use std::cell::RefCell;

use half::bf16;
use laser_cpu::simd;

#[cfg(target_arch = "x86_64")]
use super::bf16_panels::{self, Left, Panels};
use super::rounding::bits;
use crate::low_precision::{self, Line, Right};

/// Buffers that are kept between products.
#[derive(Default)]
struct Scratch {
    left: Vec<bf16>,
    right: Vec<bf16>,
    packed: Vec<Line>,
    result: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

simd! {
    /// Rounds to the nearest bf16, ties to even. NaN stays NaN.
    fn round(from: &[f32], to: &mut [bf16]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = bf16::from_bits(bits(*from) as u16);
        }
    }
}

fn rounded(from: &[f32], to: &mut Vec<bf16>) {
    to.resize(from.len(), bf16::ZERO);
    round(from, to);
}

/// Rounds the transpose of a rows×columns matrix, in blocks that stay in the cache.
fn rounded_transpose(from: &[f32], rows: usize, columns: usize, to: &mut Vec<bf16>) {
    const BLOCK: usize = 32;
    to.resize(rows * columns, bf16::ZERO);
    let mut line = [bf16::ZERO; BLOCK];
    for r0 in (0..rows).step_by(BLOCK) {
        for c0 in (0..columns).step_by(BLOCK) {
            let width = BLOCK.min(columns - c0);
            for r in r0..rows.min(r0 + BLOCK) {
                let at = r * columns + c0;
                round(&from[at..at + width], &mut line[..width]);
                for (c, value) in line[..width].iter().enumerate() {
                    to[(c0 + c) * rows + r] = *value;
                }
            }
        }
    }
}

/// Packs a rounded right operand, n×k, into the memory of another one.
fn pack(sizes: (usize, usize), right: &[bf16], mut lines: Vec<Line>) -> Right<bf16, Vec<Line>> {
    lines.clear();
    lines.resize(low_precision::lines::<bf16>(sizes.0, sizes.1), Line::ZERO);
    Right::new(sizes, right, lines)
}

/// `c = [c +] left rightᵀ` with left m×k, rounded.
fn multiply(
    m: usize,
    left: &[bf16],
    right: &Right<bf16, Vec<Line>>,
    result: &mut Vec<f32>,
    c: &mut [f32],
    add: bool,
) {
    let n = right.columns();
    let c = &mut c[..m * n];
    if add {
        result.resize(m * n, 0.0);
        right.multiply(m, left, result, n);
        crate::slices::add(result, c);
    } else {
        right.multiply(m, left, c, n);
    }
}

/// A right operand that is multiplied several times: rounded and packed once.
pub struct Packed(Kind);

enum Kind {
    NumKong(Right<bf16, Vec<Line>>),
    #[cfg(target_arch = "x86_64")]
    Panels(Panels),
}

impl Packed {
    /// For `a bᵀ` with b n×k.
    pub fn transposed(n: usize, k: usize, b: &[f32]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if laser_cpu::has_avx512_bf16() {
            return Self(Kind::Panels(Panels::transposed(n, k, b)));
        }
        Self::numkong_transposed(n, k, b)
    }

    fn numkong_transposed(n: usize, k: usize, b: &[f32]) -> Self {
        SCRATCH.with_borrow_mut(|s| {
            rounded(&b[..n * k], &mut s.right);
            Self(Kind::NumKong(pack((n, k), &s.right, Vec::new())))
        })
    }

    /// For `a b` with b k×n.
    pub fn plain(k: usize, n: usize, b: &[f32]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if laser_cpu::has_avx512_bf16() {
            return Self(Kind::Panels(Panels::plain(k, n, b)));
        }
        Self::numkong_plain(k, n, b)
    }

    fn numkong_plain(k: usize, n: usize, b: &[f32]) -> Self {
        SCRATCH.with_borrow_mut(|s| {
            rounded_transpose(&b[..k * n], k, n, &mut s.right);
            Self(Kind::NumKong(pack((n, k), &s.right, Vec::new())))
        })
    }

    /// `c = [c +] a b` or `a bᵀ`: a is m×k, c is m×n.
    pub fn multiply(&self, m: usize, a: &[f32], c: &mut [f32], add: bool) {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Panels(panels) => bf16_panels::multiply(m, Left::Rows(a), panels, c, add),
            Kind::NumKong(right) => SCRATCH.with_borrow_mut(|s| {
                rounded(&a[..m * right.depth()], &mut s.left);
                multiply(m, &s.left, right, &mut s.result, c, add);
            }),
        }
    }
}

/// `c = [c +] a bᵀ`: a is m×k, b is n×k.
pub fn nt((m, n, k): (usize, usize, usize), a: &[f32], b: &[f32], c: &mut [f32], add: bool) {
    Packed::transposed(n, k, b).multiply(m, a, c, add);
}

/// `c = [c +] a b`: a is m×k, b is k×n.
pub fn nn((m, n, k): (usize, usize, usize), a: &[f32], b: &[f32], c: &mut [f32], add: bool) {
    Packed::plain(k, n, b).multiply(m, a, c, add);
}

/// `c = [c +] aᵀ b`: a is k×m, b is k×n.
pub fn tn((m, n, k): (usize, usize, usize), a: &[f32], b: &[f32], c: &mut [f32], add: bool) {
    #[cfg(target_arch = "x86_64")]
    if laser_cpu::has_avx512_bf16() {
        return bf16_panels::tn((m, n, k), a, b, c, add);
    }
    numkong_tn((m, n, k), a, b, c, add);
}

fn numkong_tn((m, n, k): (usize, usize, usize), a: &[f32], b: &[f32], c: &mut [f32], add: bool) {
    SCRATCH.with_borrow_mut(|s| {
        rounded_transpose(&a[..k * m], k, m, &mut s.left);
        rounded_transpose(&b[..k * n], k, n, &mut s.right);
        let right = pack((n, k), &s.right, std::mem::take(&mut s.packed));
        multiply(m, &s.left, &right, &mut s.result, c, add);
        s.packed = right.into_lines();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest_even() {
        let from = [
            1.0f32,
            1.003_906_2,
            1.011_718_8,
            -0.0,
            f32::NAN,
            f32::INFINITY,
            3.0e38,
        ];
        let mut to = Vec::new();
        rounded(&from, &mut to);
        for (f, b) in from.iter().zip(&to) {
            assert_eq!(bf16::from_f32(*f).to_bits(), b.to_bits(), "{f}");
        }
    }

    #[test]
    fn numkong_agrees_with_what_runs_here() {
        let (m, n, k) = (13, 35, 51);
        let numbers = |count: usize| -> Vec<f32> {
            (0..count)
                .map(|i| ((i * 37 + i / 7) % 101) as f32 / 50.0 - 1.0)
                .collect()
        };
        let (a, b) = (numbers(m * k), numbers(k * n));
        for add in [false, true] {
            let mut c = vec![vec![1f32; m * n]; 6];
            nt((m, n, k), &a, &b, &mut c[0], add);
            Packed::numkong_transposed(n, k, &b).multiply(m, &a, &mut c[1], add);
            nn((m, n, k), &a, &b, &mut c[2], add);
            Packed::numkong_plain(k, n, &b).multiply(m, &a, &mut c[3], add);
            tn((m, n, k), &a, &b, &mut c[4], add);
            numkong_tn((m, n, k), &a, &b, &mut c[5], add);
            for pair in c.chunks_exact(2) {
                let mut both = pair[0].iter().zip(&pair[1]);
                assert!(both.all(|(x, y)| (x - y).abs() < 1e-4), "{pair:?}");
            }
        }
    }
}
