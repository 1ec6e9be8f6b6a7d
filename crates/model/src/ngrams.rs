//! Beginnings of words as additional tokens.
//!
//! Subword pieces of related words have little in common: "teacher" and "teachers", or "Tom" and
//! "Том", may share no piece. Character n-grams repair that for inflected and rare words
//! (Bojanowski et al., TACL 2017); romanised ones do so across scripts as well. Only those at the
//! beginning of a word are used, where most languages keep the stem.
//!
//! The `tokenizer.json` of a model with n-grams is `{"ngrams": …, "tokenizer": …}`: an
//! [`NgramConfig`] and what would be the file without. The ids of the n-grams follow those of the
//! tokenizer proper.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use any_ascii::any_ascii;
use serde::{Deserialize, Serialize};
use tokenizers::Tokenizer;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::{ModelError, charsmap};

/// Longest romanised word that has n-grams, in characters: what is longer is a sentence in a script
/// without spaces, whose beginning says nothing special.
pub(crate) const MAX_WORD_CHARS: usize = 30;

/// Largest number of n-grams a file may ask for.
const MAX_NGRAMS: usize = 1 << 22;

/// The n-grams of a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NgramConfig {
    /// Lengths of the n-grams in characters after romanisation.
    pub lengths: Vec<usize>,
    /// Whether there are n-grams inside of words where a script writes several words as one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inside: bool,
    /// The n-grams in the order of their ids. Others are ignored.
    pub vocabulary: Vec<String>,
}

/// Reads a `tokenizer.json` of either form.
///
/// # Errors
/// [`ModelError::Tokenizer`] if it is malformed.
pub fn read_tokenizer(json: &[u8]) -> Result<(Tokenizer, Option<NgramConfig>), ModelError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct WithNgrams {
        ngrams: NgramConfig,
        tokenizer: Tokenizer,
    }
    let error = |message: String| ModelError::Tokenizer(message);
    charsmap::check(json).map_err(error)?;
    // The deserialisers of `tokenizers` contain assertions; a hostile file must not end the process.
    let read = || -> Result<_, serde_json::Error> {
        // The first key tells the forms apart, so that a file of many megabytes is read once.
        if !matches!(first_key(json).as_deref(), Some("ngrams" | "tokenizer")) {
            return Ok((serde_json::from_slice(json)?, None));
        }
        let file: WithNgrams = serde_json::from_slice(json)?;
        Ok((file.tokenizer, Some(file.ngrams)))
    };
    let (tokenizer, ngrams) = catch_unwind(AssertUnwindSafe(read))
        .map_err(|_| error("it cannot be built".into()))?
        .map_err(|e| error(e.to_string()))?;
    if let Some(config) = &ngrams {
        if config.lengths.is_empty() || config.lengths.contains(&0) {
            return Err(error("the lengths of n-grams must be positive".into()));
        }
        if config.vocabulary.len() > MAX_NGRAMS {
            return Err(error(format!("there are more than {MAX_NGRAMS} n-grams")));
        }
    }
    Ok((tokenizer, ngrams))
}

/// The first key of a JSON object.
fn first_key(json: &[u8]) -> Option<String> {
    let inner = json.trim_ascii_start().strip_prefix(b"{")?;
    serde_json::Deserializer::from_slice(inner)
        .into_iter()
        .next()?
        .ok()
}

/// Finds the n-grams of words.
#[derive(Debug, Clone)]
pub struct Ngrams {
    lengths: Vec<usize>,
    inside: bool,
    ids: HashMap<Box<str>, u32>,
}

impl Ngrams {
    /// N-grams whose ids start at `first`.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] if one is listed twice.
    pub fn new(config: NgramConfig, first: u32) -> Result<Self, ModelError> {
        let count = config.vocabulary.len();
        let ids: HashMap<Box<str>, u32> = (first..)
            .zip(config.vocabulary)
            .map(|(id, ngram)| (ngram.into_boxed_str(), id))
            .collect();
        if ids.len() < count {
            let message = "an n-gram is listed twice".into();
            return Err(ModelError::Tokenizer(message));
        }
        Ok(Self {
            lengths: config.lengths,
            inside: config.inside,
            ids,
        })
    }

    /// Number of ids.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.ids.len()
    }

    /// Lengths of the n-grams.
    pub(crate) fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Whether there are n-grams inside of words.
    pub(crate) fn inside(&self) -> bool {
        self.inside
    }

    /// The n-grams with their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.ids.iter().map(|(text, id)| (&**text, *id))
    }

    /// Appends the ids of the n-grams of `word`.
    pub fn append(&self, word: &str, ids: &mut Vec<u32>) {
        for_each(word, &self.lengths, self.inside, |ngram| {
            ids.extend(self.ids.get(ngram));
        });
    }
}

