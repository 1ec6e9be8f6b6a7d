//! Import of published checkpoints into model folders.
//!
//! | kind | source |
//! |---|---|
//! | [`Kind::Laser2`] | folder with one `*.pt` and one `*.spm`, or the `.pt` with the `.spm` beside it |
//! | [`Kind::Laser1`] | folder with one `*.pt`, one `*.fcodes` and one `*.fvocab` |
//! | [`Kind::Laser3`] | folder with one `*.pt`, one `*.spm` and one `*.cvocab` |
//! | [`Kind::SentenceTransformer`] | folder with `modules.json` around a BERT or (XLM-)RoBERTa model |

mod bert;
mod laser;
mod laser3;
mod layers;
pub mod pickle;
pub mod spm;
pub mod torch;
pub mod zip;

use std::path::{Path, PathBuf};

use crate::folder::Tensors;
use crate::{Config, EncoderError, folder};

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
}

impl std::str::FromStr for Kind {
    type Err = EncoderError;

    fn from_str(name: &str) -> Result<Self, EncoderError> {
        Ok(match name {
            "laser1" => Self::Laser1,
            "laser2" => Self::Laser2,
            "laser3" => Self::Laser3,
            "sentence-transformer" | "labse" | "bert" => Self::SentenceTransformer,
            _ => {
                return Err(EncoderError::Config(format!(
                    "unknown kind of checkpoint \"{name}\""
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
    /// Storage of the embedding table.
    pub table: Table,
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

/// A model ready to be written.
struct Model {
    config: Config,
    tokenizer: serde_json::Value,
    tensors: Tensors,
    dictionary: Option<Vec<u8>>,
    notes: Vec<String>,
}

/// Imports the checkpoint `source` into the model folder `out`. Without `kind`, the files tell.
///
/// # Errors
/// [`EncoderError::Import`] with the key or tensor that is missing or wrong. Nothing in a
/// checkpoint is ever executed.
pub fn import(
    source: &Path,
    kind: Option<Kind>,
    out: &Path,
    options: &Options,
) -> Result<Report, EncoderError> {
    let kind = match kind {
        Some(kind) => kind,
        None => detect(source)?,
    };
    let name = match &options.name {
        Some(name) => name.clone(),
        None => out
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .ok_or_else(|| EncoderError::import(out, "the output folder has no name"))?,
    };
    let mut model = match kind {
        Kind::Laser1 => laser::laser1(source, options)?,
        Kind::Laser2 => laser::laser2(source, options)?,
        Kind::Laser3 => laser3::laser3(source, options)?,
        Kind::SentenceTransformer => bert::sentence_transformer(source, options)?,
    };
    model.config.name = name;
    if let Some(normalize) = options.normalize {
        model.config.normalize = normalize;
    }
    const EMBEDDINGS: &str = "embed_tokens.weight";
    match options.table {
        Table::F32 => {}
        Table::F16 => {
            let table = model.tensors[EMBEDDINGS].to_f16();
            model.tensors.insert(EMBEDDINGS.into(), table);
        }
        Table::I8 => {
            let (table, scale) = model.tensors[EMBEDDINGS].to_i8();
            model.tensors.insert(EMBEDDINGS.into(), table);
            model.tensors.insert(format!("{EMBEDDINGS}.scale"), scale);
        }
    }
    let parameters = model
        .tensors
        .values()
        .map(|t| t.shape().iter().product::<usize>())
        .sum();
    if let Some(dictionary) = &model.dictionary {
        folder::write_dictionary(out, dictionary)?;
    }
    folder::write_parts(
        out,
        &model.config,
        &model.tokenizer.to_string(),
        &model.tensors,
    )?;
    Ok(Report {
        kind,
        config: model.config,
        parameters,
        notes: model.notes,
    })
}

fn detect(source: &Path) -> Result<Kind, EncoderError> {
    std::fs::metadata(source).map_err(|e| EncoderError::io(source, e))?;
    if source.join("modules.json").exists() {
        return Ok(Kind::SentenceTransformer);
    }
    let has = |extension| find(source, extension).is_ok();
    if has("fcodes") {
        Ok(Kind::Laser1)
    } else if has("pt") && has("spm") {
        let checkpoint = torch::Checkpoint::open(&find(source, "pt")?)?;
        let root = checkpoint.pickle.root();
        Ok(if checkpoint.pickle.get(root, "params").is_some() {
            Kind::Laser2
        } else {
            Kind::Laser3
        })
    } else {
        Err(EncoderError::import(
            source,
            "it is no known checkpoint: expected a folder with \"modules.json\", or one with a \
             \".pt\" file and its \".spm\" or \".fcodes\"",
        ))
    }
}

/// The file with this extension in a folder, or beside a file.
fn find(source: &Path, extension: &str) -> Result<PathBuf, EncoderError> {
    if source.is_file() {
        let path = source.with_extension(extension);
        if path.exists() {
            return Ok(path);
        }
        return Err(EncoderError::import(&path, "the file is missing"));
    }
    let entries = std::fs::read_dir(source).map_err(|e| EncoderError::io(source, e))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    found.sort();
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(EncoderError::import(
            source,
            format!("there is no \".{extension}\" file"),
        )),
        n => Err(EncoderError::import(
            source,
            format!("there are {n} \".{extension}\" files, expected one"),
        )),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, EncoderError> {
    std::fs::read(path).map_err(|e| EncoderError::io(path, e))
}

fn read_text(path: &Path) -> Result<String, EncoderError> {
    String::from_utf8(read(path)?).map_err(|_| EncoderError::import(path, "it is not UTF-8"))
}
