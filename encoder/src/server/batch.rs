//! Texts that are encoded at a time: how many, and how.

use laser_encoder::{Embeddings, Encoder, EncoderError, Purpose, Tokenized};
use laser_model::installed;
use laser_protocol::{ErrorCode, Failure};

use super::queue::text_cost;

/// Seconds that a batch should take at most.
pub const SECONDS: f64 = 0.06;
/// Cost of the first batch of a model, whose speed is not known yet.
const FIRST_BUDGET: usize = 1024;
/// Largest cost of a batch, whatever the speed.
const MAX_BUDGET: usize = 1 << 18;

/// What a session hears of an error of the encoder with this model.
pub fn failure(error: &EncoderError, model: &str) -> Failure {
    if let EncoderError::Model(error) = error
        && let Some(refusal) = installed::refusal(model, error)
    {
        return refusal;
    }
    Failure {
        code: ErrorCode::Internal,
        message: error.to_string(),
        hint: "See the server log.".into(),
    }
}

/// A text of a batch.
pub enum Input {
    /// Its tokens.
    Tokens(Tokenized),
    /// Its tokens could not be had, which is to be reported; what is asked about it.
    Text(String, Purpose),
}

impl Input {
    /// Its cost, in units of [`text_cost`].
    pub fn cost(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.ids.len() + 2,
            Self::Text(text, purpose) => text_cost(text, purpose),
        }
    }
}

/// Encodes; returns the number of tokens as well.
pub fn encode_inputs(
    encoder: &Encoder,
    inputs: &[Input],
) -> Result<(Embeddings, u64), EncoderError> {
    let mut tokenized = Vec::with_capacity(inputs.len());
    for input in inputs.iter() {
        tokenized.push(match input {
            Input::Tokens(tokens) => (tokens.ids.clone(), tokens.truncated),
            Input::Text(text, purpose) => {
                let tokens = encoder.tokenize_for(purpose, text)?;
                (tokens.ids, tokens.truncated)
            }
        });
    }
    let (ids, truncated): (Vec<_>, Vec<_>) = tokenized.into_iter().unzip();
    let tokens = ids.iter().map(|ids| ids.len() as u64).sum();
    Ok((
        Embeddings {
            truncated,
            ..encoder.encode_ids(&ids)?
        },
        tokens,
    ))
}

/// Cost of a batch that takes about [`SECONDS`]. That of a unit is 0 before the first batch.
pub fn cost_of_batch(seconds_per_cost: f64) -> usize {
    if seconds_per_cost <= 0.0 {
        return FIRST_BUDGET;
    }
    ((SECONDS / seconds_per_cost) as usize).clamp(1, MAX_BUDGET)
}
