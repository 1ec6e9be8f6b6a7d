//! Similarity error (Schwenk and Douze, 2017, section 4) and its complement, accuracy: is the
//! nearest sentence of the other language the translation?
//!
//! Queries are all lines of a language whose key has the other language too; candidates are all
//! different sentences of the other language in the file. A query is right if the text that is
//! retrieved is a text under its key, so that a sentence that occurs under two keys is no error.
//! By margin (Artetxe and Schwenk, ACL 2019) with four neighbours this is xsim.

use std::collections::{BTreeMap, HashMap};

use laser_kernels::slices::dot;
use laser_mining::{Margin, Neighbours, best, knn, unwatched};
use rayon::prelude::*;
use serde::Serialize;

use super::EvalError;
use super::set::{EvalSet, Line};

/// How candidates are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Cosine of the angle.
    Cosine,
    /// Euclidean distance.
    L2,
    /// Inner product.
    #[value(alias = "inner_product")]
    InnerProduct,
    /// Ratio margin over four neighbours (xsim).
    Margin,
    /// Distance margin over four neighbours.
    #[value(alias = "margin_distance")]
    MarginDistance,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Self; 5] = [
        Self::Cosine,
        Self::L2,
        Self::InnerProduct,
        Self::Margin,
        Self::MarginDistance,
    ];

    /// Name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::L2 => "l2",
            Self::InnerProduct => "inner_product",
            Self::Margin => "margin",
            Self::MarginDistance => "margin_distance",
        }
    }
}

/// Neighbours that margins look at.
const NEIGHBOURS: usize = 4;

/// Queries of one direction, and how many were right by each metric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Direction {
    /// Number of queries.
    pub queries: usize,
    /// Number of candidates each was compared with.
    pub candidates: usize,
    /// Right answers by metric.
    pub correct: BTreeMap<Metric, usize>,
}

impl Direction {
    /// Share of right answers, 0 to 1; NaN if there were no queries or the metric was not asked
    /// for.
    #[must_use]
    pub fn accuracy(&self, metric: Metric) -> f64 {
        self.correct
            .get(&metric)
            .map_or(f64::NAN, |c| *c as f64 / self.queries as f64)
    }
}

/// Results of a pair of languages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PairResult {
    /// One language.
    pub source: String,
    /// The other, the pivot where the set has it.
    pub target: String,
    /// Queries of `source`, candidates of `target`.
    pub forward: Direction,
    /// Queries of `target`, candidates of `source`.
    pub backward: Direction,
}

/// How often the nearest sentence is the translation, in a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SetResult {
    /// [`EvalSet::name`] of what was measured.
    pub name: String,
    /// The pivot; `None` if the set lacks it and all pairs of languages were measured.
    pub pivot: Option<String>,
    /// Every language with the pivot, or every pair of languages.
    pub pairs: Vec<PairResult>,
}

impl SetResult {
    /// Mean accuracy over pairs of languages that have at least `min_queries` queries: to the
    /// pivot, and from it. Without a pivot both are the mean over all directions. NaN without
    /// pairs.
    #[must_use]
    pub fn macro_accuracy(&self, metric: Metric, min_queries: usize) -> (f64, f64) {
        let mean = |pick: &dyn Fn(&PairResult) -> &Direction| {
            let values: Vec<f64> = self
                .pairs
                .iter()
                .map(pick)
                .filter(|d| d.queries >= min_queries.max(1))
                .map(|d| d.accuracy(metric))
                .collect();
            values.iter().sum::<f64>() / values.len() as f64
        };
        let (forward, backward) = (mean(&|p| &p.forward), mean(&|p| &p.backward));
        if self.pivot.is_some() {
            (forward, backward)
        } else {
            let both = (forward + backward) / 2.0;
            (both, both)
        }
    }
}

/// Measures a set. `embeddings` holds one row of `dimensions` values for each of the set's texts,
/// in their order; they need not be normalised.
///
/// # Errors
/// [`EvalError::Mining`] for embeddings of zero length or that are not finite,
/// [`EvalError::Config`] for a matrix of the wrong shape or a set of one language.
pub fn evaluate(
    set: &EvalSet,
    dimensions: usize,
    embeddings: &[f32],
    pivot: &str,
    metrics: &[Metric],
) -> Result<SetResult, EvalError> {
    if embeddings.len() != set.texts().len() * dimensions {
        return Err(EvalError::Config(format!(
            "{}: {} values for {} texts of {dimensions} dimensions",
            set.name(),
            embeddings.len(),
            set.texts().len()
        )));
    }
    let codes: Vec<&String> = set.languages().keys().collect();
    let has_pivot = set.languages().contains_key(pivot);
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    if has_pivot {
        wanted.extend(
            codes
                .iter()
                .filter(|c| **c != pivot)
                .map(|c| (c.as_str(), pivot)),
        );
    } else {
        for (i, a) in codes.iter().enumerate() {
            wanted.extend(codes[i + 1..].iter().map(|b| (a.as_str(), b.as_str())));
        }
    }
    if wanted.is_empty() {
        return Err(EvalError::Config(format!(
            "{} has fewer than two languages",
            set.name()
        )));
    }
    let matrix = Matrix {
        dimensions,
        values: embeddings,
    };
    let pairs = wanted
        .par_iter()
        .map(|(a, b)| measure(set, matrix, a, b, metrics))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .filter(|p| p.forward.queries > 0)
        .collect();
    let pivot = has_pivot.then(|| pivot.to_owned());
    Ok(SetResult {
        name: set.name().to_owned(),
        pivot,
        pairs,
    })
}

