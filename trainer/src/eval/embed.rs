//! Embeds the texts of evaluation sets with an encoder.

use std::path::Path;

use laser_encoder::{Encoder, LoadOptions};

use super::EvalError;

/// Texts that are embedded in one call, so that progress can be shown.
const CHUNK: usize = 2048;

/// Loads a model folder.
///
/// # Errors
/// [`EvalError::Encoder`].
pub fn load(folder: &Path, options: &LoadOptions) -> Result<Encoder, EvalError> {
    Ok(Encoder::load(folder, options)?)
}

/// Embeds all texts; row-major. `progress` is told how many texts are done.
///
/// # Errors
/// [`EvalError::Encoder`].
pub fn embed_all<T: AsRef<str>>(
    encoder: &Encoder,
    texts: &[T],
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<f32>, EvalError> {
    let mut out = Vec::with_capacity(texts.len() * encoder.dimensions());
    for chunk in texts.chunks(CHUNK) {
        let chunk: Vec<&str> = chunk.iter().map(AsRef::as_ref).collect();
        out.extend_from_slice(&encoder.encode(&chunk)?.data);
        progress((out.len() / encoder.dimensions()) as u64);
    }
    Ok(out)
}
