//! What trainings of all kinds begin with.

use super::TrainError;
use super::config::TrainConfig;
use crate::data::{LanguageId, PackedCorpus};
use crate::models::Model;
use crate::tokenizer::Loaded;

/// First and last token of the targets of a decoder.
pub fn boundaries(tokenizer: &Loaded) -> Result<(u32, u32), TrainError> {
    let id = |name: &str| tokenizer.tokenizer.token_to_id(name);
    let end = id("</s>").or_else(|| id("[SEP]"));
    let begin = id("<s>").or_else(|| id("[CLS]")).or(end);
    let message = "translation needs a tokenizer with the token \"</s>\"";
    begin
        .zip(end)
        .ok_or_else(|| TrainError::Config(message.into()))
}

/// Scales new embeddings and sets token weights by frequency (in one language, or all), where the configuration
/// says so.
pub fn initial_values(
    config: &TrainConfig,
    corpus: &PackedCorpus,
    language: Option<LanguageId>,
    model: &mut Model,
) {
    let width = model.embedding_size();
    let weighted = model.has_token_weights();
    let list = model.parameters_mut().list_mut();
    if let Some(std) = config.model.embedding_std {
        laser_kernels::slices::scale(std * (width as f32).sqrt(), &mut list[0].value);
    }
    let exponent = config.model.token_weight_exponent;
    if weighted && exponent != 0.0 {
        let mut counts = vec![1u32; list[1].value.len()];
        let mut ids = Vec::new();
        for sentence in 0..corpus.sentences() {
            if language.is_some_and(|l| l != corpus.language(sentence)) {
                continue;
            }
            ids.clear();
            corpus.tokens_into(sentence, config.sampling.max_tokens, &mut ids);
            ids.iter().for_each(|id| counts[*id as usize] += 1);
        }
        let mut sorted = counts.clone();
        sorted.sort_unstable();
        let median = sorted[sorted.len() / 2] as f32;
        for (weight, count) in list[1].value.iter_mut().zip(counts) {
            *weight = (-exponent * (count as f32 / median).ln()).clamp(-2.5, 1.0);
        }
    }
}
