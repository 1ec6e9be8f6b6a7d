//! Lexical substitution: sentences of the pivot language with words replaced by entries of a bilingual
//! lexicon, for languages that have a lexicon and few sentences (GATITOS, arXiv 2303.15265, section 4;
//! there called codeswitching).

use std::collections::{BTreeMap, HashMap};

use laser_sampling::mix;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::permutation::Permutation;
use super::{Group, hash64};

/// Longest entry, in words of the pivot language.
const MAX_ENTRY_WORDS: usize = 3;

/// Sentences that are tried for each one that is wanted.
const TRIES: usize = 20;

/// Which mixed sentences are made, and how many.
#[derive(Clone, Debug, PartialEq)]
pub struct LexmixOptions {
    /// Most sentences of a language.
    pub per_language: usize,
    /// Languages with fewer entries get none.
    pub fewest_entries: usize,
    /// Words of the longest sentence that is taken.
    pub longest: usize,
    /// Share of a sentence's content words that the lexicon must have.
    pub coverage: f64,
    /// Least share of the known words that is replaced; it is drawn between this and 1.
    pub least_share: f64,
    /// Share of the words the lexicon does not have that stays; the rest is left out.
    pub kept: f64,
    /// Seed of all draws.
    pub seed: u64,
}

impl Default for LexmixOptions {
    fn default() -> Self {
        Self {
            per_language: 2000,
            fewest_entries: 200,
            longest: 14,
            coverage: 0.6,
            least_share: 0.3,
            kept: 0.5,
            seed: 1,
        }
    }
}

/// Entries by language and phrase of the pivot language, and sentences of that language.
#[derive(Clone, Debug, Default)]
pub struct Lexmix {
    entries: BTreeMap<String, HashMap<String, Vec<String>>>,
    sentences: Vec<Vec<String>>,
}

impl Lexmix {
    /// Adds an entry of a lexicon: a phrase of `pivot` and its translations.
    pub fn add_entry(&mut self, group: &Group, pivot: &str) {
        for phrase in group.rows.iter().filter(|r| r.language == pivot) {
            let words = words(&phrase.text);
            // "to go" is looked for as "go".
            let words = match &words[..] {
                [to, rest @ ..] if to == "to" && !rest.is_empty() => rest,
                all => all,
            };
            if words.is_empty() || words.len() > MAX_ENTRY_WORDS {
                continue;
            }
            let phrase = words.join(" ");
            for row in group.rows.iter().filter(|r| r.language != pivot) {
                let language = self.entries.entry(row.language.clone()).or_default();
                language
                    .entry(phrase.clone())
                    .or_default()
                    .push(row.text.clone());
            }
        }
    }

    /// Adds the sentences of `pivot` that a group has, if they have no more than `longest` words.
    pub fn add_sentences(&mut self, group: &Group, pivot: &str, longest: usize) {
        for row in group.rows.iter().filter(|r| r.language == pivot) {
            let words = words(&row.text);
            if (2..=longest).contains(&words.len()) {
                self.sentences.push(words);
            }
        }
    }

    /// Calls `each` with language, sentence of the pivot language and the same with words replaced.
    ///
    /// # Errors
    /// Of `each`.
    pub fn make<E>(
        &self,
        options: &LexmixOptions,
        each: &mut dyn FnMut(&str, &str, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        let n = self.sentences.len() as u64;
        for (language, entries) in &self.entries {
            if entries.len() < options.fewest_entries || n == 0 {
                continue;
            }
            let seed = mix(options.seed ^ hash64(language.as_bytes()));
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let order = Permutation::new(n, seed);
            let mut made = 0;
            for i in 0..n.min((options.per_language * TRIES) as u64) {
                if made == options.per_language {
                    break;
                }
                let sentence = &self.sentences[order.get(i) as usize];
                if let Some(mixed) = substitute(sentence, entries, options, &mut rng) {
                    each(language, &sentence.join(" "), &mixed)?;
                    made += 1;
                }
            }
        }
        Ok(())
    }
}

/// Words in lower case, without punctuation.
fn words(text: &str) -> Vec<String> {
    text.to_lowercase()
        .split(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '-'))
        .map(|word| word.trim_matches(|c| c == '\'' || c == '-').to_owned())
        .filter(|word| !word.is_empty())
        .collect()
}

/// Whether a word of English says little by itself.
fn is_function_word(word: &str) -> bool {
    const WORDS: &str = " a an the and or but if of to in on at by for from with as is are was were be \
        been am do does did has have had will would can could should may might must not no it its \
        this that these those i you he she we they me him her us them my your his our their there \
        here so than then too very just ";
    word.len() < 8 && WORDS.contains(&format!(" {word} "))
}

