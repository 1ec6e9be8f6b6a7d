//! Dropout whose mask is a function of a seed and the position, so that the backward pass makes
//! it again instead of keeping it.

use laser_cpu::simd;

simd! {
    fn apply(x: &mut [f32], first: u32, threshold: u32, keep: f32, seed: u32) {
        for (i, v) in x.iter_mut().enumerate() {
            // Finaliser of MurmurHash3 over the position.
            let mut h = first.wrapping_add(i as u32).wrapping_mul(0x9e37_79b9) ^ seed;
            h ^= h >> 16;
            h = h.wrapping_mul(0x85eb_ca6b);
            h ^= h >> 13;
            h = h.wrapping_mul(0xc2b2_ae35);
            h ^= h >> 16;
            *v = if h < threshold { 0.0 } else { *v * keep };
        }
    }
}

/// Sets each element to zero with probability `rate` and scales the others by `1 / (1 − rate)`.
/// The same seed zeroes the same positions. A rate of 0 changes nothing.
pub fn dropout(x: &mut [f32], rate: f32, seed: u64) {
    dropout_from(0, x, rate, seed);
}

/// [`dropout`] of a part of a longer slice that begins at position `first`.
pub fn dropout_from(first: usize, x: &mut [f32], rate: f32, seed: u64) {
    if rate > 0.0 {
        let threshold = (f64::from(rate) * 2f64.powi(32)) as u32;
        apply(
            x,
            first as u32,
            threshold,
            1.0 / (1.0 - rate),
            (seed ^ (seed >> 32)) as u32,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_and_the_mask_repeats() {
        let mut a = vec![1.0; 100_000];
        let mut b = vec![1.0; 100_000];
        dropout(&mut a, 0.3, 7);
        dropout(&mut b, 0.3, 7);
        assert_eq!(a, b);
        let zeros = a.iter().filter(|x| **x == 0.0).count() as f64 / 1e5;
        assert!((zeros - 0.3).abs() < 0.01, "{zeros}");
        let mean = a.iter().sum::<f32>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        let mut part = vec![1.0; 100];
        dropout_from(77, &mut part, 0.3, 7);
        assert_eq!(part, a[77..177]);
        dropout(&mut b, 0.3, 8);
        assert_ne!(a, b);
    }
}