/// Calls `f` with the first characters, as many as each of `lengths` says, of every run of letters
/// of `word`, after compatibility normalisation, romanisation and lower-casing. Runs shorter than a
/// length have no n-gram of it.
///
/// With `inside` it is called as well with the beginnings of what is left of a Hebrew or Arabic run
/// without its proclitics (conjunctions, prepositions and articles), and, of scripts that do not
/// separate words, with what begins at every letter: [`INSIDE`] and then the n-gram, of lengths of at
/// least [`MIN_INSIDE_CHARS`].
pub fn for_each(word: &str, lengths: &[usize], inside: bool, mut f: impl FnMut(&str)) {
    let word: String = word.nfkc().collect();
    // Vowel signs and the like belong to the letters they modify.
    let letter = |c: char| c.is_alphabetic() || is_combining_mark(c);
    for run in word.split(|c| !letter(c)).filter(|run| !run.is_empty()) {
        if inside && run.starts_with(unseparated) {
            inner(run, lengths, &mut f);
            continue;
        }
        beginnings(run, lengths, &mut f);
        if inside {
            without_proclitics(run, |rest| beginnings(rest, lengths, &mut f));
        }
    }
}

/// Precedes n-grams inside of a run.
pub const INSIDE: char = '~';

/// Shortest n-grams inside of a run, in characters after romanisation.
pub(crate) const MIN_INSIDE_CHARS: usize = 3;

fn beginnings(run: &str, lengths: &[usize], f: &mut impl FnMut(&str)) {
    let romanised = any_ascii(run).to_ascii_lowercase();
    if romanised.len() > MAX_WORD_CHARS {
        return;
    }
    for &length in lengths {
        if let Some(ngram) = romanised.get(..length) {
            f(ngram);
        }
    }
}

/// Letters of scripts without spaces between words that are alphabets: Thai, Lao, Tibetan, Burmese,
/// Khmer.
pub(crate) fn unseparated(c: char) -> bool {
    matches!(c, '\u{e00}'..='\u{fff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}')
}

fn inner(run: &str, lengths: &[usize], f: &mut impl FnMut(&str)) {
    let mut romanised = String::with_capacity(2 * run.len());
    let mut starts = Vec::new();
    for c in run.chars() {
        let begin = romanised.len();
        romanised.push_str(any_ascii::any_ascii_char(c));
        if romanised.len() > begin && !is_combining_mark(c) {
            starts.push(begin);
        }
    }
    romanised.make_ascii_lowercase();
    let mut marked = String::new();
    for start in starts {
        for &length in lengths.iter().filter(|length| **length >= MIN_INSIDE_CHARS) {
            if let Some(ngram) = romanised.get(start..start + length) {
                marked.clear();
                marked.push(INSIDE);
                marked.push_str(ngram);
                f(&marked);
            }
        }
    }
}

/// Proclitics in the order in which they are written together, and the fewest letters of what they
/// are joined to.
const HEBREW: ([&[&str]; 4], usize) = (
    [
        &["\u{5d5}"],
        &["\u{5e9}"],
        &["\u{5d1}", "\u{5db}", "\u{5dc}", "\u{5de}"],
        &["\u{5d4}"],
    ],
    2,
);
const ARABIC: ([&[&str]; 3], usize) = (
    [
        &["\u{648}", "\u{641}"],
        &["\u{628}", "\u{643}", "\u{644}"],
        &["\u{627}\u{644}", "\u{644}"],
    ],
    3,
);

