//! Kernels on integer codes; those on floats are [`laser_vector::kernels`]. Each has one portable
//! definition and, on x86-64, vector ones that give the same number up to rounding (between
//! integers: exactly the same).
#![allow(unsafe_code)]

use std::sync::LazyLock;

use laser_cpu::Isa;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

/// An inner product of two vectors of the same length with components in -127..=127.
pub type DotI8 = fn(&[i8], &[i8]) -> i32;

static DOT_I8: LazyLock<DotI8> = LazyLock::new(|| {
    #[cfg(target_arch = "x86_64")]
    match Isa::detect() {
        Isa::Avx512 if laser_cpu::has_vnni() => {
            return |a, b| {
                assert_eq!(a.len(), b.len());
                // SAFETY: the CPU has AVX-512 with BW and VNNI, the lengths are equal.
                unsafe { avx512::dot_i8(a, b) }
            };
        }
        Isa::Avx512 | Isa::Avx2 => {
            return |a, b| {
                assert_eq!(a.len(), b.len());
                // SAFETY: the CPU has AVX2, the lengths are equal.
                unsafe { avx2::dot_i8(a, b) }
            };
        }
        Isa::Portable => {}
    }
    portable::dot_i8
});

/// The fastest inner product of integer codes on this machine: the walk over a graph calls it for
/// every vector that it sees, and does not want to ask each time what the CPU can do.
pub fn dot_i8() -> DotI8 {
    *DOT_I8
}

/// Rounds `x * factor` to the nearest of -127..=127.
#[inline]
pub fn round_i8(x: &[f32], factor: f32, out: &mut [i8]) {
    // Adding and taking away 1.5 * 2^23 rounds to an integer, ties to even, without a call.
    const MAGIC: f32 = 12_582_912.0;
    for (out, &x) in out.iter_mut().zip(x) {
        let rounded = (x * factor).clamp(-127.0, 127.0) + MAGIC - MAGIC;
        *out = rounded as i32 as i8;
    }
}

/// Inner product of a float vector with integer codes.
#[inline]
pub fn dot_f32_i8(a: &[f32], b: &[i8]) -> f32 {
    assert_eq!(a.len(), b.len());
    match Isa::detect() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx2 => {
            // SAFETY: the CPU has AVX2 and FMA, the lengths are equal.
            unsafe { avx2::dot_f32_i8(a, b) }
        }
        _ => portable::dot_f32_i8(a, b),
    }
}

/// Inner product of a float vector with twelve-bit components `16 * coarse + nibble`. Sixteen
/// components share eight bytes of `fine`: component `i < 8` of a group is the low half of byte `i`,
/// component `i + 8` its high half.
#[inline]
pub fn dot_f32_i12(a: &[f32], coarse: &[i8], fine: &[u8]) -> f32 {
    assert_eq!(a.len(), coarse.len());
    assert_eq!(fine.len(), a.len().div_ceil(16) * 8);
    let whole = a.len() / 16 * 16;
    let (head, rest) = a.split_at(whole);
    let (coarse, coarse_rest) = coarse.split_at(whole);
    let (fine, fine_rest) = fine.split_at(whole / 2);
    let sum = match Isa::detect() {
        // SAFETY: the CPU has AVX-512 F; `whole` is a multiple of 16 and the length of all three.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512::dot_f32_i12(head, coarse, fine) },
        // SAFETY: the CPU has AVX2 and FMA; as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2::dot_f32_i12(head, coarse, fine) },
        _ => portable::dot_f32_i12(head, coarse, fine),
    };
    sum + portable::dot_f32_i12(rest, coarse_rest, fine_rest)
}

/// What every machine can do.
mod portable {
    use super::nibble;

    pub fn dot_i8(a: &[i8], b: &[i8]) -> i32 {
        a.iter()
            .zip(b)
            .map(|(&x, &y)| i32::from(x) * i32::from(y))
            .sum()
    }

