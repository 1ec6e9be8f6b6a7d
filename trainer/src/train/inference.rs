//! Labelled pairs of the inference objective: read, tokenised, drawn.

use laser_sampling::mix;

use super::config::NliOptions;
use crate::data::labelled::{self, Labelled};
use crate::data::permutation::Permutation;
use crate::data::{DataError, Ragged};
use crate::models::perceptron::Perceptron;
use crate::tokenizer::Loaded;
use std::collections::BTreeSet;

/// Labelled pairs with the classifier that reads them.
pub struct Inference {
    /// From the features of two embeddings to a score of each label.
    pub net: Perceptron,
    /// Premises and hypotheses with their labels.
    pub pairs: LabelledPairs,
}

/// Pairs drawn for one update; all three fields have one item a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairBatch {
    /// Token ids of the premises.
    pub first: Ragged,
    /// Token ids of the hypotheses.
    pub second: Ragged,
    /// Class of each pair.
    pub labels: Vec<u32>,
}

/// Pairs of token sequences with labels, in one language or several parallel ones.
pub struct LabelledPairs {
    /// Premises and hypotheses of each language.
    languages: Vec<(Ragged, Ragged)>,
    labels: Vec<u32>,
    classes: Vec<String>,
}

impl LabelledPairs {
    /// Reads and tokenises files. If they are `parallel`, line n of each is a translation of line n of the
    /// others; else all are read one after the other. Lines of a part other than `split` are left out, where
    /// a file has parts.
    ///
    /// # Errors
    /// [`DataError`]: of the reader, if a line is no pair, and if parallel files have other labels.
    pub fn read(options: &NliOptions, tokenizer: &Loaded, limit: usize) -> Result<Self, DataError> {
        let part = &options.split;
        let mut files = Vec::new();
        for path in &options.data {
            let mut examples = labelled::read(path)?;
            examples.retain(|e| e.split.as_deref().is_none_or(|s| s == part));
            if examples.iter().any(|e| e.second.is_none()) {
                let message = format!("\"{}\" has lines that are no pairs", path.display());
                return Err(DataError::Config(message));
            }
            files.push((path, examples));
        }
        if !options.parallel {
            let all = files.drain(..).flat_map(|f| f.1).collect();
            files = options
                .data
                .first()
                .map(|path| (path, all))
                .into_iter()
                .collect();
        }
        let names = |examples: &[Labelled]| -> Vec<String> {
            examples.iter().map(|e| e.label.clone()).collect()
        };
        let (first, others) = files
            .split_first()
            .ok_or_else(|| DataError::Config("objective.nli.data names no file".into()))?;
        let wanted = names(&first.1);
        if let Some((path, _)) = others.iter().find(|f| names(&f.1) != wanted) {
            return Err(DataError::Config(format!(
                "\"{}\" is not parallel to \"{}\": its labels differ",
                path.display(),
                first.0.display()
            )));
        }
        let classes: BTreeSet<String> = wanted.iter().cloned().collect();
        let classes: Vec<String> = classes.into_iter().collect();
        if classes.len() < 2 {
            return Err(DataError::Config(format!(
                "objective.nli.data has fewer than two labels in its part \"{part}\" \
                 (objective.nli.split)"
            )));
        }
        let class = |name: &String| classes.binary_search(name).unwrap_or(0) as u32;
        let labels = wanted.iter().map(class).collect();
        let languages = files
            .iter()
            .map(|(_, examples)| {
                let first = examples.iter().map(|e| &e.text[..]);
                let second = examples.iter().filter_map(|e| e.second.as_deref());
                Ok((
                    tokenize(first.collect(), tokenizer, limit)?,
                    tokenize(second.collect(), tokenizer, limit)?,
                ))
            })
            .collect::<Result<_, DataError>>()?;
        Ok(Self {
            languages,
            labels,
            classes,
        })
    }

    /// Number of labels.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Batch `number`, of `pairs` pairs: every pair once in an epoch, in an order of its own. Of parallel
    /// files the premise and the hypothesis come each from one at random.
    #[must_use]
    pub fn batch(&self, number: u64, pairs: usize, seed: u64) -> PairBatch {
        let n = self.len() as u64;
        let mut batch = PairBatch {
            first: Ragged::new(),
            second: Ragged::new(),
            labels: Vec::with_capacity(pairs),
        };
        for i in number * pairs as u64..(number + 1) * pairs as u64 {
            let epoch = Permutation::new(n, mix(seed ^ mix(i / n)));
            let at = epoch.get(i % n) as usize;
            let dice = mix(seed ^ mix(i).rotate_left(7));
            let any = |dice: u64| &self.languages[(dice % self.languages.len() as u64) as usize];
            batch.first.push(any(dice & 0xffff_ffff).0.row(at));
            batch.second.push(any(dice >> 32).1.row(at));
            batch.labels.push(self.labels[at]);
        }
        batch
    }
}

