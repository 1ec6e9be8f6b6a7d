//! Zero-shot transfer: a classifier that is trained in one language is tested in all (Schwenk and Li,
//! LREC 2018; Conneau et al., EMNLP 2018).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use rayon::prelude::*;

use super::EvalError;
use super::classifier::{Classifier, Embedded, Examples, FitOptions, Target};
use crate::data::labelled::Labelled;
use crate::ops::pair::PairFeatures;

/// What a part of a language is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What classifiers are trained on.
    Train,
    /// What decides when training stops.
    Dev,
    /// What is reported.
    Test,
}

/// Labelled texts of all languages, every text held once, or once for each language.
#[derive(Clone, Debug, Default)]
pub struct Task {
    apart: bool,
    texts: Vec<String>,
    /// Positions by language, which is empty where texts are not apart, and by text.
    known: HashMap<String, HashMap<String, u32>>,
    /// Positions by language, where texts are apart.
    of_language: BTreeMap<String, Vec<u32>>,
    classes: BTreeSet<String>,
    parts: BTreeMap<(String, Part), Vec<Item>>,
    paired: Option<bool>,
}

/// A labelled text: positions in [`Task::texts`].
#[derive(Clone, Debug)]
struct Item {
    label: String,
    first: u32,
    second: Option<u32>,
}

/// Accuracy of a classifier in a language.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Language of the training set.
    pub train: String,
    /// Language of the test set; for pairs of two languages `premise/hypothesis`.
    pub test: String,
    /// Texts that were tested.
    pub examples: usize,
    /// Mean over the seeds of the share of right labels.
    pub accuracy: f64,
    /// Standard deviation over the seeds; 0 for one seed.
    pub deviation: f64,
    /// Mean accuracy on the dev set of the training language.
    pub dev: f64,
}

impl Task {
    /// Without texts. If languages are `apart`, a text that two of them have is held twice: for encoders of one language each.
    #[must_use]
    pub fn new(apart: bool) -> Self {
        Self {
            apart,
            ..Self::default()
        }
    }

    /// Adds labelled texts; of texts that are no pairs but have a second one, both are joined if `join`.
    ///
    /// # Errors
    /// [`EvalError::Config`] if pairs and single texts are mixed.
    pub fn add(
        &mut self,
        language: &str,
        part: Part,
        examples: Vec<Labelled>,
        join: bool,
    ) -> Result<(), EvalError> {
        for mut example in examples {
            if let (true, Some(second)) = (join, example.second.take_if(|_| join)) {
                example.text = format!("{} {second}", example.text);
            }
            let paired = example.second.is_some();
            if *self.paired.get_or_insert(paired) != paired {
                let message = format!(
                    "some texts in \"{language}\" are pairs and others are not; --join makes one text of two"
                );
                return Err(EvalError::Config(message));
            }
            if part == Part::Train {
                self.classes.insert(example.label.clone());
            }
            let item = Item {
                first: self.text(language, example.text)?,
                second: (example.second)
                    .map(|t| self.text(language, t))
                    .transpose()?,
                label: example.label,
            };
            let key = (language.to_owned(), part);
            self.parts.entry(key).or_default().push(item);
        }
        Ok(())
    }

    /// Takes back what was added of a part.
    pub fn clear(&mut self, language: &str, part: Part) {
        self.parts.remove(&(language.to_owned(), part));
    }

    fn text(&mut self, language: &str, text: String) -> Result<u32, EvalError> {
        let language = if self.apart { language } else { "" };
        let known = self.known.entry(language.to_owned()).or_default();
        if let Some(at) = known.get(&text) {
            return Ok(*at);
        }
        let at = u32::try_from(self.texts.len())
            .map_err(|_| EvalError::Config("more than 2^32 texts".into()))?;
        self.texts.push(text.clone());
        known.insert(text, at);
        if self.apart {
            let own = self.of_language.entry(language.to_owned()).or_default();
            own.push(at);
        }
        Ok(at)
    }

    /// Positions in [`Task::texts`] by language, where languages are apart.
    #[must_use]
    pub fn texts_of_languages(&self) -> &BTreeMap<String, Vec<u32>> {
        &self.of_language
    }

    /// The texts to embed, each once.
    #[must_use]
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Languages that have a part.
    #[must_use]
    pub fn languages(&self, part: Part) -> Vec<String> {
        let keys = self.parts.keys().filter(|k| k.1 == part);
        keys.map(|k| k.0.clone()).collect()
    }
}

/// A part with its embeddings.
struct Loaded {
    first: Vec<f32>,
    second: Option<Vec<f32>>,
    labels: Vec<u32>,
    rows: Vec<u32>,
}

