//! The types of a vocabulary over which the softmax of one batch goes (Jean et al., ACL 2015: "On Using Very Large Target
//! Vocabulary for Neural Machine Translation", section 3).
//!
//! The types that the batch's targets have are all there, and of the others some, drawn uniformly and without replacement,
//! each of which stands for as many as were left out for it: `log((others) / (drawn))` is added to its logit. So the sum of
//! exponentials that a softmax divides by is right in the mean, and exact where all others are drawn.

use rand::SeedableRng;
use rand::seq::index;
use rand_chacha::ChaCha8Rng;

/// Types of a vocabulary, each once.
#[derive(Debug)]
pub(super) struct Types {
    /// Those of the targets, ascending, and then the others.
    ids: Vec<u32>,
    targets: usize,
    /// What is added to the logits of the others.
    correction: f32,
}

impl Types {
    /// The types of `targets` and `samples` others of a vocabulary; `None` if these are all, or none are to be drawn.
    pub(super) fn draw(
        targets: &[u32],
        vocabulary: usize,
        samples: usize,
        seed: u64,
    ) -> Option<Self> {
        let mut ids = targets.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let others = vocabulary - ids.len();
        if samples == 0 || samples >= others {
            return None;
        }
        let targets = ids.len();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // The n-th type that no target has: n and the targets' types before it.
        let mut drawn = index::sample(&mut rng, others, samples).into_vec();
        drawn.sort_unstable();
        let mut before = 0;
        for n in drawn {
            while before < targets && ids[before] as usize <= n + before {
                before += 1;
            }
            ids.push((n + before) as u32);
        }
        Some(Self {
            ids,
            targets,
            correction: (others as f32 / samples as f32).ln(),
        })
    }

    /// Where the type of a target is among these.
    ///
    /// # Panics
    /// If no target has it.
    pub(super) fn place(&self, target: u32) -> usize {
        let place = self.ids[..self.targets].binary_search(&target);
        place.expect("the type of a target")
    }

    /// Rows of a table of the vocabulary, `width` values each.
    pub(super) fn rows(&self, table: &[f32], width: usize) -> Vec<f32> {
        let rows = (self.ids.iter()).flat_map(|id| &table[*id as usize * width..][..width]);
        rows.copied().collect()
    }

    /// What is added to the logits, given what always is.
    pub(super) fn biases(&self, biases: &[f32]) -> Vec<f32> {
        let mut own = self.rows(biases, 1);
        own[self.targets..]
            .iter_mut()
            .for_each(|bias| *bias += self.correction);
        own
    }

    /// Adds rows of these types to those of the vocabulary.
    pub(super) fn add_to(&self, table: &mut [f32], rows: &[f32], width: usize) {
        for (id, row) in self.ids.iter().zip(rows.chunks_exact(width)) {
            laser_kernels::slices::add(row, &mut table[*id as usize * width..][..width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn types_are_there_once(
            targets in proptest::collection::vec(0u32..60, 0..40), samples in 1usize..60, seed: u64,
        ) {
            let mut distinct = targets.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let others = 60 - distinct.len();
            let Some(types) = Types::draw(&targets, 60, samples, seed) else {
                prop_assert!(samples >= others);
                return Ok(());
            };
            prop_assert_eq!(types.ids.len(), distinct.len() + samples);
            prop_assert!(targets.iter().all(|id| types.ids[types.place(*id)] == *id));
            let mut ids = types.ids.clone();
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!(ids.len(), types.ids.len());
            prop_assert!(ids.iter().all(|id| *id < 60));
        }
    }

    /// Each of the others comes as often, and the sum of exponentials is right in the mean.
    #[test]
    fn others_are_drawn_alike() {
        let (vocabulary, samples, runs) = (50, 8, 4000);
        let targets = [3, 7, 7, 48];
        let mut counts = vec![0; vocabulary];
        let logits: Vec<f32> = (0..vocabulary).map(|i| (i as f32 * 0.7).sin()).collect();
        let exact: f64 = logits.iter().map(|z| f64::from(*z).exp()).sum();
        let mut sum = 0.0;
        for seed in 0..runs {
            let types = Types::draw(&targets, vocabulary, samples, seed).unwrap();
            types.ids.iter().for_each(|id| counts[*id as usize] += 1);
            let own = types.biases(&logits);
            sum += own.iter().map(|z| f64::from(*z).exp()).sum::<f64>() / runs as f64;
        }
        let expected = runs as f64 * samples as f64 / (vocabulary - 3) as f64;
        for (id, count) in counts.into_iter().enumerate() {
            match targets.contains(&(id as u32)) {
                true => assert_eq!(count, runs),
                false => assert!((count as f64 / expected - 1.0).abs() < 0.25, "{id} {count}"),
            }
        }
        assert!((sum / exact - 1.0).abs() < 0.01, "{sum} {exact}");
    }
}
