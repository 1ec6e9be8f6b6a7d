//! Gaussian clusters of length 1 that need no memory: each row is made whenever it is wanted.

use std::borrow::Cow;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Rows, normal, normalize};

/// Points around centres of which the components are normal.
#[derive(Debug)]
pub struct Clusters {
    dimensions: usize,
    rows: usize,
    /// All components of the centres.
    centres: Vec<f32>,
    spread: f32,
}

impl Clusters {
    /// `rows` points around `centres` centres with a standard deviation of `spread`.
    pub fn new(rows: usize, dimensions: usize, centres: usize, spread: f32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        Self {
            dimensions,
            rows,
            centres: (0..centres * dimensions)
                .map(|_| normal(&mut rng))
                .collect(),
            spread,
        }
    }
}

impl Rows for Clusters {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn row(&self, i: usize) -> Cow<'_, [f32]> {
        let mut rng = ChaCha8Rng::seed_from_u64(i as u64);
        let centre = rng.random_range(0..self.centres.len() / self.dimensions);
        let centre = self.centres[centre * self.dimensions..].iter();
        let mut row: Vec<f32> = centre
            .take(self.dimensions)
            .map(|x| x + self.spread * normal(&mut rng))
            .collect();
        normalize(&mut row);
        Cow::Owned(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_same_whenever_they_are_made_and_differ() {
        let clusters = Clusters::new(100, 8, 3, 0.3);
        assert_eq!(clusters.row(7), clusters.row(7));
        assert_ne!(clusters.row(7), clusters.row(8));
        let length: f32 = clusters.row(99).iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5);
    }
}
