//! The tasks of SentEval (Conneau and Kiela, LREC 2018) on frozen embeddings, by its protocols.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::EvalError;
use super::classifier::{Classifier, Embedded, Examples, FitOptions, Target};
use super::folds::Data;
use super::sts::{Scored, cosines, pearson, spearman};
use crate::data::labelled::{self, Labelled};
use crate::ops::pair::PairFeatures;

/// A task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "verbatim")]
#[allow(missing_docs, reason = "names of published sets")]
pub enum Task {
    MR,
    CR,
    SUBJ,
    MPQA,
    SST2,
    TREC,
    MRPC,
    #[value(name = "SICK-E")]
    SickE,
    #[value(name = "SICK-R")]
    SickR,
    STS12,
    STS13,
    STS14,
    STS15,
    STS16,
}

/// How a task is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// Nested cross-validation.
    Nested,
    /// Train, dev and test set.
    Dev,
    /// Training and test set; cross-validation on the first. Pairs, if true.
    Folds(bool),
    /// Pairs with train, dev and test set.
    PairsDev,
    /// Scores of pairs from a distribution over five classes.
    Relatedness,
    /// Correlation of cosines with scores of pairs; nothing is trained.
    Similarity,
}

/// One figure of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it is: accuracy, F1, Pearson, Spearman; with the part of the task, if it is not the whole.
    pub name: String,
    /// Texts or pairs that it is of.
    pub examples: usize,
    /// From 0 (−1 for correlations) to 1.
    pub value: f64,
}

impl Task {
    /// Its usual name.
    #[must_use]
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).map_or_else(String::new, |v| v.get_name().into())
    }

    fn protocol(self) -> Protocol {
        match self {
            Self::MR | Self::CR | Self::SUBJ | Self::MPQA => Protocol::Nested,
            Self::SST2 => Protocol::Dev,
            Self::TREC => Protocol::Folds(false),
            Self::MRPC => Protocol::Folds(true),
            Self::SickE => Protocol::PairsDev,
            Self::SickR => Protocol::Relatedness,
            Self::STS12 | Self::STS13 | Self::STS14 | Self::STS15 | Self::STS16 => {
                Protocol::Similarity
            }
        }
    }

    /// The file of the task: `NAME.tsv` in the folder or in a folder of it, or for SICK and STS `nli/sick.en.tsv`,
    /// `sts/sick.en.tsv`, `sts/sts12.en.tsv`.
    ///
    /// # Errors
    /// [`EvalError::Config`] if there is none.
    pub fn file(self, folder: &Path) -> Result<PathBuf, EvalError> {
        let name = self.name();
        let other = match self {
            Self::SickE => "nli/sick.en.tsv".into(),
            Self::SickR => "sts/sick.en.tsv".into(),
            _ if self.protocol() == Protocol::Similarity => {
                format!("sts/{}.en.tsv", name.to_lowercase())
            }
            _ => format!("senteval/{name}.tsv"),
        };
        let candidates = [folder.join(format!("{name}.tsv")), folder.join(other)];
        let found = candidates.iter().find(|c| c.is_file());
        found.cloned().ok_or_else(|| {
            let names: Vec<_> = candidates.iter().map(|c| c.display().to_string()).collect();
            EvalError::Config(format!(
                "{name}: there is no \"{}\"",
                names.join("\" and no \"")
            ))
        })
    }
}

/// How SentEval is run.
#[derive(Clone, Debug)]
pub struct SentEvalOptions {
    /// Folds, outer and inner ones.
    pub folds: usize,
    /// The classifier.
    pub fit: FitOptions,
}

/// What embeds a list of texts, row-major.
pub type Embed<'a> = dyn FnMut(&[&str]) -> Result<Vec<f32>, EvalError> + 'a;

/// Measures one task on the file of [`Task::file`].
///
/// # Errors
/// If the file cannot be read or lacks a part, or the encoder fails.
pub fn measure(
    task: Task,
    path: &Path,
    width: usize,
    embed: &mut Embed<'_>,
    options: &SentEvalOptions,
) -> Result<Vec<Figure>, EvalError> {
    match task.protocol() {
        Protocol::Similarity => similarity(path, width, embed),
        Protocol::Relatedness => relatedness(path, width, embed, &options.fit),
        protocol => classification(protocol, path, width, embed, options),
    }
}