    pub fn dot_f32_i8(a: &[f32], b: &[i8]) -> f32 {
        a.iter().zip(b).map(|(x, &y)| x * f32::from(y)).sum()
    }

    pub fn dot_f32_i12(a: &[f32], coarse: &[i8], fine: &[u8]) -> f32 {
        let value = |i: usize| f32::from(i16::from(coarse[i]) * 16 + i16::from(nibble(fine, i)));
        a.iter().enumerate().map(|(i, a)| a * value(i)).sum()
    }
}

/// Component `i` of the packed half bytes.
#[inline]
pub fn nibble(fine: &[u8], i: usize) -> u8 {
    let byte = fine[i / 16 * 8 + i % 8];
    if i % 16 < 8 { byte & 15 } else { byte >> 4 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every implementation that this machine can run.
    fn dots() -> Vec<DotI8> {
        let mut all: Vec<DotI8> = vec![portable::dot_i8, dot_i8()];
        #[cfg(target_arch = "x86_64")]
        if Isa::detect() != Isa::Portable {
            // SAFETY: the CPU has AVX2, the slices have the same length.
            all.push(|a, b| unsafe { avx2::dot_i8(a, b) });
        }
        all
    }

    type DotI12 = fn(&[f32], &[i8], &[u8]) -> f32;

    /// The same for vectors whose length is a multiple of 16.
    fn twelves() -> Vec<DotI12> {
        let mut all: Vec<DotI12> = vec![portable::dot_f32_i12, dot_f32_i12];
        #[cfg(target_arch = "x86_64")]
        if Isa::detect() != Isa::Portable {
            // SAFETY: the CPU has AVX2 and FMA, the lengths are as they must be.
            all.push(|a, c, f| unsafe { avx2::dot_f32_i12(a, c, f) });
        }
        all
    }

    proptest! {
        #[test]
        fn agree_with_plain_sums(
            pairs in proptest::collection::vec((-1.0f32..1.0, -127i8..=127, -127i8..=127), 0..400)
        ) {
            let a: Vec<f32> = pairs.iter().map(|p| p.0).collect();
            let c: Vec<i8> = pairs.iter().map(|p| p.1).collect();
            let d: Vec<i8> = pairs.iter().map(|p| p.2).collect();
            let fine: Vec<u8> = (0..a.len().div_ceil(16) * 8).map(|i| (i * 37 + 11) as u8).collect();
            let ints: i32 = c.iter().zip(&d).map(|(x, y)| i32::from(*x) * i32::from(*y)).sum();
            for dot in dots() {
                prop_assert_eq!(dot(&c, &d), ints);
            }
            let mixed: f64 = a.iter().zip(&c).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            prop_assert!((f64::from(dot_f32_i8(&a, &c)) - mixed).abs() < 1e-2);
            let twelve = |n: usize| -> f64 {
                (0..n)
                    .map(|i| f64::from(a[i]) * f64::from(i32::from(c[i]) * 16 + i32::from(nibble(&fine, i))))
                    .sum()
            };
            prop_assert!((f64::from(dot_f32_i12(&a, &c, &fine)) - twelve(a.len())).abs() < 0.4);
            let whole = a.len() / 16 * 16;
            for dot in twelves() {
                let found = f64::from(dot(&a[..whole], &c[..whole], &fine[..whole / 2]));
                prop_assert!((found - twelve(whole)).abs() < 0.4);
            }
        }
    }

    /// The largest components, where a narrow sum would overflow.
    #[test]
    fn extremes_do_not_saturate() {
        for n in [63, 64, 65, 384, 5408] {
            let (a, b) = (vec![-127i8; n], vec![127i8; n]);
            for dot in dots() {
                assert_eq!(dot(&a, &b), -127 * 127 * n as i32);
                assert_eq!(dot(&a, &a), 127 * 127 * n as i32);
            }
        }
    }
}