/// The groups of proclitics that a run with this first character may begin with, and the fewest letters of
/// what they are joined to.
pub(crate) fn proclitics(first: char) -> Option<(&'static [&'static [&'static str]], usize)> {
    match first {
        '\u{5d0}'..='\u{5ea}' => Some((&HEBREW.0, HEBREW.1)),
        '\u{620}'..='\u{64a}' => Some((&ARABIC.0, ARABIC.1)),
        _ => None,
    }
}

/// Calls `f` with what is left of `run` after each of the proclitics that it may begin with.
fn without_proclitics(run: &str, mut f: impl FnMut(&str)) {
    let Some((groups, fewest)) = run.chars().next().and_then(proclitics) else {
        return;
    };
    let mut rest = run;
    for group in groups {
        let shorter = group.iter().find_map(|p| rest.strip_prefix(p));
        if let Some(shorter) = shorter.filter(|rest| rest.chars().count() >= fewest) {
            rest = shorter;
            f(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ngrams(word: &str) -> Vec<String> {
        let mut found = Vec::new();
        for_each(word, &[3, 5], false, |ngram| found.push(ngram.to_owned()));
        found
    }

    fn inside(word: &str) -> Vec<String> {
        let mut found = Vec::new();
        for_each(word, &[2, 3], true, |ngram| found.push(ngram.to_owned()));
        found
    }

    #[test]
    fn proclitics_are_taken_off_one_by_one() {
        // "and in the book", "book"
        let (with, without) = (
            inside("\u{648}\u{628}\u{627}\u{644}\u{643}\u{62a}\u{627}\u{628}"),
            inside("\u{643}\u{62a}\u{627}\u{628}"),
        );
        assert_eq!(with.len(), 8);
        assert_eq!(with[6..], without[..2]);
        // "and the house", "house"
        let (with, without) = (
            inside("\u{5d5}\u{5d4}\u{5d1}\u{5d9}\u{5ea}"),
            inside("\u{5d1}\u{5d9}\u{5ea}"),
        );
        assert_eq!(with[4..6], without[..2]);
        // Nothing is left of "and", and words of other scripts stay whole.
        assert_eq!(inside("\u{648}\u{628}").len(), 1);
        assert_eq!(inside("the").len(), 2);
    }

    #[test]
    fn scripts_without_spaces_have_ngrams_at_every_letter() {
        // "house" within "go home", longer than any word.
        let house = inside("\u{e1a}\u{e49}\u{e32}\u{e19}");
        assert!(!house.is_empty() && house.iter().all(|n| n.starts_with(INSIDE)));
        let long = "\u{e01}\u{e25}\u{e31}\u{e1a}".repeat(20) + "\u{e1a}\u{e49}\u{e32}\u{e19}";
        assert!(house.iter().all(|n| inside(&long).contains(n)));
        // Without the switch a long run has none.
        assert!(ngrams(&long).is_empty());
    }

    #[test]
    fn beginnings_are_the_same_in_all_scripts() {
        assert_eq!(ngrams("Maria"), ["mar", "maria"]);
        assert_eq!(ngrams("Μαρία"), ngrams("Maria"));
        assert_eq!(ngrams("Мария"), ["mar", "mariy"]);
        assert_eq!(ngrams("ＭＡＲÍＡ,"), ngrams("maria"));
    }

    #[test]
    fn words_without_letters_or_too_long_have_none() {
        assert!(ngrams("2026").is_empty());
        assert!(ngrams("ab").is_empty());
        assert!(ngrams(&"a".repeat(31)).is_empty());
        assert_eq!(ngrams("mother-in-law"), ["mot", "mothe", "law"]);
        // The vowel signs do not cut the word.
        assert_eq!(ngrams("हिन्दी").len(), 2);
    }

    #[test]
    fn ids_follow_the_vocabulary() {
        let config = NgramConfig {
            lengths: vec![3, 5],
            inside: false,
            vocabulary: vec!["mar".into(), "mothe".into()],
        };
        let ngrams = Ngrams::new(config.clone(), 100).unwrap();
        let mut ids = vec![7];
        ngrams.append("Mothers,Марк", &mut ids);
        assert_eq!(ids, [7, 101, 100]);
        let twice = NgramConfig {
            vocabulary: vec!["mar".into(), "mar".into()],
            ..config
        };
        assert!(Ngrams::new(twice, 0).is_err());
    }

    #[test]
    fn files_come_in_two_forms() {
        let plain = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
        });
        let read = |json: &serde_json::Value| read_tokenizer(json.to_string().as_bytes());
        let (tokenizer, ngrams) = read(&plain).unwrap();
        assert_eq!((tokenizer.get_vocab_size(true), ngrams), (2, None));

        let with = |ngrams: &str| {
            let ngrams: serde_json::Value = serde_json::from_str(ngrams).unwrap();
            serde_json::json!({"ngrams": ngrams, "tokenizer": plain})
        };
        let json = with(r#"{"lengths": [3], "vocabulary": ["mar"]}"#);
        let (tokenizer, ngrams) = read(&json).unwrap();
        assert_eq!(tokenizer.get_vocab_size(true), 2);
        assert_eq!(ngrams.unwrap().vocabulary, ["mar"]);
        let turned = format!(
            " {{ \"tokenizer\": {plain}, \"ngrams\": {}}}",
            json["ngrams"]
        );
        let (_, ngrams) = read_tokenizer(turned.as_bytes()).unwrap();
        assert_eq!(ngrams.unwrap().vocabulary, ["mar"]);
        for wrong in ["", "{", "{}", "[]", "{\"ngrams", "{\"ngrams\": null}"] {
            assert!(read_tokenizer(wrong.as_bytes()).is_err(), "{wrong}");
        }
        for wrong in [
            r#"{"lengths": [0], "vocabulary": []}"#,
            r#"{"lengths": [], "vocabulary": []}"#,
            r#"{"lengths": [3]}"#,
            "3",
        ] {
            assert!(read(&with(wrong)).is_err(), "{wrong}");
        }
    }
}
