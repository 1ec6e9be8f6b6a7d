//! The tokens of a word of the tokenizers that laser trains, without the general machinery of
//! `tokenizers`, which keeps offsets and allocates for every step.
//!
//! It does the same as NFKC, lower-casing, splits at punctuation and between scripts, a leading
//! U+2581, byte-pair merges and n-grams, for words of which every character can be handled alone once
//! those that NFKC replaces are replaced: nearly all. What is left to the caller is what composes with its
//! neighbours, becomes several words, or is beyond the planes that texts are written in. What a character is
//! to the tokenizer, the tokenizer is asked once.

mod beginnings;
mod characters;
mod merges;
mod table;
#[cfg(test)]
mod tests;

use serde::Deserialize;
use tokenizers::{ModelWrapper, Tokenizer};
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::compose;

use self::beginnings::Beginnings;
use self::characters::{Character, Characters};
use self::merges::{Merges, NONE};
use crate::ngrams::Ngrams;

/// Bytes of the longest word, before and after normalisation: scripts without spaces have sentences in one. Merges
/// of long pieces take time with the square of their length.
const MAX_WORD_BYTES: usize = 1024;

/// Tokens of words, see the module's text.
pub(crate) struct Subwords {
    mark: u16,
    bytes: [u16; 256],
    merges: Merges,
    ngrams: Option<Beginnings>,
    characters: Characters,
}

/// Memory that [`Subwords::append`] works in.
pub(crate) struct Scratch {
    characters: Vec<Character>,
    tokens: Vec<u16>,
}

impl Default for Scratch {
    /// Enough for most words.
    fn default() -> Self {
        Self {
            characters: Vec::with_capacity(64),
            tokens: Vec::with_capacity(64),
        }
    }
}

/// The parts of a `tokenizer.json` that `tokenizers` does not show.
#[derive(Deserialize)]
struct File {
    model: ModelFile,
}

/// The other form, see [`crate::ngrams`].
#[derive(Deserialize)]
struct WithNgrams {
    tokenizer: File,
}

#[derive(Deserialize)]
struct ModelFile {
    merges: Vec<(String, String)>,
}

impl Subwords {
    /// For a tokenizer and its file's text; `None` if it does anything else.
    pub fn new(tokenizer: &Tokenizer, json: &[u8], ngrams: Option<&Ngrams>) -> Option<Self> {
        let value = |v: Result<serde_json::Value, _>| v.ok();
        let normalizer = value(serde_json::to_value(tokenizer.get_normalizer()))?;
        let pre_tokenizer = value(serde_json::to_value(tokenizer.get_pre_tokenizer()))?;
        let known = normalizer
            == serde_json::json!({"type": "Sequence", "normalizers": [
                {"type": "NFKC"}, {"type": "Lowercase"},
            ]})
            && pre_tokenizer
                == serde_json::json!({"type": "Sequence", "pretokenizers": [
                    {"type": "WhitespaceSplit"},
                    {"type": "Punctuation", "behavior": "Isolated"},
                    {"type": "UnicodeScripts"},
                    {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always",
                     "split": false},
                ]});
        let ModelWrapper::BPE(model) = tokenizer.get_model() else {
            return None;
        };
        if !known
            || model.dropout.is_some()
            || model.ignore_merges
            || !model.byte_fallback
            || model.continuing_subword_prefix.is_some()
            || model.end_of_word_suffix.is_some()
        {
            return None;
        }
        let token = |text: &str| -> Option<u16> {
            let id = u16::try_from(tokenizer.token_to_id(text)?).ok()?;
            (id != NONE).then_some(id)
        };
        let file: File = match ngrams {
            Some(_) => serde_json::from_slice::<WithNgrams>(json).ok()?.tokenizer,
            None => serde_json::from_slice(json).ok()?,
        };
        let merges = file.model.merges;
        if merges.len() >= usize::from(NONE) {
            return None;
        }
        let mut entries = Vec::with_capacity(merges.len());
        let mut made = std::collections::HashSet::new();
        for (left, right) in &merges {
            let result = token(&format!("{left}{right}"))?;
            // `tokenizers` may follow an outdated merge if another one has the same result.
            if !made.insert(result) {
                return None;
            }
            entries.push([token(left)?, token(right)?, result]);
        }
        let mut bytes = [NONE; 256];
        for (byte, id) in bytes.iter_mut().enumerate() {
            *id = token(&format!("<0x{byte:02X}>"))?;
        }
        let ngrams = match ngrams {
            Some(ngrams) => Some(Beginnings::new(ngrams)?),
            None => None,
        };
        Some(Self {
            mark: token("\u{2581}")?,
            bytes,
            merges: Merges::new(&entries),
            ngrams,
            characters: Characters::new(tokenizer)?,
        })
    }

