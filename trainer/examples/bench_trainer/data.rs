//! What all of them measure with: configurations, and sentences that look like text.

use laser_model::config::{Architecture, Config, Dense};
use laser_trainer::data::Ragged;

/// Types of the vocabulary.
pub const VOCABULARY: usize = 32_000;

/// A model that is measured.
pub fn config(encoder: Architecture, dense: Vec<Dense>) -> Config {
    let dimensions = dense.last().map_or(encoder.output_size(), |d| d.output);
    Config {
        format: laser_model::config::FORMAT,
        name: "bench".into(),
        dimensions,
        max_tokens: 128,
        normalize: true,
        text: Default::default(),
        encoder,
        dense,
        checks: Vec::new(),
        base: None,
        prefixes: Default::default(),
        task: Default::default(),
    }
}

/// Sentences of random tokens; low ids are more frequent, as in text.
pub fn sentences(count: usize, length: impl Fn(usize) -> usize) -> Ragged {
    let mut batch = Ragged::new();
    let mut state = 1u64;
    for s in 0..count {
        let ids: Vec<u32> = (0..length(s))
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let u = (state >> 40) as f64 / (1u64 << 24) as f64;
                ((VOCABULARY as f64).powf(u) - 1.0) as u32
            })
            .collect();
        batch.push(&ids);
    }
    batch
}
