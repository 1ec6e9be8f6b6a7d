//! Sums, products and exponentials over slices of f32.
//!
//! The bodies are plain loops, which [`simd!`] compiles for every instruction set.
#![allow(
    clippy::needless_range_loop,
    reason = "kernels over several slices vectorise best as plain index loops"
)]

use laser_cpu::simd;

use crate::approximate::exp;

simd! {
    /// `Σ aᵢ bᵢ`, summed in 32 lanes.
    pub fn dot(a: &[f32], b: &[f32]) -> f32 {
        const LANES: usize = 32;
        let n = a.len().min(b.len());
        let (a, b) = (&a[..n], &b[..n]);
        let mut sums = [0f32; LANES];
        let (ca, cb) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
        let rest: f32 = ca.remainder().iter().zip(cb.remainder()).map(|(x, y)| x * y).sum();
        for (x, y) in ca.zip(cb) {
            for l in 0..LANES {
                sums[l] += x[l] * y[l];
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for l in 0..width {
                sums[l] += sums[l + width];
            }
            width /= 2;
        }
        sums[0] + rest
    }
}

/// `Σ aᵢ²`.
pub fn sum_of_squares(a: &[f32]) -> f32 {
    dot(a, a)
}

simd! {
    /// `Σ aᵢ bᵢ` in f64, where products of two f32 are exact. Sixteen sums side by side, for the compiler to keep in
    /// vectors; the order of additions is fixed, so equal rows give equal sums on every processor.
    pub fn dot_f64(a: &[f32], b: &[f32]) -> f64 {
        let mut sums = [0.0f64; 16];
        let (a, a_rest) = a.as_chunks::<16>();
        let (b, b_rest) = b.as_chunks::<16>();
        for (a, b) in a.iter().zip(b) {
            for lane in 0..16 {
                sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
            }
        }
        let rest: f64 = a_rest
            .iter()
            .zip(b_rest)
            .map(|(&a, &b)| f64::from(a) * f64::from(b))
            .sum();
        sums.iter().sum::<f64>() + rest
    }
}

simd! {
    /// `y += α x`.
    pub fn axpy(alpha: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += alpha * x;
        }
    }
}

simd! {
    /// `y += x`.
    pub fn add(x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

simd! {
    /// `y *= α`.
    pub fn scale(alpha: f32, y: &mut [f32]) {
        for y in y {
            *y *= alpha;
        }
    }
}

simd! {
    /// `average = decay · average + (1 − decay) · value`.
    pub fn average(decay: f32, value: &[f32], average: &mut [f32]) {
        for (a, v) in average.iter_mut().zip(value) {
            *a += (1.0 - decay) * (v - *a);
        }
    }
}

simd! {
    /// `x = e^x`, in place; returns the sum of the results.
    pub fn exp_in_place(x: &mut [f32]) -> f32 {
        const LANES: usize = 16;
        let mut sums = [0f32; LANES];
        let mut chunks = x.chunks_exact_mut(LANES);
        for chunk in &mut chunks {
            for l in 0..LANES {
                let e = exp(chunk[l]);
                chunk[l] = e;
                sums[l] += e;
            }
        }
        let mut rest = 0.0;
        for v in chunks.into_remainder() {
            *v = exp(*v);
            rest += *v;
        }
        sums.iter().sum::<f32>() + rest
    }
}

simd! {
    /// `Σ xᵢ`, summed in 32 lanes.
    pub fn sum(x: &[f32]) -> f32 {
        const LANES: usize = 32;
        let mut sums = [0f32; LANES];
        let chunks = x.chunks_exact(LANES);
        let rest: f32 = chunks.remainder().iter().sum();
        for chunk in chunks {
            for l in 0..LANES {
                sums[l] += chunk[l];
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for l in 0..width {
                sums[l] += sums[l + width];
            }
            width /= 2;
        }
        sums[0] + rest
    }
}

simd! {
    /// The largest element; -infinity of none.
    pub fn largest(x: &[f32]) -> f32 {
        const LANES: usize = 16;
        let mut best = [f32::NEG_INFINITY; LANES];
        let chunks = x.chunks_exact(LANES);
        let rest = chunks.remainder().iter().fold(f32::NEG_INFINITY, |b, v| b.max(*v));
        for chunk in chunks {
            for l in 0..LANES {
                best[l] = if chunk[l] > best[l] { chunk[l] } else { best[l] };
            }
        }
        best.iter().fold(rest, |b, v| b.max(*v))
    }
}

simd! {
    /// `x += value`, elementwise with one number.
    pub fn shift(value: f32, x: &mut [f32]) {
        for x in x {
            *x += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_matches_a_plain_sum() {
        for n in [0, 1, 31, 32, 33, 100] {
            let a: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
            let b: Vec<f32> = (0..n).map(|i| (i % 5) as f32).collect();
            let plain: f32 = a.iter().zip(&b).map(|(x, y)| x * y).sum();
            assert_eq!(dot(&a, &b), plain);
            assert_eq!(dot_f64(&a, &b), f64::from(plain));
            assert_eq!(sum(&a), a.iter().sum::<f32>());
        }
    }

    #[test]
    fn exp_in_place_sums_what_it_writes() {
        let mut x: Vec<f32> = (0..37).map(|i| i as f32 * 0.1 - 2.0).collect();
        let sum = exp_in_place(&mut x);
        assert!((sum - x.iter().sum::<f32>()).abs() < 1e-3);
    }
}
