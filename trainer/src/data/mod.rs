//! Parallel text: readers, filters, the packed corpus on disk, and the sampler that draws batches.
//!
//! Text of any format is read as *groups*: sentences under one key that are translations of each
//! other, in two or more languages. A bitext is a corpus whose groups have two sentences.
//! [`pack`](crate::pack) tokenises groups once into a file that is memory-mapped afterwards
//! ([`PackedCorpus`]), and [`Sampler`] draws batches of sentence pairs from it.

pub mod config;
pub mod dedup;
mod error;
pub mod filter;
mod group;
pub mod input;
pub mod labelled;
pub mod lexmix;
pub mod manifest;
pub mod pack_writer;
pub mod packed;
pub mod paths;
pub mod permutation;
pub mod perturb;
pub mod pipeline;
pub mod readers;
pub mod report;
pub mod sampler;
mod temporary;
mod text;
pub mod vectors;

pub use error::{DataError, Result};
pub use group::{Group, Row};
pub use packed::{LanguageId, PackedCorpus, Ragged, SentenceId, SourceId};
pub use paths::{PathSampler, TrainingPath};
pub use sampler::{Batch, Pair, Sampler, SamplerOptions, SamplerState};
pub use text::{canonical, hash64, same_text, text_hash};
