//! Does an encoder tell a sentence from one with the same words that means something else?
//!
//! Queries are the sentences of other languages; beside their English translation stand sentences
//! that differ from it in word order, in names, in a number or in a negation alone
//! ([`crate::data::perturb`]). The measure of retrieval is that of xsim++ (Chen et al., ACL 2023):
//! the nearest of all English sentences and all perturbed ones must be the translation. A tie is an
//! error: an encoder that does not look at the order of words gives a sentence and its permutation
//! one embedding.

use std::collections::{BTreeMap, HashMap, HashSet};

use rayon::prelude::*;

use super::EvalError;
use super::set::{EvalSet, Line};
use crate::data::perturb::{Kind, perturb};
use laser_kernels::math::l2_normalize;
use laser_kernels::training::Arithmetic;

/// Cosines that differ by less are equal.
const TIE: f32 = 1e-6;

/// Right answers among all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of right answers.
    pub right: usize,
    /// Number of questions.
    pub of: usize,
}

impl Share {
    fn count(&mut self, right: bool) {
        self.right += usize::from(right);
        self.of += 1;
    }

    /// From 0 to 1; none if there is nothing to be right about.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        (self.of > 0).then(|| self.right as f64 / self.of as f64)
    }
}

/// Results of one language.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Translation against one perturbed sentence of the kind.
    pub kinds: BTreeMap<Kind, Share>,
    /// Translation against all of its own perturbed sentences.
    pub own: Share,
    /// Translation against all English sentences and all perturbed ones.
    pub retrieval: Share,
}

/// The perturbed sentences of a set.
#[derive(Clone, Debug, Default)]
pub struct Perturbed {
    /// Perturbed sentences, whose embeddings are needed.
    pub texts: Vec<String>,
    /// Those of a text of the pivot language: kind and position.
    of: HashMap<u32, Vec<(Kind, u32)>>,
}

impl Perturbed {
    /// Of all sentences of `pivot`, which the rules of [`perturb`] are for; those that are sentences
    /// of the set themselves are left out.
    #[must_use]
    pub fn new(set: &EvalSet, pivot: &str) -> Self {
        let mut perturbed = Self::default();
        let lines = set.languages().get(pivot).map_or(&[][..], Vec::as_slice);
        let known: HashSet<&str> = lines
            .iter()
            .map(|l| &*set.texts()[l.text as usize])
            .collect();
        for line in lines {
            if perturbed.of.contains_key(&line.text) {
                continue;
            }
            let mut own = Vec::new();
            for (kind, text) in perturb(&set.texts()[line.text as usize], 0) {
                if !known.contains(&*text) {
                    own.push((kind, perturbed.texts.len() as u32));
                    perturbed.texts.push(text);
                }
            }
            perturbed.of.insert(line.text, own);
        }
        perturbed
    }
}

