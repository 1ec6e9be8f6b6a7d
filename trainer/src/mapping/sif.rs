//! Smooth inverse frequency: a sentence is the average of its words, weighted by `a / (a + p(w))`, without the first
//! principal component of such averages (Arora et al., ICLR 2017).

use laser_model::config::{Architecture, MeanPooling};

use super::append::append;
use super::procrustes::{MappingError, principal};
use crate::export::Model;

/// Why a model cannot be weighted.
#[derive(Debug, thiserror::Error)]
pub enum SifError {
    /// Its architecture knows no weights of tokens.
    #[error("the architecture \"{0}\" is no mean of token embeddings")]
    Architecture(&'static str),
    /// It has layers behind the mean already.
    #[error("the model has dense layers behind its mean")]
    Dense,
    /// There is no text.
    #[error("the text has no tokens to count")]
    NoText,
    /// The principal components cannot be computed.
    #[error(transparent)]
    Mapping(#[from] MappingError),
}

const TABLE: &str = "embed_tokens.weight";
const WEIGHTS: &str = "token_weight";

/// Gives a mean model the weights `a / (a + p)` with the frequencies `p` of tokens in `sentences` (their ids), and
/// removes `components` principal components of the sentences' averages by a last layer `I − U Uᵀ`. Weights that the
/// model has are replaced.
///
/// # Errors
/// [`SifError`].
///
/// # Panics
/// If an id is beyond the model's table.
pub fn weight(
    model: &mut Model,
    sentences: &[Vec<u32>],
    a: f64,
    components: usize,
) -> Result<(), SifError> {
    let Architecture::Mean(mean) = &mut model.config.encoder else {
        return Err(SifError::Architecture(model.config.encoder.name()));
    };
    if !model.config.dense.is_empty() {
        return Err(SifError::Dense);
    }
    mean.pooling = MeanPooling::Weighted;
    let width = mean.embedding_size;
    let vocabulary = model.vocabulary();
    let mut counts = vec![0u64; vocabulary];
    for id in sentences.iter().flatten() {
        counts[*id as usize] += 1;
    }
    let total: u64 = counts.iter().sum();
    if total == 0 {
        return Err(SifError::NoText);
    }
    let factor = |count: &u64| a / (a + *count as f64 / total as f64);
    let factors: Vec<f32> = counts.iter().map(|c| factor(c) as f32).collect();
    if components > 0 {
        let table = &model.tensors[TABLE].1;
        let mut averages = Vec::with_capacity(sentences.len() * width);
        for ids in sentences.iter().filter(|ids| !ids.is_empty()) {
            let begin = averages.len();
            averages.resize(begin + width, 0f32);
            let share = 1.0 / ids.len() as f32;
            for id in ids {
                let row = &table[*id as usize * width..(*id as usize + 1) * width];
                let factor = share * factors[*id as usize];
                laser_kernels::slices::axpy(factor, row, &mut averages[begin..]);
            }
        }
        let u = principal(&averages, width, components)?;
        let mut w = vec![0f32; width * width];
        for i in 0..width {
            w[i * width + i] = 1.0;
            for u in u.chunks_exact(width) {
                let row = &mut w[i * width..(i + 1) * width];
                laser_kernels::slices::axpy(-u[i], u, row);
            }
        }
        append(model, w);
    }
    let logarithms = factors.iter().map(|f| f.ln()).collect();
    model
        .tensors
        .insert(WEIGHTS.into(), (vec![vocabulary], logarithms));
    Ok(())
}