#[derive(Clone, Copy)]
struct Matrix<'a> {
    dimensions: usize,
    values: &'a [f32],
}

impl Matrix<'_> {
    fn gather(&self, texts: &[u32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(texts.len() * self.dimensions);
        for text in texts {
            let at = *text as usize * self.dimensions;
            out.extend_from_slice(&self.values[at..at + self.dimensions]);
        }
        out
    }
}

/// The different texts of a language, and for each key the positions among them.
struct Side {
    texts: Vec<u32>,
    by_key: HashMap<u32, Vec<u32>>,
    /// Position of the text of each line, with the key.
    lines: Vec<(u32, u32)>,
}

impl Side {
    fn new(lines: &[Line]) -> Self {
        let mut side = Self {
            texts: Vec::new(),
            by_key: HashMap::new(),
            lines: Vec::new(),
        };
        let mut known: HashMap<u32, u32> = HashMap::new();
        for line in lines {
            let position = *known.entry(line.text).or_insert_with(|| {
                side.texts.push(line.text);
                side.texts.len() as u32 - 1
            });
            side.by_key.entry(line.key).or_default().push(position);
            side.lines.push((line.key, position));
        }
        side
    }

    /// Compares what was retrieved for each text with the texts under the key of each line.
    fn score(&self, other: &Self, metric: Metric, nearest: &[Option<u32>], into: &mut Direction) {
        let mut queries = 0;
        let mut correct = 0;
        for (key, position) in &self.lines {
            let Some(gold) = other.by_key.get(key) else {
                continue;
            };
            queries += 1;
            correct += usize::from(nearest[*position as usize].is_some_and(|n| gold.contains(&n)));
        }
        into.queries = queries;
        into.candidates = other.texts.len();
        into.correct.insert(metric, correct);
    }
}

fn measure(
    set: &EvalSet,
    matrix: Matrix<'_>,
    source: &str,
    target: &str,
    metrics: &[Metric],
) -> Result<PairResult, EvalError> {
    let (a, b) = (
        Side::new(&set.languages()[source]),
        Side::new(&set.languages()[target]),
    );
    let (x, y) = (matrix.gather(&a.texts), matrix.gather(&b.texts));
    // Languages are measured in parallel, so that each search takes one thread.
    let options = knn::Options {
        threads: 1,
        ..knn::Options::default()
    };
    let failed = |source| EvalError::Mining {
        set: set.name().to_owned(),
        source,
    };
    let (forward, backward) =
        knn::both(&x, &y, matrix.dimensions, NEIGHBOURS, &options).map_err(failed)?;
    let mut result = PairResult {
        source: source.to_owned(),
        target: target.to_owned(),
        forward: Direction::default(),
        backward: Direction::default(),
    };
    for metric in metrics {
        let (there, back) = match metric {
            Metric::Cosine => (first(&forward), first(&backward)),
            Metric::Margin => by_margin(&forward, &backward, Margin::Ratio).map_err(failed)?,
            Metric::MarginDistance => {
                by_margin(&forward, &backward, Margin::Distance).map_err(failed)?
            }
            Metric::L2 => products(&x, &y, matrix.dimensions, true),
            Metric::InnerProduct => products(&x, &y, matrix.dimensions, false),
        };
        a.score(&b, *metric, &there, &mut result.forward);
        b.score(&a, *metric, &back, &mut result.backward);
    }
    Ok(result)
}

fn first(neighbours: &Neighbours) -> Vec<Option<u32>> {
    (0..neighbours.rows())
        .map(|row| neighbours.positions(row).first().copied())
        .collect()
}

type BothWays = (Vec<Option<u32>>, Vec<Option<u32>>);

fn by_margin(
    forward: &Neighbours,
    backward: &Neighbours,
    margin: Margin,
) -> Result<BothWays, laser_mining::Error> {
    let positions = |near: &Neighbours, far: &Neighbours| {
        let best = best(near, &far.means()?, margin, &unwatched)?;
        Ok::<_, laser_mining::Error>(best.into_iter().map(|b| b.map(|b| b.0)).collect())
    };
    Ok((positions(forward, backward)?, positions(backward, forward)?))
}

