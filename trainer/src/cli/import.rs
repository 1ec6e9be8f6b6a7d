//! `laser import`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use laser_import::{Kind, Options, Table};
use laser_model::config::Prefixes;

use super::args::OutputArgs;
use crate::data::vectors::WordVectors;
use crate::export::{ExportOptions, Format};
use crate::mapping::vectors;

/// Format of the embedding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TableFormat {
    /// Exactly the checkpoint's.
    F32,
    /// Half floats.
    F16,
    /// Row-wise int8.
    I8,
}

/// Kind of a file of word vectors.
const WORD_VECTORS: &str = "word-vectors";

/// Arguments of `laser import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The checkpoint: a folder with its files as published, or its .pt file where the folder holds
    /// several checkpoints. Or word vectors in fastText's text format.
    #[arg(value_name = "PATH")]
    from: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
    /// Kind of checkpoint; told by its files if not given.
    #[arg(long, value_parser = ["laser1", "laser2", "laser3", "sentence-transformer", "cross-encoder", WORD_VECTORS])]
    kind: Option<String>,
    /// Word vectors: read only this many.
    #[arg(long = "most", value_name = "N")]
    max_vectors: Option<usize>,
    /// Word vectors: whether text is put into lower case, as most published vectors need it.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    lowercase: bool,
    /// Name of the model; the name of the output folder if not given.
    #[arg(long)]
    name: Option<String>,
    /// Longest sequence in tokens.
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Whether embeddings are scaled to unit length; as the original does if not given.
    #[arg(long, value_name = "BOOL")]
    normalize: Option<bool>,
    /// Language of LASER1's text preparation, such as "de"; English if not given.
    #[arg(long, value_name = "LANG")]
    language: Option<String>,
    /// Moses' nonbreaking_prefix file of that language, for LASER1.
    #[arg(long, value_name = "FILE")]
    prefixes: Option<PathBuf>,
    /// Dictionary of Chinese or Japanese words for LASER1: jieba's dict.txt, or a folder with the
    /// sources of a MeCab dictionary in UTF-8.
    #[arg(long, value_name = "PATH")]
    dictionary: Option<PathBuf>,
    /// What stands before texts that are searched for, such as "query: "; what the checkpoint's prompts say if
    /// not given.
    #[arg(long, value_name = "TEXT")]
    query_prefix: Option<String>,
    /// What stands before texts that are searched in, such as "passage: "; what the checkpoint's prompts say if
    /// not given.
    #[arg(long, value_name = "TEXT")]
    passage_prefix: Option<String>,
    /// Format of the embedding table.
    #[arg(long, value_enum, default_value_t = TableFormat::F32)]
    table: TableFormat,
}

/// Runs `laser import`.
pub fn run(args: &ImportArgs) -> Result<()> {
    args.output.check()?;
    let vectors = args.kind.as_deref() == Some(WORD_VECTORS)
        || args.kind.is_none() && args.from.extension().is_some_and(|e| e == "vec");
    if vectors {
        return words(args);
    }
    let kind = args.kind.as_deref().map(str::parse::<Kind>).transpose()?;
    let options = Options {
        name: args.name.clone(),
        max_tokens: args.max_tokens,
        normalize: args.normalize,
        language: args.language.clone(),
        prefixes: args.prefixes.clone(),
        dictionary: args.dictionary.clone(),
        query_prefix: args.query_prefix.clone(),
        passage_prefix: args.passage_prefix.clone(),
        table: match args.table {
            TableFormat::F32 => Table::F32,
            TableFormat::F16 => Table::F16,
            TableFormat::I8 => Table::I8,
        },
    };
    let report = laser_import::import(&args.from, kind, &args.output.output, &options)?;
    laser_encoder::verify(&args.output.output)?;
    println!(
        "{:?}: {} with {:.1} million parameters, {} dimensions, in {}",
        report.kind,
        report.config.encoder.name(),
        report.parameters as f64 / 1e6,
        report.config.dimensions,
        args.output.output.display()
    );
    let prefixes = &report.config.prefixes;
    if !prefixes.is_default() {
        println!(
            "prefixes: {:?} before queries, {:?} before passages",
            prefixes.query, prefixes.passage
        );
    }
    for note in report.notes {
        println!("note: {note}");
    }
    Ok(())
}

/// Makes a model of word vectors.
fn words(args: &ImportArgs) -> Result<()> {
    let output = &args.output.output;
    let vectors = WordVectors::read(&args.from, args.max_vectors)?;
    let folder = output.file_name().map(|n| n.to_string_lossy().into_owned());
    let name = args.name.clone().or(folder).unwrap_or_default();
    let mut model = vectors::model(vectors, &name, args.lowercase);
    model.config.max_tokens = args.max_tokens.unwrap_or(model.config.max_tokens);
    model.config.normalize = args.normalize.unwrap_or(model.config.normalize);
    model.config.prefixes = Prefixes {
        query: args.query_prefix.clone().unwrap_or_default(),
        passage: args.passage_prefix.clone().unwrap_or_default(),
    };
    let options = ExportOptions {
        name: None,
        table: match args.table {
            TableFormat::F32 => Format::F32,
            TableFormat::F16 => Format::F16,
            TableFormat::I8 => Format::I8,
        },
        matrices: Format::F32,
        checks: Vec::new(),
        base: None,
    };
    model.write(output, &options)?;
    println!(
        "{} words, {} dimensions, in {}",
        model.vocabulary(),
        model.config.dimensions,
        output.display()
    );
    Ok(())
}