fn figure(name: &str, examples: usize, value: f64) -> Figure {
    Figure {
        name: name.into(),
        examples,
        value,
    }
}

fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

/// Rows of a part of a file.
fn part(examples: &[Labelled], path: &Path, name: &str) -> Result<Vec<u32>, EvalError> {
    let is = |e: &Labelled| e.split.as_deref() == Some(name);
    let rows: Vec<u32> = (0u32..)
        .zip(examples)
        .filter_map(|(i, e)| is(e).then_some(i))
        .collect();
    if rows.is_empty() {
        let message = format!("\"{}\" has no part \"{name}\"", path.display());
        return Err(EvalError::Config(message));
    }
    Ok(rows)
}

fn classification(
    protocol: Protocol,
    path: &Path,
    width: usize,
    embed: &mut Embed<'_>,
    options: &SentEvalOptions,
) -> Result<Vec<Figure>, EvalError> {
    let examples = labelled::read(path)?;
    let names: std::collections::BTreeSet<&str> = examples.iter().map(|e| &e.label[..]).collect();
    let classes: BTreeMap<&str, u32> = names.into_iter().zip(0..).collect();
    let labels: Vec<u32> = examples.iter().map(|e| classes[&e.label[..]]).collect();
    let first: Vec<&str> = examples.iter().map(|e| &e.text[..]).collect();
    let first = embed(&first)?;
    let pairs = matches!(protocol, Protocol::PairsDev | Protocol::Folds(true));
    let second: Option<Vec<&str>> = examples.iter().map(|e| e.second.as_deref()).collect();
    let second = match second.filter(|_| pairs) {
        Some(texts) => Some(embed(&texts)?),
        None if pairs => {
            let message = format!("\"{}\" has lines without a second text", path.display());
            return Err(EvalError::Config(message));
        }
        None => None,
    };
    let texts = Embedded {
        first: &first,
        second: second.as_deref().map(|s| (s, PairFeatures::Symmetric)),
        width,
    };
    let data = Data {
        texts,
        labels: &labels,
        classes: classes.len(),
    };
    if protocol == Protocol::Nested {
        let accuracy = data.nested(options.folds, &options.fit)?;
        return Ok(vec![figure("accuracy", labels.len(), accuracy)]);
    }
    let (train, test) = (
        part(&examples, path, "train")?,
        part(&examples, path, "test")?,
    );
    let classifier = match protocol {
        Protocol::Folds(_) => data.fit_by_folds(&train, options.folds, &options.fit)?,
        _ => data.fit_by_dev(&train, &part(&examples, path, "dev")?, &options.fit)?,
    };
    let found = classifier.predict(texts, &test);
    let wanted: Vec<u32> = test.iter().map(|r| labels[*r as usize]).collect();
    let right = found.iter().zip(&wanted).filter(|(f, w)| f == w).count();
    let mut figures = vec![figure(
        "accuracy",
        test.len(),
        right as f64 / test.len() as f64,
    )];
    if let (Protocol::Folds(true), Some(positive)) = (protocol, classes.get("1")) {
        figures.push(figure("F1", test.len(), f1(&found, &wanted, *positive)));
    }
    Ok(figures)
}

/// Harmonic mean of precision and recall of a class; 0 if none of it was found.
fn f1(found: &[u32], wanted: &[u32], class: u32) -> f64 {
    let both = |f: &(&u32, &u32)| *f.0 == class && *f.1 == class;
    let right = found.iter().zip(wanted).filter(both).count();
    let count = |all: &[u32]| all.iter().filter(|c| **c == class).count();
    2.0 * right as f64 / (count(found) + count(wanted)).max(1) as f64
}

