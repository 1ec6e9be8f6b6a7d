//! Aligned sentences that an encoder is measured on.

use std::collections::{BTreeMap, HashMap};

use super::EvalError;
use crate::data::config::Input;
use crate::data::readers::Problems;
use crate::data::{DataError, Group, Row};

/// A sentence of a set: its key, and its text as a position in [`EvalSet::texts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Number of the key.
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

    /// Number of keys.
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
