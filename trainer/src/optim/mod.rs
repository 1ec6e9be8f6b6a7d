//! Optimisers, learning-rate schedules, clipping and weight averages.

pub mod adam;
pub mod schedule;

pub use adam::{EmbeddingRule, Optimizer, OptimizerOptions};
pub use schedule::{Decay, Schedule};
