//! From texts to token ids.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tokenizers::utils::truncation::{TruncationStrategy, truncate_encodings};
use tokenizers::{PostProcessor, TruncationParams};

use crate::config::{Architecture, Config, Task};
use crate::long_text::first_tokens;
use crate::ngrams::read_tokenizer;
use crate::text::Preparation;
use crate::words::Words;
use crate::{ModelError, Weights, files};

/// Bytes of text read for each token of the limit; what lies beyond cannot matter except in texts
/// of little but white space.
const BYTES_PER_TOKEN: usize = 256;

/// Set in the ids of the second text of a pair, by which a model tells the two apart.
pub const SECOND: u32 = 1 << 31;

/// Token ids of one text, or of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenized {
    /// Ids, special tokens included, at most [`Config::max_tokens`]; of a pair some with [`SECOND`].
    pub ids: Vec<u32>,
    /// Whether the text was longer than that.
    pub truncated: bool,
}

/// Text preparation, tokenizer and length limit of one model.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// For tokenizers that treat words independently.
    words: Option<Words>,
    preparation: Preparation,
    /// Tokens of the text itself at most, or of both texts of a pair.
    limit: usize,
    /// Whether the post-processor adds tokens.
    special: bool,
    /// Appended to every sequence.
    eos: Option<u32>,
    /// Stands for a text without tokens.
    empty: Option<u32>,
}

impl Tokenizer {
    /// Opens `tokenizer.json` of a model folder.
    pub fn open(folder: &Path, config: &Config) -> Result<Self, ModelError> {
        let path = folder.join(files::TOKENIZER);
        let json = files::read_plain(&path).map_err(|e| ModelError::io(&path, e))?;
        let (mut inner, ngrams) =
            read_tokenizer(&json).map_err(|e| ModelError::format(&path, e.to_string()))?;
        inner.with_padding(None);
        let append_eos = matches!(&config.encoder, Architecture::Bilstm(c) if c.append_eos);
        let id = |token| inner.token_to_id(token);
        let eos = if append_eos {
            // With a space: imported tokens that no text may produce (`import::spm`).
            let eos = ["</s>", "</s> ", "[SEP]"]
                .into_iter()
                .find_map(id)
                .ok_or_else(|| {
                    ModelError::format(&path, "append_eos is set, but there is no token \"</s>\"")
                })?;
            Some(eos)
        } else {
            None
        };
        let empty = ["</s>", "[SEP]", "<unk>", "[UNK]"]
            .into_iter()
            .find_map(|token| inner.token_to_id(token));
        inner
            .with_truncation(None)
            .map_err(|e| ModelError::format(&path, e.to_string()))?;
        let added = inner
            .get_post_processor()
            .map_or(0, |p| p.added_tokens(config.task == Task::Rerank));
        let limit = config
            .max_tokens
            .checked_sub(added + usize::from(append_eos))
            .filter(|&limit| limit > 0)
            .ok_or_else(|| {
                ModelError::format(&path, "it adds more special tokens than max_tokens allows")
            })?;
        let preparation = Preparation::new(&config.text, folder)?;
        Ok(Self {
            words: Words::new(&inner, ngrams, Some(&json))?,
            inner,
            preparation,
            limit,
            special: added > 0,
            eos,
            empty,
        })
    }

    /// The same, with its vocabularies in new memory. `tokenizers` does not remember pieces of words
    /// any more, which would let every process grow by megabytes on top of the words that are
    /// remembered for all.
    pub fn compacted(mut self) -> Self {
        let mut model = self.inner.get_model().clone();
        model.resize_cache(0);
        self.inner.with_model(model);
        self.words = self.words.map(Words::compacted);
        self
    }