    /// Appends the tokens and n-grams of a word; `None`, and nothing is appended, if it has to be
    /// left to the tokenizer.
    ///
    /// `tokenizer` is that of [`Subwords::new`].
    pub fn append(
        &self,
        tokenizer: &Tokenizer,
        scratch: &mut Scratch,
        word: &str,
        ids: &mut Vec<u32>,
    ) -> Option<()> {
        if word.len() > MAX_WORD_BYTES {
            return None;
        }
        if !self.read(tokenizer, word.chars(), &mut scratch.characters)? {
            let changed: String = word.nfkc().collect();
            if changed.len() > MAX_WORD_BYTES
                || !self.read(tokenizer, changed.chars(), &mut scratch.characters)?
            {
                return None;
            }
        }
        let characters = &scratch.characters[..];
        let mut start = 0;
        while let Some(first) = characters.get(start) {
            let mut end = start + 1;
            if !first.is_isolated() {
                let same = |c: &&Character| c.class() == first.class();
                end += characters[end..].iter().take_while(same).count();
            }
            self.piece(&characters[start..end], &mut scratch.tokens, ids);
            start = end;
        }
        if let Some(ngrams) = &self.ngrams {
            ngrams.append(characters, ids);
        }
        Some(())
    }

    /// Reads the characters of a word in place of those of the last one; whether they are normal but for their
    /// case. `None` if that cannot be told from each of them alone, or one is unknown.
    #[inline]
    fn read(
        &self,
        tokenizer: &Tokenizer,
        word: impl Iterator<Item = char>,
        characters: &mut Vec<Character>,
    ) -> Option<bool> {
        characters.clear();
        let (mut last, mut combining) = (None::<Character>, 0);
        let mut normal = true;
        for c in word {
            let character = self.characters.get(tokenizer, c)?;
            if character.is_unknown() {
                // All are checked: one that other tables of Unicode than the tokenizer's replace is not to be
                // replaced along.
                if !character.changes() {
                    return None;
                }
                normal = false;
                (last, combining) = (None, 0);
                continue;
            }
            if character.composes()
                && let Some(starter) = last
                && (!starter.is_plain() || compose(starter.c, c).is_some())
            {
                return None;
            }
            if character.combining() == 0 {
                last = Some(character);
            } else if combining > character.combining() {
                return None;
            }
            combining = character.combining();
            characters.push(character);
        }
        Some(normal)
    }

    /// The tokens of a piece.
    fn piece(&self, characters: &[Character], tokens: &mut Vec<u16>, ids: &mut Vec<u32>) {
        tokens.clear();
        tokens.push(self.mark);
        for c in characters {
            match c.token() {
                NONE => {
                    // One character: others are unknown.
                    for lower in c.c.to_lowercase() {
                        let mut buffer = [0; 4];
                        let bytes = lower.encode_utf8(&mut buffer).bytes();
                        tokens.extend(bytes.map(|byte| self.bytes[usize::from(byte)]));
                    }
                }
                token => tokens.push(token),
            }
        }
        self.merges.apply(tokens, ids);
    }
}
