//! What a model folder holds, without the arithmetic of its encoder: configuration, weights, tokenizer, text
//! preparation; the catalogue of the folders on a path; and [`LocalEncoder`], for models that are so cheap
//! that sessions run them by themselves.
//!
//! A model folder holds `config.json` ([`Config`]), `tokenizer.json` (Hugging Face `tokenizers`) and
//! `model.safetensors` ([`Weights`]). Nothing here knows PostgreSQL, candle or a GPU.
//!
//! * [`config`] – `config.json`, with the tensors of each architecture and their shapes
//! * `files`, [`folder`] – reading and writing folders
//! * [`base`] – models that build on another one; [`languages`] – a model with an encoder for each language
//! * [`catalog`] – folders by name, and whether their files have changed; [`installed`] – the same as users see it
//! * `weights`, `matrix`, `tensor` – mapped weights, matrices in them, tensors to be written
//! * [`text`] – preparation of texts; [`tokenize`] – texts to ids
//! * `subwords`, `charsmap`, [`ngrams`] – parts of tokenizers; [`words`] – word by word through a cache; `long_text` –
//!   texts that are cut
//! * [`mean`] – the mean encoder; `local` – [`LocalEncoder`]; [`shared`], `word_cache` – what it shares with forked
//!   processes

pub mod base;
pub mod catalog;
mod charsmap;
pub mod config;
mod error;
mod files;
pub mod folder;
pub mod installed;
pub mod languages;
mod local;
mod long_text;
mod matrix;
pub mod mean;
pub mod ngrams;
pub mod shared;
mod subwords;
mod tensor;
pub mod text;
pub mod tokenize;
mod weights;
mod word_cache;
pub mod words;

pub use config::Config;
pub use error::ModelError;
pub use languages::Languages;
pub use local::LocalEncoder;
pub use matrix::Matrix;
pub use tokenize::Tokenized;
pub use weights::Weights;
