//! Dictionary induction: the translations of a word should be the nearest words of the other language
//! (Conneau et al., ICLR 2018).

use std::collections::{BTreeMap, BTreeSet};

use laser_kernels::slices::{dot, sum_of_squares};
use laser_mining::knn;
use rayon::prelude::*;

use super::EvalError;

/// How candidates are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ranking {
    /// Nearest neighbour by cosine.
    Nn,
    /// Cross-domain similarity local scaling: `2 cos(x, y) − r(x) − r(y)` with the mean cosines `r` to the ten
    /// nearest words of the other language (Conneau et al., ICLR 2018).
    Csls,
}

impl Ranking {
    /// Its name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nn => "nn",
            Self::Csls => "csls",
        }
    }
}

/// Neighbours in the mean of [`Ranking::Csls`].
const NEIGHBOURS: usize = 10;

/// Vectors of the words of two languages, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Space<'a> {
    /// [words, width] of the language that is translated.
    pub source: &'a [f32],
    /// [words, width] of the other one.
    pub target: &'a [f32],
    /// Width of a vector.
    pub width: usize,
}

/// Share of the source words of `dictionary` (positions of source words with those of their translations) one of
/// whose translations is among the nearest `n`, for each `n` of `at`.
///
/// # Errors
/// [`EvalError::Mining`] for vectors that are zero or not finite, [`EvalError::Config`] for an empty
/// dictionary.
pub fn precision(
    space: Space<'_>,
    dictionary: &BTreeMap<u32, BTreeSet<u32>>,
    ranking: Ranking,
    at: &[usize],
) -> Result<Vec<f64>, EvalError> {
    if dictionary.is_empty() {
        let message = "no entry of the dictionary has vectors of both words";
        return Err(EvalError::Config(message.into()));
    }
    let Space {
        source,
        target,
        width,
    } = space;
    // Half of r(y): `cos(x, y) − r(y) / 2` has the order of CSLS for one x.
    let penalty: Vec<f32> = match ranking {
        Ranking::Nn => vec![0.0; target.len() / width],
        Ranking::Csls => {
            let options = knn::Options::default();
            let found = knn::forward(target.into(), source.into(), width, NEIGHBOURS, &options)
                .map_err(|source| EvalError::Mining {
                    set: "words".into(),
                    source,
                })?;
            let half = |row: usize| (found.mean(row) / 2.0) as f32;
            (0..target.len() / width).map(half).collect()
        }
    };
    let inverse: Vec<f32> = target
        .chunks_exact(width)
        .map(|row| 1.0 / sum_of_squares(row).sqrt().max(f32::MIN_POSITIVE))
        .collect();
    let most = at.iter().copied().max().unwrap_or(1);
    // The rank of the best translation: how many candidates are before it.
    let ranks: Vec<usize> = dictionary
        .par_iter()
        .map(|(word, translations)| {
            let x = &source[*word as usize * width..(*word as usize + 1) * width];
            let length = 1.0 / sum_of_squares(x).sqrt().max(f32::MIN_POSITIVE);
            let score = |i: usize| {
                let y = &target[i * width..(i + 1) * width];
                dot(x, y) * length * inverse[i] - penalty[i]
            };
            let best = translations
                .iter()
                .map(|i| score(*i as usize))
                .fold(f32::NEG_INFINITY, f32::max);
            let mut before = 0;
            for i in 0..inverse.len() {
                // Equal scores count against the translation.
                if !translations.contains(&(i as u32)) && score(i) >= best {
                    before += 1;
                    if before >= most {
                        break;
                    }
                }
            }
            before
        })
        .collect();
    let share = |n: &usize| {
        let right = ranks.iter().filter(|r| *r < n).count();
        right as f64 / ranks.len() as f64
    };
    Ok(at.iter().map(share).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directions(angles: &[f32]) -> Vec<f32> {
        angles.iter().flat_map(|a| [a.cos(), a.sin()]).collect()
    }

    #[test]
    fn a_hub_is_passed_over_by_csls() {
        // Ten words (e_i + 1.1 e_10); the translation of each is e_i, the hub e_10 is nearer.
        let width = 11;
        let unit = |i: usize| (0..width).map(move |k| f32::from(u8::from(k == i)));
        let word = |i: usize| unit(i).zip(unit(10)).map(|(own, hub)| own + 1.1 * hub);
        let source: Vec<f32> = (0..10).flat_map(word).collect();
        let target: Vec<f32> = (0..11).flat_map(unit).collect();
        let space = Space {
            source: &source,
            target: &target,
            width,
        };
        let dictionary = (0..10u32).map(|i| (i, BTreeSet::from([i]))).collect();
        let at = |ranking| precision(space, &dictionary, ranking, &[1, 2]).unwrap();
        assert_eq!(at(Ranking::Nn), [0.0, 1.0]);
        assert_eq!(at(Ranking::Csls), [1.0, 1.0]);
    }

    #[test]
    fn one_of_several_translations_is_enough_and_ties_are_errors() {
        let source = directions(&[0.0, 1.0]);
        let target = directions(&[0.1, 1.1, 1.1, 2.0]);
        let space = Space {
            source: &source,
            target: &target,
            width: 2,
        };
        let entry = |word: u32, translations: &[u32]| -> (u32, BTreeSet<u32>) {
            (word, translations.iter().copied().collect())
        };
        let at = |entries: Vec<(u32, BTreeSet<u32>)>| {
            let dictionary = entries.into_iter().collect();
            precision(space, &dictionary, Ranking::Nn, &[1, 2]).unwrap()
        };
        assert_eq!(at(vec![entry(0, &[0, 3])]), [1.0, 1.0]);
        assert_eq!(at(vec![entry(1, &[1])]), [0.0, 1.0]);
        assert_eq!(at(vec![entry(0, &[0]), entry(1, &[1, 2])]), [1.0, 1.0]);
        assert!(precision(space, &BTreeMap::new(), Ranking::Nn, &[1]).is_err());
    }
}
