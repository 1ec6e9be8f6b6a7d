//! Import of published checkpoints into model folders.
//!
//! | kind | source |
//! |---|---|
//! | [`Kind::Laser2`] | folder with one `*.pt` and one `*.spm` |
//! | [`Kind::Laser1`] | folder with one `*.pt`, one `*.fcodes` and one `*.fvocab` |
//! | [`Kind::Laser3`] | folder with one `*.pt`, one `*.spm` and one `*.cvocab` |
//! | [`Kind::SentenceTransformer`] | folder with `modules.json` around a BERT, (XLM-)RoBERTa, DistilBERT or MPNet model, or around a Gemma 3 text model that sees both sides of a token (EmbeddingGemma) |
//! | [`Kind::CrossEncoder`] | folder of a classifier with one label around a BERT, (XLM-)RoBERTa, DistilBERT or MPNet model |
//!
//! Where a folder holds several checkpoints, the `.pt` file is named instead.
//!
//! * `options` – what an import is told, and what it reports; `files`, `json` – the files of a checkpoint;
//!   `model` – what they become
//! * formats: [`torch`] – PyTorch checkpoints, out of [`zip`] and [`pickle`]; [`spm`] – SentencePiece;
//!   `wordpiece` – tokenizers of transformers
//! * LASER: `laser` – LASER1 and LASER2, `laser3`
//! * transformers: `sentence`, `cross` – the folders; `transformer`, `family`, `layers`, `state` – encoders, what
//!   each family calls its parts, layers, tensors

mod cross;
mod family;
mod files;
mod gemma;
mod json;
mod laser;
mod laser3;
mod layers;
mod model;
mod options;
pub mod pickle;
mod sentence;
mod settings;
pub mod spm;
mod state;
pub mod torch;
mod transformer;
mod wordpiece;
pub mod zip;

use std::path::Path;

use laser_model::config::Prefixes;
use laser_model::ngrams::read_tokenizer;
use laser_model::{ModelError, folder};

use files::{find, listing};
use model::{EMBEDDINGS, Model};
pub use options::{Kind, Options, Report, Table};

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
        Kind::CrossEncoder => cross::cross_encoder(source, options)?,
        Kind::SentenceTransformer => sentence::sentence_transformer(source, options)?,
    };
    model.config.name = name;
    if let Some(normalize) = options.normalize {
        model.config.normalize = normalize;
    }
    let Prefixes { query, passage } = &mut model.config.prefixes;
    for (prefix, option) in [
        (query, &options.query_prefix),
        (passage, &options.passage_prefix),
    ] {
        if let Some(option) = option {
            prefix.clone_from(option);
        }
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
    if cross::is_classifier(source) {
        return Ok(Kind::CrossEncoder);
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
