//! Retrieval among all languages at once: is the nearest sentence of any other language a translation?
//!
//! Harder than one language after the other: a sentence of a related language on the same subject must
//! not be nearer than the translation into a distant one. Queries are all lines whose key has another
//! language; candidates are the different sentences of all other languages in the file. A query is
//! right if the text that is retrieved is a text under its key.

use std::collections::{BTreeMap, HashMap, HashSet};

use laser_mining::knn;
use rayon::prelude::*;

use super::EvalError;
use super::set::EvalSet;

/// Queries of a language and how many were right by cosine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Queries in this language.
    pub queries: usize,
    /// Queries whose nearest neighbour is a translation.
    pub correct: usize,
}

/// Counts by language. `embeddings` is as for [`super::evaluate`].
///
/// # Errors
/// [`EvalError::Mining`] for embeddings of zero length or that are not finite, [`EvalError::Config`]
/// for a matrix of the wrong shape.
pub fn mixed(
    set: &EvalSet,
    dimensions: usize,
    embeddings: &[f32],
) -> Result<BTreeMap<String, Count>, EvalError> {
    if embeddings.len() != set.texts().len() * dimensions {
        return Err(EvalError::Config(format!(
            "{}: {} values for {} texts of {dimensions} dimensions",
            set.name(),
            embeddings.len(),
            set.texts().len()
        )));
    }
    let gather = |texts: &[u32]| -> Vec<f32> {
        let row = |text: &u32| {
            let at = *text as usize * dimensions;
            embeddings[at..at + dimensions].iter().copied()
        };
        texts.iter().flat_map(row).collect()
    };
    let counts = set.languages().par_iter().map(|(language, lines)| {
        let others = || {
            let other = |l: &&String| **l != *language;
            set.languages()
                .keys()
                .filter(other)
                .flat_map(|l| &set.languages()[l])
        };
        let mut right: HashMap<u32, HashSet<u32>> = HashMap::new();
        let mut candidates: Vec<u32> = Vec::new();
        let mut known = HashSet::new();
        for line in others() {
            right.entry(line.key).or_default().insert(line.text);
            if known.insert(line.text) {
                candidates.push(line.text);
            }
        }
        let queries: Vec<_> = lines
            .iter()
            .filter(|l| right.contains_key(&l.key))
            .collect();
        if queries.is_empty() {
            return Ok((language.clone(), Count::default()));
        }
        let texts: Vec<u32> = queries.iter().map(|l| l.text).collect();
        // Languages are measured in parallel, so that each search takes one thread.
        let options = knn::Options {
            threads: 1,
            ..knn::Options::default()
        };
        let (x, y) = (gather(&texts), gather(&candidates));
        let found = knn::forward((&x[..]).into(), (&y[..]).into(), dimensions, 1, &options)
            .map_err(|source| EvalError::Mining {
                set: set.name().to_owned(),
                source,
            })?;
        let is_right = |(row, line): &(usize, &&super::set::Line)| {
            let nearest = found.positions(*row).first();
            nearest.is_some_and(|n| right[&line.key].contains(&candidates[*n as usize]))
        };
        let count = Count {
            queries: queries.len(),
            correct: queries.iter().enumerate().filter(is_right).count(),
        };
        Ok((language.clone(), count))
    });
    counts
        .filter(|r| !matches!(r, Ok((_, Count { queries: 0, .. }))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Group;

    #[test]
    fn a_related_language_on_the_same_subject_is_an_error() {
        let groups = vec![
            Group::of("0", &[("en", "a"), ("de", "b"), ("ko", "c")]),
            Group::of("1", &[("en", "d"), ("de", "e"), ("ko", "f")]),
            Group::of("2", &[("nl", "g")]),
        ];
        let set = EvalSet::new("test", groups).expect("set");
        assert_eq!(set.texts(), ["a", "b", "c", "d", "e", "f", "g"]);
        // The German "b" lies beside the English "d"; Dutch is a candidate and no query.
        let angles = [0.0f32, 0.9, 0.1, 1.0, 1.3, 1.4, 3.0];
        let embeddings: Vec<f32> = angles.iter().flat_map(|a| [a.cos(), a.sin()]).collect();
        let counts = mixed(&set, 2, &embeddings).expect("counts");
        let count = |queries, correct| Count { queries, correct };
        let wanted = [
            ("de", count(2, 1)),
            ("en", count(2, 1)),
            ("ko", count(2, 2)),
        ];
        assert_eq!(counts, wanted.map(|(l, c)| (l.to_owned(), c)).into());
        assert!(mixed(&set, 2, &embeddings[2..]).is_err());
    }
}
