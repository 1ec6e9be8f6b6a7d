//! `laser map` and `laser sif`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use laser_encoder::Encoder;

use super::args::{OutputArgs, spinner};
use super::measured::{ModelArgs, SetArgs};
use crate::data::vectors::{WordVectors, read_dictionary};
use crate::eval::EvalSet;
use crate::export::{self, ExportOptions, Format, Model};
use crate::mapping::append::append;
use crate::mapping::procrustes::{apply, procrustes};
use crate::mapping::sif;

/// What is mapped by `laser map`.
#[derive(Debug, Subcommand)]
pub enum MapCommand {
    /// Word vectors of a language to those of another one, by a dictionary.
    Words(MapWordsArgs),
    /// A model of sentences to another one's space, by parallel text.
    Sentences(Box<MapSentencesArgs>),
}

/// Arguments of `laser map words`.
#[derive(Debug, Args)]
pub struct MapWordsArgs {
    /// Word vectors in fastText's text format: those that are mapped.
    #[arg(long, value_name = "FILE")]
    source: PathBuf,
    /// Word vectors of the other language, which stay as they are.
    #[arg(long, value_name = "FILE")]
    target: PathBuf,
    /// Pairs of words, `source target` a line.
    #[arg(long, value_name = "FILE")]
    dictionary: PathBuf,
    /// Use only the first pairs of the dictionary whose words have vectors.
    #[arg(long, value_name = "N")]
    pairs: Option<usize>,
    /// Read only this many vectors of each file.
    #[arg(long = "most", value_name = "N")]
    max_vectors: Option<usize>,
    /// The mapped vectors.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// Arguments of `laser map sentences`.
#[derive(Debug, Args)]
pub struct MapSentencesArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The model whose space is mapped to; it embeds the pivot's side.
    #[arg(long, value_name = "FOLDER")]
    target_model: PathBuf,
    #[command(flatten)]
    sets: SetArgs,
    /// Language of the sentences that the model embeds.
    #[arg(long, value_name = "LANG")]
    source: String,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    formats: FormatArgs,
}

/// Arguments of `laser sif`.
#[derive(Debug, Args)]
pub struct SifArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sets: SetArgs,
    /// The constant a of the weights a / (a + p).
    #[arg(short, value_name = "A", default_value_t = 1e-3)]
    a: f64,
    /// Principal components that are removed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    components: usize,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    formats: FormatArgs,
}

/// Number formats of a model folder.
#[derive(Clone, Debug, Args)]
pub struct FormatArgs {
    /// Format of the embedding table.
    #[arg(long, value_enum, default_value_t = Format::F32)]
    table: Format,
    /// Format of the other matrices.
    #[arg(long, value_enum, default_value_t = Format::F32)]
    matrices: Format,
}

/// Writes a model under the name of its folder.
fn write(model: &Model, output: &Path, formats: &FormatArgs) -> Result<()> {
    let name = output.file_name().map(|n| n.to_string_lossy().into_owned());
    let options = ExportOptions {
        name,
        table: formats.table,
        matrices: formats.matrices,
        checks: Vec::new(),
        base: None,
    };
    model.write(output, &options)?;
    println!(
        "{} tokens, {} dimensions in {}",
        model.vocabulary(),
        model.config.dimensions,
        output.display()
    );
    Ok(())
}

/// Rows of unit length.
fn normalized(rows: &[f32], width: usize) -> Vec<f32> {
    let mut rows = rows.to_vec();
    laser_kernels::training::l2::normalize(&mut rows, width);
    rows
}

