//! Import of published checkpoints into model folders.
//!
//! | kind | source |
//! |---|---|
//! | [`Kind::Laser2`] | folder with one `*.pt` and one `*.spm` |
//! | [`Kind::Laser1`] | folder with one `*.pt`, one `*.fcodes` and one `*.fvocab` |
//! | [`Kind::Laser3`] | folder with one `*.pt`, one `*.spm` and one `*.cvocab` |
//! | [`Kind::SentenceTransformer`] | folder with `modules.json` around a BERT or (XLM-)RoBERTa model |
//!
//! Where a folder holds several checkpoints, the `.pt` file is named instead.

mod bert;
mod laser;
mod laser3;
mod layers;
pub mod pickle;
pub mod spm;
pub mod torch;
pub mod zip;

use std::path::{Path, PathBuf};

use laser_model::folder::Tensors;
use laser_model::ngrams::read_tokenizer;
use laser_model::{Config, ModelError, folder};

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
    type Err = ModelError;

    fn from_str(name: &str) -> Result<Self, ModelError> {
        Ok(match name {
            "laser1" => Self::Laser1,
            "laser2" => Self::Laser2,
            "laser3" => Self::Laser3,
            "sentence-transformer" | "labse" | "bert" => Self::SentenceTransformer,
            _ => {
                return Err(ModelError::Config(format!(
                    "unknown kind of checkpoint \"{name}\": laser1, laser2, laser3 and \
                     sentence-transformer are known"
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

impl Options {
    /// The first option that says something which only LASER1's text preparation needs.
    fn of_laser1(&self) -> Option<&'static str> {
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

/// The table of token embeddings.
const EMBEDDINGS: &str = "embed_tokens.weight";

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
/// [`ModelError::Import`] with the key or tensor that is missing or wrong. Nothing in a
/// checkpoint is ever executed.
pub fn import(
    source: &Path,
    kind: Option<Kind>,
    out: &Path,
    options: &Options,
) -> Result<Report, ModelError> {
    let kind = match kind {
        Some(kind) => kind,
        None => detect(source)?,
    };
    let name = match &options.name {
        Some(name) => name.clone(),
        None => out
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .ok_or_else(|| ModelError::import(out, "the output folder has no name"))?,
    };
    if kind != Kind::Laser1
        && let Some(option) = options.of_laser1()
    {
        return Err(ModelError::import(
            source,
            format!("option \"{option}\" is for LASER1, and this is another checkpoint"),
        ));
    }
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
    check(&model).map_err(|message| ModelError::import(source, message))?;
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

/// What the files of a checkpoint must agree in, so that nothing is written of one that cannot be
/// used.
fn check(model: &Model) -> Result<(), String> {
    model.config.validate().map_err(|e| e.to_string())?;
    let (tokenizer, _) = read_tokenizer(model.tokenizer.to_string().as_bytes())
        .map_err(|e| format!("its tokenizer cannot be used: {e}"))?;
    let tokens = tokenizer.get_vocab_size(true);
    let rows = model.tensors[EMBEDDINGS].shape()[0];
    if tokens > rows {
        return Err(format!(
            "the tokenizer has {tokens} tokens, but tensor \"{EMBEDDINGS}\" only {rows} rows"
        ));
    }
    Ok(())
}

fn detect(source: &Path) -> Result<Kind, ModelError> {
    std::fs::metadata(source).map_err(|e| ModelError::io(source, e))?;
    if source.join("modules.json").exists() {
        return Ok(Kind::SentenceTransformer);
    }
    let has = |extension| find(source, extension).is_ok();
    // A folder of downloads may hold files of several models: what has the name of the checkpoint
    // belongs to it.
    let named = |extension| source.is_file() && source.with_extension(extension).exists();
    let codes = has("fcodes") && !named("spm");
    if !has("pt") || !(codes || has("spm")) {
        return Err(ModelError::import(
            source,
            format!(
                "it is no known checkpoint: expected a folder with \"modules.json\", or one with \
                 one \".pt\" file and its \".spm\" or \".fcodes\" (found {})",
                listing(source)
            ),
        ));
    }
    let checkpoint = torch::Checkpoint::open(&find(source, "pt")?)?;
    let pickle = &checkpoint.pickle;
    let is_bilstm = pickle.get(pickle.root(), "params").is_some();
    Ok(match (is_bilstm, codes) {
        (_, true) if is_bilstm || !has("spm") => Kind::Laser1,
        (true, _) => Kind::Laser2,
        (false, _) => Kind::Laser3,
    })
}

/// Names of the model files at `source`, for messages.
fn listing(source: &Path) -> String {
    const EXTENSIONS: [&str; 6] = ["pt", "spm", "cvocab", "fcodes", "fvocab", "json"];
    let mut names: Vec<String> = folder_of(source)
        .read_dir()
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(PathBuf::from(entry.ok()?.file_name())))
        .filter(|name| {
            EXTENSIONS
                .iter()
                .any(|e| name.extension().is_some_and(|n| n == *e))
        })
        .map(|name| format!("\"{}\"", name.display()))
        .collect();
    names.sort();
    if names.is_empty() {
        return "none of these".into();
    }
    names.truncate(8);
    names.join(", ")
}

/// The folder `source`, or the one it lies in.
fn folder_of(source: &Path) -> &Path {
    if !source.is_file() {
        return source;
    }
    match source.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// The file with this extension that belongs to `source`: the only one in a folder; for a file, the
/// one of its name, else one whose name is a part of it, else the only one beside it (LASER1's codes,
/// and LASER2's SentencePiece model, which some of LASER3's models share, have names of their own).
fn find(source: &Path, extension: &str) -> Result<PathBuf, ModelError> {
    if source.is_file() {
        let path = source.with_extension(extension);
        if path.exists() {
            return Ok(path);
        }
    }
    let folder = folder_of(source);
    let entries = std::fs::read_dir(folder).map_err(|e| ModelError::io(folder, e))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    if found.len() > 1 && source.is_file() {
        // `bilstm.93langs.2018-12-26.pt` belongs to `93langs.fcodes`.
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let part_of_name = |path: &PathBuf| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            name.split('.').any(|part| part == stem)
        };
        let named: Vec<PathBuf> = found.iter().filter(|p| part_of_name(p)).cloned().collect();
        if named.len() == 1 {
            found = named;
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(ModelError::import(
            folder,
            format!("there is no \".{extension}\" file"),
        )),
        n => Err(ModelError::import(
            folder,
            format!(
                "there are {n} \".{extension}\" files, expected one: name the checkpoint's \".pt\" \
                 file, or put its files into a folder of their own"
            ),
        )),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    std::fs::read(path).map_err(|e| ModelError::io(path, e))
}

fn read_text(path: &Path) -> Result<String, ModelError> {
    String::from_utf8(read(path)?).map_err(|_| ModelError::import(path, "it is not UTF-8"))
}