/// SICK-R: a distribution over the scores 1 to 5 from `[|u − v|; u·v]`, whose mean is the score (Tai et
/// al., ACL 2015).
fn relatedness(
    path: &Path,
    width: usize,
    embed: &mut Embed<'_>,
    fit: &FitOptions,
) -> Result<Vec<Figure>, EvalError> {
    const CLASSES: usize = 5;
    let mut scored = Scored::default();
    let mut ends = Vec::new();
    for name in ["train", "dev", "test"] {
        let part = Scored::read(path, Some(name))?;
        scored.first.extend(part.first);
        scored.second.extend(part.second);
        scored.scores.extend(part.scores);
        ends.push(scored.scores.len() as u32);
    }
    let most = CLASSES as f64;
    if let Some(wrong) = scored.scores.iter().find(|s| !(1.0..=most).contains(*s)) {
        let message = format!(
            "\"{}\": score {wrong} is not between 1 and 5",
            path.display()
        );
        return Err(EvalError::Config(message));
    }
    let (first, second) = (
        embed(&borrowed(&scored.first))?,
        embed(&borrowed(&scored.second))?,
    );
    let mut wanted = vec![0f32; CLASSES * scored.scores.len()];
    for (row, score) in wanted.chunks_exact_mut(CLASSES).zip(&scored.scores) {
        let below = score.floor().min(most - 1.0);
        row[below as usize - 1] = (below + 1.0 - score) as f32;
        row[below as usize] = (score - below) as f32;
    }
    let texts = Embedded {
        first: &first,
        second: Some((&second, PairFeatures::Symmetric)),
        width,
    };
    let rows: Vec<u32> = (0..ends[2]).collect();
    let (train, dev, test) = (
        &rows[..ends[0] as usize],
        &rows[ends[0] as usize..ends[1] as usize],
        &rows[ends[1] as usize..],
    );
    let scores = |classifier: &Classifier, rows: &[u32]| -> Vec<f64> {
        let probabilities = classifier.probabilities(texts, rows);
        let mean = |p: &[f32]| {
            (1u32..)
                .zip(p)
                .map(|(i, p)| f64::from(i) * f64::from(*p))
                .sum()
        };
        probabilities.chunks_exact(CLASSES).map(mean).collect()
    };
    let gold =
        |rows: &[u32]| -> Vec<f64> { rows.iter().map(|r| scored.scores[*r as usize]).collect() };
    let options = FitOptions {
        epochs: 1000,
        dev_epochs: 50,
        patience: 4,
        ..fit.clone()
    };
    let examples = Examples {
        texts,
        labels: &[],
        rows: train,
    };
    let dev_gold = gold(dev);
    let on_dev = |c: &Classifier| pearson(&scores(c, dev), &dev_gold);
    let target = Target::Distributions(&wanted);
    let classifier = Classifier::fit(examples, CLASSES, target, &options, &on_dev)?;
    let (found, gold) = (scores(&classifier, test), gold(test));
    Ok(vec![
        figure("Pearson", test.len(), pearson(&found, &gold)),
        figure("Spearman", test.len(), spearman(&found, &gold)),
    ])
}

