//! The BUCC shared task (Zweigenbaum et al., 2017): find the translations hidden in two
//! monolingual texts, scored by precision, recall and F1.

use std::collections::HashMap;
use std::path::Path;

use laser_mining::{Bucc, Candidate, Margin, Retrieval, bucc, bucc_at, knn, select};
use serde::Serialize;

use super::EvalError;
use crate::data::input::{self, Line, Lines};
use crate::data::readers::Problems;
use crate::data::{DataError, Result as DataResult};

/// Sentences of one side; a text that occurs twice is kept under its first id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Side {
    /// Ids, parallel to the texts.
    pub ids: Vec<String>,
    /// Different texts, in the order of their first lines.
    pub texts: Vec<String>,
    /// Lines whose text had occurred before.
    pub repeats: usize,
}

/// Reads lines of two columns separated by a tab.
fn columns(
    path: &Path,
    problems: &mut Problems,
    each: &mut dyn FnMut(&str, &str),
) -> DataResult<()> {
    let mut lines = Lines::new(input::open(path)?);
    loop {
        let message = match lines.next_line().map_err(|e| DataError::io(path, e))? {
            Line::End => return Ok(()),
            Line::Malformed(message) => message,
            Line::Text(text) => match text.split_once('\t') {
                Some((a, b)) => {
                    each(a, b);
                    continue;
                }
                None => "expected two columns",
            },
        };
        problems.report(path, lines.number(), message)?;
    }
}

impl Side {
    /// Reads `id <TAB> text`.
    ///
    /// # Errors
    /// Of the file, and of malformed lines if `problems` is strict.
    pub fn read(path: &Path, problems: &mut Problems) -> DataResult<Self> {
        let mut side = Self::default();
        let mut known: HashMap<String, ()> = HashMap::new();
        columns(path, problems, &mut |id, text| {
            if known.insert(text.to_owned(), ()).is_some() {
                side.repeats += 1;
            } else {
                side.ids.push(id.to_owned());
                side.texts.push(text.to_owned());
            }
        })?;
        Ok(side)
    }
}

/// Reads gold pairs, `source id <TAB> target id`.
///
/// # Errors
/// As [`Side::read`].
pub fn read_gold(path: &Path, problems: &mut Problems) -> DataResult<Vec<(String, String)>> {
    let mut gold = Vec::new();
    columns(path, problems, &mut |a, b| {
        gold.push((a.to_owned(), b.trim_end().to_owned()))
    })?;
    Ok(gold)
}

/// Parameters of mining.
#[derive(Clone, Copy, Debug)]
pub struct BuccOptions {
    /// Margin that scores a pair (Artetxe and Schwenk, ACL 2019).
    pub margin: Margin,
    /// Which of the candidates become pairs.
    pub retrieval: Retrieval,
    /// Neighbours that the margin looks at.
    pub neighbours: usize,
    /// Extract pairs with at least this score instead of searching the best threshold.
    pub threshold: Option<f64>,
    /// Threads of the search, at least 1.
    pub threads: usize,
}

/// Scores and the pairs behind them.
#[derive(Clone, Debug, Serialize)]
pub struct BuccResult {
    /// Precision, recall and F1.
    #[serde(flatten)]
    pub score: Bucc,
    /// Mined pairs as score, source id and target id, best first.
    #[serde(skip)]
    pub pairs: Vec<(f64, String, String)>,
}

/// Mines `source` and `target`, whose embeddings are `x` and `y`, and compares with `gold`.
///
/// # Errors
/// [`EvalError::Mining`] for embeddings that cannot be compared.
pub fn evaluate(
    source: &Side,
    target: &Side,
    (x, y): (&[f32], &[f32]),
    dimensions: usize,
    gold: &[(String, String)],
    options: &BuccOptions,
) -> Result<BuccResult, EvalError> {
    let search = knn::Options {
        threads: options.threads,
        ..knn::Options::default()
    };
    let (forward, backward) =
        knn::both(x, y, dimensions, options.neighbours, &search).map_err(|source| {
            EvalError::Mining {
                set: "the BUCC texts".into(),
                source,
            }
        })?;
    let all = f64::NEG_INFINITY;
    let pairs = select(&forward, &backward, options.margin, options.retrieval, all);
    let number = |ids: &[String]| -> HashMap<String, i64> {
        ids.iter()
            .enumerate()
            .map(|(i, id)| (id.clone(), i as i64))
            .collect()
    };
    let (source_ids, target_ids) = (number(&source.ids), number(&target.ids));
    // A gold pair of an id that is not there (a repeat that was dropped) can never be found and
    // counts against recall; it needs a number of its own.
    let mut missing = -1;
    let mut find = |ids: &HashMap<String, i64>, id: &str| {
        ids.get(id).copied().unwrap_or_else(|| {
            missing -= 1;
            missing
        })
    };
    let gold: Vec<(i64, i64)> = gold
        .iter()
        .map(|(a, b)| (find(&source_ids, a), find(&target_ids, b)))
        .collect();
    let candidates: Vec<Candidate> = pairs
        .iter()
        .map(|p| Candidate {
            source: i64::from(p.source),
            target: i64::from(p.target),
            score: p.score,
        })
        .collect();
    let score = match options.threshold {
        Some(threshold) => bucc_at(&candidates, &gold, threshold),
        None => bucc(&candidates, &gold),
    };
    let pairs = pairs
        .iter()
        .map(|p| {
            let (a, b) = (p.source as usize, p.target as usize);
            (p.score, source.ids[a].clone(), target.ids[b].clone())
        })
        .collect();
    Ok(BuccResult { score, pairs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_hidden_pairs() {
        let folder = tempfile::tempdir().expect("folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("write");
            path
        };
        let de = write("de", "d1\teins\nd2\tzwei\nd3\teins\nbroken\nd4\tvier\n");
        let en = write("en", "e1\tone\ne2\ttwo\ne3\tnoise\n");
        let gold = write("gold", "d1\te1\nd2\te2\n");
        let mut problems = Problems::new(false);
        let source = Side::read(&de, &mut problems).expect("de");
        let target = Side::read(&en, &mut problems).expect("en");
        let gold = read_gold(&gold, &mut problems).expect("gold");
        assert_eq!(
            (source.ids.len(), source.repeats, problems.count()),
            (3, 1, 1)
        );
        let x = [1.0, 0.0, 0.0, 1.0, -0.7, -0.7];
        let y = [0.9, 0.1, 0.1, 0.9, -1.0, 0.1];
        let options = BuccOptions {
            margin: Margin::Absolute,
            retrieval: Retrieval::Max,
            neighbours: 2,
            threshold: None,
            threads: 1,
        };
        let result = evaluate(&source, &target, (&x, &y), 2, &gold, &options).expect("result");
        assert_eq!(
            (
                result.score.correct,
                result.score.extracted,
                result.score.f1
            ),
            (2, 2, 1.0)
        );
        assert!(result.score.threshold > 0.7 && result.score.threshold < 1.0);
        let strict = BuccOptions {
            threshold: Some(0.0),
            ..options
        };
        let result = evaluate(&source, &target, (&x, &y), 2, &gold, &strict).expect("result");
        assert_eq!((result.score.correct, result.score.extracted), (2, 3));
        assert_eq!(result.pairs.len(), 3);
    }
}
