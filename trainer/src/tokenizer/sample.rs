//! Draws the sentences that a vocabulary is trained on.

use std::collections::BTreeMap;

use laser_sampling::mix;

use crate::data::pipeline::Pipeline;
use crate::data::{DataError, Result};

/// Sentences drawn by language.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The sentences.
    pub texts: Vec<String>,
    /// Number of sentences of each language in the corpus and in the sample.
    pub languages: BTreeMap<String, (u64, u64)>,
}

/// Most times a sentence of a small language is repeated.
const MOST_REPEATS: f64 = 4.0;

/// Draws about `sentences` sentences; language l with n_l sentences gets a share proportional to
/// n_l to the power of `exponent`. Sentences of small languages are repeated up to four times.
///
/// # Errors
/// Of the readers; [`DataError::Config`] if the corpus is empty.
pub fn sample(pipeline: &Pipeline, sentences: usize, exponent: f64, seed: u64) -> Result<Sample> {
    let counts = pipeline.run(&mut |_, _| Ok(()))?.languages;
    let total: f64 = counts.values().map(|n| (*n as f64).powf(exponent)).sum();
    if counts.is_empty() {
        return Err(DataError::Config("the corpus has no sentences".into()));
    }
    let rates: BTreeMap<&str, f64> = counts
        .iter()
        .map(|(language, n)| {
            let quota = sentences as f64 * (*n as f64).powf(exponent) / total;
            (language.as_str(), (quota / *n as f64).min(MOST_REPEATS))
        })
        .collect();
    let mut result = Sample::default();
    let mut ordinal = 0u64;
    pipeline.run(&mut |_, group| {
        for row in group.rows {
            ordinal += 1;
            let rate = rates[row.language.as_str()];
            let uniform = (mix(seed ^ mix(ordinal)) >> 11) as f64 / (1u64 << 53) as f64;
            let copies = rate.floor() as u64 + u64::from(uniform < rate.fract());
            let entry = result
                .languages
                .entry(row.language)
                .or_insert_with_key(|language| (counts[language], 0));
            entry.1 += copies;
            for _ in 0..copies {
                result.texts.push(row.text.clone());
            }
        }
        Ok(())
    })?;
    Ok(result)
}
