//! Tokenisation word by word, through a cache.
//!
//! Most of a tokenizer's time goes into normalising and splitting words it has seen before. Where
//! every step of a tokenizer treats the words between spaces independently of each other
//! ([`is_local`]), the tokens of a text are those of its words, and those of a word can be
//! remembered, with the n-grams ([`crate::ngrams`]) that belong to it.

use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer};

use crate::ModelError;
use crate::long_text::first_tokens;
use crate::ngrams::{NgramConfig, Ngrams};
use crate::subwords::{Scratch, Subwords};
use crate::word_cache::WordCache;

/// Words that are remembered: 8 MB.
const WORDS: usize = 1 << 16;

/// The same beside [`Subwords`]: 2 MB, which stay near. What lies farther away is computed as fast.
const FEWER_WORDS: usize = 1 << 14;

/// Token ids of words.
pub struct Words {
    ngrams: Option<Ngrams>,
    cache: WordCache,
    /// Does what it can without the tokenizer.
    subwords: Option<Subwords>,
}

impl Words {
    /// An empty cache for a tokenizer and, if it is at hand, the text of its file, with the n-grams
    /// that follow a word's tokens; `None` if the tokenizer does not treat words independently. A process that forks shares it with its
    /// children: what one of them has met is known to all.
    ///
    /// # Errors
    /// [`ModelError::Tokenizer`] for malformed n-grams, if there are some although the tokenizer
    /// has no words, or if there is no memory.
    pub fn new(
        tokenizer: &Tokenizer,
        ngrams: Option<NgramConfig>,
        json: Option<&[u8]>,
    ) -> Result<Option<Self>, ModelError> {
        let ngrams = ngrams
            .map(|config| Ngrams::new(config, tokenizer.get_vocab_size(true) as u32))
            .transpose()?;
        if is_local(tokenizer) {
            let subwords = json.and_then(|json| Subwords::new(tokenizer, json, ngrams.as_ref()));
            let words = match subwords {
                Some(_) => FEWER_WORDS,
                None => WORDS,
            };
            let cache = WordCache::new(words).map_err(|e| {
                ModelError::Tokenizer(format!("no memory for a cache of words: {e}"))
            })?;
            return Ok(Some(Self {
                ngrams,
                cache,
                subwords,
            }));
        }
        match ngrams {
            None => Ok(None),
            Some(_) => Err(ModelError::Tokenizer(
                "n-grams need a tokenizer that splits at white space first".into(),
            )),
        }
    }

    /// The same in new memory.
    pub(crate) fn compacted(self) -> Self {
        Self {
            ngrams: self.ngrams.clone(),
            ..self
        }
    }

    /// Number of n-grams that the tokenizer does not know of.
    #[must_use]
    pub fn ngrams(&self) -> usize {
        self.ngrams.as_ref().map_or(0, Ngrams::vocabulary)
    }

    /// Token ids of the words of `text`, at most `limit` and whether there were more.
    ///
    /// # Errors
    /// Of the tokenizer.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        limit: usize,
    ) -> tokenizers::Result<(Vec<u32>, bool)> {
        self.encode_with(tokenizer, text, limit, &mut |_| ())
    }

    /// The same; `found` is called with the ids of each word.
    ///
    /// # Errors
    /// Of the tokenizer.
    pub fn encode_with(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        limit: usize,
        found: &mut impl FnMut(&[u32]),
    ) -> tokenizers::Result<(Vec<u32>, bool)> {
        let mut ids = Vec::with_capacity(128);
        let mut scratch = Scratch::default();
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            let before = ids.len();
            self.append(tokenizer, &mut scratch, word, limit, &mut ids)?;
            found(&ids[before..]);
            if ids.len() > limit {
                ids.truncate(limit);
                return Ok((ids, true));
            }
        }
        Ok((ids, false))
    }

    /// Appends the ids of `word` to `ids`.
    fn append(
        &self,
        tokenizer: &Tokenizer,
        scratch: &mut Scratch,
        word: &str,
        limit: usize,
        ids: &mut Vec<u32>,
    ) -> tokenizers::Result<()> {
        if !self.cache.get(word, ids) {
            let before = ids.len();
            if let Some(subwords) = &self.subwords
                && subwords.append(tokenizer, scratch, word, ids).is_some()
            {
                self.cache.put(word, &ids[before..]);
                return Ok(());
            }
            let (tokens, cut) = self.tokens(tokenizer, word, limit)?;
            if !cut {
                self.cache.put(word, &tokens);
            }
            ids.extend_from_slice(&tokens);
        }
        Ok(())
    }

    /// The ids of a word, or, if they are more than `limit`, of a beginning that has as many; and
    /// whether it is that.
    fn tokens(
        &self,
        tokenizer: &Tokenizer,
        word: &str,
        limit: usize,
    ) -> tokenizers::Result<(Vec<u32>, bool)> {
        let encode = |word: &str| tokenizer.encode_fast(word, false);
        let (encoding, cut) = first_tokens(word, limit, encode, |e| e.len())?;
        let mut ids = encoding.get_ids().to_vec();
        if let (Some(ngrams), false) = (&self.ngrams, cut) {
            ngrams.append(word, &mut ids);
        }
        Ok((ids, cut))
    }
}

