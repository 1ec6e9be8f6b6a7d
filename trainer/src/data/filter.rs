//! Which rows of a group are kept.

use std::collections::HashSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::readers::{Keyed, Problems, Reader};
use super::{Group, Result, hash64, same_text, text_hash};

/// Why a row was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// Nothing but white space.
    Empty,
    /// Fewer characters than `min_chars`.
    TooShort,
    /// More characters than `max_chars`.
    TooLong,
    /// Length out of proportion to the pivot sentence.
    Ratio,
    /// The same text as the pivot sentence.
    Untranslated,
    /// Of a language that is not asked for.
    Language,
    /// The same pair has been seen before.
    Duplicate,
    /// The text, the pivot sentence or the key is held out.
    HeldOut,
    /// Its language has more than `max_per_language` sentences.
    NotSampled,
    /// Nothing in another language was left under its key.
    NoPartner,
}

impl Reason {
    /// All reasons, in the order of reports.
    pub const ALL: [Self; 10] = [
        Self::Empty,
        Self::TooShort,
        Self::TooLong,
        Self::Ratio,
        Self::Untranslated,
        Self::Language,
        Self::Duplicate,
        Self::HeldOut,
        Self::NotSampled,
        Self::NoPartner,
    ];

    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::TooShort => "too short",
            Self::TooLong => "too long",
            Self::Ratio => "length ratio",
            Self::Untranslated => "untranslated",
            Self::Language => "language",
            Self::Duplicate => "duplicate",
            Self::HeldOut => "held out",
            Self::NotSampled => "not sampled",
            Self::NoPartner => "no partner",
        }
    }
}

/// Limits on rows. Deserialised from `[filter]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FilterOptions {
    /// Fewest characters of a sentence.
    pub min_chars: usize,
    /// Most characters of a sentence.
    pub max_chars: usize,
    /// Largest ratio of lengths in characters to the pivot sentence, each plus 10 so that short
    /// sentences and dense scripts pass; 0 = no limit.
    pub max_ratio: f64,
    /// Drop rows that equal the pivot sentence but for case and punctuation.
    pub drop_untranslated: bool,
}

impl Default for FilterOptions {
    fn default() -> Self {
        Self {
            min_chars: 1,
            max_chars: 1000,
            max_ratio: 9.0,
            drop_untranslated: true,
        }
    }
}

/// Position of the pivot row: the first of language `pivot`, or else the first row.
#[must_use]
pub fn pivot_of(group: &Group, pivot: &str) -> usize {
    group
        .rows
        .iter()
        .position(|r| r.language == pivot)
        .unwrap_or(0)
}

impl FilterOptions {
    /// Whether a row passes on its own.
    fn on_its_own(&self, text: &str) -> Option<Reason> {
        if text.trim().is_empty() {
            return Some(Reason::Empty);
        }
        let chars = text.chars().count();
        if chars < self.min_chars {
            Some(Reason::TooShort)
        } else if chars > self.max_chars {
            Some(Reason::TooLong)
        } else {
            None
        }
    }

    /// Whether a row fits the pivot sentence.
    fn beside(&self, text: &str, language: &str, pivot: &super::Row) -> Option<Reason> {
        let length = |t: &str| t.chars().count() as f64 + 10.0;
        let (a, b) = (length(text), length(&pivot.text));
        if self.max_ratio > 0.0 && (a / b).max(b / a) > self.max_ratio {
            return Some(Reason::Ratio);
        }
        let same =
            self.drop_untranslated && language != pivot.language && same_text(text, &pivot.text);
        same.then_some(Reason::Untranslated)
    }

    /// Removes rows from `group`; each is told to `dropped`. A group whose pivot falls for its own
    /// sake goes on with the next row as pivot.
    pub fn apply(&self, group: &mut Group, pivot: &str, dropped: &mut impl FnMut(Reason)) {
        group.rows.retain(|row| match self.on_its_own(&row.text) {
            None => true,
            Some(reason) => {
                dropped(reason);
                false
            }
        });
        if group.rows.is_empty() {
            return;
        }
        let pivot_row = group.rows[pivot_of(group, pivot)].clone();
        group.rows.retain(|row| {
            if *row == pivot_row {
                return true;
            }
            match self.beside(&row.text, &row.language, &pivot_row) {
                None => true,
                Some(reason) => {
                    dropped(reason);
                    false
                }
            }
        });
    }
}

