//! What an import is told, and what it reports.

use std::path::PathBuf;

use laser_model::{Config, ModelError};

/// Kinds of checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// LASER with BPE codes (2018).
    Laser1,
    /// LASER with SentencePiece (2021).
    Laser2,
    /// LASER3's transformers for single languages.
    Laser3,
    /// A sentence-transformers folder (LaBSE and others).
    SentenceTransformer,
    /// A classifier with one label as transformers writes it: a reranker.
    CrossEncoder,
}

impl std::str::FromStr for Kind {
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self, ModelError> {
        Ok(match name {
            "laser1" => Self::Laser1,
            "laser2" => Self::Laser2,
            "laser3" => Self::Laser3,
            "sentence-transformer" | "labse" | "bert" => Self::SentenceTransformer,
            "cross-encoder" => Self::CrossEncoder,
            _ => {
                return Err(ModelError::Config(format!(
                    "unknown kind of checkpoint \"{name}\": laser1, laser2, laser3, \
                     sentence-transformer and cross-encoder are known"
                )));
            }
        })
    }
}

/// Storage of the embedding table in the model folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Table {
    /// 32-bit floats: exactly the checkpoint's.
    #[default]
    F32,
    /// 16-bit floats.
    F16,
    /// Row-wise int8.
    I8,
}

/// What the importer cannot know.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Name of the model; by default the name of the output folder.
    pub name: Option<String>,
    /// Longest token sequence; by default the checkpoint's, or 512 where it has none.
    pub max_tokens: Option<usize>,
    /// Whether embeddings are normalised; by default as the original does.
    pub normalize: Option<bool>,
    /// Language of the text preparation of LASER1; by default "en".
    pub language: Option<String>,
    /// Moses' `nonbreaking_prefix` file for that language (LASER1).
    pub prefixes: Option<PathBuf>,
    /// Dictionary of word segmentation (LASER1 for Chinese and Japanese): jieba's `dict.txt`, or a
    /// folder with the sources of a MeCab dictionary in UTF-8.
    pub dictionary: Option<PathBuf>,
    /// What stands before texts that are searched for; by default what the checkpoint says.
    pub query_prefix: Option<String>,
    /// What stands before texts that are searched in; by default what the checkpoint says.
    pub passage_prefix: Option<String>,
    /// Storage of the embedding table.
    pub table: Table,
}

impl Options {
    /// The first option that says something which only LASER1's text preparation needs.
    pub(crate) fn of_laser1(&self) -> Option<&'static str> {
        [
            ("language", self.language.is_some()),
            ("prefixes", self.prefixes.is_some()),
            ("dictionary", self.dictionary.is_some()),
        ]
        .into_iter()
        .find_map(|(name, given)| given.then_some(name))
    }
}

/// What was imported.
#[derive(Debug, Clone)]
pub struct Report {
    /// Kind of the checkpoint.
    pub kind: Kind,
    /// The configuration that was written.
    pub config: Config,
    /// Number of parameters.
    pub parameters: usize,
    /// Things the user should know.
    pub notes: Vec<String>,
}
