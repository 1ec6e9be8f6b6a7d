//! Joint subword vocabularies over all languages.
//!
//! Byte-pair encoding (Sennrich et al., ACL 2016) or a unigram language model (Kudo, ACL 2018),
//! trained by the `tokenizers` crate on a sample in which the share of a language is its number of
//! sentences to the power of an exponent below one. Every byte is in the vocabulary, so that no
//! text is unknown.
//!
//! Ids 0 to 3 are `<pad>`, `<unk>`, `<s>` and `</s>`, ids 4 to 259 the bytes `<0x00>` to `<0xFF>`.
//! The n-grams of words may follow them ([`laser_model::ngrams`]).
//! Nothing is added to a text by the tokenizer itself, unless it is for transformers; encoders that need `</s>` append it.

mod coverage;
mod loaded;
mod ngrams;
mod sample;
mod special;
mod train;

pub use coverage::{Coverage, coverage};
pub use loaded::{Loaded, load, save, token_names};
pub use ngrams::ngrams;
pub use sample::{Sample, sample};
pub use special::{MASK, SPECIAL, byte_token};
pub use train::{Kind, TokenizerOptions, train};
