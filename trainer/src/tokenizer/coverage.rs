//! How finely a vocabulary cuts each language.

use std::collections::BTreeMap;

use super::Loaded;
use crate::data::Result;
use crate::data::pipeline::Pipeline;

/// Counts of one language.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Sentences that were read.
    pub sentences: u64,
    /// Words between white space.
    pub words: u64,
    /// Characters (Unicode scalar values), white space included.
    pub chars: u64,
    /// Tokens that they become.
    pub tokens: u64,
    /// Tokens that stand for one byte.
    pub bytes: u64,
}

impl Coverage {
    /// Tokens per word between white space.
    #[must_use]
    pub fn tokens_per_word(&self) -> f64 {
        self.tokens as f64 / self.words.max(1) as f64
    }

    /// Tokens per character.
    #[must_use]
    pub fn tokens_per_char(&self) -> f64 {
        self.tokens as f64 / self.chars.max(1) as f64
    }

    /// Share of tokens that stand for one byte.
    #[must_use]
    pub fn byte_share(&self) -> f64 {
        self.bytes as f64 / self.tokens.max(1) as f64
    }
}

/// Counts the tokens of the first `limit` sentences of each language.
///
/// # Errors
/// Of the readers and of the tokenizer.
pub fn coverage(
    pipeline: &Pipeline,
    tokenizer: &Loaded,
    limit: u64,
) -> Result<BTreeMap<String, Coverage>> {
    let is_byte: Vec<bool> = {
        let mut flags = vec![false; tokenizer.vocab_size as usize];
        for byte in 0..=255 {
            if let Some(id) = tokenizer.tokenizer.token_to_id(&super::byte_token(byte)) {
                flags[id as usize] = true;
            }
        }
        flags
    };
    let mut table: BTreeMap<String, Coverage> = BTreeMap::new();
    let mut waiting: Vec<(String, String)> = Vec::new();
    let flush = |waiting: &mut Vec<(String, String)>,
                 table: &mut BTreeMap<String, Coverage>|
     -> Result<()> {
        let texts: Vec<&str> = waiting.iter().map(|w| w.1.as_str()).collect();
        for ((language, text), ids) in waiting.iter().zip(tokenizer.encode(&texts)?) {
            let entry = table.entry(language.clone()).or_default();
            entry.words += text.split_whitespace().count() as u64;
            entry.chars += text.chars().count() as u64;
            entry.tokens += ids.len() as u64;
            entry.bytes += ids.iter().filter(|id| is_byte[**id as usize]).count() as u64;
        }
        waiting.clear();
        Ok(())
    };
    pipeline.run(&mut |_, group| {
        for row in group.rows {
            let entry = table.entry(row.language.clone()).or_default();
            if entry.sentences >= limit {
                continue;
            }
            entry.sentences += 1;
            waiting.push((row.language, row.text));
        }
        if waiting.len() >= 8192 {
            flush(&mut waiting, &mut table)
        } else {
            Ok(())
        }
    })?;
    flush(&mut waiting, &mut table)?;
    Ok(table)
}
