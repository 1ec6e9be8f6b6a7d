//! `laser eval words`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use laser_encoder::Encoder;

use super::args::spinner;
use super::measured::{ModelArgs, write_out};
use crate::data::vectors::{WordVectors, by_position, read_dictionary};
use crate::eval::words::{Ranking, Space, precision};
use crate::report::table::{Align, Form, Table};

/// Ranks at which precision is shown.
const AT: [usize; 3] = [1, 5, 10];

/// Arguments of `laser eval words`.
#[derive(Debug, Args)]
pub struct WordsArgs {
    /// A model that embeds the words; --source and --target are then lists of words, one a line, and may
    /// be left out: the words are those of the dictionary then.
    #[arg(long, short, value_name = "FOLDER")]
    model: Option<PathBuf>,
    /// Where the model runs: auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Its arithmetic: f32, bf16, i8 or auto.
    #[arg(long, value_name = "PRECISION", default_value = "auto")]
    precision: String,
    /// Keep its embeddings in this folder, and take them from there if they are of the same words.
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Word vectors of the language that is translated (fastText's text format), or a list of words.
    #[arg(long, value_name = "FILE")]
    source: Option<PathBuf>,
    /// The same of the other language: what is searched.
    #[arg(long, value_name = "FILE")]
    target: Option<PathBuf>,
    /// Pairs of words, `source target` a line. A word may have several translations.
    #[arg(long, value_name = "FILE")]
    dictionary: PathBuf,
    /// Read only this many vectors of each file: the most frequent words, in published ones.
    #[arg(long = "most", value_name = "N", default_value_t = 200_000)]
    max_vectors: usize,
    /// How candidates are ranked.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Ranking::Nn, Ranking::Csls])]
    ranking: Vec<Ranking>,
    /// Form of the table.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
}

/// The words of a list, each once.
fn list(path: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("could not read \"{}\"", path.display()))?;
    Ok(unique(
        text.lines().map(str::trim).filter(|l| !l.is_empty()),
    ))
}

fn unique<'a>(words: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut known = std::collections::HashSet::new();
    words
        .filter(|w| known.insert(*w))
        .map(str::to_owned)
        .collect()
}

fn embed(args: &ModelArgs, encoder: &Encoder, words: Vec<String>) -> Result<WordVectors> {
    let bar = spinner("words embedded");
    let values = args.embed(encoder, &words, &mut |n| bar.set_position(n))?;
    bar.finish_and_clear();
    let width = encoder.dimensions();
    let mut known = WordVectors {
        width,
        ..WordVectors::default()
    };
    // What the model does not know has no direction, and counts as not covered.
    for (word, row) in words.into_iter().zip(values.chunks_exact(width)) {
        if row.iter().any(|v| *v != 0.0) {
            known.words.push(word);
            known.values.extend_from_slice(row);
        }
    }
    Ok(known)
}

/// Runs `laser eval words`.
pub fn run(args: &WordsArgs, threads: Option<usize>) -> Result<()> {
    let pairs = read_dictionary(&args.dictionary)?;
    let (source, target) = match (&args.model, &args.source, &args.target) {
        (Some(model), source, target) => {
            let model = &ModelArgs {
                model: model.clone(),
                device: args.device.clone(),
                precision: args.precision.clone(),
                cache: args.cache.clone(),
            };
            let encoder = model.load(threads)?;
            let words = |path: &Option<PathBuf>, of: fn(&(String, String)) -> &String| match path {
                Some(path) => list(path),
                None => Ok(unique(pairs.iter().map(|p| of(p).as_str()))),
            };
            (
                embed(model, &encoder, words(source, |p| &p.0)?)?,
                embed(model, &encoder, words(target, |p| &p.1)?)?,
            )
        }
        (None, Some(source), Some(target)) => (
            WordVectors::read(source, Some(args.max_vectors))?,
            WordVectors::read(target, Some(args.max_vectors))?,
        ),
        _ => bail!("give word vectors by --source and --target, or a model by --model"),
    };
    if source.width != target.width {
        bail!(
            "the vectors have {} and {} values; map one language to the other before",
            source.width,
            target.width
        );
    }
    let dictionary = by_position(&pairs, &source.positions(), &target.positions());
    let space = Space {
        source: &source.values,
        target: &target.values,
        width: source.width,
    };
    let words: std::collections::HashSet<&str> = pairs.iter().map(|p| &p.0[..]).collect();
    let mut table = Table::new();
    table.column("ranking", Align::Left);
    for name in ["words", "covered", "candidates"] {
        table.column(name, Align::Right);
    }
    for n in AT {
        table.column(&format!("P@{n}"), Align::Right);
    }
    for ranking in &args.ranking {
        let mut row = vec![
            ranking.name().to_owned(),
            words.len().to_string(),
            dictionary.len().to_string(),
            target.words.len().to_string(),
        ];
        let found = precision(space, &dictionary, *ranking, &AT)?;
        row.extend(found.iter().map(|p| format!("{:.1}", 100.0 * p)));
        table.row(row);
    }
    write_out(None, &table.render(args.format))
}
