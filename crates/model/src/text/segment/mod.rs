//! Word segmentation of languages that write no spaces, with a dictionary that lies in the model
//! folder ([`folder::DICTIONARY`]).

#[cfg(feature = "jieba")]
mod jieba;
#[cfg(feature = "mecab")]
mod mecab;
mod segmenter;

use std::path::Path;

use crate::config::Segmentation;
use crate::{ModelError, folder};

pub(super) use segmenter::Segmenter;

/// Opens the dictionary of a model folder.
pub(super) fn open(kind: Segmentation, folder: &Path) -> Result<Box<dyn Segmenter>, ModelError> {
    let dictionary = folder::read_dictionary(folder)?;
    let opened = match kind {
        #[cfg(feature = "jieba")]
        Segmentation::Jieba => jieba::open(&dictionary),
        #[cfg(feature = "mecab")]
        Segmentation::Mecab => mecab::open(&dictionary),
        #[allow(unreachable_patterns)]
        other => {
            let _ = &dictionary;
            Err(missing(other))
        }
    };
    opened.map_err(|message| ModelError::format(folder.join(folder::DICTIONARY), message))
}

/// Makes the dictionary of a model folder: from jieba's `dict.txt`, or from a folder with the
/// sources of a MeCab dictionary in UTF-8 (`*.csv`, `matrix.def`, `char.def`, `unk.def`).
///
/// # Errors
/// [`ModelError::Import`] with the file that is missing or wrong.
pub fn compile(kind: Segmentation, source: &Path) -> Result<Vec<u8>, ModelError> {
    match kind {
        #[cfg(feature = "jieba")]
        Segmentation::Jieba => jieba::compile(source),
        #[cfg(feature = "mecab")]
        Segmentation::Mecab => mecab::compile(source),
        #[allow(unreachable_patterns)]
        other => Err(ModelError::import(source, missing(other))),
    }
}

fn missing(kind: Segmentation) -> String {
    let feature = match kind {
        Segmentation::Jieba => "jieba",
        Segmentation::Mecab => "mecab",
    };
    format!("this build cannot segment words: it lacks the feature \"{feature}\"")
}
