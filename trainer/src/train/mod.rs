//! Training runs: configuration, loop, checkpoints, progress and dev retrieval.

pub mod checkpoint;
pub mod config;
pub mod dev;
mod error;
pub mod inference;
#[cfg(test)]
mod inference_tests;
pub mod languages;
#[cfg(test)]
mod languages_tests;
pub mod log;
mod masking;
#[cfg(test)]
mod mlm_tests;
mod noise;
#[cfg(test)]
mod papers_tests;
pub mod progress;
pub mod run;
pub mod shared;
mod start;
pub mod step;
pub mod teacher;
#[cfg(test)]
pub(crate) mod tests;
pub mod training_target;
mod update;

pub use config::TrainConfig;
pub use error::TrainError;
pub use run::{Options, Summary, run};