/// STS: correlations of the cosines with the scores of each set of the file (its second column), their
/// means, and the correlations of all pairs together.
fn similarity(path: &Path, width: usize, embed: &mut Embed<'_>) -> Result<Vec<Figure>, EvalError> {
    let sets = Scored::read_sets(path)?;
    let mut all = (Vec::new(), Vec::new());
    let (mut figures, mut sums) = (Vec::new(), (0.0, 0.0));
    for (name, set) in &sets {
        let first = embed(&borrowed(&set.first))?;
        let second = embed(&borrowed(&set.second))?;
        let found = cosines(&first, &second, width);
        let (linear, rank) = (pearson(&found, &set.scores), spearman(&found, &set.scores));
        figures.push(figure(&format!("{name} Pearson"), found.len(), linear));
        figures.push(figure(&format!("{name} Spearman"), found.len(), rank));
        sums = (sums.0 + linear, sums.1 + rank);
        all.0.extend(found);
        all.1.extend(&set.scores);
    }
    let (n, pairs) = (sets.len() as f64, all.0.len());
    figures.push(figure("mean Pearson", pairs, sums.0 / n));
    figures.push(figure("mean Spearman", pairs, sums.1 / n));
    figures.push(figure("all Pearson", pairs, pearson(&all.0, &all.1)));
    figures.push(figure("all Spearman", pairs, spearman(&all.0, &all.1)));
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Embeds `x y z` as these numbers.
    fn numbers(texts: &[&str]) -> Result<Vec<f32>, EvalError> {
        let values = texts.iter().flat_map(|t| t.split(' '));
        Ok(values.map(|v| v.parse().unwrap()).collect())
    }

    fn figures(task: Task, text: &str) -> Result<Vec<Figure>, EvalError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("{}.tsv", task.name()));
        std::fs::write(&path, text).unwrap();
        assert_eq!(task.file(folder.path()).unwrap(), path);
        let options = SentEvalOptions {
            folds: 3,
            fit: FitOptions {
                learning_rate: 0.05,
                epochs: 100,
                ..FitOptions::default()
            },
        };
        measure(task, &path, 2, &mut numbers, &options)
    }

    /// Lines of `count` texts or pairs in each part; `line` makes one of two random numbers from −1 to 1.
    fn lines(parts: &[(&str, usize)], line: &dyn Fn(f32, f32) -> String) -> String {
        let mut out = String::new();
        for (n, (part, count)) in parts.iter().enumerate() {
            let x = crate::models::parameters::random(2 * count, 1.0, 1, n);
            for x in x.chunks(2) {
                out += &format!("{part}\t{}\n", line(x[0], x[1]));
            }
        }
        out
    }

    #[test]
    fn classes_are_told_apart_by_every_protocol() {
        let single = |a: f32, b: f32| format!("{}\t{a} {b}", u8::from(a > b));
        // A pair has the label 1 if its first elements are near one another.
        let pair = |a: f32, b: f32| format!("{}\t{a} 1\t{b} 1", u8::from((a - b).abs() < 0.5));
        let whole = [("train", 200), ("dev", 60), ("test", 100)];
        for (task, text) in [
            (Task::MR, lines(&[("all", 200)], &single)),
            (Task::SST2, lines(&whole, &single)),
            (Task::TREC, lines(&whole, &single)),
            (Task::MRPC, lines(&whole, &pair)),
            (Task::SickE, lines(&whole, &pair)),
        ] {
            let found = figures(task, &text).unwrap();
            assert!(found[0].value > 0.8, "{task:?} {found:?}");
            let examples = if task == Task::MR { 200 } else { 100 };
            assert_eq!(found[0].examples, examples);
            assert_eq!(
                found.len(),
                1 + usize::from(task == Task::MRPC),
                "{found:?}"
            );
            assert!(found.iter().all(|f| f.value <= 1.0), "{found:?}");
        }
        let error = figures(Task::TREC, &lines(&[("train", 10)], &single)).unwrap_err();
        assert!(error.to_string().contains("no part \"test\""), "{error}");
        let error = figures(Task::MRPC, &lines(&[("train", 10)], &single)).unwrap_err();
        assert!(error.to_string().contains("second text"), "{error}");
    }

    #[test]
    fn f1_is_the_harmonic_mean() {
        // Precision 2/3, recall 2/4.
        let (found, wanted) = ([1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0]);
        assert!((f1(&found, &wanted, 1) - 4.0 / 7.0).abs() < 1e-12);
        assert_eq!(f1(&[0], &[1], 1), 0.0);
    }

    #[test]
    fn scores_are_predicted() {
        // The score falls with the distance of the first elements.
        let line = |a: f32, b: f32| format!("{}\t{a} 1\t{b} 1", 5.0 - 2.0 * (a - b).abs());
        let text = lines(&[("train", 300), ("dev", 60), ("test", 100)], &line);
        let found = figures(Task::SickR, &text).unwrap();
        assert_eq!(found[0].name, "Pearson");
        assert!(found.iter().all(|f| f.value > 0.9), "{found:?}");
        let error = figures(Task::SickR, &text.replace("dev\t", "dev\t1")).unwrap_err();
        assert!(error.to_string().contains("between 1 and 5"), "{error}");
    }

    #[test]
    fn similarity_has_means_over_sets_and_all_pairs() {
        let text = "test\ta\t5\t1 0\t1 0\ntest\ta\t0\t1 0\t0 1\ntest\ta\t2.5\t1 0\t1 1\n\
                    test\tb\t0\t1 0\t1 0\ntest\tb\t5\t1 0\t0 1\n";
        let found = figures(Task::STS12, text).unwrap();
        let value = |name: &str| found.iter().find(|f| f.name == name).unwrap().value;
        assert!(value("a Pearson") > 0.97 && (value("a Spearman") - 1.0).abs() < 1e-9);
        assert!((value("b Pearson") + 1.0).abs() < 1e-9);
        assert!((value("mean Spearman")).abs() < 1e-9);
        assert_eq!(found.last().unwrap().examples, 5);
    }
}