/// Sentences and keys that must not be trained on.
#[derive(Debug, Default)]
pub struct HeldOut {
    texts: HashSet<u64>,
    keys: HashSet<u64>,
}

impl HeldOut {
    /// Adds all keys and sentences of a keyed file.
    ///
    /// # Errors
    /// As [`Keyed::open`] and [`Reader::next_group`].
    pub fn add(&mut self, path: &Path, problems: &mut Problems) -> Result<()> {
        let mut reader = Keyed::open(path)?;
        while let Some(group) = reader.next_group(problems)? {
            self.keys.insert(hash64(group.key.as_bytes()));
            self.texts
                .extend(group.rows.iter().map(|r| text_hash(&r.text)));
        }
        Ok(())
    }

    /// Number of sentences, without repeats.
    #[must_use]
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether nothing is held out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Removes held-out rows; all of the group if its key (where keys mean something beyond the
    /// file, `keyed`) or its pivot sentence is held out.
    pub fn apply(
        &self,
        group: &mut Group,
        keyed: bool,
        pivot: &str,
        dropped: &mut impl FnMut(Reason),
    ) {
        if self.is_empty() || group.rows.is_empty() {
            return;
        }
        let held = |text: &str| self.texts.contains(&text_hash(text));
        let whole = keyed && self.keys.contains(&hash64(group.key.as_bytes()))
            || held(&group.rows[pivot_of(group, pivot)].text);
        group.rows.retain(|row| {
            let drop = whole || held(&row.text);
            if drop {
                dropped(Reason::HeldOut);
            }
            !drop
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(rows: &[(&str, &str)]) -> Group {
        Group::of("k", rows)
    }

    #[test]
    fn reasons_are_told() {
        let options = FilterOptions {
            min_chars: 2,
            max_chars: 200,
            ..Default::default()
        };
        let long = "x".repeat(201);
        let off = "word ".repeat(30);
        let mut g = group(&[
            ("de", " "),
            ("en", "one"),
            ("fr", "u"),
            ("fi", &long),
            ("it", &off),
            ("nl", "ONE!"),
            ("es", "uno"),
        ]);
        let mut reasons = Vec::new();
        options.apply(&mut g, "en", &mut |r| reasons.push(r));
        assert_eq!(g.rows.len(), 2);
        use Reason::{Empty, Ratio, TooLong, TooShort, Untranslated};
        assert_eq!(reasons, [Empty, TooShort, TooLong, Ratio, Untranslated]);
    }

    #[test]
    fn held_out_pivot_takes_the_group() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("dev.tsv");
        std::fs::write(&path, "d1\ten\tHello there.\nd1\tde\tHallo dort.\n").expect("write");
        let mut held = HeldOut::default();
        held.add(&path, &mut Problems::new(true)).expect("dev");
        let mut count = 0;
        let mut g = group(&[("en", "hello there"), ("fr", "salut")]);
        held.apply(&mut g, true, "en", &mut |_| count += 1);
        assert!(g.rows.is_empty());
        let mut g = group(&[("en", "other"), ("de", "hallo dort"), ("fr", "autre")]);
        held.apply(&mut g, true, "en", &mut |_| count += 1);
        assert_eq!(g.rows.len(), 2);
        let mut g = group(&[("en", "other"), ("fr", "autre")]);
        g.key = "d1".into();
        held.apply(&mut g, false, "en", &mut |_| count += 1);
        assert_eq!(g.rows.len(), 2);
        held.apply(&mut g, true, "en", &mut |_| count += 1);
        assert_eq!((g.rows.len(), count), (0, 5));
    }
}
