//! Embeddings on disk, so that several measures of one model embed a text once.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use laser_encoder::Encoder;

use super::EvalError;
use super::embed::embed_all;
use crate::data::DataError;

/// A folder with embeddings. A file holds those of one list of texts by one model (its fingerprint and the
/// precision and device it runs in): f32, little endian, row-major. Other models' files stay; whoever wants the room
/// back removes the folder.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// A cache in a folder, which is made if it is missing.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(folder: &Path) -> Result<Self, EvalError> {
        std::fs::create_dir_all(folder).map_err(|e| DataError::io(folder, e))?;
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    fn path<T: AsRef<str>>(&self, encoder: &Encoder, texts: &[T]) -> PathBuf {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&encoder.fingerprint());
        let how = format!("{:?} {}", encoder.precision(), encoder.device_name());
        hasher.update(&(how.len() as u64).to_le_bytes());
        hasher.update(how.as_bytes());
        for text in texts {
            let text = text.as_ref().as_bytes();
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text);
        }
        let name = hasher.finalize().to_hex();
        self.folder.join(format!("{name}.f32"))
    }

    /// Embeddings of texts as by [`embed_all`], read where they are known, written where not.
    ///
    /// # Errors
    /// Of [`embed_all`], and if the folder cannot be written to.
    pub fn embed<T: AsRef<str>>(
        &self,
        encoder: &Encoder,
        texts: &[T],
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<f32>, EvalError> {
        let path = self.path(encoder, texts);
        let wanted = texts.len() * encoder.dimensions();
        // A file of another length is damaged, and replaced.
        if let Ok(bytes) = std::fs::read(&path)
            && bytes.len() == 4 * wanted
        {
            progress(texts.len() as u64);
            let values = bytes.chunks_exact(4);
            return Ok(values
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect());
        }
        let embeddings = embed_all(encoder, texts, progress)?;
        let fail = |e: std::io::Error| DataError::io(&path, e);
        // Another process may write the same file.
        let part = path.with_extension(format!("{}.part", std::process::id()));
        let file = std::fs::File::create(&part).map_err(fail)?;
        let mut out = std::io::BufWriter::new(file);
        for value in &embeddings {
            out.write_all(&value.to_le_bytes()).map_err(fail)?;
        }
        out.into_inner().map_err(|e| fail(e.into_error()))?;
        std::fs::rename(&part, &path).map_err(fail)?;
        Ok(embeddings)
    }
}
