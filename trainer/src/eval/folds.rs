//! Cross-validation as SentEval does it (Conneau and Kiela, LREC 2018).

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::EvalError;
use super::classifier::{Classifier, Embedded, Examples, FitOptions, Target};

/// Weight decays that are tried.
pub const DECAYS: [f64; 4] = [1e-5, 1e-4, 1e-3, 1e-2];

/// Share of the training set that decides when the last classifier's training ends.
const HELD_OUT: f64 = 0.05;

/// Rows in `folds` parts that have the classes in equal proportions, in random order.
///
/// # Panics
/// If `folds` is 0.
#[must_use]
pub fn stratified(rows: &[u32], labels: &[u32], folds: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut shuffled = rows.to_vec();
    shuffled.shuffle(&mut rng);
    shuffled.sort_by_key(|r| labels[*r as usize]);
    let mut parts = vec![Vec::with_capacity(rows.len() / folds + 1); folds];
    for (i, row) in shuffled.into_iter().enumerate() {
        parts[i % folds].push(row);
    }
    parts
}

/// All rows but those of part `n`, and those.
fn split(parts: &[Vec<u32>], n: usize) -> (Vec<u32>, &[u32]) {
    let others = parts.iter().enumerate().filter(|(i, _)| *i != n);
    (
        others.flat_map(|(_, p)| p.iter().copied()).collect(),
        &parts[n],
    )
}

/// Embedded texts with their labels.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    /// Embeddings of texts or pairs.
    pub texts: Embedded<'a>,
    /// Class of each, below `classes`.
    pub labels: &'a [u32],
    /// Number of classes.
    pub classes: usize,
}

impl<'a> Data<'a> {
    fn examples(&self, rows: &'a [u32]) -> Examples<'a> {
        Examples {
            texts: self.texts,
            labels: self.labels,
            rows,
        }
    }

    /// A classifier that was trained on some rows and stopped early on others.
    ///
    /// # Errors
    /// Of [`Classifier::fit`].
    pub fn fit(
        &self,
        train: &[u32],
        dev: &[u32],
        options: &FitOptions,
    ) -> Result<Classifier, EvalError> {
        let (train, dev): (Examples<'_>, Examples<'_>) = (
            Examples {
                rows: train,
                ..self.examples(&[])
            },
            Examples {
                rows: dev,
                ..self.examples(&[])
            },
        );
        let measure = |c: &Classifier| c.accuracy(dev);
        Classifier::fit(train, self.classes, Target::Labels, options, &measure)
    }

    /// The weight decay with the best mean accuracy over folds of some rows.
    fn decay(&self, rows: &[u32], folds: usize, options: &FitOptions) -> Result<f64, EvalError> {
        let parts = stratified(rows, self.labels, folds, options.seed);
        let tried: Vec<(f64, usize)> = DECAYS
            .iter()
            .flat_map(|d| (0..folds).map(|n| (*d, n)))
            .collect();
        let figures = tried
            .par_iter()
            .map(|(l2, n)| {
                let (train, dev) = split(&parts, *n);
                let options = FitOptions {
                    l2: *l2,
                    ..options.clone()
                };
                Ok(self.fit(&train, dev, &options)?.dev)
            })
            .collect::<Result<Vec<f64>, EvalError>>()?;
        let mut best = (0.0, f64::NEG_INFINITY);
        for (decay, figures) in DECAYS.iter().zip(figures.chunks(folds)) {
            let sum: f64 = figures.iter().sum();
            if sum > best.1 {
                best = (*decay, sum);
            }
        }
        Ok(best.0)
    }

    /// A classifier for some rows: the weight decay is chosen by cross-validation, a twentieth of the
    /// rows tells when to stop.
    ///
    /// # Errors
    /// Of [`Classifier::fit`].
    pub fn fit_by_folds(
        &self,
        rows: &[u32],
        folds: usize,
        options: &FitOptions,
    ) -> Result<Classifier, EvalError> {
        let options = FitOptions {
            l2: self.decay(rows, folds, options)?,
            ..options.clone()
        };
        let parts = (1.0 / HELD_OUT) as usize;
        let parts = stratified(rows, self.labels, parts, options.seed ^ 1);
        let (train, dev) = split(&parts, 0);
        self.fit(&train, dev, &options)
    }

    /// A classifier whose weight decay is chosen on a dev set, which also tells when to stop.
    ///
    /// # Errors
    /// Of [`Classifier::fit`].
    pub fn fit_by_dev(
        &self,
        train: &[u32],
        dev: &[u32],
        options: &FitOptions,
    ) -> Result<Classifier, EvalError> {
        let fitted = DECAYS
            .par_iter()
            .map(|l2| {
                let options = FitOptions {
                    l2: *l2,
                    ..options.clone()
                };
                self.fit(train, dev, &options)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let better = |a: Classifier, b: Classifier| if b.dev > a.dev { b } else { a };
        fitted
            .into_iter()
            .reduce(better)
            .ok_or_else(|| EvalError::Config("no weight decay was tried".into()))
    }

    /// Mean accuracy over outer folds; each has a classifier by [`Data::fit_by_folds`] on all others.
    ///
    /// # Errors
    /// Of [`Classifier::fit`].
    pub fn nested(&self, folds: usize, options: &FitOptions) -> Result<f64, EvalError> {
        let rows: Vec<u32> = (0..self.labels.len() as u32).collect();
        let parts = stratified(&rows, self.labels, folds, options.seed);
        let figures = (0..folds)
            .into_par_iter()
            .map(|n| {
                let (train, test) = split(&parts, n);
                let classifier = self.fit_by_folds(&train, folds, options)?;
                Ok(classifier.accuracy(self.examples(test)))
            })
            .collect::<Result<Vec<f64>, EvalError>>()?;
        Ok(figures.iter().sum::<f64>() / folds as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;

    #[test]
    fn folds_have_the_classes_in_proportion_and_every_row_once() {
        let labels: Vec<u32> = (0..100).map(|i| u32::from(i < 30)).collect();
        let rows: Vec<u32> = (0..100).collect();
        let parts = stratified(&rows, &labels, 10, 3);
        for part in &parts {
            assert_eq!(part.len(), 10);
            let first = part.iter().filter(|r| labels[**r as usize] == 1).count();
            assert_eq!(first, 3, "{part:?}");
        }
        let mut all = parts.concat();
        all.sort_unstable();
        assert_eq!(all, rows);
        assert_ne!(parts, stratified(&rows, &labels, 10, 4));
    }

    #[test]
    fn nested_folds_measure_what_can_be_known() {
        let x = random(1200, 1.0, 1, 1);
        let separable: Vec<u32> = x.chunks(3).map(|p| u32::from(p[1] > 0.0)).collect();
        // Labels that have nothing to do with the embeddings.
        let coins = random(400, 1.0, 1, 2);
        let coins: Vec<u32> = coins.iter().map(|c| u32::from(*c > 0.0)).collect();
        let texts = Embedded {
            first: &x,
            second: None,
            width: 3,
        };
        let options = FitOptions {
            learning_rate: 0.05,
            epochs: 100,
            ..FitOptions::default()
        };
        let accuracy = |labels: &[u32]| {
            let data = Data {
                texts,
                labels,
                classes: 2,
            };
            data.nested(4, &options).unwrap()
        };
        let known = accuracy(&separable);
        assert!(known > 0.93, "{known}");
        let unknown = accuracy(&coins);
        assert!((unknown - 0.5).abs() < 0.1, "{unknown}");
    }
}
