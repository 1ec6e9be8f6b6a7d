//! Rotary position embeddings (Su et al., 2021, arXiv:2104.09864): queries and keys are turned by angles that grow with
//! the position, so that their products depend on the distance between two tokens alone.
#![allow(unsafe_code)]

use super::Isa;

/// Cosines and sines of the angles of all positions.
pub struct Rotary {
    /// Pairs of a head.
    half: usize,
    /// [positions, half]
    cos: Vec<f32>,
    /// [positions, half]
    sin: Vec<f32>,
}

impl Rotary {
    /// For heads of `size` values: the values i and `size / 2 + i` are a pair, which position p turns by
    /// `p base^(-2 i / size)`. In f32, as transformers: its rounding of large angles belongs to the models.
    ///
    /// # Panics
    /// If `size` is odd.
    pub fn new(size: usize, base: f64, positions: usize) -> Self {
        assert!(size.is_multiple_of(2), "pairs of values");
        let half = size / 2;
        let frequency = |i: usize| {
            let power = (2 * i) as f32 / size as f32;
            1.0 / base.powf(f64::from(power)) as f32
        };
        let frequencies: Vec<f32> = (0..half).map(frequency).collect();
        let angles = || {
            let rows = (0..positions).map(|position| position as f32);
            rows.flat_map(|position| frequencies.iter().map(move |f| f64::from(position * f)))
        };
        Self {
            half,
            cos: angles().map(|angle| angle.cos() as f32).collect(),
            sin: angles().map(|angle| angle.sin() as f32).collect(),
        }
    }

    /// Turns each of some heads, which lie one behind the other.
    ///
    /// # Panics
    /// If there is no such position, or `heads` is no number of whole heads.
    pub fn apply(&self, isa: Isa, position: usize, heads: &mut [f32]) {
        let size = 2 * self.half;
        assert!(
            size == 0 || heads.len().is_multiple_of(size),
            "heads to turn"
        );
        let (cos, sin) = self.row(position);
        for head in heads.chunks_exact_mut(size.max(1)) {
            let (low, high) = head.split_at_mut(self.half);
            turn(isa, low, high, cos, sin);
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.cos[..]) + size_of_val(&self.sin[..])
    }

    /// Cosines and sines of a position.
    ///
    /// # Panics
    /// If there is no such position.
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let row = position * self.half..(position + 1) * self.half;
        (&self.cos[row.clone()], &self.sin[row])
    }
}

/// Turns the pairs `(low, high)`.
fn turn(isa: Isa, low: &mut [f32], high: &mut [f32], cos: &[f32], sin: &[f32]) {
    #[inline(always)]
    fn body(low: &mut [f32], high: &mut [f32], cos: &[f32], sin: &[f32]) {
        let angles = cos.iter().zip(sin);
        for ((x, y), (cos, sin)) in low.iter_mut().zip(high).zip(angles) {
            (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
        }
    }
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Portable {
        #[target_feature(enable = "avx2,fma")]
        fn inner(low: &mut [f32], high: &mut [f32], cos: &[f32], sin: &[f32]) {
            body(low, high, cos, sin);
        }
        // SAFETY: `isa` says that AVX2 and FMA are there.
        return unsafe { inner(low, high, cos, sin) };
    }
    let _ = isa;
    body(low, high, cos, sin);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::values;

    #[test]
    fn pairs_turn_as_complex_numbers() {
        for (size, base) in [(2, 100.0), (8, 10_000.0), (64, 1e6), (30, 10.0)] {
            let rotary = Rotary::new(size, base, 40);
            let heads = values(3 * size, 7);
            for (&isa, position) in Isa::all()
                .iter()
                .flat_map(|isa| [0, 1, 17, 39].map(|position| (isa, position)))
            {
                let mut found = heads.clone();
                rotary.apply(isa, position, &mut found);
                let rows = heads.chunks_exact(size).zip(found.chunks_exact(size));
                for (before, after) in rows {
                    for i in 0..size / 2 {
                        let angle = position as f64 * base.powf(-2.0 * i as f64 / size as f64);
                        let (sin, cos) = angle.sin_cos();
                        let (x, y) = (f64::from(before[i]), f64::from(before[size / 2 + i]));
                        for (exact, found) in [
                            (x * cos - y * sin, after[i]),
                            (x * sin + y * cos, after[size / 2 + i]),
                        ] {
                            let error = (exact - f64::from(found)).abs();
                            assert!(error < 2e-5, "{isa:?} {size} {position}: {exact} {found}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn products_depend_on_the_distance_alone() {
        let rotary = Rotary::new(16, 1e4, 100);
        let product = |a: usize, b: usize| -> f32 {
            let (mut x, mut y) = (values(16, 3), values(16, 5));
            rotary.apply(Isa::detect(), a, &mut x);
            rotary.apply(Isa::detect(), b, &mut y);
            x.iter().zip(&y).map(|(x, y)| x * y).sum()
        };
        assert!((product(3, 10) - product(80, 87)).abs() < 1e-4);
        assert!((product(3, 10) - product(10, 3)).abs() > 1e-2);
    }
}
