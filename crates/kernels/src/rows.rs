//! What transformers do row by row: normalisation of sums, activations and gates, the exponentials of softmax.
#![allow(unsafe_code)]

use super::Isa;
use super::math;
use crate::Activation;

/// Scale and shift of a normalisation, with what is added to the variance.
pub struct Norm {
    /// Factor of each column.
    pub weight: Vec<f32>,
    /// Summand of each column.
    pub bias: Vec<f32>,
    /// Added to the variance.
    pub eps: f64,
    /// Whether the mean is taken away (layer normalisation; Ba et al., 2016), or the variance is that from zero (RMS
    /// normalisation; Zhang & Sennrich, NeurIPS 2019).
    pub centred: bool,
}

impl Norm {
    /// Layer normalisation.
    pub fn layer(weight: Vec<f32>, bias: Vec<f32>, eps: f64) -> Self {
        Self {
            weight,
            bias,
            eps,
            centred: true,
        }
    }

    /// RMS normalisation: a row is divided by the root of the mean of its squares, and shifted by nothing.
    pub fn rms(weight: Vec<f32>, eps: f64) -> Self {
        Self {
            bias: vec![0.0; weight.len()],
            weight,
            eps,
            centred: false,
        }
    }

    /// Normalises a row in place, after `residual` was added to it if there is one.
    ///
    /// # Panics
    /// If the row or the residual is not as long as the weights.
    pub fn apply(&self, isa: Isa, row: &mut [f32], residual: Option<&[f32]>) {
        let n = self.weight.len();
        assert!(row.len() == n && self.bias.len() == n, "row to normalise");
        assert!(residual.is_none_or(|r| r.len() == n), "residual");
        match isa {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `isa` says that the instructions are there; lengths are equal.
            Isa::Avx512 => unsafe { x86::avx512::normalize(self, row, residual) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Isa::Avx2 => unsafe { x86::avx2::normalize(self, row, residual) },
            _ => {
                if let Some(residual) = residual {
                    row.iter_mut().zip(residual).for_each(|(x, r)| *x += r);
                }
                let norm = match self.centred {
                    true => math::layer_norm,
                    false => math::rms_norm,
                };
                norm(row, &self.weight, &self.bias, self.eps);
            }
        }
    }
}

/// Applies an activation in place. On vectors GELU has an absolute error below 1e-6 for each unit of
/// its argument, tanh one of 1e-6.
pub fn activate(isa: Isa, activation: Activation, values: &mut [f32]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` says that the instructions are there.
        Isa::Avx512 => unsafe { x86::avx512::activate(activation, values) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { x86::avx2::activate(activation, values) },
        _ => math::activate(activation, values),
    }
}

/// Activates a row in place and multiplies it by another one (gated linear units; Shazeer, 2020, arXiv:2002.05202),
/// as exact as [`activate`].
///
/// # Panics
/// If the rows differ in length.
pub fn gate(isa: Isa, activation: Activation, row: &mut [f32], by: &[f32]) {
    assert_eq!(row.len(), by.len(), "rows of a gate");
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` says that the instructions are there.
        Isa::Avx512 => unsafe { x86::avx512::gate(activation, row, by) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { x86::avx2::gate(activation, row, by) },
        _ => {
            math::activate(activation, row);
            row.iter_mut().zip(by).for_each(|(x, y)| *x *= y);
        }
    }
}

/// Replaces a row by `e^(x - m)`, m being its largest value, and returns the sum: the softmax but for
/// the division by it. Values below the largest by more than 27 count as 27 less.
pub fn exponentials(isa: Isa, row: &mut [f32]) -> f32 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `isa` says that the instructions are there.
        Isa::Avx512 => unsafe { x86::avx512::exponentials(row) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { x86::avx2::exponentials(row) },
        _ => {
            let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for x in &mut *row {
                *x = (*x - largest).exp();
                sum += *x;
            }
            sum
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    /// The functions on vectors of the module's instructions.
    macro_rules! rows {
        ($module:ident, $features:literal) => {
            pub(super) mod $module {
                use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};

                use super::super::{Activation, Norm};
                use crate::approximate::ERF;
                use crate::x86::$module::*;

                /// Replaces each vector of a row by what `f` makes of it.
                #[inline]
                #[target_feature(enable = $features)]
                fn each(row: &mut [f32], f: impl Fn(Vector) -> Vector) {
                    let (whole, rest) = row.as_chunks_mut::<LANES>();
                    for x in whole {
                        // SAFETY: a chunk is a vector.
                        unsafe { store(x.as_mut_ptr(), f(load(x.as_ptr()))) };
                    }
                    if !rest.is_empty() {
                        let x = f(load_part(rest, 0.0));
                        store_part(rest, x);
                    }
                }

                /// Combines the vectors of a row; `fill` stands behind its end.
                #[inline]
                #[target_feature(enable = $features)]
                fn fold(
                    row: &[f32],
                    fill: f32,
                    start: f32,
                    f: impl Fn(Vector, Vector) -> Vector,
                    both: impl Fn(Vector, Vector) -> Vector,
                ) -> Vector {
                    // Several at once hide the time that each takes.
                    let mut acc = [set1(start); 4];
                    let (whole, rest) = row.as_chunks::<LANES>();
                    for (i, x) in whole.iter().enumerate() {
                        // SAFETY: a chunk is a vector.
                        acc[i % 4] = f(acc[i % 4], unsafe { load(x.as_ptr()) });
                    }
                    if !rest.is_empty() {
                        acc[0] = f(acc[0], load_part(rest, fill));
                    }
                    both(both(acc[0], acc[1]), both(acc[2], acc[3]))
                }

                /// # Safety
                /// The processor has the instructions; all slices have the length of the weights.
                #[target_feature(enable = $features)]
                pub unsafe fn normalize(norm: &Norm, row: &mut [f32], residual: Option<&[f32]>) {
                    let n = row.len() as f32;
                    if let Some(residual) = residual {
                        for (x, r) in row.iter_mut().zip(residual) {
                            *x += r;
                        }
                    }
                    let mean = if norm.centred {
                        sum(fold(row, 0.0, 0.0, |a, x| add(a, x), |a, b| add(a, b))) / n
                    } else {
                        0.0
                    };
                    let middle = set1(mean);
                    let square = |acc, x| {
                        let x = sub(x, middle);
                        fmadd(x, x, acc)
                    };
                    let squares = sum(fold(row, mean, 0.0, square, |a, b| add(a, b)));
                    let variance = f64::from(squares / n);
                    let scale = (1.0 / (variance + norm.eps).sqrt()) as f32;
                    for ((x, w), b) in row.iter_mut().zip(&norm.weight).zip(&norm.bias) {
                        *x = ((*x - mean) * scale).mul_add(*w, *b);
                    }
                }

                /// # Safety
                /// The processor has the instructions.
                #[target_feature(enable = $features)]
                pub unsafe fn exponentials(row: &mut [f32]) -> f32 {
                    let high = f32::NEG_INFINITY;
                    let high = fold(row, high, high, |a, x| max(a, x), |a, b| max(a, b));
                    let high = set1(largest(high));
                    // Several sums at once hide the time that an addition takes.
                    let mut sums = [set1(0.0); 4];
                    let (whole, rest) = row.as_chunks_mut::<LANES>();
                    for (i, x) in whole.iter_mut().enumerate() {
                        // SAFETY: a chunk is a vector.
                        unsafe {
                            let y = exp(sub(load(x.as_ptr()), high), LOG2_E);
                            store(x.as_mut_ptr(), y);
                            sums[i % 4] = add(sums[i % 4], y);
                        }
                    }
                    let both = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
                    if rest.is_empty() {
                        return sum(both);
                    }
                    let y = exp(sub(load_part(rest, 0.0), high), LOG2_E);
                    store_part(rest, y);
                    sum(both) + rest.iter().sum::<f32>()
                }

                /// x (1 + erf(x / √2)) / 2
                #[inline]
                #[target_feature(enable = $features)]
                fn gelu(x: Vector) -> Vector {
                    let one = set1(1.0);
                    let z = mul(x, set1(FRAC_1_SQRT_2));
                    let size = max(z, sub(set1(0.0), z));
                    let t = div(one, fmadd(size, set1(ERF.0), one));
                    let mut p = set1(ERF.1[0]);
                    for coefficient in &ERF.1[1..] {
                        p = fmadd(p, t, set1(*coefficient));
                    }
                    // e^(-z²) without the loss of z²'s last bits would change nothing here.
                    let tail = mul(mul(p, t), exp(mul(z, z), -LOG2_E));
                    // x/2 + |x|/2 (1 - tail), since erf is odd.
                    let half = mul(size, set1(std::f32::consts::FRAC_1_SQRT_2));
                    fmadd(half, sub(one, tail), mul(x, set1(0.5)))
                }

                #[inline]
                #[target_feature(enable = $features)]
                fn tanh(x: Vector) -> Vector {
                    let e = exp(x, 2.0 * LOG2_E);
                    div(sub(e, set1(1.0)), add(e, set1(1.0)))
                }

                /// # Safety
                /// The processor has the instructions.
                #[target_feature(enable = $features)]
                pub unsafe fn activate(activation: Activation, values: &mut [f32]) {
                    match activation {
                        Activation::None => {}
                        Activation::Tanh => each(values, |x| tanh(x)),
                        Activation::Relu => each(values, |x| max(x, set1(0.0))),
                        Activation::Gelu => each(values, |x| gelu(x)),
                        Activation::GeluTanh => each(values, |x| {
                            let cubic = fmadd(mul(x, x), set1(0.044_715), set1(1.0));
                            let inner = mul(mul(x, set1(0.797_884_6)), cubic);
                            mul(mul(x, set1(0.5)), add(set1(1.0), tanh(inner)))
                        }),
                    }
                }

                /// # Safety
                /// The processor has the instructions.
                #[target_feature(enable = $features)]
                pub unsafe fn gate(activation: Activation, row: &mut [f32], by: &[f32]) {
                    // SAFETY: passed on from the caller.
                    unsafe { activate(activation, row) };
                    for (x, y) in row.iter_mut().zip(by) {
                        *x *= y;
                    }
                }
            }
        };
    }
    rows!(avx2, "avx2,fma");
    rows!(avx512, "avx512f");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Numbers between -1 and 1.
    pub(crate) fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32)
            .map(|i| {
                let bits = (i + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9) >> 8;
                bits as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    #[test]
    fn activations_are_accurate() {
        let mut inputs = values(100_000, 3);
        for (i, x) in inputs.iter_mut().enumerate() {
            *x *= [0.1, 1.0, 5.0, 40.0, 1e4][i % 5];
        }
        for activation in [
            Activation::None,
            Activation::Tanh,
            Activation::Relu,
            Activation::Gelu,
            Activation::GeluTanh,
        ] {
            let mut exact = inputs.clone();
            math::activate(activation, &mut exact);
            for &isa in Isa::all() {
                let mut found = inputs.clone();
                activate(isa, activation, &mut found);
                for ((x, a), b) in inputs.iter().zip(&exact).zip(&found) {
                    let limit = 1e-6 * x.abs().max(1.0);
                    assert!(
                        (a - b).abs() <= limit,
                        "{isa:?} {activation:?} {x}: {a} {b}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_of_any_length_are_normalised() {
        for n in [1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 384, 769] {
            let norms = [
                Norm::layer(values(n, 5), values(n, 7), 1e-5),
                Norm::rms(values(n, 5), 1e-5),
            ];
            // Away from zero, so that taking the mean away makes a difference.
            let row: Vec<f32> = values(n, 11).iter().map(|x| x + 0.5).collect();
            let residual = values(n, 13);
            for (norm, residual) in norms
                .iter()
                .flat_map(|norm| [(norm, None), (norm, Some(&residual[..]))])
            {
                let mut exact = row.clone();
                norm.apply(Isa::Portable, &mut exact, residual);
                for &isa in Isa::all() {
                    let mut found = row.clone();
                    norm.apply(isa, &mut found, residual);
                    for (a, b) in exact.iter().zip(&found) {
                        assert!((a - b).abs() < 1e-5, "{isa:?} {n}: {a} {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn rms_norm_is_that_of_the_definition() {
        let (row, weight) = (values(100, 3), values(100, 5));
        let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
        let root = (squares / 100.0 + 1e-6).sqrt();
        let norm = Norm::rms(weight.clone(), 1e-6);
        for &isa in Isa::all() {
            let mut found = row.clone();
            norm.apply(isa, &mut found, None);
            for ((x, w), y) in row.iter().zip(&weight).zip(&found) {
                let exact = f64::from(*x) / root * f64::from(*w);
                assert!((exact - f64::from(*y)).abs() < 1e-6, "{isa:?}: {exact} {y}");
            }
        }
    }

    #[test]
    fn gates_are_activated_and_multiplied() {
        for n in [1, 7, 16, 33, 100] {
            let (row, by) = (values(n, 3), values(n, 5));
            for activation in [Activation::Gelu, Activation::GeluTanh] {
                let mut exact = row.clone();
                math::activate(activation, &mut exact);
                for &isa in Isa::all() {
                    let mut found = row.clone();
                    gate(isa, activation, &mut found, &by);
                    for ((a, by), b) in exact.iter().zip(&by).zip(&found) {
                        assert!((a * by - b).abs() < 1e-6, "{isa:?} {n}: {a} {by} {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn exponentials_are_accurate() {
        for n in [1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 512] {
            for scale in [0.0, 1.0, 10.0, 1e3, 1e30] {
                let row: Vec<f32> = values(n, 3).iter().map(|x| x * scale).collect();
                let high = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exact: Vec<f64> = row.iter().map(|x| f64::from(x - high).exp()).collect();
                let sum: f64 = exact.iter().sum();
                for &isa in Isa::all() {
                    let mut found = row.clone();
                    let total = f64::from(exponentials(isa, &mut found));
                    assert!(
                        (total / sum - 1.0).abs() < 1e-5,
                        "{isa:?} {n}: {total} {sum}"
                    );
                    for (a, b) in exact.iter().zip(&found) {
                        let error = (a - f64::from(*b)).abs();
                        assert!(error < 1e-6, "{isa:?} {n} {scale}: {a} {b}");
                    }
                }
            }
        }
    }
}