fn tokenize(texts: Vec<&str>, tokenizer: &Loaded, limit: usize) -> Result<Ragged, DataError> {
    let mut all = Ragged::new();
    for texts in texts.chunks(4096) {
        for ids in tokenizer.encode(texts)? {
            all.push(&ids[..ids.len().min(limit)]);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;
    use super::*;

    fn read(world: &World, files: &[&str], parallel: bool) -> Result<LabelledPairs, DataError> {
        let mut paths = Vec::new();
        for (i, text) in files.iter().enumerate() {
            let path = world.path(&format!("{i}.tsv"));
            std::fs::write(&path, text).unwrap();
            paths.push(path);
        }
        let tokenizer = crate::tokenizer::load(&world.path("tokenizer.json")).unwrap();
        let options = NliOptions {
            data: paths,
            parallel,
            ..toml::from_str("data = []").unwrap()
        };
        LabelledPairs::read(&options, &tokenizer, 3)
    }

    #[test]
    fn an_epoch_has_every_pair_once() {
        let world = World::new();
        let lines = |from: usize, to: usize| -> String {
            let line = |i: usize| format!("train\t{}\ta{i} a1 a2 a3\ta{i} a4\n", i % 2);
            (from..to).map(line).collect()
        };
        let dev = "dev\t5\ta1\ta1\n".to_owned();
        let files = [lines(0, 6) + &dev, lines(6, 10)];
        let pairs = read(&world, &[&files[0], &files[1]], false).unwrap();
        assert_eq!((pairs.len(), pairs.classes()), (10, 2));
        let mut seen = Vec::new();
        for number in 0..5 {
            let batch = pairs.batch(number, 2, 7);
            for i in 0..2 {
                let (a, b) = (batch.first.row(i), batch.second.row(i));
                assert_eq!((a.len(), b), (3, &[a[0], 4][..]));
                assert_eq!(batch.labels[i], a[0] % 2);
                seen.push(a[0]);
            }
        }
        assert_ne!(pairs.batch(0, 10, 7), pairs.batch(1, 10, 7));
        assert_eq!(pairs.batch(1, 10, 7), pairs.batch(1, 10, 7));
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn parallel_files_are_mixed_and_must_agree() {
        let world = World::new();
        let lines = |letter: &str, label: &str| -> String {
            let line = |i: usize| format!("{label}{}\t{letter}{i}\t{letter}{i}\n", i % 3);
            (0..20).map(|i| format!("train\t{}", line(i))).collect()
        };
        let (a, b) = (lines("a", "x"), lines("b", "x"));
        let pairs = read(&world, &[&a, &b], true).unwrap();
        assert_eq!((pairs.len(), pairs.classes()), (20, 3));
        let batch = pairs.batch(0, 20, 7);
        let mut kinds = BTreeSet::new();
        for i in 0..20 {
            let (first, second) = (batch.first.row(i)[0], batch.second.row(i)[0]);
            assert_eq!(first % 40, second % 40);
            kinds.insert((first / 40, second / 40));
        }
        assert_eq!(kinds.len(), 4, "{kinds:?}");
        let error = |files: &[&str]| match read(&world, files, true) {
            Ok(_) => panic!("accepted"),
            Err(error) => error.to_string(),
        };
        assert!(error(&[&a, &lines("b", "y")]).contains("not parallel"));
        assert!(error(&["train\tx\ta1\n"]).contains("no pairs"));
        assert!(error(&["train\tx\ta1\ta2\n"]).contains("two labels"));
        // Another part than that of training.
        let path = world.path("dev.tsv");
        std::fs::write(&path, format!("{a}dev\tyes\ta1\ta2\ndev\tno\ta2\ta1\n")).unwrap();
        let mut options: NliOptions = toml::from_str("data = []\nsplit = \"dev\"").unwrap();
        options.data = vec![path];
        let tokenizer = crate::tokenizer::load(&world.path("tokenizer.json")).unwrap();
        let pairs = LabelledPairs::read(&options, &tokenizer, 3).unwrap();
        assert_eq!((pairs.len(), pairs.classes()), (2, 2));
    }
}
