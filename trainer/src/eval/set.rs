//! Aligned sentences that an encoder is measured on.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::EvalError;
use crate::data::config::Input;
use crate::data::readers::Problems;
use crate::data::{DataError, Group, Row};

/// A sentence of a set: its key, and its text as a position in [`EvalSet::texts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// What translations of each other share: a number below [`EvalSet::keys`].
    pub key: u32,
    /// Position of the text.
    pub text: u32,
}

/// Aligned sentences of one source, every text held once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvalSet {
    name: String,
    texts: Vec<String>,
    languages: BTreeMap<String, Vec<Line>>,
    keys: u32,
}

/// The part of a set that is read.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Number of keys, from the first on; all if `None`.
    pub keys: Option<u32>,
    /// Only these languages; all if empty.
    pub languages: Vec<String>,
}

impl EvalSet {
    /// Reads a set, or a part of it.
    ///
    /// # Errors
    /// Of the readers, and [`DataError::Config`] if it has more than 2^32 lines.
    pub fn read(
        input: &Input,
        selection: &Selection,
        problems: &mut Problems,
    ) -> Result<Self, EvalError> {
        let mut reader = input.open()?;
        let mut groups = Vec::new();
        let (keys, languages) = (selection.keys, &selection.languages);
        while keys.is_none_or(|limit| groups.len() < limit as usize) {
            let Some(mut group) = reader.next_group(problems)? else {
                break;
            };
            if !languages.is_empty() {
                group.rows.retain(|r| languages.contains(&r.language));
            }
            groups.push(group);
        }
        Ok(Self::new(&input.source, groups)?)
    }

    /// Makes a set of groups. Empty sentences are left out.
    ///
    /// # Errors
    /// [`DataError::Config`] if there are more than 2^32 lines.
    pub fn new(name: &str, groups: Vec<Group>) -> Result<Self, DataError> {
        let mut set = Self {
            name: name.to_owned(),
            ..Self::default()
        };
        let mut known: HashMap<String, u32> = HashMap::new();
        for group in groups {
            set.push(group, &mut known)?;
        }
        Ok(set)
    }

    /// Adds sentences of `language` that are translations of nothing in the set: candidates that
    /// make retrieval harder.
    ///
    /// # Errors
    /// As of [`EvalSet::new`].
    pub fn distract(&mut self, language: &str, texts: &[String]) -> Result<(), DataError> {
        let positions = self.texts.iter().cloned().zip(0..);
        let mut known: HashMap<String, u32> = positions.collect();
        for text in texts {
            let (language, text) = (language.to_owned(), text.clone());
            let group = Group {
                key: String::new(),
                rows: vec![Row { language, text }],
            };
            self.push(group, &mut known)?;
        }
        Ok(())
    }

    fn push(&mut self, group: Group, known: &mut HashMap<String, u32>) -> Result<(), DataError> {
        let key = self.keys;
        self.keys = key
            .checked_add(1)
            .ok_or_else(|| DataError::Config("more than 2^32 keys in one set".into()))?;
        for row in group.rows {
            if row.text.trim().is_empty() {
                continue;
            }
            let text = match known.get(&row.text) {
                Some(text) => *text,
                None => {
                    let text = u32::try_from(self.texts.len())
                        .map_err(|_| DataError::Config("more than 2^32 texts".into()))?;
                    self.texts.push(row.text.clone());
                    known.insert(row.text, text);
                    text
                }
            };
            self.languages
                .entry(row.language)
                .or_default()
                .push(Line { key, text });
        }
        Ok(())
    }

    /// The first keys of the set, with the texts of all of it: embeddings of the whole set are those of the part.
    #[must_use]
    pub fn first(&self, keys: u32) -> Self {
        let mut part = Self {
            name: format!("{}, first {keys}", self.name),
            keys: self.keys.min(keys),
            texts: self.texts.clone(),
            ..Self::default()
        };
        for (language, lines) in &self.languages {
            let lines: Vec<Line> = lines.iter().filter(|l| l.key < keys).copied().collect();
            if !lines.is_empty() {
                part.languages.insert(language.clone(), lines);
            }
        }
        part
    }

    /// The set with the texts of each language for themselves, for encoders of one language each: a text that two
    /// languages have occurs twice. Languages are kept by `keep`; with each goes the range of its texts.
    #[must_use]
    pub fn apart(&self, keep: &dyn Fn(&str) -> bool) -> (Self, BTreeMap<String, Range<usize>>) {
        let mut set = Self {
            name: self.name.clone(),
            keys: self.keys,
            ..Self::default()
        };
        let mut ranges = BTreeMap::new();
        for (language, lines) in self.languages.iter().filter(|l| keep(l.0)) {
            let begin = set.texts.len();
            let mut known: HashMap<u32, u32> = HashMap::new();
            let own = lines.iter().map(|line| {
                let text = *known.entry(line.text).or_insert_with(|| {
                    set.texts.push(self.texts[line.text as usize].clone());
                    set.texts.len() as u32 - 1
                });
                Line {
                    key: line.key,
                    text,
                }
            });
            set.languages.insert(language.clone(), own.collect());
            ranges.insert(language.clone(), begin..set.texts.len());
        }
        (set, ranges)
    }

    /// Name of the source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The texts to embed, each once.
    #[must_use]
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Distinct keys: sentences that are translations of each other have one.
    #[must_use]
    pub fn keys(&self) -> u32 {
        self.keys
    }

    /// Sentences of each language, in the order of keys.
    #[must_use]
    pub fn languages(&self) -> &BTreeMap<String, Vec<Line>> {
        &self.languages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_apart_share_no_text() {
        let groups = [
            &[("de", "Hotel"), ("en", "Hotel"), ("fr", "hôtel")][..],
            &[("de", "Haus"), ("en", "house")],
            &[("de", "Hotel"), ("en", "inn")],
        ];
        let groups = groups.iter().zip(0..);
        let groups = groups.map(|(rows, key): (_, u32)| Group::of(&key.to_string(), rows));
        let set = EvalSet::new("s", groups.collect()).unwrap();
        assert_eq!(set.texts().len(), 5);
        let (apart, ranges) = set.apart(&|l| l != "fr");
        assert_eq!(apart.texts(), ["Hotel", "Haus", "Hotel", "house", "inn"]);
        let wanted = [("de".to_owned(), 0..2), ("en".to_owned(), 2..5)];
        assert_eq!(ranges, BTreeMap::from(wanted));
        let lines = |language: &str| -> Vec<(u32, u32)> {
            let lines = apart.languages()[language].iter();
            lines.map(|l| (l.key, l.text)).collect()
        };
        assert_eq!(lines("de"), [(0, 0), (1, 1), (2, 0)]);
        assert_eq!(lines("en"), [(0, 2), (1, 3), (2, 4)]);
        assert_eq!((apart.keys(), apart.name()), (3, "s"));
    }
}
