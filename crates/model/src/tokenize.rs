//! From texts to token ids.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tokenizers::PostProcessor;

use crate::config::{Architecture, Config};
use crate::long_text::first_tokens;
use crate::ngrams::read_tokenizer;
use crate::text::Preparation;
use crate::words::Words;
use crate::{ModelError, Weights, files};

/// Bytes of text read for each token of the limit; what lies beyond cannot matter except in texts
/// of little but white space.
const BYTES_PER_TOKEN: usize = 256;

/// Token ids of one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenized {
    /// Ids, special tokens included, at most [`Config::max_tokens`].
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
    /// Tokens of the text itself at most.
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
        let mut json = Vec::new();
        files::open_plain(&path)
            .and_then(|mut file| file.read_to_end(&mut json))
            .map_err(|e| ModelError::io(&path, e))?;
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
            .map_or(0, |p| p.added_tokens(false));
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
            let (ids, truncated) = self.pieces(&prepared[..end])?;
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

    /// The text's tokens, cut at the limit, then special tokens around them.
    fn pieces(&self, text: &str) -> tokenizers::Result<(Vec<u32>, bool)> {
        if let Some(words) = &self.words {
            return words.encode(&self.inner, text, self.limit);
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
