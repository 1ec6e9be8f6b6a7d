//! Products with bf16 operands and f32 sums: with kernels of our own where the processor has AVX-512 BF16,
//! with or without AMX, elsewhere through NumKong, which picks AVX2 or Arm code at run time.
//!
//! NumKong multiplies A by a packed Bᵀ whose rows are contiguous; operands that lie the other way
//! are transposed while they are rounded. Worth it only where the processor multiplies bf16
//! ([`units::has_bf16_unit`]); elsewhere the results are the same and slower than f32.
#![allow(unsafe_code)]

use std::cell::RefCell;

use laser_cpu::simd;
use numkong::Dots;

#[cfg(target_arch = "x86_64")]
use super::bf16_panels::{self, Left, Panels};
use super::rounding::bits;
use crate::units;

#[derive(Default)]
struct Scratch {
    left: Vec<u16>,
    right: Vec<u16>,
    packed: Vec<Aligned>,
    result: Vec<f32>,
}

/// NumKong asks for cache-line alignment of packed operands.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Aligned(#[expect(dead_code, reason = "only its size and alignment matter")] [u8; 64]);

thread_local! {
    /// Buffers that are kept between products; creating them also prepares the thread for AMX.
    static SCRATCH: RefCell<Scratch> = {
        units::configure_thread();
        RefCell::default()
    };
}

simd! {
    /// Rounds to the nearest bf16, ties to even. NaN stays NaN.
    fn round(from: &[f32], to: &mut [u16]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = bits(*from) as u16;
        }
    }
}

fn rounded(from: &[f32], to: &mut Vec<u16>) {
    to.resize(from.len(), 0);
    round(from, to);
}

/// Rounds the transpose of a rows×columns matrix, in blocks that stay in the cache.
fn rounded_transpose(from: &[f32], rows: usize, columns: usize, to: &mut Vec<u16>) {
    const BLOCK: usize = 32;
    to.resize(rows * columns, 0);
    let mut line = [0u16; BLOCK];
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

/// Packs a rounded right operand, n×k, for [`multiply`].
fn pack((n, k): (usize, usize), right: &[u16], packed: &mut Vec<Aligned>) {
    assert_eq!(right.len(), n * k, "the right operand has the wrong size");
    packed.clear();
    if n == 0 || k == 0 {
        return;
    }
    let bytes = <numkong::bf16 as Dots>::dots_packed_size(n, k);
    packed.resize(bytes.div_ceil(64), Aligned([0; 64]));
    // SAFETY: bf16 is a transparent u16; `right` has the size asserted above with rows of 2k bytes,
    // and `packed` has the size NumKong asks for, zeroed and aligned to a cache line.
    unsafe {
        let packed = packed.as_mut_ptr().cast::<u8>();
        numkong::bf16::dots_pack(right.as_ptr().cast(), n, k, k * 2, packed);
    }
}

/// `c = [c +] left rightᵀ` with left m×k, rounded, and right n×k, packed for these n and k.
fn multiply(
    (m, n, k): (usize, usize, usize),
    left: &[u16],
    packed: &[Aligned],
    result: &mut Vec<f32>,
    c: &mut [f32],
    add: bool,
) {
    assert_eq!(left.len(), m * k, "the left operand has the wrong size");
    assert!(c.len() >= m * n, "result is too short");
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !add {
            c[..m * n].fill(0.0);
        }
        return;
    }
    let bytes = <numkong::bf16 as Dots>::dots_packed_size(n, k);
    assert!(
        packed.len() * 64 >= bytes,
        "the right operand is packed for another size"
    );
    let out = if add {
        result.resize(m * n, 0.0);
        &mut result[..]
    } else {
        &mut c[..m * n]
    };
    // SAFETY: bf16 is a transparent u16; left and out have the sizes asserted above, with rows of
    // 2k and 4n bytes, and `packed` was written by `pack` for this n and k.
    unsafe {
        numkong::bf16::dots_packed(
            left.as_ptr().cast(),
            packed.as_ptr().cast::<u8>(),
            out.as_mut_ptr(),
            m,
            n,
            k,
            k * 2,
            n * 4,
        );
    }
    if add {
        crate::slices::add(&result[..m * n], &mut c[..m * n]);
    }
}

/// A right operand that is multiplied several times: rounded and packed once.
pub struct Packed(Kind);

enum Kind {
    NumKong {
        data: Vec<Aligned>,
        n: usize,
        k: usize,
    },
    #[cfg(target_arch = "x86_64")]
    Panels(Panels),
}

impl Packed {
    /// For `a bᵀ` with b n×k.
    pub fn transposed(n: usize, k: usize, b: &[f32]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if laser_cpu::has_bf16() {
            return Self(Kind::Panels(Panels::transposed(n, k, b)));
        }
        Self::numkong_transposed(n, k, b)
    }

    fn numkong_transposed(n: usize, k: usize, b: &[f32]) -> Self {
        let mut data = Vec::new();
        SCRATCH.with_borrow_mut(|s| {
            rounded(&b[..n * k], &mut s.right);
            pack((n, k), &s.right, &mut data);
        });
        Self(Kind::NumKong { data, n, k })
    }

    /// For `a b` with b k×n.
    pub fn plain(k: usize, n: usize, b: &[f32]) -> Self {
        #[cfg(target_arch = "x86_64")]
        if laser_cpu::has_bf16() {
            return Self(Kind::Panels(Panels::plain(k, n, b)));
        }
        Self::numkong_plain(k, n, b)
    }

    fn numkong_plain(k: usize, n: usize, b: &[f32]) -> Self {
        let mut data = Vec::new();
        SCRATCH.with_borrow_mut(|s| {
            rounded_transpose(&b[..k * n], k, n, &mut s.right);
            pack((n, k), &s.right, &mut data);
        });
        Self(Kind::NumKong { data, n, k })
    }

    /// `c = [c +] a b` or `a bᵀ`: a is m×k, c is m×n.
    pub fn multiply(&self, m: usize, a: &[f32], c: &mut [f32], add: bool) {
        let (data, n, k) = match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Panels(panels) => return bf16_panels::multiply(m, Left::Rows(a), panels, c, add),
            Kind::NumKong { data, n, k } => (data, *n, *k),
        };
        SCRATCH.with_borrow_mut(|s| {
            rounded(&a[..m * k], &mut s.left);
            multiply((m, n, k), &s.left, data, &mut s.result, c, add);
        });
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
    if laser_cpu::has_bf16() {
        return bf16_panels::tn((m, n, k), a, b, c, add);
    }
    numkong_tn((m, n, k), a, b, c, add);
}

fn numkong_tn((m, n, k): (usize, usize, usize), a: &[f32], b: &[f32], c: &mut [f32], add: bool) {
    SCRATCH.with_borrow_mut(|s| {
        rounded_transpose(&a[..k * m], k, m, &mut s.left);
        rounded_transpose(&b[..k * n], k, n, &mut s.right);
        pack((n, k), &s.right, &mut s.packed);
        multiply((m, n, k), &s.left, &s.packed, &mut s.result, c, add);
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
        let back: Vec<f32> = to
            .iter()
            .map(|b| f32::from_bits(u32::from(*b) << 16))
            .collect();
        for (f, b) in from.iter().zip(&back) {
            assert_eq!(
                half::bf16::from_f32(*f).to_f32().to_bits(),
                b.to_bits(),
                "{f}"
            );
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
