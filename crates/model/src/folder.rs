//! Model folders on disk: configuration, dictionary, fingerprint, writing.

use std::io::Read;
use std::path::Path;

use crate::files::{check_length, in_pieces, open_plain, read_plain, replace};
use crate::{Config, ModelError};

pub use crate::files::{CONFIG, DICTIONARY, TOKENIZER, WEIGHTS, map_file};
pub use crate::matrix::Matrix;
pub use crate::tensor::{Tensor, Tensors};
pub use crate::weights::{PER_TOKEN, Weights};

/// Largest `config.json` that is read.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Reads and validates `config.json` of a model folder.
pub fn read_config(folder: &Path) -> Result<Config, ModelError> {
    let path = folder.join(CONFIG);
    let mut json = String::new();
    open_plain(&path)
        .and_then(|file| file.take(MAX_CONFIG_BYTES + 1).read_to_string(&mut json))
        .map_err(|e| ModelError::io(&path, e))?;
    if json.len() as u64 > MAX_CONFIG_BYTES {
        return Err(ModelError::format(
            &path,
            "the file is too large for a configuration",
        ));
    }
    Config::from_json(&json).map_err(|e| match e {
        ModelError::Config(message) => ModelError::format(&path, message),
        other => other,
    })
}

/// blake3 over the contents of configuration, tokenizer, weights and, where there is one, the
/// dictionary, each preceded by its length (u64, little endian). A model that builds on another has
/// configuration and weights alone; the former holds the fingerprint of the other ([`crate::base`]).
pub fn fingerprint(folder: &Path) -> Result<[u8; 32], ModelError> {
    fingerprint_with(folder, &mut || ())
}

/// As [`fingerprint`], for files of any size: `pause` is called now and then, and may unwind.
pub fn fingerprint_with(folder: &Path, pause: &mut dyn FnMut()) -> Result<[u8; 32], ModelError> {
    let mut hasher = blake3::Hasher::new();
    for name in [CONFIG, TOKENIZER, WEIGHTS, DICTIONARY] {
        let path = folder.join(name);
        if name == DICTIONARY && !path.exists() {
            continue;
        }
        if name == TOKENIZER
            && !path.exists()
            && read_config(folder).is_ok_and(|config| config.base.is_some())
        {
            continue;
        }
        let mut hash = || {
            let file = open_plain(&path)?;
            if name != WEIGHTS {
                check_length(&file)?;
            }
            let length = file.metadata()?.len();
            hasher.update(&length.to_le_bytes());
            in_pieces(file.take(length), pause, |piece| {
                hasher.update(piece);
            })
        };
        hash().map_err(|e| ModelError::io(&path, e))?;
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Reads what [`write_dictionary`] has written.
///
/// # Errors
/// [`ModelError::Io`], or [`ModelError::Format`] if the file is damaged.
pub fn read_dictionary(folder: &Path) -> Result<Vec<u8>, ModelError> {
    let path = folder.join(DICTIONARY);
    let mut bytes = read_plain(&path).map_err(|e| ModelError::io(&path, e))?;
    match bytes.split_first_chunk::<{ blake3::OUT_LEN }>() {
        Some((hash, rest)) if blake3::hash(rest) == *hash => {
            bytes.drain(..blake3::OUT_LEN);
            Ok(bytes)
        }
        _ => Err(ModelError::format(path, "the dictionary is damaged")),
    }
}

/// Writes the dictionary of a model folder, which is made if missing.
pub fn write_dictionary(folder: &Path, dictionary: &[u8]) -> Result<(), ModelError> {
    std::fs::create_dir_all(folder).map_err(|e| ModelError::io(folder, e))?;
    replace(&folder.join(DICTIONARY), |path| {
        std::fs::write(
            path,
            [blake3::hash(dictionary).as_bytes(), dictionary].concat(),
        )
    })
}

/// Writes a model folder (made if missing; files of the same names are replaced by renaming, the
/// configuration last). Whether its tensors are what the architecture needs shows when an encoder
/// loads it.
pub fn write(
    folder: &Path,
    config: &Config,
    tokenizer: &tokenizers::Tokenizer,
    tensors: &Tensors,
) -> Result<(), ModelError> {
    config.validate()?;
    let json = tokenizer
        .to_string(true)
        .map_err(|e| ModelError::Tokenizer(e.to_string()))?;
    write_parts(folder, config, &json, tensors)
}

/// As [`write`], with the tokenizer as JSON text. It is not written for a model that builds on another.
pub fn write_parts(
    folder: &Path,
    config: &Config,
    tokenizer_json: &str,
    tensors: &Tensors,
) -> Result<(), ModelError> {
    config.validate()?;
    std::fs::create_dir_all(folder).map_err(|e| ModelError::io(folder, e))?;
    let tensors = tensors.iter();
    replace(&folder.join(WEIGHTS), |path| {
        safetensors::serialize_to_file(tensors, None, path).map_err(|e| match e {
            safetensors::SafeTensorError::IoError(e) => e,
            other => std::io::Error::other(other.to_string()),
        })
    })?;
    let tokenizer = folder.join(TOKENIZER);
    if config.base.is_none() {
        replace(&tokenizer, |path| std::fs::write(path, tokenizer_json))?;
    } else if tokenizer.exists() {
        std::fs::remove_file(&tokenizer).map_err(|e| ModelError::io(&tokenizer, e))?;
    }
    replace(&folder.join(CONFIG), |path| {
        std::fs::write(path, config.to_json() + "\n")
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A file that is longer than any disk (nothing of it is on one) would be read for hours.
    #[test]
    fn files_without_an_end_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for name in [CONFIG, TOKENIZER, DICTIONARY] {
            for other in [CONFIG, TOKENIZER, WEIGHTS, DICTIONARY] {
                std::fs::write(folder.path().join(other), "{}").unwrap();
            }
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_len(1 << 42).unwrap();
            let error = fingerprint(folder.path()).unwrap_err().to_string();
            assert!(error.contains("bytes, more than"), "{name}: {error}");
        }
        assert!(read_dictionary(folder.path()).is_err());
        assert!(read_plain(&folder.path().join(DICTIONARY)).is_err());
    }

    /// A pipe in the place of a file would keep its reader waiting, a device would have no end.
    #[test]
    fn what_is_no_plain_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let pipe = std::process::Command::new("mkfifo")
            .arg(path.join("pipe"))
            .status();
        assert!(pipe.unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", path.join("device")).unwrap();
        let (done, all_done) = mpsc::channel();
        std::thread::spawn(move || {
            for kind in ["pipe", "device"] {
                for name in [CONFIG, TOKENIZER, WEIGHTS] {
                    let model = path.join(format!("{kind} {name}"));
                    std::fs::create_dir(&model).unwrap();
                    for other in [CONFIG, TOKENIZER, WEIGHTS]
                        .iter()
                        .filter(|other| **other != name)
                    {
                        std::fs::write(model.join(other), "{}").unwrap();
                    }
                    std::os::unix::fs::symlink(path.join(kind), model.join(name)).unwrap();
                    let error = fingerprint(&model).unwrap_err().to_string();
                    assert!(error.contains("plain file"), "{error}");
                    assert!(map_file(&model.join(name)).is_err());
                    assert!(Weights::copy(&model.join(name)).is_err());
                }
                let error = read_config(&path.join(format!("{kind} {CONFIG}"))).unwrap_err();
                assert!(error.to_string().contains("plain file"), "{error}");
            }
            done.send(()).unwrap();
        });
        all_done.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}
