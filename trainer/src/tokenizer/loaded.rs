//! Tokenizers as files: written, loaded, applied.

use std::path::Path;

use laser_model::ngrams::{NgramConfig, read_tokenizer};
use laser_model::words::Words;
use rayon::prelude::*;
use tokenizers::Tokenizer;

use crate::data::{DataError, Result};

/// A tokenizer with the fingerprint of its file.
pub struct Loaded {
    /// What the file describes, without its n-grams.
    pub tokenizer: Tokenizer,
    /// For tokenizers that treat words independently.
    words: Option<Words>,
    /// blake3 of the file, in hexadecimal.
    pub fingerprint: String,
    /// Number of ids, n-grams included.
    pub vocab_size: u32,
}

/// Writes a `tokenizer.json`, with n-grams if there are any.
///
/// # Errors
/// [`DataError::Io`] or [`DataError::Tokenizer`].
pub fn save(tokenizer: &Tokenizer, ngrams: Option<&NgramConfig>, path: &Path) -> Result<()> {
    let fail = |e: &dyn std::fmt::Display| DataError::Tokenizer(e.to_string());
    let mut json = tokenizer.to_string(false).map_err(|e| fail(&e))?;
    if let Some(ngrams) = ngrams {
        let ngrams = serde_json::to_string(ngrams).map_err(|e| fail(&e))?;
        json = format!("{{\"ngrams\":{ngrams},\"tokenizer\":{json}}}");
    }
    std::fs::write(path, json).map_err(|e| DataError::io(path, e))
}

/// Loads a `tokenizer.json`. Truncation and padding that it may ask for are switched off: both are
/// done where sequences are batched.
///
/// # Errors
/// [`DataError::Io`] or [`DataError::Tokenizer`].
pub fn load(path: &Path) -> Result<Loaded> {
    let bytes = std::fs::read(path).map_err(|e| DataError::io(path, e))?;
    let fail = |e: tokenizers::Error| DataError::Tokenizer(format!("{}: {e}", path.display()));
    let named = |e| DataError::Tokenizer(format!("{}: {e}", path.display()));
    let (mut tokenizer, ngrams) = read_tokenizer(&bytes).map_err(named)?;
    tokenizer.with_truncation(None).map_err(fail)?;
    tokenizer.with_padding(None);
    let words = Words::new(&tokenizer, ngrams, Some(&bytes)).map_err(named)?;
    let vocab = tokenizer.get_vocab(true);
    let ngrams = words.as_ref().map_or(0, Words::ngrams) as u32;
    let vocab_size = vocab.values().max().map_or(0, |m| m + 1) + ngrams;
    let fingerprint = blake3::hash(&bytes).to_hex().to_string();
    Ok(Loaded {
        tokenizer,
        words,
        fingerprint,
        vocab_size,
    })
}

/// What each id of a `tokenizer.json` stands for; names of n-grams begin with a NUL, so that they
/// differ from those of pieces. Ids that are not used have an empty name.
///
/// # Errors
/// [`DataError::Io`] or [`DataError::Tokenizer`].
pub fn token_names(path: &Path) -> Result<Vec<String>> {
    let bytes = std::fs::read(path).map_err(|e| DataError::io(path, e))?;
    let (tokenizer, ngrams) = read_tokenizer(&bytes)
        .map_err(|e| DataError::Tokenizer(format!("{}: {e}", path.display())))?;
    let vocabulary = tokenizer.get_vocab(true);
    let mut names = vec![String::new(); vocabulary.values().max().map_or(0, |m| *m as usize + 1)];
    for (name, id) in vocabulary {
        names[id as usize] = name;
    }
    let ngrams = ngrams.map_or(Vec::new(), |config| config.vocabulary);
    names.extend(ngrams.iter().map(|ngram| format!("\0{ngram}")));
    Ok(names)
}

impl Loaded {
    /// Whether every text begins with a token that stands for its beginning, `<s>` or `[CLS]`.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`].
    pub fn begins_texts(&self) -> Result<bool> {
        let ids = self.encode(&["", "a"])?;
        let first = |text: &Vec<u32>| text.first().copied();
        // What ends a text is the first token of an empty one alone.
        Ok(first(&ids[0]).is_some() && first(&ids[0]) == first(&ids[1]))
    }

    /// Token ids of each text, with its n-grams and what the tokenizer's post-processor adds.
    ///
    /// # Errors
    /// [`DataError::Tokenizer`].
    pub fn encode(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
        if let Some(words) = &self.words {
            let encode = |text: &&str| words.encode(&self.tokenizer, text, usize::MAX);
            let ids: tokenizers::Result<Vec<_>> = texts.par_iter().map(encode).collect();
            let ids = ids.map_err(|e| DataError::Tokenizer(e.to_string()))?;
            return Ok(ids.into_iter().map(|(ids, _)| ids).collect());
        }
        let encodings = self
            .tokenizer
            .encode_batch_fast(texts.to_vec(), true)
            .map_err(|e| DataError::Tokenizer(e.to_string()))?;
        Ok(encodings.iter().map(|e| e.get_ids().to_vec()).collect())
    }
}