/// Counts by language. `embeddings` are those of the set's texts, `others` those of the perturbed
/// ones, rows of `dimensions` values.
///
/// # Errors
/// [`EvalError::Config`] if the set has no sentences of `pivot` or a matrix has the wrong shape.
pub fn order(
    set: &EvalSet,
    perturbed: &Perturbed,
    pivot: &str,
    dimensions: usize,
    (embeddings, others): (&[f32], &[f32]),
) -> Result<BTreeMap<String, Counts>, EvalError> {
    let fits = embeddings.len() == set.texts().len() * dimensions
        && others.len() == perturbed.texts.len() * dimensions;
    let Some(pivots) = set.languages().get(pivot).filter(|_| fits) else {
        let message = format!(
            "{}: no sentences of \"{pivot}\", or too few values",
            set.name()
        );
        return Err(EvalError::Config(message));
    };
    let mut of_key: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut candidates: Vec<u32> = Vec::new();
    let mut column: HashMap<u32, usize> = HashMap::new();
    for line in pivots {
        of_key.entry(line.key).or_default().push(line.text);
        column.entry(line.text).or_insert_with(|| {
            candidates.push(line.text);
            candidates.len() - 1
        });
    }
    let unit = |row: &[f32]| -> Vec<f32> {
        let mut unit = row.to_vec();
        l2_normalize(&mut unit);
        unit
    };
    let row = |text: u32| unit(&embeddings[text as usize * dimensions..][..dimensions]);
    let mut matrix: Vec<f32> = candidates.iter().flat_map(|text| row(*text)).collect();
    matrix.extend(others.chunks_exact(dimensions).flat_map(unit));
    let columns = matrix.len() / dimensions;
    let is_query = |l: &&Line| {
        let targets = of_key.get(&l.key).into_iter().flatten();
        targets.clone().any(|t| !perturbed.of[t].is_empty())
    };
    let languages = set.languages().par_iter().filter(|(l, _)| *l != pivot);
    let counts = languages.map(|(language, lines)| {
        let mut counts = Counts::default();
        let queries: Vec<&Line> = lines.iter().filter(is_query).collect();
        for block in queries.chunks(256) {
            let x: Vec<f32> = block.iter().flat_map(|l| row(l.text)).collect();
            let mut cosines = vec![0f32; block.len() * columns];
            let sizes = (block.len(), columns, dimensions);
            Arithmetic::F32.nt(sizes, &x, &matrix, &mut cosines, false);
            for (line, cosines) in block.iter().zip(cosines.chunks_exact(columns)) {
                let targets = &of_key[&line.key];
                let places: Vec<usize> = targets.iter().map(|t| column[t]).collect();
                let best = places.iter().map(|p| cosines[*p]).fold(f32::MIN, f32::max);
                let beats = |cosine: f32| best > cosine + TIE;
                let mut own = true;
                for (kind, other) in targets.iter().flat_map(|t| &perturbed.of[t]) {
                    let right = beats(cosines[candidates.len() + *other as usize]);
                    counts.kinds.entry(*kind).or_default().count(right);
                    own &= right;
                }
                counts.own.count(own);
                let all = cosines.iter().enumerate();
                let right = all
                    .filter(|(i, _)| !places.contains(i))
                    .all(|(_, c)| beats(*c));
                counts.retrieval.count(right);
            }
        }
        (language.clone(), counts)
    });
    Ok(counts.filter(|(_, c)| c.own.of > 0).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Group;

    #[test]
    fn ties_and_nearer_sentences_are_errors() {
        let groups = vec![
            Group::of("0", &[("en", "dogs then bite"), ("de", "x"), ("fr", "y")]),
            Group::of("1", &[("en", "She is 7."), ("de", "z")]),
            Group::of("2", &[("en", "she"), ("de", "w")]),
        ];
        let set = EvalSet::new("test", groups).expect("set");
        let perturbed = Perturbed::new(&set, "en");
        assert_eq!(perturbed.texts.len(), 3, "{:?}", perturbed.texts);
        assert_eq!(perturbed.texts[0], "bite then dogs");
        let rows = |angles: &[f32]| -> Vec<f32> {
            angles
                .iter()
                .flat_map(|a| [2.0 * a.cos(), 2.0 * a.sin()])
                .collect()
        };
        // dogs, x, y, She, z, she, w; the others are: order of 0, number of 1, negation of 1.
        let embeddings = rows(&[0.0, 0.1, 0.4, 1.0, 1.1, 2.0, 2.0]);
        let others = rows(&[0.8, 1.0, 1.4]);
        let found = order(&set, &perturbed, "en", 2, (&embeddings, &others)).expect("counts");
        let share = |right, of| Share { right, of };
        let de = &found["de"];
        assert_eq!(de.kinds[&Kind::Order], share(1, 1));
        assert_eq!(de.kinds[&Kind::Number], share(0, 1));
        assert_eq!(de.kinds[&Kind::Negation], share(1, 1));
        assert_eq!((de.own, de.retrieval), (share(1, 2), share(1, 2)));
        // Nothing is perturbed under key 2, and "y" is as near to the permutation.
        assert_eq!(found["fr"].own, share(0, 1));
        assert!(order(&set, &perturbed, "xx", 2, (&embeddings, &others)).is_err());
        assert!(order(&set, &perturbed, "en", 3, (&embeddings, &others)).is_err());
    }
}
