//! Reads all corpora of a configuration, filtered, held-out text removed, repeats removed.

use std::collections::HashMap;
use std::path::Path;

use super::config::{DataConfig, DedupMode, Input};
use super::dedup::{Dedup, Repeats};
use super::filter::{HeldOut, Reason, pivot_of};
use super::readers::Problems;
use super::report::Report;
use super::{Group, Result, canonical, hash64};

/// A configuration made ready to be read, once or several times, always with the same groups.
pub struct Pipeline {
    config: DataConfig,
    inputs: Vec<Input>,
    skipped: Vec<(String, String)>,
    held_out: HeldOut,
    repeats: Option<Repeats>,
    /// Share of the rows of a language that is kept, where it is not all.
    shares: HashMap<String, f64>,
    strict: bool,
}

impl Pipeline {
    /// Lists the inputs and reads the held-out files. Malformed lines are fatal if `strict`.
    ///
    /// # Errors
    /// As [`DataConfig::resolve`] and [`HeldOut::add`].
    pub fn new(config: &DataConfig, strict: bool) -> Result<Self> {
        let (inputs, skipped) = config.resolve()?;
        let mut held_out = HeldOut::default();
        let mut problems = Problems::new(strict);
        for file in config.held_out_files()? {
            held_out.add(&file, &mut problems)?;
        }
        let config = config.clone();
        Ok(Self {
            config,
            inputs,
            skipped,
            held_out,
            repeats: None,
            shares: HashMap::new(),
            strict,
        })
    }

    /// Reads everything once to find repeats, spilling to an unnamed file in `folder`, and to count
    /// languages if they are capped. Without this, all rows that pass the filters are kept.
    ///
    /// # Errors
    /// As [`Pipeline::run`].
    pub fn survey(&mut self, folder: &Path) -> Result<()> {
        let cap = self.config.max_per_language;
        let finds_repeats = self.config.dedup != DedupMode::None;
        if !finds_repeats && cap == 0 {
            return Ok(());
        }
        let mut dedup = Dedup::new(self.config.dedup_memory << 20, folder);
        let mut languages: HashMap<String, u64> = HashMap::new();
        for input in &self.inputs {
            let mut problems = Problems::new(self.strict);
            self.read(input, &mut Report::default(), &mut problems, &mut |group| {
                if cap > 0 {
                    for row in &group.rows {
                        match languages.get_mut(&row.language) {
                            Some(n) => *n += 1,
                            None => drop(languages.insert(row.language.clone(), 1)),
                        }
                    }
                }
                if finds_repeats {
                    self.fingerprints(&group)
                        .into_iter()
                        .try_for_each(|hash| dedup.push(hash))?;
                }
                Ok(())
            })?;
        }
        self.repeats = finds_repeats.then(|| dedup.finish()).transpose()?;
        self.shares = languages
            .into_iter()
            .filter(|(_, n)| *n > cap)
            .map(|(language, n)| (language, cap as f64 / n as f64))
            .collect();
        Ok(())
    }

    /// Whether a row belongs to the part of its language that is kept. Decided by a hash of key
    /// and language, so that it does not depend on what else is read.
    fn is_sampled(&self, source: &str, key: &str, language: &str) -> bool {
        self.shares.get(language).is_none_or(|share| {
            let hash = hash64(format!("{source}\0{key}\0{language}").as_bytes());
            ((hash >> 11) as f64 / (1u64 << 53) as f64) < *share
        })
    }

    /// Names of the sources that are read.
    #[must_use]
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Fingerprint of each row but the pivot: a repeat is the same sentence beside the same pivot.
    fn fingerprints(&self, group: &Group) -> Vec<u64> {
        let pivot = pivot_of(group, &self.config.pivot);
        let reduce = |text: &str| match self.config.dedup {
            DedupMode::Canonical => canonical(text),
            DedupMode::Exact | DedupMode::None => text.to_owned(),
        };
        let beside = &group.rows[pivot];
        let tail = format!("\0{}\0{}", beside.language, reduce(&beside.text));
        group
            .rows
            .iter()
            .enumerate()
            .filter(|(i, _)| *i != pivot)
            .map(|(_, r)| hash64(format!("{}\0{}{tail}", r.language, reduce(&r.text)).as_bytes()))
            .collect()
    }

    /// Reads one input through the filters that look at one group alone.
    fn read(
        &self,
        input: &Input,
        report: &mut Report,
        problems: &mut Problems,
        each: &mut dyn FnMut(Group) -> Result<()>,
    ) -> Result<()> {
        let counts = report.sources.entry(input.source.clone()).or_default();
        let mut reader = input.open()?;
        let pivot = self.config.pivot.as_str();
        while let Some(mut group) = reader.next_group(problems)? {
            counts.groups_read += 1;
            counts.rows_read += group.rows.len() as u64;
            let mut dropped = |reason| *counts.dropped.entry(reason).or_default() += 1;
            if !self.config.languages.is_empty() {
                group.rows.retain(|row| {
                    let keep = self.config.languages.contains(&row.language);
                    if !keep {
                        dropped(Reason::Language);
                    }
                    keep
                });
            }
            self.held_out
                .apply(&mut group, input.is_keyed(), pivot, &mut dropped);
            self.config.filter.apply(&mut group, pivot, &mut dropped);
            if group.rows.is_empty() {
                continue;
            }
            each(group)?;
        }
        Ok(())
    }