/// Nearest rows by inner product, or by Euclidean distance: |x - y|^2 = |x|^2 + |y|^2 - 2 xy, in
/// which the norm of the query does not matter.
fn products(x: &[f32], y: &[f32], dimensions: usize, euclidean: bool) -> BothWays {
    let rows = |m: &[f32]| -> Vec<f32> {
        let half = |r: &[f32]| if euclidean { dot(r, r) / 2.0 } else { 0.0 };
        m.chunks_exact(dimensions).map(half).collect()
    };
    let (half_x, half_y) = (rows(x), rows(y));
    let mut there = vec![None; half_x.len()];
    let mut back: Vec<Option<(f32, u32)>> = vec![None; half_y.len()];
    for (i, a) in x.chunks_exact(dimensions).enumerate() {
        let mut best: Option<(f32, u32)> = None;
        for (j, b) in y.chunks_exact(dimensions).enumerate() {
            let product = dot(a, b);
            let score = product - half_y[j];
            if best.is_none_or(|(s, _)| score > s) {
                best = Some((score, j as u32));
            }
            let score = product - half_x[i];
            if back[j].is_none_or(|(s, _)| score > s) {
                back[j] = Some((score, i as u32));
            }
        }
        there[i] = best.map(|b| b.1);
    }
    (there, back.into_iter().map(|b| b.map(|b| b.1)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Group;

    fn set(groups: &[&[(&str, &str)]]) -> EvalSet {
        let groups = groups
            .iter()
            .enumerate()
            .map(|(i, rows)| Group::of(&i.to_string(), rows))
            .collect();
        EvalSet::new("test", groups).expect("set")
    }

    /// Embeds `letter` + `digit`: the letter gives the direction, the digit a tilt.
    fn embed(texts: &[String]) -> Vec<f32> {
        texts
            .iter()
            .flat_map(|t| {
                let bytes = t.as_bytes();
                let angle = f32::from(bytes[0] - b'a') + f32::from(bytes[1] - b'0') * 0.01;
                let length = f32::from(bytes[2] - b'0');
                [angle.cos() * length, angle.sin() * length]
            })
            .collect()
    }

    #[test]
    fn equal_texts_are_no_errors_and_metrics_differ() {
        // Keys 0 and 1 have the same English text; key 2's second German line points elsewhere.
        let set = set(&[
            &[("en", "a01"), ("de", "a11")],
            &[("en", "a01"), ("de", "a21")],
            &[("en", "b01"), ("de", "b11"), ("de", "a31")],
            &[("fr", "c01"), ("de", "c11")],
        ]);
        let embeddings = embed(set.texts());
        let result = evaluate(&set, 2, &embeddings, "en", &Metric::ALL).expect("result");
        assert_eq!(result.pairs.len(), 1, "French has no key with English");
        let de = &result.pairs[0];
        assert_eq!((de.forward.queries, de.forward.candidates), (4, 2));
        assert_eq!(de.forward.correct[&Metric::Cosine], 3);
        assert_eq!(de.forward.correct[&Metric::L2], 3);
        assert_eq!((de.backward.queries, de.backward.candidates), (3, 5));
        assert_eq!(de.backward.correct[&Metric::Cosine], 2);
        let (forward, _) = result.macro_accuracy(Metric::Cosine, 1);
        assert!((forward - 0.75).abs() < 1e-9);
    }

    #[test]
    fn inner_product_prefers_long_vectors() {
        let set = set(&[
            &[("en", "a01"), ("de", "a11")],
            &[("en", "b09"), ("de", "b11")],
        ]);
        let embeddings = embed(set.texts());
        let result = evaluate(&set, 2, &embeddings, "en", &Metric::ALL).expect("result");
        let forward = &result.pairs[0].forward;
        assert_eq!(forward.correct[&Metric::Cosine], 2);
        assert_eq!(forward.correct[&Metric::InnerProduct], 1);
        assert_eq!(
            forward.correct[&Metric::L2],
            1,
            "the other sentence is nearer than the long one"
        );
    }

    #[test]
    fn distractors_are_candidates_and_no_queries() {
        let mut set = set(&[
            &[("en", "a01"), ("de", "a11")],
            &[("en", "b01"), ("de", "b11")],
        ]);
        // Nearer to "a11" than its translation, a text of the set, and one far away.
        let more = ["a12", "b01", "c01"].map(str::to_owned);
        set.distract("en", &more).expect("distractors");
        let result = evaluate(&set, 2, &embed(set.texts()), "en", &[Metric::Cosine]);
        let de = &result.expect("result").pairs[0];
        assert_eq!((de.forward.queries, de.forward.candidates), (2, 4));
        assert_eq!(de.forward.correct[&Metric::Cosine], 1);
        assert_eq!((de.backward.queries, de.backward.candidates), (2, 2));
        assert_eq!(de.backward.correct[&Metric::Cosine], 2);
    }

    #[test]
    fn without_the_pivot_all_pairs_are_measured() {
        let set = set(&[
            &[("it", "a01"), ("de", "a11"), ("fr", "a21")],
            &[("it", "b01"), ("de", "b11"), ("fr", "b21")],
        ]);
        let embeddings = embed(set.texts());
        let result = evaluate(&set, 2, &embeddings, "en", &[Metric::Cosine]).expect("result");
        assert_eq!((result.pairs.len(), result.pivot.as_deref()), (3, None));
        assert_eq!(result.macro_accuracy(Metric::Cosine, 1), (1.0, 1.0));
        assert!(evaluate(&set, 2, &embeddings[1..], "en", &[Metric::Cosine]).is_err());
    }
}
