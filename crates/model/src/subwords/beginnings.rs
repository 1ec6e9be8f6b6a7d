//! [`Beginnings`]: the n-grams of words ([`crate::ngrams`]) whose characters are known.

use super::characters::{Character, LETTER_BITS, pack};
use super::table::Table;
use crate::ngrams::{INSIDE, MAX_WORD_CHARS, MIN_INSIDE_CHARS, Ngrams, proclitics, unseparated};

/// Longest n-gram.
const MAX_CHARS: usize = 6;

/// Set in the keys of n-grams inside of runs.
const INSIDE_KEY: u64 = 1 << (MAX_CHARS * LETTER_BITS);

/// The n-grams by their letters.
pub(super) struct Beginnings {
    lengths: Vec<usize>,
    inside: bool,
    table: Table,
    /// Id of the first one.
    first: u32,
}

/// The key of the first `n` letters of a packed text.
#[inline]
fn key(packed: u64, n: usize) -> u64 {
    packed & ((1 << (LETTER_BITS * n)) - 1)
}

impl Beginnings {
    /// `None` if an n-gram is too long, or there are too many.
    pub fn new(ngrams: &Ngrams) -> Option<Self> {
        let lengths = ngrams.lengths().to_vec();
        let first = ngrams.iter().map(|(_, id)| id).min().unwrap_or(0);
        let mut entries = Vec::new();
        for (text, id) in ngrams.iter() {
            let (letters, inside) = match text.strip_prefix(INSIDE) {
                Some(letters) => (letters, INSIDE_KEY),
                None => (text, 0),
            };
            // Others are never found.
            let plain = letters.is_ascii() && !letters.contains(['\0', INSIDE]);
            let lower = !letters.contains(|c: char| c.is_ascii_uppercase());
            if plain && lower && lengths.contains(&letters.len()) && letters.len() <= MAX_CHARS {
                let place = u16::try_from(id - first).ok()?;
                entries.push((pack(letters) | inside, place));
            }
        }
        let short = lengths.iter().all(|n| (1..=MAX_CHARS).contains(n));
        short.then(|| Self {
            lengths,
            inside: ngrams.inside(),
            table: Table::new(entries.into_iter()),
            first,
        })
    }

    /// As [`Ngrams::append`], of characters that normalisation leaves alone.
    pub fn append(&self, characters: &[Character], ids: &mut Vec<u32>) {
        let runs = characters.split(|c| !c.is_letter());
        for run in runs.filter(|run| !run.is_empty()) {
            if !self.inside {
                self.beginnings(run, ids);
            } else if unseparated(run[0].c) {
                self.inner(run, ids);
            } else {
                self.beginnings(run, ids);
                self.without_proclitics(run, ids);
            }
        }
    }

    fn beginnings(&self, run: &[Character], ids: &mut Vec<u32>) {
        let (mut letters, mut length) = (0, 0);
        for c in run {
            if length < MAX_CHARS {
                letters |= c.roman << (LETTER_BITS * length);
            }
            length += c.roman_length();
        }
        if length > MAX_WORD_CHARS {
            return;
        }
        for &n in self.lengths.iter().filter(|n| **n <= length) {
            if let Some(place) = self.table.get(key(letters, n)) {
                ids.push(self.first + u32::from(place));
            }
        }
    }

    fn inner(&self, run: &[Character], ids: &mut Vec<u32>) {
        for (start, c) in run.iter().enumerate() {
            if c.roman_length() == 0 || c.is_combining_mark() {
                continue;
            }
            let (mut letters, mut length) = (0, 0);
            for c in &run[start..] {
                if length >= MAX_CHARS {
                    break;
                }
                letters |= c.roman << (LETTER_BITS * length);
                length += c.roman_length();
            }
            let lengths = self.lengths.iter();
            for &n in lengths.filter(|n| (MIN_INSIDE_CHARS..=length).contains(*n)) {
                if let Some(place) = self.table.get(key(letters, n) | INSIDE_KEY) {
                    ids.push(self.first + u32::from(place));
                }
            }
        }
    }

    fn without_proclitics(&self, run: &[Character], ids: &mut Vec<u32>) {
        let Some((groups, fewest)) = proclitics(run[0].c) else {
            return;
        };
        let mut rest = run;
        for group in groups {
            let shorter = group.iter().find_map(|proclitic| {
                let length = proclitic.chars().count();
                let begins = length <= rest.len()
                    && proclitic.chars().eq(rest[..length].iter().map(|c| c.c));
                begins.then(|| &rest[length..])
            });
            if let Some(shorter) = shorter.filter(|rest| rest.len() >= fewest) {
                rest = shorter;
                self.beginnings(rest, ids);
            }
        }
    }
}
