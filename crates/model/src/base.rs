//! Models that build on another one ([`Base`]): all that belongs to tokens is the other's, which lies in
//! the folder of that name beside the model's own: `tokenizer.json`, the dictionary, and the tensors with
//! a row for each token. Several models over one table take its space on disk, and in memory its pages,
//! once.
//!
//! The model's `config.json` holds the fingerprint of its base, and what is there is compared with it when
//! the model is loaded: a fingerprint of the one ([`folder::fingerprint`]) covers the other.

use std::path::{Path, PathBuf};

use crate::config::Base;
use crate::folder::{self, CONFIG, DICTIONARY, TOKENIZER, WEIGHTS, Weights};
use crate::{Config, ModelError};

/// The folder of the base of the model in `folder`.
///
/// # Errors
/// [`ModelError::Io`] if `folder` has no name to be replaced and cannot be resolved.
pub fn folder_of(folder: &Path, base: &Base) -> Result<PathBuf, ModelError> {
    // A link to a folder elsewhere stands beside what it is installed with.
    if folder.file_name().is_some() {
        return Ok(folder.with_file_name(&base.model));
    }
    let resolved = folder
        .canonicalize()
        .map_err(|e| ModelError::io(folder, e))?;
    Ok(resolved.with_file_name(&base.model))
}

/// The folder with the tokenizer and the dictionary of a model: its own, or that of its base.
///
/// # Errors
/// [`ModelError::Format`] for a base that is not there, that has a base itself, that prepares texts in
/// another way, or files of the model's own in the place of the base's.
pub fn token_folder(folder: &Path, config: &Config) -> Result<PathBuf, ModelError> {
    let Some(base) = &config.base else {
        return Ok(folder.to_owned());
    };
    let name = &base.model;
    let wrong = |message| ModelError::format(folder.join(CONFIG), message);
    let path = folder_of(folder, base)?;
    if !path.join(CONFIG).exists() {
        return Err(wrong(format!(
            "the model builds on model \"{name}\", which is not beside it"
        )));
    }
    let theirs = folder::read_config(&path)?;
    if theirs.base.is_some() {
        return Err(wrong(format!(
            "the model builds on model \"{name}\", which builds on another one itself"
        )));
    }
    if theirs.text != config.text {
        return Err(wrong(format!(
            "the model builds on model \"{name}\", which prepares texts in another way"
        )));
    }
    for file in [TOKENIZER, DICTIONARY] {
        let own = folder.join(file);
        if own.exists() {
            let message = format!("the file must be that of model \"{name}\" alone");
            return Err(ModelError::format(own, message));
        }
    }
    Ok(path)
}

/// Maps the weights of a model, and those of its base.
///
/// # Errors
/// As [`Weights::open`] and [`token_folder`]; [`ModelError::Tensor`] for a tensor of the model's own that
/// its base has to have.
pub fn weights(folder: &Path, config: &Config) -> Result<Weights, ModelError> {
    let own = Weights::open(&folder.join(WEIGHTS))?;
    match &config.base {
        Some(_) => own.on(Weights::open(&token_folder(folder, config)?.join(WEIGHTS))?),
        None => Ok(own),
    }
}

/// Compares a base with the fingerprint that the model expects. `fingerprint` hashes a folder
/// ([`folder::fingerprint`]).
///
/// # Errors
/// [`ModelError::Format`] if it is another one, and those of `fingerprint` and [`folder_of`].
pub fn verify(
    folder: &Path,
    config: &Config,
    fingerprint: impl FnOnce(&Path) -> Result<[u8; 32], ModelError>,
) -> Result<(), ModelError> {
    let Some(base) = &config.base else {
        return Ok(());
    };
    let found = hex(&fingerprint(&folder_of(folder, base)?)?);
    if found == base.fingerprint {
        return Ok(());
    }
    Err(ModelError::format(
        folder.join(CONFIG),
        format!(
            "the model builds on model \"{}\" with fingerprint {}, the one beside it has {}",
            base.model,
            &base.fingerprint[..16],
            &found[..16]
        ),
    ))
}

/// A fingerprint as [`Base`] holds it.
pub fn hex(fingerprint: &[u8; 32]) -> String {
    blake3::Hash::from_bytes(*fingerprint).to_hex().to_string()
}
