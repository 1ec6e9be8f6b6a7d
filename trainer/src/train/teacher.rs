//! A frozen teacher for representation transfer.

use std::path::Path;

use laser_encoder::{DeviceChoice, Encoder, LoadOptions, Precision};
use laser_model::config::Architecture;
use tokenizers::Tokenizer;

use super::TrainError;
use crate::data::Ragged;
use crate::models::Model;

/// A model folder that embeds targets.
pub struct Teacher {
    encoder: Encoder,
    /// The student's tokenizer, to turn ids into text, if the teacher has another one.
    foreign: Option<Tokenizer>,
    /// What the teacher appends to every sentence, if it is not done by its tokenizer.
    eos: Option<u32>,
}

impl Teacher {
    /// Loads a teacher for a student with the given `tokenizer.json`.
    ///
    /// # Errors
    /// [`TrainError::Teacher`] if the folder cannot be loaded, [`TrainError::Config`] if its
    /// embeddings have another width than the student's.
    pub fn load(
        folder: &Path,
        tokenizer: &Path,
        threads: usize,
        student: &Model,
    ) -> Result<Self, TrainError> {
        let options = LoadOptions {
            device: DeviceChoice::Auto,
            precision: Precision::F32,
            threads,
        };
        let encoder = Encoder::load(folder, &options)?;
        if encoder.dimensions() != student.dimensions() {
            return Err(TrainError::Config(format!(
                "the teacher has {} dimensions, the student {}",
                encoder.dimensions(),
                student.dimensions()
            )));
        }
        let own = folder.join("tokenizer.json");
        let bytes = |path: &Path| std::fs::read(path).map_err(|e| TrainError::io(path, e));
        let student_json = bytes(tokenizer)?;
        let (inner, _) = laser_model::ngrams::read_tokenizer(&student_json)?;
        let append = matches!(&encoder.config().encoder, Architecture::Bilstm(c) if c.append_eos);
        let eos = append.then(|| inner.token_to_id("</s>")).flatten();
        let foreign = (bytes(&own)? != student_json).then_some(inner);
        Ok(Self {
            encoder,
            foreign,
            eos,
        })
    }

    /// Embeddings [sentences, D] of the student's token ids. A teacher with another tokenizer
    /// reads the text that the ids stand for; n-grams have none.
    ///
    /// # Errors
    /// [`TrainError::Teacher`], [`TrainError::Data`].
    pub fn embed(&self, sentences: &Ragged) -> Result<Vec<f32>, TrainError> {
        let rows = (0..sentences.len()).map(|i| sentences.row(i));
        let embeddings = match &self.foreign {
            None => {
                let limit = self.encoder.config().max_tokens - usize::from(self.eos.is_some());
                let ids: Vec<Vec<u32>> = rows
                    .map(|r| {
                        r[..r.len().min(limit)]
                            .iter()
                            .copied()
                            .chain(self.eos)
                            .collect()
                    })
                    .collect();
                self.encoder.encode_ids(&ids)?
            }
            Some(tokenizer) => {
                let texts = rows
                    .map(|ids| tokenizer.decode(ids, true))
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|e| crate::data::DataError::Tokenizer(e.to_string()))?;
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                self.encoder.encode(&texts)?
            }
        };
        Ok(embeddings.data)
    }
}
