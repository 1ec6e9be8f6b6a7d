//! Sentence encoders: model folders, tokenizers, architectures and batch inference.
//!
//! A model folder holds `config.json` ([`Config`]), `tokenizer.json` (Hugging Face `tokenizers`)
//! and `model.safetensors`. [`Encoder::load`] opens one, [`Encoder::encode`] turns texts into
//! embeddings. Nothing here knows PostgreSQL.
//!
//! ```no_run
//! use laser_encoder::{Encoder, LoadOptions};
//! let encoder = Encoder::load("models/laser-small".as_ref(), &LoadOptions::default())?;
//! let embeddings = encoder.encode(&["Where is the station?", "Wo ist der Bahnhof?"])?;
//! assert_eq!(embeddings.rows().count(), 2);
//! # Ok::<(), laser_encoder::EncoderError>(())
//! ```

mod arch;
pub mod base;
mod batch;
pub mod catalog;
pub mod config;
mod device;
mod encoder;
mod error;
pub mod folder;
pub mod heap;
pub mod import;
pub mod kernels;
mod local;
pub mod ngrams;
pub mod shared;
mod subwords;
mod text;
mod tokenize;
mod word_cache;
pub mod words;
pub mod work;

pub use config::Config;
pub use encoder::{DeviceChoice, Embeddings, Encoder, LoadOptions, Precision};
pub use error::EncoderError;
pub use local::LocalEncoder;
pub use tokenize::Tokenized;