    /// Gives every group that is kept to `each`, with the name of its source.
    ///
    /// # Errors
    /// Of the readers, of `each`, and [`super::DataError::Malformed`] if strict.
    pub fn run(&self, each: &mut dyn FnMut(&str, Group) -> Result<()>) -> Result<Report> {
        let mut report = Report {
            skipped: self.skipped.clone(),
            ..Report::default()
        };
        let mut problems = Problems::new(self.strict);
        let mut ordinal = 0u64;
        for input in &self.inputs {
            let mut after = Report::default();
            let counts = after.sources.entry(input.source.clone()).or_default();
            let languages = &mut after.languages;
            let mut groups = |mut group: Group| {
                let pivot = pivot_of(&group, &self.config.pivot);
                let mut index = 0;
                // The pivot stays as long as anything is left beside it.
                group.rows.retain(|row| {
                    let is_pivot = index == pivot;
                    index += 1;
                    if is_pivot {
                        return true;
                    }
                    ordinal += 1;
                    let repeat = self
                        .repeats
                        .as_ref()
                        .is_some_and(|r| r.contains(ordinal - 1));
                    let reason = if repeat {
                        Reason::Duplicate
                    } else if !self.is_sampled(&input.source, &group.key, &row.language) {
                        Reason::NotSampled
                    } else {
                        return true;
                    };
                    *counts.dropped.entry(reason).or_default() += 1;
                    false
                });
                let first = &group.rows[0].language;
                if group.rows.iter().all(|r| r.language == *first) {
                    let n = group.rows.len() as u64;
                    *counts.dropped.entry(Reason::NoPartner).or_default() += n;
                    return Ok(());
                }
                counts.groups += 1;
                counts.rows += group.rows.len() as u64;
                for row in &group.rows {
                    match languages.get_mut(&row.language) {
                        Some(n) => *n += 1,
                        None => drop(languages.insert(row.language.clone(), 1)),
                    }
                }
                each(&input.source, group)
            };
            let mut before = Report::default();
            self.read(input, &mut before, &mut problems, &mut groups)?;
            report.merge(before);
            report.merge(after);
        }
        report.malformed = problems.count();
        report.examples = problems.examples().to_vec();
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::CorpusSpec;
    use super::*;

    fn groups(text: &str, change: impl FnOnce(&mut DataConfig)) -> (Vec<Group>, Report) {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("x.tsv");
        std::fs::write(&path, text).expect("write");
        let mut config = DataConfig {
            corpus: vec![CorpusSpec::Keyed { path, source: None }],
            ..DataConfig::default()
        };
        change(&mut config);
        let mut pipeline = Pipeline::new(&config, true).expect("pipeline");
        pipeline.survey(folder.path()).expect("survey");
        let mut out = Vec::new();
        let report = pipeline
            .run(&mut |source, group| {
                assert_eq!(source, "x");
                out.push(group);
                Ok(())
            })
            .expect("run");
        (out, report)
    }

    #[test]
    fn repeats_and_lonely_rows_go() {
        let text = "a\ten\tone\na\tde\teins\na\tfr\tun\nb\ten\tone\nb\tde\teins\n\
                    c\ten\tone\nc\tde\tEins!\nd\ten\talone\n";
        let (kept, report) = groups(text, |_| {});
        let keys: Vec<_> = kept.iter().map(|g| g.key.as_str()).collect();
        assert_eq!(keys, ["a", "c"]);
        let total = report.total();
        assert_eq!((total.rows_read, total.rows, total.groups), (8, 5, 2));
        assert_eq!(total.dropped[&Reason::Duplicate], 1);
        assert_eq!(total.dropped[&Reason::NoPartner], 2);
        assert_eq!(report.languages["de"], 2);
        let sum: u64 = total.dropped.values().sum();
        assert_eq!(total.rows + sum, total.rows_read);
        assert!(
            report
                .tsv()
                .lines()
                .any(|l| l.starts_with("total\t4\t2\t8\t5\t"))
        );
        let (kept, _) = groups(text, |c| c.dedup = DedupMode::Canonical);
        assert_eq!(kept.len(), 1);
        let (kept, _) = groups(text, |c| c.dedup = DedupMode::None);
        assert_eq!(kept.len(), 3);
        let (kept, _) = groups(text, |c| c.languages = vec!["en".into(), "fr".into()]);
        assert_eq!(kept.len(), 1);
    }

    #[test]
    fn languages_are_capped_by_hash() {
        let text: String = (0..2000)
            .map(|i| format!("{i}\ten\tone {i}\n{i}\tde\teins {i}\n{i}\tfr\tun {i}\n"))
            .collect();
        let rare: String = (0..50)
            .map(|i| format!("r{i}\ten\trare {i}\nr{i}\tga\tannamh {i}\n"))
            .collect();
        let (_, report) = groups(&(text + &rare), |c| c.max_per_language = 400);
        assert_eq!(report.languages["ga"], 50);
        for language in ["de", "fr"] {
            let n = report.languages[language];
            assert!((330..470).contains(&n), "{n} of {language}");
        }
        // English, the pivot, stays where a translation is left.
        assert!(
            (600..900).contains(&report.languages["en"]),
            "{}",
            report.languages["en"]
        );
        let total = report.total();
        let dropped: u64 = total.dropped.values().sum();
        assert_eq!(total.rows + dropped, total.rows_read);
    }
}
