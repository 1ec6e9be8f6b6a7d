//! Products of bf16 or int8 matrices through NumKong, which chooses the instructions at run time: `C = A Bᵀ`
//! with B packed once.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::DerefMut;

use half::bf16;
use numkong::Dots;

use crate::units;

/// One cache line of a packed operand, which NumKong wants to begin with one.
#[repr(C, align(64))]
#[derive(Clone, Copy, bytemuck::Zeroable)]
pub struct Line([u8; 64]);

impl Line {
    /// What an operand is packed into.
    pub const ZERO: Self = Self([0; 64]);
}

/// An element of both operands.
///
/// # Safety
/// [`Element::NumKong`] has the same representation.
pub unsafe trait Element: Copy {
    /// Its type in NumKong.
    type NumKong: Dots<Accumulator = Self::Sum>;
    /// Of products.
    type Sum: Copy + Default;
}

// SAFETY: both are transparent u16 with the same bits.
unsafe impl Element for bf16 {
    type NumKong = numkong::bf16;
    type Sum = f32;
}

// SAFETY: one type.
unsafe impl Element for i8 {
    type NumKong = i8;
    type Sum = i32;
}

/// Lines that a right operand of n×k takes.
pub fn lines<T: Element>(n: usize, k: usize) -> usize {
    if n == 0 || k == 0 {
        return 0;
    }
    T::NumKong::dots_packed_size(n, k).div_ceil(size_of::<Line>())
}

/// A right operand B of n×k, packed in memory of the caller's choice.
pub struct Right<T, S> {
    n: usize,
    k: usize,
    lines: S,
    element: PhantomData<T>,
}

impl<T: Element, S: DerefMut<Target = [Line]>> Right<T, S> {
    /// Packs `b`, row-major, into [`lines`] that are [`Line::ZERO`].
    ///
    /// # Panics
    /// If `b` has another size, or there are too few lines.
    pub fn new((n, k): (usize, usize), b: &[T], mut lines: S) -> Self {
        assert_eq!(b.len(), n * k, "the right operand has the wrong size");
        let needed = self::lines::<T>(n, k);
        assert!(lines.len() >= needed, "room for the right operand");
        if needed > 0 {
            let stride = k * size_of::<T>();
            let packed = lines.as_mut_ptr().cast();
            // SAFETY: `b` holds n rows of `stride` bytes, in NumKong's representation, and `lines` what NumKong asks
            // for, aligned to a cache line.
            unsafe { T::NumKong::dots_pack(b.as_ptr().cast(), n, k, stride, packed) };
        }
        Self {
            n,
            k,
            lines,
            element: PhantomData,
        }
    }

    /// `C = A Bᵀ` with A m×k, row-major; the rows of C lie `stride` elements apart.
    ///
    /// # Panics
    /// If `a` has another size, or `c` is too short.
    pub fn multiply(&self, m: usize, a: &[T], c: &mut [T::Sum], stride: usize) {
        let (n, k) = (self.n, self.k);
        assert_eq!(a.len(), m * k, "the left operand has the wrong size");
        if m == 0 || n == 0 {
            return;
        }
        assert!(
            stride >= n && c.len() >= (m - 1) * stride + n,
            "the result is too short"
        );
        if k == 0 {
            for row in c.chunks_mut(stride).take(m) {
                row[..n].fill(T::Sum::default());
            }
            return;
        }
        units::configure_thread();
        assert!(self.lines.len() >= lines::<T>(n, k), "a right operand");
        // SAFETY: `a` holds m rows of k elements, `c` m rows of n that lie `stride` apart, and the lines were packed
        // for n and k; strides are in bytes.
        unsafe {
            T::NumKong::dots_packed(
                a.as_ptr().cast(),
                self.lines.as_ptr().cast(),
                c.as_mut_ptr(),
                m,
                n,
                k,
                k * size_of::<T>(),
                stride * size_of::<T::Sum>(),
            );
        }
    }

    /// Columns n of the result.
    pub fn columns(&self) -> usize {
        self.n
    }

    /// Inner dimension k.
    pub fn depth(&self) -> usize {
        self.k
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// The memory, for another operand.
    pub fn into_lines(self) -> S {
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_agree_with_the_definition() {
        for (m, n, k) in [(1, 1, 1), (5, 33, 70), (3, 4, 0), (0, 3, 2), (2, 0, 3)] {
            // Small integers are exact in either type and in every sum.
            let number = |i: usize| (i * 7 % 11) as i8 - 5;
            let a: Vec<i8> = (0..m * k).map(number).collect();
            let b: Vec<i8> = (0..n * k).map(|i| number(i + 3)).collect();
            let stride = n + 3;
            let product = |i: usize, j: usize| -> i32 {
                let row = a[i * k..(i + 1) * k].iter().zip(&b[j * k..(j + 1) * k]);
                row.map(|(x, y)| i32::from(*x) * i32::from(*y)).sum()
            };
            let room = vec![Line::ZERO; lines::<i8>(n, k)];
            let mut c = vec![77; m * stride];
            Right::new((n, k), &b, room).multiply(m, &a, &mut c, stride);
            let half = |x: &[i8]| -> Vec<bf16> {
                x.iter().map(|x| bf16::from_f32(f32::from(*x))).collect()
            };
            let room = vec![Line::ZERO; lines::<bf16>(n, k)];
            let mut d = vec![77.0; m * stride];
            Right::new((n, k), &half(&b), room).multiply(m, &half(&a), &mut d, stride);
            for (at, (c, d)) in c.iter().zip(&d).enumerate() {
                let (i, j) = (at / stride, at % stride);
                let expected = if j < n { product(i, j) } else { 77 };
                assert_eq!((*c, *d), (expected, expected as f32), "{m} {n} {k} {i} {j}");
            }
        }
    }
}