impl Loaded {
    fn examples(&self, width: usize) -> Examples<'_> {
        let second = self.second.as_deref();
        Examples {
            texts: Embedded {
                first: &self.first,
                second: second.map(|s| (s, PairFeatures::Directed)),
                width,
            },
            labels: &self.labels,
            rows: &self.rows,
        }
    }
}

/// How a task is measured.
#[derive(Clone, Debug)]
pub struct ClassifyOptions {
    /// The classifier.
    pub fit: FitOptions,
    /// Runs with seeds `fit.seed`, `fit.seed + 1`, …
    pub seeds: u64,
    /// Languages that are trained in; all that have a training set if empty.
    pub train: Vec<String>,
    /// Whether the test sets are parallel pairs whose premises and hypotheses are combined over
    /// languages.
    pub mixed: bool,
}

/// Trains in every language and tests in all. `embeddings` are those of [`Task::texts`], row-major.
///
/// # Errors
/// [`EvalError::Config`] if a part or a label is missing, or a classifier cannot be trained.
pub fn matrix(
    task: &Task,
    width: usize,
    embeddings: &[f32],
    options: &ClassifyOptions,
) -> Result<Vec<Cell>, EvalError> {
    let classes: HashMap<&str, u32> = task.classes.iter().map(String::as_str).zip(0..).collect();
    let load = |language: &str, part: Part| -> Result<Loaded, EvalError> {
        let Some(items) = task.parts.get(&(language.to_owned(), part)) else {
            let part = format!("{part:?}").to_lowercase();
            let message = format!("\"{language}\" has no {part} part");
            return Err(EvalError::Config(message));
        };
        let gather = |text: &dyn Fn(&Item) -> u32| -> Vec<f32> {
            let row = |i: &Item| {
                let at = text(i) as usize * width;
                &embeddings[at..at + width]
            };
            items.iter().flat_map(row).copied().collect()
        };
        let label = |item: &Item| {
            let class = classes.get(&item.label[..]).copied();
            class.ok_or_else(|| {
                EvalError::Config(format!(
                    "label \"{}\" of \"{language}\" is in no training set",
                    item.label
                ))
            })
        };
        Ok(Loaded {
            first: gather(&|i| i.first),
            second: (task.paired == Some(true)).then(|| gather(&|i| i.second.unwrap_or(i.first))),
            labels: items.iter().map(label).collect::<Result<_, _>>()?,
            rows: (0..items.len() as u32).collect(),
        })
    };
    let trained = if options.train.is_empty() {
        task.languages(Part::Train)
    } else {
        options.train.clone()
    };
    let tests = task.languages(Part::Test);
    if trained.is_empty() || tests.is_empty() {
        let message = "there is no training set or no test set";
        return Err(EvalError::Config(message.into()));
    }
    let tests = tests
        .iter()
        .map(|l| Ok((l.clone(), load(l, Part::Test)?)))
        .collect::<Result<Vec<_>, EvalError>>()?;
    let tests = if options.mixed { mix(tests)? } else { tests };
    let mut cells = Vec::new();
    for language in trained {
        let (train, dev) = (load(&language, Part::Train)?, load(&language, Part::Dev)?);
        let runs: Vec<u64> = (0..options.seeds.max(1)).collect();
        let fitted = runs
            .into_par_iter()
            .map(|run| {
                let fit = FitOptions {
                    seed: options.fit.seed + run,
                    ..options.fit.clone()
                };
                let (train, dev) = (train.examples(width), dev.examples(width));
                let measure = |c: &Classifier| c.accuracy(dev);
                Classifier::fit(train, classes.len(), Target::Labels, &fit, &measure)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let dev = fitted.iter().map(|c| c.dev).sum::<f64>() / fitted.len() as f64;
        for (test, loaded) in &tests {
            let values: Vec<f64> = fitted
                .par_iter()
                .map(|c| c.accuracy(loaded.examples(width)))
                .collect();
            let (accuracy, deviation) = mean_and_deviation(&values);
            cells.push(Cell {
                train: language.clone(),
                test: test.clone(),
                examples: loaded.rows.len(),
                accuracy,
                deviation,
                dev,
            });
        }
    }
    Ok(cells)
}

/// All combinations of the premises of one language and the hypotheses of another one.
fn mix(tests: Vec<(String, Loaded)>) -> Result<Vec<(String, Loaded)>, EvalError> {
    let mut all = Vec::new();
    for (a, premises) in &tests {
        for (b, hypotheses) in &tests {
            if premises.labels != hypotheses.labels {
                return Err(EvalError::Config(format!(
                    "the test sets \"{a}\" and \"{b}\" are not parallel: their labels differ"
                )));
            }
            let Some(second) = &hypotheses.second else {
                return Err(EvalError::Config("only pairs of texts can be mixed".into()));
            };
            let loaded = Loaded {
                first: premises.first.clone(),
                second: Some(second.clone()),
                labels: premises.labels.clone(),
                rows: premises.rows.clone(),
            };
            all.push((format!("{a}/{b}"), loaded));
        }
    }
    Ok(all)
}

/// Mean and sample standard deviation.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let deviation = if values.len() > 1 {
        (squares / (n - 1.0)).sqrt()
    } else {
        0.0
    };
    (mean, deviation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;

    /// Two languages in whose embeddings the first element tells the class; in "xx" it has the wrong
    /// sign for a quarter of the texts. Pairs are "yes" if both first elements have one sign.
    fn task(pairs: bool) -> (Task, Vec<f32>) {
        let mut task = Task::default();
        let mut embeddings = Vec::new();
        let noise = random(6000, 1.0, 1, 1);
        let mut noise = noise.chunks_exact(3);
        for (language, shift) in [("en", 0), ("xx", 4)] {
            for (part, count) in [(Part::Train, 200), (Part::Dev, 50), (Part::Test, 100)] {
                let mut examples = Vec::new();
                for i in 0..count {
                    let (a, b) = (i % 2 == 0, i % 3 == 0);
                    let mut add = |sign: bool, name: &str| {
                        let wrong = shift > 0 && i % shift == 0;
                        let n = noise.next().unwrap();
                        let x = if sign == wrong { -1.0 } else { 1.0 };
                        embeddings.extend([x + 0.3 * n[0], n[1], n[2]]);
                        format!("{language} {part:?} {i} {name}")
                    };
                    let text = add(a, "first");
                    let second = pairs.then(|| add(b, "second"));
                    examples.push(Labelled {
                        label: if pairs { a == b } else { a }.to_string(),
                        text,
                        second,
                        ..Labelled::default()
                    });
                }
                task.add(language, part, examples, false).unwrap();
            }
        }
        (task, embeddings)
    }

    fn options(mixed: bool) -> ClassifyOptions {
        ClassifyOptions {
            fit: FitOptions {
                learning_rate: 0.01,
                hidden: if mixed { vec![8] } else { vec![] },
                ..FitOptions::default()
            },
            seeds: 2,
            train: vec!["en".into()],
            mixed,
        }
    }

    #[test]
    fn what_is_learned_in_one_language_is_tested_in_all() {
        let (task, embeddings) = task(false);
        let cells = matrix(&task, 3, &embeddings, &options(false)).unwrap();
        let names: Vec<_> = cells.iter().map(|c| (&c.train[..], &c.test[..])).collect();
        assert_eq!(names, [("en", "en"), ("en", "xx")]);
        assert!(cells[0].accuracy > 0.98, "{cells:?}");
        assert!((cells[1].accuracy - 0.75).abs() < 0.03, "{cells:?}");
        assert_eq!(cells[1].examples, 100);
        let again = matrix(&task, 3, &embeddings, &options(false)).unwrap();
        assert_eq!(cells, again);
        let mut all = options(false);
        all.train.clear();
        assert_eq!(matrix(&task, 3, &embeddings, &all).unwrap().len(), 4);
    }

    #[test]
    fn premises_and_hypotheses_of_two_languages_are_combined() {
        let (task, embeddings) = task(true);
        let cells = matrix(&task, 3, &embeddings, &options(true)).unwrap();
        let tests: Vec<_> = cells.iter().map(|c| &c.test[..]).collect();
        assert_eq!(tests, ["en/en", "en/xx", "xx/en", "xx/xx"]);
        assert!(cells[0].accuracy > 0.95, "{cells:?}");
        // One side alone is wrong, or none, or both, which is right again.
        assert!((cells[1].accuracy - 0.75).abs() < 0.06, "{cells:?}");
        assert!((cells[2].accuracy - 0.75).abs() < 0.06, "{cells:?}");
        assert!(cells[3].accuracy > 0.95, "{cells:?}");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let (mut task, mut embeddings) = task(false);
        let odd = |label: &str, second: Option<&str>| Labelled {
            label: label.into(),
            text: "odd".into(),
            second: second.map(str::to_owned),
            ..Labelled::default()
        };
        let error = task.add("en", Part::Dev, vec![odd("true", Some("b"))], false);
        assert!(error.unwrap_err().to_string().contains("--join"));
        task.add("yy", Part::Test, vec![odd("maybe", Some("b"))], true)
            .unwrap();
        assert_eq!(task.texts().last().unwrap(), "odd b");
        embeddings.extend([0.0; 3]);
        let error = matrix(&task, 3, &embeddings, &options(false)).unwrap_err();
        assert!(error.to_string().contains("\"maybe\" of \"yy\""), "{error}");
        task.clear("yy", Part::Test);
        task.clear("en", Part::Dev);
        let error = matrix(&task, 3, &embeddings, &options(false)).unwrap_err();
        assert!(error.to_string().contains("no dev part"), "{error}");
    }
}
