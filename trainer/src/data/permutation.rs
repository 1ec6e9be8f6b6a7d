//! A pseudo-random permutation of `0..n` that needs no memory.
//!
//! A balanced Feistel network over the next even power of two, with cycle walking (Black and
//! Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, section 3). The sampler visits every
//! sentence of a stratum once before any a second time, and its position is one number.

use laser_sampling::mix;

/// Permutation of `0..n`.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    n: u64,
    half_bits: u32,
    key: u64,
}

const ROUNDS: u64 = 4;

impl Permutation {
    /// The permutation of `0..n` given by `key`. `n` must be at least 1 and below 2^62.
    #[must_use]
    pub fn new(n: u64, key: u64) -> Self {
        assert!((1..1 << 62).contains(&n), "permutation of {n} elements");
        let bits = 64 - (n - 1).leading_zeros();
        Self {
            n,
            half_bits: bits.div_ceil(2).max(1),
            key,
        }
    }

    /// Image of `index`, which must be below `n`.
    #[must_use]
    pub fn get(&self, index: u64) -> u64 {
        assert!(
            index < self.n,
            "index {index} of a permutation of {}",
            self.n
        );
        let mut value = self.round_trip(index);
        // The domain is at most four times `n`, so that few steps are expected; the walk ends
        // because it follows a cycle that contains `index` itself.
        while value >= self.n {
            value = self.round_trip(value);
        }
        value
    }

    fn round_trip(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let f = mix(right ^ mix(self.key.wrapping_add(round)));
            (left, right) = (right, (left ^ f) & mask);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_a_bijection(n in 1u64..3000, key: u64) {
            let p = Permutation::new(n, key);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let v = p.get(i) as usize;
                prop_assert!(!seen[v]);
                seen[v] = true;
            }
        }
    }

    #[test]
    fn keys_give_different_orders() {
        let a: Vec<u64> = (0..100).map(|i| Permutation::new(100, 1).get(i)).collect();
        let b: Vec<u64> = (0..100).map(|i| Permutation::new(100, 2).get(i)).collect();
        assert_ne!(a, b);
    }
}
