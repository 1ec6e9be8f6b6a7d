//! [`LocalEncoder`]: a model so cheap that handing a text to another process or thread costs more
//! than embedding it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use laser_kernels::math;
use laser_protocol::Role;

use crate::config::Architecture;
use crate::folder;
use crate::mean::Mean;
use crate::tokenize::{Tokenizer, check_ids};
use crate::{Config, ModelError, Weights};

/// Longest token sequence of a model that counts as cheap: it bounds the time of one text to a few
/// milliseconds.
const MAX_TOKENS: usize = 2048;

/// A mean of token embeddings that runs on its caller's thread alone.
///
/// Neither loading nor encoding starts a thread, and all memory is the process's own: a process may
/// load one and fork, its children share the pages for as long as they only encode, and one cache of
/// words. Embeddings are those of the encoder process, bit by bit.
pub struct LocalEncoder {
    config: Config,
    tokenizer: Tokenizer,
    fingerprint: [u8; 32],
    mean: Mean,
}

/// Makes an error of a panic of the libraries that read a model's files.
fn guarded<T>(
    folder: &Path,
    load: impl FnOnce() -> Result<T, ModelError>,
) -> Result<T, ModelError> {
    catch_unwind(AssertUnwindSafe(load))
        .unwrap_or_else(|_| Err(ModelError::format(folder, "the loader failed on its files")))
}

impl LocalEncoder {
    /// Whether a model of this configuration is cheap enough: a mean of embeddings of its own, without
    /// dense layers or a dictionary of words, of texts that are not too long.
    pub fn suits(config: &Config) -> bool {
        matches!(config.encoder, Architecture::Mean(_))
            && config.base.is_none()
            && config.dense.is_empty()
            && config.text.segmentation.is_none()
            && config.max_tokens <= MAX_TOKENS
    }

    /// Loads a model folder; `None` if its model is not one for this encoder.
    ///
    /// The weights are copied and not mapped: a file that is truncated while it is mapped ends
    /// every process that reads it.
    ///
    /// # Errors
    /// Missing or malformed files, tensors of the wrong shape. No content of the folder makes this panic.
    pub fn load(folder: &Path) -> Result<Option<Self>, ModelError> {
        Self::load_with(folder, &mut || ())
    }

    /// As [`LocalEncoder::load`]; `pause` is called now and then, and may unwind: what it raises is the caller's.
    ///
    /// # Errors
    /// As [`LocalEncoder::load`].
    pub fn load_with(folder: &Path, pause: &mut dyn FnMut()) -> Result<Option<Self>, ModelError> {
        let Some(config) = guarded(folder, || Self::config_of(folder))? else {
            return Ok(None);
        };
        let path = folder.join(folder::WEIGHTS);
        let bytes = Weights::read(&path, pause)?;
        let fingerprint = folder::fingerprint_with(folder, pause)?;
        guarded(folder, || {
            let Architecture::Mean(mean) = &config.encoder else {
                return Ok(None);
            };
            // Nothing here asks `tokenizers` for its threads; nothing may in the future either.
            tokenizers::utils::parallelism::set_parallelism(false);
            let weights = Weights::index(&path, bytes)?;
            let tokenizer = Tokenizer::open(folder, &config)?;
            let mean = Mean::load(mean, &weights)?;
            tokenizer.check_vocabulary(mean.vocabulary(), &weights)?;
            Ok(Some(Self {
                fingerprint,
                tokenizer,
                mean,
                config,
            }))
        })
    }

    fn config_of(folder: &Path) -> Result<Option<Config>, ModelError> {
        let config = folder::read_config(folder)?;
        Ok(Self::suits(&config).then_some(config))
    }

    /// The same encoder, its tokenizer's vocabularies copied to new memory: a caller with an allocator
    /// of its own decides where that is. Loading leaves holes between what it keeps; the children of
    /// a process would fill them, and copy page after page.
    #[must_use]
    pub fn compacted(self) -> Self {
        Self {
            tokenizer: self.tokenizer.compacted(),
            ..self
        }
    }

    /// Writes the embedding of a text, which is what `role` says, to `out`; returns whether the text was cut at
    /// [`Config::max_tokens`].
    ///
    /// # Errors
    /// When the tokenizer fails, or gives an id that the table has no row for; [`ModelError::Undecided`].
    ///
    /// # Panics
    /// If `out` has another length than an embedding.
    pub fn encode(&self, text: &str, role: Role, out: &mut [f32]) -> Result<bool, ModelError> {
        assert_eq!(out.len(), self.config.dimensions, "length of an embedding");
        let text = self.config.prefixes.apply(role, text)?;
        let near = |ids: &[u32]| self.mean.prefetch(ids);
        let tokens = self.tokenizer.tokenize_with(&text, near)?;
        check_ids(&tokens.ids, self.mean.vocabulary())?;
        self.mean.encode(&tokens.ids, out);
        if self.config.normalize {
            math::l2_normalize(out);
        }
        Ok(tokens.truncated)
    }

    /// The configuration of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// See [`folder::fingerprint`].
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}