/// The forms under which a lexicon of English may list a word.
fn forms(word: &str) -> Vec<String> {
    let mut forms = vec![word.to_owned()];
    let mut cut = |suffix: &str, ends: &[&str]| {
        if let Some(stem) = word.strip_suffix(suffix).filter(|stem| stem.len() >= 2) {
            forms.extend(ends.iter().map(|end| format!("{stem}{end}")));
            let mut reversed = stem.chars().rev();
            if ends.len() > 1 && reversed.next() == reversed.next() {
                forms.push(stem[..stem.len() - 1].to_owned());
            }
        }
    };
    cut("'s", &[""]);
    cut("ies", &["y"]);
    cut("es", &[""]);
    cut("s", &[""]);
    cut("ied", &["y"]);
    cut("ed", &["", "e"]);
    cut("ing", &["", "e"]);
    forms
}

/// The sentence with a share of what the lexicon has replaced; `None` if it has too few of its content
/// words.
fn substitute(
    sentence: &[String],
    entries: &HashMap<String, Vec<String>>,
    options: &LexmixOptions,
    rng: &mut ChaCha8Rng,
) -> Option<String> {
    let share = rng.random_range(options.least_share..=1.0);
    let (mut content, mut known) = (0usize, 0usize);
    let mut out: Vec<&str> = Vec::with_capacity(sentence.len());
    let mut at = 0;
    while at < sentence.len() {
        let longest = MAX_ENTRY_WORDS.min(sentence.len() - at);
        let found = (1..=longest).rev().find_map(|n| {
            let phrase = sentence[at..at + n].join(" ");
            if n > 1 {
                return Some((n, entries.get(&phrase)?));
            }
            forms(&phrase)
                .iter()
                .find_map(|form| Some((1, entries.get(form)?)))
        });
        let n = found.map_or(1, |(n, _)| n);
        let phrase = &sentence[at..at + n];
        let counted = phrase.iter().filter(|word| !is_function_word(word)).count();
        content += counted;
        at += n;
        match found {
            Some((_, translations)) => {
                known += counted;
                if rng.random_bool(share) {
                    out.extend(translations.choose(rng).map(String::as_str));
                } else {
                    out.extend(phrase.iter().map(String::as_str));
                }
            }
            None if rng.random_bool(options.kept) => out.push(&phrase[0]),
            None => {}
        }
    }
    let covered = content > 0 && known as f64 >= options.coverage * content as f64;
    let mixed = out.join(" ");
    (covered && known > 0 && mixed != sentence.join(" ")).then_some(mixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(rows: &[(&str, &str)]) -> Group {
        Group::of("k", rows)
    }

    fn lexmix() -> Lexmix {
        let mut lexmix = Lexmix::default();
        for (en, de) in [
            ("Dog", "Hund"),
            ("to run", "laufen"),
            ("good morning", "guten Morgen"),
            ("city", "Stadt"),
        ] {
            lexmix.add_entry(&group(&[("en", en), ("de", de)]), "en");
        }
        for text in [
            "Good morning, dogs!",
            "He was running to the cities.",
            "Cats sleep.",
        ] {
            lexmix.add_sentences(&group(&[("en", text), ("fr", "…")]), "en", 14);
        }
        lexmix
    }

    fn all(options: &LexmixOptions) -> Vec<(String, String)> {
        let mut made = Vec::new();
        let mut each = |language: &str, plain: &str, mixed: &str| {
            assert_eq!(language, "de");
            made.push((plain.to_owned(), mixed.to_owned()));
            Ok::<_, ()>(())
        };
        lexmix().make(options, &mut each).unwrap();
        made.sort();
        made
    }

    #[test]
    fn known_words_are_replaced_and_unknown_sentences_left_out() {
        let options = LexmixOptions {
            fewest_entries: 1,
            least_share: 1.0,
            kept: 1.0,
            ..LexmixOptions::default()
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        let wanted = [
            pair("good morning dogs", "guten Morgen Hund"),
            pair("he was running to the cities", "he was laufen to the Stadt"),
        ];
        assert_eq!(all(&options), wanted);
        let one = LexmixOptions {
            per_language: 1,
            ..options.clone()
        };
        assert_eq!(all(&one).len(), 1);
        let none = LexmixOptions {
            fewest_entries: 5,
            ..options.clone()
        };
        assert!(all(&none).is_empty());
        let bare = LexmixOptions {
            kept: 0.0,
            ..options
        };
        assert_eq!(all(&bare)[1].1, "laufen Stadt");
    }
}
