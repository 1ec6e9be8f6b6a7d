//! From texts to token ids.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::config::{Architecture, Config};
use crate::text::Preparation;
use crate::{EncoderError, folder};

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
pub(crate) struct Tokenizer {
    inner: tokenizers::Tokenizer,
    preparation: Preparation,
    max_tokens: usize,
    /// Appended to every sequence.
    eos: Option<u32>,
    /// Stands for a text without tokens.
    empty: Option<u32>,
}

impl Tokenizer {
    /// Opens `tokenizer.json` of a model folder.
    pub fn open(folder: &Path, config: &Config) -> Result<Self, EncoderError> {
        let path = folder.join(folder::TOKENIZER);
        let json = std::fs::read(&path).map_err(|e| EncoderError::io(&path, e))?;
        // The deserialisers of `tokenizers` contain assertions; a hostile file must not end the
        // process.
        let mut inner = catch_unwind(AssertUnwindSafe(|| {
            tokenizers::Tokenizer::from_bytes(&json)
        }))
        .map_err(|_| EncoderError::format(&path, "the tokenizer cannot be built"))?
        .map_err(|e| EncoderError::format(&path, e.to_string()))?;
        inner.with_padding(None);
        let append_eos = matches!(&config.encoder, Architecture::Bilstm(c) if c.append_eos);
        let id = |token| inner.token_to_id(token);
        let eos = if append_eos {
            let eos = id("</s>").or_else(|| id("[SEP]")).ok_or_else(|| {
                EncoderError::format(&path, "append_eos is set, but there is no token \"</s>\"")
            })?;
            Some(eos)
        } else {
            None
        };
        let empty = ["</s>", "[SEP]", "<unk>", "[UNK]"]
            .into_iter()
            .find_map(|token| inner.token_to_id(token));
        inner
            .with_truncation(Some(tokenizers::TruncationParams {
                max_length: config.max_tokens - usize::from(append_eos),
                ..Default::default()
            }))
            .map_err(|e| EncoderError::format(&path, e.to_string()))?;
        let preparation = Preparation::new(&config.text)?;
        Ok(Self {
            inner,
            preparation,
            max_tokens: config.max_tokens,
            eos,
            empty,
        })
    }

    /// Number of tokens the tokenizer knows.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Ids of one text. A text without any token becomes the lone token `</s>` (else `[SEP]`,
    /// `<unk>`, `[UNK]`), or, where the vocabulary has none of these, an empty sequence.
    pub fn tokenize(&self, text: &str) -> Result<Tokenized, EncoderError> {
        let limit = self.max_tokens * BYTES_PER_TOKEN;
        let (text, cut) = if text.len() > limit {
            (&text[..text.floor_char_boundary(limit)], true)
        } else {
            (text, false)
        };
        let prepared = self.preparation.apply(text);
        let encoding = catch_unwind(AssertUnwindSafe(|| {
            self.inner.encode_fast(&*prepared, true)
        }))
        .map_err(|_| EncoderError::Tokenizer("the tokenizer failed on this text".into()))?
        .map_err(|e| EncoderError::Tokenizer(e.to_string()))?;
        let mut ids = encoding.get_ids().to_vec();
        ids.extend(self.eos);
        if ids.is_empty() {
            ids.extend(self.empty);
        }
        Ok(Tokenized {
            ids,
            truncated: cut || !encoding.get_overflowing().is_empty(),
        })
    }
}