/// Whether the tokens of a text are those of its parts between spaces (U+0020), one after the
/// other. A space is a starter that composes with nothing, so Unicode normalisation is such a step;
/// so is whatever looks at one character at a time, and everything behind a split at white space
/// that does not ask for a part's place in the text.
fn is_local(tokenizer: &Tokenizer) -> bool {
    let json = |value: Result<Value, serde_json::Error>| value.unwrap_or(Value::Bool(false));
    let added = tokenizer.get_added_tokens_decoder();
    let random = matches!(tokenizer.get_model(), ModelWrapper::BPE(bpe) if bpe.dropout.is_some());
    !random
        && tokenizer.get_post_processor().is_none()
        && !added.values().any(|token| {
            token.lstrip || token.rstrip || token.content.contains(char::is_whitespace)
        })
        && local_normalizer(&json(serde_json::to_value(tokenizer.get_normalizer())))
        && local_pre_tokenizer(&json(serde_json::to_value(tokenizer.get_pre_tokenizer())))
}

fn kind(value: &Value) -> &str {
    value.get("type").and_then(Value::as_str).unwrap_or("")
}

fn items<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn local_normalizer(value: &Value) -> bool {
    match kind(value) {
        "Sequence" => items(value, "normalizers").iter().all(local_normalizer),
        "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents" | "BertNormalizer" => true,
        _ => value.is_null(),
    }
}

fn local_pre_tokenizer(value: &Value) -> bool {
    let splits = |v: &Value| {
        matches!(
            kind(v),
            "WhitespaceSplit" | "Whitespace" | "BertPreTokenizer"
        )
    };
    let behind = |v: &Value| match kind(v) {
        "Punctuation" | "UnicodeScripts" | "Digits" => true,
        "Metaspace" => {
            matches!(
                v.get("prepend_scheme").and_then(Value::as_str),
                Some("always" | "never")
            )
        }
        _ => splits(v),
    };
    match (kind(value), items(value, "pretokenizers")) {
        ("Sequence", [first, rest @ ..]) => splits(first) && rest.iter().all(behind),
        _ => splits(value),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A tokenizer with every step that counts as local and a BPE model with byte fallback.
    fn tokenizer() -> Tokenizer {
        let mut vocabulary = serde_json::Map::new();
        let mut put = |token: String| {
            let id = vocabulary.len();
            vocabulary.entry(token).or_insert_with(|| id.into());
        };
        for token in ["<pad>", "<unk>", "<s>", "</s>"] {
            put(token.into());
        }
        for byte in 0..=255 {
            put(format!("<0x{byte:02X}>"));
        }
        for token in [
            "\u{2581}",
            "a",
            "b",
            "c",
            "é",
            "ü",
            ".",
            ",",
            "ab",
            "\u{2581}ab",
            "ss",
        ] {
            put(token.into());
        }
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [{
                "id": 3, "content": "</s>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            }],
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "NFKC"}, {"type": "Lowercase"},
            ]},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Punctuation", "behavior": "Isolated"},
                {"type": "UnicodeScripts"},
                {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always",
                 "split": false},
            ]},
            "post_processor": null, "decoder": null,
            "model": {
                "type": "BPE", "vocab": vocabulary,
                "merges": [["a", "b"], ["\u{2581}", "ab"]], "unk_token": "<unk>",
                "fuse_unk": true, "byte_fallback": true, "dropout": null,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
            },
        });
        Tokenizer::from_bytes(json.to_string()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn words_give_the_tokens_of_the_text(
            text in "[abcABé\u{301}\u{308}ßüﬁ²½…a-z .,'\t\u{a0}\u{3000}\u{200d}дはアक्</s>]{0,24}",
            other: String,
        ) {
            static WORDS: std::sync::OnceLock<(Tokenizer, Words)> = std::sync::OnceLock::new();
            let (tokenizer, words) = WORDS.get_or_init(|| {
                let tokenizer = tokenizer();
                let words = Words::new(&tokenizer, None, None).unwrap().expect("local");
                (tokenizer, words)
            });
            prop_assert!(is_local(tokenizer));
            for text in [text, other] {
                let (ids, _) = words.encode(tokenizer, &text, usize::MAX).unwrap();
                let whole = tokenizer.encode_fast(text.as_str(), false).unwrap();
                prop_assert_eq!(&ids[..], whole.get_ids(), "{:?}", text);
            }
        }
    }

    #[test]
    fn steps_that_look_around_are_not_local() {
        let json = serde_json::to_string(&tokenizer()).unwrap();
        for (from, to) in [
            ("\"always\"", "\"first\""),
            (
                "{\"type\":\"NFKC\"}",
                "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}",
            ),
            ("{\"type\":\"WhitespaceSplit\"},", ""),
            ("\"rstrip\":false", "\"rstrip\":true"),
        ] {
            assert!(json.contains(from), "{from} in {json}");
            let changed = Tokenizer::from_bytes(json.replacen(from, to, 1)).unwrap();
            assert!(!is_local(&changed), "{to}");
        }
    }
}
