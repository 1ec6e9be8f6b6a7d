//! Semantic textual similarity: correlation of cosines with people's scores.

use std::path::Path;

use laser_kernels::math::cosine;

use super::EvalError;
use crate::data::DataError;
use crate::data::input::open;

/// Pairs of sentences with scores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// The first sentence of each pair.
    pub first: Vec<String>,
    /// The second one, parallel to `first`.
    pub second: Vec<String>,
    /// Gold similarities, parallel to `first`, in the unit of the file (0 to 5 in STS).
    pub scores: Vec<f64>,
}

impl Scored {
    /// Reads tab-separated lines whose last three columns are score, sentence, sentence, and whose first
    /// one, if there are more, names a part of the file; only of part `split`, if it is given.
    ///
    /// # Errors
    /// If the file cannot be read, a line is malformed, or nothing is left.
    pub fn read(path: &Path, split: Option<&str>) -> Result<Self, EvalError> {
        let mut scored = Self::default();
        read(path, &mut |before, score, pair| {
            if split.is_none_or(|split| before.first() == Some(&split)) {
                scored.push(score, pair);
            }
        })?;
        if scored.scores.len() < 2 {
            let of = split.map_or(String::new(), |split| format!(" of part \"{split}\""));
            return Err(too_few(path, &of));
        }
        Ok(scored)
    }

    /// The sets of a file of lines `split, set, score, sentence, sentence`, in the order in which they
    /// begin.
    ///
    /// # Errors
    /// As of [`Scored::read`].
    pub fn read_sets(path: &Path) -> Result<Vec<(String, Self)>, EvalError> {
        let mut sets: Vec<(String, Self)> = Vec::new();
        read(path, &mut |before, score, pair| {
            let name = before.last().copied().unwrap_or("pairs");
            match sets.iter_mut().find(|s| s.0 == name) {
                Some((_, set)) => set.push(score, pair),
                None => {
                    let mut set = Self::default();
                    set.push(score, pair);
                    sets.push((name.to_owned(), set));
                }
            }
        })?;
        match sets.iter().find(|s| s.1.scores.len() < 2) {
            Some((name, _)) => Err(too_few(path, &format!(" of set \"{name}\""))),
            None if sets.is_empty() => Err(too_few(path, "")),
            None => Ok(sets),
        }
    }

    fn push(&mut self, score: f64, (first, second): (&str, &str)) {
        self.scores.push(score);
        self.first.push(first.to_owned());
        self.second.push(second.to_owned());
    }
}

fn too_few(path: &Path, of: &str) -> EvalError {
    let path = path.display();
    EvalError::Config(format!("\"{path}\" has fewer than two pairs{of}"))
}

/// What is told the first columns, the score and the sentences of a line.
type Add<'a> = dyn FnMut(&[&str], f64, (&str, &str)) + 'a;

/// Calls `add` with the first columns, the score and the sentences of each line.
fn read(path: &Path, add: &mut Add<'_>) -> Result<(), EvalError> {
    for (number, line) in (1u64..).zip(std::io::BufRead::lines(open(path)?)) {
        let line = line.map_err(|e| DataError::io(path, e))?;
        let columns: Vec<&str> = line.split('\t').collect();
        let malformed = |message: &str| DataError::Malformed {
            path: path.display().to_string(),
            line: number,
            message: message.to_owned(),
        };
        let [before @ .., score, first, second] = &columns[..] else {
            return Err(malformed("not score, sentence, sentence").into());
        };
        let score: f64 = score
            .parse()
            .map_err(|_| malformed("the score is no number"))?;
        add(before, score, (first, second));
    }
    Ok(())
}

/// Cosine of every row of `x` with that of `y` [rows, dimensions]; NaN where one is zero.
#[must_use]
pub fn cosines(x: &[f32], y: &[f32], dimensions: usize) -> Vec<f64> {
    x.chunks_exact(dimensions)
        .zip(y.chunks_exact(dimensions))
        .map(|(a, b)| cosine(a, b))
        .collect()
}

/// Correlation coefficient of Pearson; NaN if one side is constant.
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn pearson(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len(), "one score for each value");
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let (mx, my) = (mean(x), mean(y));
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (x, y) in x.iter().zip(y) {
        xy += (x - mx) * (y - my);
        xx += (x - mx).powi(2);
        yy += (y - my).powi(2);
    }
    xy / (xx * yy).sqrt()
}

/// Rank correlation of Spearman; equal values share their mean rank.
///
/// # Panics
/// If the lengths differ.
#[must_use]
pub fn spearman(x: &[f64], y: &[f64]) -> f64 {
    pearson(&ranks(x), &ranks(y))
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut rank = 0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let mean = rank as f64 + (equal.len() - 1) as f64 / 2.0;
        equal.iter().for_each(|i| ranks[*i] = mean);
        rank += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlations_are_those_of_the_textbook() {
        // x, y and both coefficients with scipy.stats 1.17.
        let (x, y) = ([1.0, 2.0, 2.0, 5.0, 9.0], [3.0, 1.0, 4.0, 4.0, 30.0]);
        assert!(
            (pearson(&x, &y) - 0.903_017).abs() < 1e-6,
            "{}",
            pearson(&x, &y)
        );
        assert!(
            (spearman(&x, &y) - 0.763_158).abs() < 1e-6,
            "{}",
            spearman(&x, &y)
        );
        assert_eq!(ranks(&x), [0.0, 1.5, 1.5, 3.0, 4.0]);
        assert!(pearson(&x, &[1.0; 5]).is_nan());
    }

    #[test]
    fn files_have_parts_and_further_columns() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("s.tsv");
        let write = |text: &str| std::fs::write(&path, text).expect("write");
        write("test\tset\t4.5\ta\tb\ntrain\tset\t1\tc\td\ntest\tset\t0\te\tf\n");
        let test = Scored::read(&path, Some("test")).expect("scored");
        assert_eq!(
            (test.scores, test.first, test.second),
            (
                vec![4.5, 0.0],
                vec!["a".into(), "e".into()],
                vec!["b".into(), "f".into()]
            )
        );
        assert_eq!(Scored::read(&path, None).expect("all").scores.len(), 3);
        assert!(Scored::read(&path, Some("dev")).is_err());
        for wrong in ["a\tb\n", "x\ta\tb\n"] {
            write(wrong);
            assert!(Scored::read(&path, None).is_err(), "{wrong}");
        }
    }
}