/// Runs `laser map words`.
pub fn words(args: &MapWordsArgs) -> Result<()> {
    let mut source = WordVectors::read(&args.source, args.max_vectors)?;
    let target = WordVectors::read(&args.target, args.max_vectors)?;
    let (from, to) = (source.positions(), target.positions());
    let known = |(a, b): &(String, String)| Some((*from.get(&a[..])?, *to.get(&b[..])?));
    let dictionary = read_dictionary(&args.dictionary)?;
    let pairs: Vec<(u32, u32)> = dictionary.iter().filter_map(known).collect();
    let pairs = &pairs[..args.pairs.unwrap_or(pairs.len()).min(pairs.len())];
    let x: Vec<f32> = pairs
        .iter()
        .flat_map(|p| source.row(p.0 as usize))
        .copied()
        .collect();
    let y: Vec<f32> = pairs
        .iter()
        .flat_map(|p| target.row(p.1 as usize))
        .copied()
        .collect();
    let widths = (source.width, target.width);
    // Directions decide: retrieval is by cosine.
    let (x, y) = (normalized(&x, widths.0), normalized(&y, widths.1));
    let w = procrustes(&x, &y, widths)?;
    source.values = apply(&w, &source.values, widths);
    source.width = target.width;
    source.write(&args.output)?;
    println!(
        "{} vectors mapped by {} pairs: {}",
        source.words.len(),
        pairs.len(),
        args.output.display()
    );
    Ok(())
}

/// Texts of one language beside those of the pivot under the same keys.
fn parallel(sets: &[EvalSet], source: &str, pivot: &str) -> (Vec<String>, Vec<String>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for set in sets {
        let of = |language: &str| set.languages().get(language).map_or(&[][..], Vec::as_slice);
        for line in of(source) {
            let pivots = of(pivot);
            let at = pivots.partition_point(|p| p.key < line.key);
            if let Some(other) = pivots.get(at).filter(|p| p.key == line.key) {
                first.push(set.texts()[line.text as usize].clone());
                second.push(set.texts()[other.text as usize].clone());
            }
        }
    }
    (first, second)
}

/// Runs `laser map sentences`.
pub fn sentences(args: &MapSentencesArgs, threads: Option<usize>) -> Result<()> {
    args.output.check()?;
    let sets = args.sets.read()?;
    let (first, second) = parallel(&sets, &args.source, &args.sets.pivot);
    if first.is_empty() {
        bail!(
            "no sentence in \"{}\" has one in \"{}\" under its key",
            args.source,
            args.sets.pivot
        );
    }
    let bar = spinner("sentences embedded");
    let embed = |encoder: &Encoder, texts: &[String]| {
        let x = args
            .model
            .embed(encoder, texts, &mut |n| bar.set_position(n))?;
        Ok::<_, anyhow::Error>(normalized(&x, encoder.dimensions()))
    };
    let encoder = args.model.load(threads)?;
    let target = args.model.load_other(&args.target_model, threads)?;
    let (x, y) = (embed(&encoder, &first)?, embed(&target, &second)?);
    bar.finish_and_clear();
    let w = procrustes(&x, &y, (encoder.dimensions(), target.dimensions()))?;
    let mut model = export::read(&args.model.model)?;
    append(&mut model, w);
    println!("mapped by {} pairs of sentences", first.len());
    write(&model, &args.output.output, &args.formats)
}

/// Runs `laser sif`.
pub fn sif(args: &SifArgs, threads: Option<usize>) -> Result<()> {
    args.output.check()?;
    if !(args.a > 0.0 && args.a.is_finite()) {
        bail!("-a must be a number above 0");
    }
    let encoder = args.model.load(threads)?;
    let sets = args.sets.read()?;
    let texts: Vec<&str> = sets
        .iter()
        .flat_map(|set| set.texts().iter().map(String::as_str))
        .collect();
    let mut ids = Vec::with_capacity(texts.len());
    for chunk in texts.chunks(4096) {
        ids.extend(encoder.tokenize(chunk)?.into_iter().map(|t| t.ids));
    }
    let mut model = export::read(&args.model.model)?;
    sif::weight(&mut model, &ids, args.a, args.components)
        .with_context(|| format!("\"{}\"", args.model.model.display()))?;
    println!("weights of {} sentences", ids.len());
    write(&model, &args.output.output, &args.formats)
}