    /// Number of tokens, n-grams included.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true) + self.words.as_ref().map_or(0, Words::ngrams)
    }

    /// Refuses an embedding table that has no row for some token.
    ///
    /// # Errors
    /// If the table of `weights` has fewer `rows` than there are tokens.
    pub fn check_vocabulary(&self, rows: usize, weights: &Weights) -> Result<(), ModelError> {
        let tokens = self.vocabulary();
        if tokens > rows {
            return Err(ModelError::tensor(
                weights.path(),
                "embed_tokens.weight",
                format!(
                    "expected at least {tokens} rows for the tokens of \"{}\", found {rows}",
                    files::TOKENIZER,
                ),
            ));
        }
        Ok(())
    }

    /// Ids of one text. A text without any token becomes the lone token `</s>` (else `[SEP]`,
    /// `<unk>`, `[UNK]`), or, where the vocabulary has none of these, an empty sequence.
    pub fn tokenize(&self, text: &str) -> Result<Tokenized, ModelError> {
        self.tokenize_with(text, |_| ())
    }

    /// The same; `found` is called with ids as soon as they are known, where words are tokenised one by one. Some of
    /// them may be cut off in the end, and it may never be called.
    ///
    /// # Errors
    /// As [`Tokenizer::tokenize`].
    pub fn tokenize_with(
        &self,
        text: &str,
        mut found: impl FnMut(&[u32]),
    ) -> Result<Tokenized, ModelError> {
        let limit = self.limit * BYTES_PER_TOKEN;
        let (text, cut) = if text.len() > limit {
            (&text[..text.floor_char_boundary(limit)], true)
        } else {
            (text, false)
        };
        let pieces = || {
            let prepared = self.preparation.apply(text);
            // The preparation may have made it longer.
            let end = prepared.floor_char_boundary(limit);
            let (ids, truncated) = self.pieces(&prepared[..end], &mut found)?;
            Ok::<_, tokenizers::Error>((ids, truncated || end < prepared.len()))
        };
        let (mut ids, truncated) = catch_unwind(AssertUnwindSafe(pieces))
            .map_err(|_| ModelError::Tokenizer("the tokenizer failed on this text".into()))?
            .map_err(|e| ModelError::Tokenizer(e.to_string()))?;
        ids.extend(self.eos);
        if ids.is_empty() {
            ids.extend(self.empty);
        }
        Ok(Tokenized {
            ids,
            truncated: cut || truncated,
        })
    }

    /// Ids of a pair, with what the model has around and between the two texts. Where they are too long, the longer
    /// one is cut until both are equally long, then both (`longest_first` of transformers). A text of which no more
    /// than the limit can count is not read to its end. For models with [`Task::Rerank`].
    pub fn tokenize_pair(&self, first: &str, second: &str) -> Result<Tokenized, ModelError> {
        let error = |e: tokenizers::Error| ModelError::Tokenizer(e.to_string());
        let pair = || {
            let (encoding, truncated) = self.encode_pair(first, second)?;
            let types = encoding.get_type_ids().iter();
            let mark = |(id, kind): (&u32, &u32)| if *kind > 0 { id | SECOND } else { *id };
            let mut ids: Vec<u32> = encoding.get_ids().iter().zip(types).map(mark).collect();
            if ids.is_empty() {
                ids.extend(self.empty);
            }
            Ok::<_, tokenizers::Error>(Tokenized { ids, truncated })
        };
        catch_unwind(AssertUnwindSafe(pair))
            .map_err(|_| ModelError::Tokenizer("the tokenizer failed on this text".into()))?
            .map_err(error)
    }

    /// See [`Self::tokenize_pair`]; whether something was cut.
    fn encode_pair(
        &self,
        first: &str,
        second: &str,
    ) -> tokenizers::Result<(tokenizers::Encoding, bool)> {
        let (first, first_cut) = self.beginning(first)?;
        let (mut second, second_cut) = self.beginning(second)?;
        second.set_type_ids(vec![1; second.len()]);
        let truncated = first_cut || second_cut || first.len() + second.len() > self.limit;
        let parameters = TruncationParams {
            max_length: self.limit,
            strategy: TruncationStrategy::LongestFirst,
            ..TruncationParams::default()
        };
        let (mut first, mut second) = truncate_encodings(first, Some(second), &parameters)?;
        // Each piece that was cut off the one would be joined with each of the other: gigabytes, of two long texts.
        for encoding in [Some(&mut first), second.as_mut()].into_iter().flatten() {
            encoding.take_overflowing();
        }
        Ok((self.inner.post_process(first, second, true)?, truncated))
    }

    /// The tokens of a text, at least as many as fit; whether there may be more.
    fn beginning(&self, text: &str) -> tokenizers::Result<(tokenizers::Encoding, bool)> {
        let limit = self.limit * BYTES_PER_TOKEN;
        let part = &text[..text.floor_char_boundary(limit)];
        let prepared = self.preparation.apply(part);
        let end = prepared.floor_char_boundary(limit);
        let encode = |text: &str| self.inner.encode(text, false);
        let (encoding, cut) = first_tokens(&prepared[..end], self.limit, encode, |e| e.len())?;
        let cut = cut || part.len() < text.len() || end < prepared.len();
        Ok((encoding, cut))
    }

    /// The text's tokens, cut at the limit, then special tokens around them.
    fn pieces(
        &self,
        text: &str,
        found: &mut impl FnMut(&[u32]),
    ) -> tokenizers::Result<(Vec<u32>, bool)> {
        if let Some(words) = &self.words {
            return words.encode_with(&self.inner, text, self.limit, found);
        }
        let encode = |text: &str| self.inner.encode_fast(text, false);
        let (mut encoding, cut) = first_tokens(text, self.limit, encode, |e| e.len())?;
        let truncated = cut || encoding.len() > self.limit;
        if truncated {
            encoding.truncate(self.limit, 0, tokenizers::TruncationDirection::Right);
        }
        if self.special {
            encoding = self.inner.post_process(encoding, None, true)?;
        }
        Ok((encoding.get_ids().to_vec(), truncated))
    }
}

/// Refuses ids without a row in the embedding table. A tokenizer may give any id, whatever the
/// number of its tokens.
///
/// # Errors
/// [`ModelError::TokenId`].
pub fn check_ids(ids: &[u32], vocabulary: usize) -> Result<(), ModelError> {
    match ids.iter().find(|&&id| id as usize >= vocabulary) {
        Some(&id) => Err(ModelError::TokenId { id, vocabulary }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_a_pair_is_not_joined() {
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
        });
        let inner = tokenizers::Tokenizer::from_bytes(json.to_string()).unwrap();
        let tokenizer = Tokenizer {
            inner,
            words: None,
            preparation: Preparation::new(&Default::default(), Path::new("")).unwrap(),
            limit: 8,
            special: false,
            eos: None,
            empty: None,
        };
        let (first, second) = ("a ".repeat(20), "b ".repeat(30));
        let (encoding, truncated) = tokenizer.encode_pair(&first, &second).unwrap();
        assert_eq!(encoding.get_overflowing().len(), 0);
        assert!(truncated && encoding.len() == 8);
        let pair = tokenizer.tokenize_pair(&first, &second).unwrap();
        assert_eq!(pair.ids, [[0; 4], [1 | SECOND; 4]].concat());
    }
}
