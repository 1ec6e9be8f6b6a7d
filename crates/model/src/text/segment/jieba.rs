//! Chinese words as the Python package `jieba` cuts them: the likeliest path through the
//! dictionary, a hidden Markov model for what is not in it.

use std::path::Path;

use jieba_rs::Jieba;

use super::segmenter::Segmenter;
use crate::ModelError;

impl Segmenter for Jieba {
    fn words<'t>(&self, text: &'t str) -> Vec<&'t str> {
        self.cut(text, true)
            .into_iter()
            .map(|token| token.word)
            .filter(|word| !word.trim().is_empty())
            .collect()
    }
}

/// Opens a dictionary: lines of word, frequency and tag.
pub(super) fn open(mut dictionary: &[u8]) -> Result<Box<dyn Segmenter>, String> {
    let jieba = Jieba::with_dict(&mut dictionary).map_err(|e| e.to_string())?;
    Ok(Box::new(jieba))
}

/// Checks a dictionary and hands it back unchanged.
pub(super) fn compile(source: &Path) -> Result<Vec<u8>, ModelError> {
    let dictionary = std::fs::read(source).map_err(|e| ModelError::io(source, e))?;
    open(&dictionary).map_err(|message| ModelError::import(source, message))?;
    Ok(dictionary)
}
