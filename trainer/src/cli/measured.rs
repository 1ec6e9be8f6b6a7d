//! The model and the sets that are measured, as several commands name them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use laser_encoder::{Encoder, LoadOptions};

use super::args::{TextArgs, spinner};
use crate::data::config::{DataConfig, keyed_files};
use crate::data::readers::{Keyed, Problems, Reader};
use crate::eval::embed::{embed_all, load};
use crate::eval::{EvalSet, Metric, Selection, SetResult, evaluate};

/// The model that is measured.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// Model folder.
    #[arg(long, short, value_name = "FOLDER")]
    pub model: PathBuf,
    /// Where it runs: auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: String,
    /// Arithmetic: f32, bf16, i8 or auto.
    #[arg(long, value_name = "PRECISION", default_value = "auto")]
    pub precision: String,
}

impl ModelArgs {
    /// Loads the model.
    ///
    /// # Errors
    /// If the folder is not a model or an argument is unknown.
    pub fn load(&self, threads: Option<usize>) -> Result<Encoder> {
        self.load_other(&self.model, threads)
    }

    /// Loads the model of another folder in the same way.
    ///
    /// # Errors
    /// As of [`ModelArgs::load`].
    pub fn load_other(&self, folder: &Path, threads: Option<usize>) -> Result<Encoder> {
        let options = LoadOptions {
            device: self.device.parse()?,
            precision: self.precision.parse()?,
            threads: threads.unwrap_or(0),
        };
        Ok(load(folder, &options)?)
    }
}

/// Sets of aligned sentences.
#[derive(Clone, Debug, Args)]
pub struct SetArgs {
    /// Keyed files (`key<TAB>language<TAB>text`), or folders of them; each file is a set.
    #[arg(value_name = "FILE")]
    pub keyed: Vec<PathBuf>,
    /// Sets in other forms.
    #[command(flatten)]
    pub text: TextArgs,
    /// Language that all others are compared with; a set without it is measured over all pairs.
    #[arg(long, value_name = "LANG", default_value = "en")]
    pub pivot: String,
    /// Only the first keys of each set.
    #[arg(long, value_name = "N")]
    pub keys: Option<u32>,
    /// Only these languages, and the pivot.
    #[arg(long, value_name = "LANG", value_delimiter = ',')]
    pub languages: Vec<String>,
}

impl SetArgs {
    /// Reads the sets.
    ///
    /// # Errors
    /// If a file cannot be read, or an argument is malformed.
    pub fn read(&self) -> Result<Vec<EvalSet>> {
        let corpus = self.text.corpora(&self.keyed)?;
        if corpus.is_empty() {
            bail!("no set is named: give keyed files, --lines, --tsv or --tmx");
        }
        let (inputs, _) = DataConfig {
            corpus,
            ..DataConfig::default()
        }
        .resolve()?;
        let mut problems = Problems::new(self.text.strict);
        let mut selection = Selection {
            keys: self.keys,
            languages: self.languages.clone(),
        };
        if !selection.languages.is_empty() {
            selection.languages.push(self.pivot.clone());
        }
        let sets = inputs
            .iter()
            .map(|input| {
                EvalSet::read(input, &selection, &mut problems)
                    .with_context(|| format!("set {}", input.source))
            })
            .collect::<Result<Vec<_>>>()?;
        report(&problems);
        Ok(sets)
    }

    /// The sentences of the pivot language in keyed files, or folders of them.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn pivot_sentences(&self, paths: &[PathBuf]) -> Result<Vec<String>> {
        let mut problems = Problems::new(self.text.strict);
        let mut sentences = Vec::new();
        for path in paths {
            for file in keyed_files(path)? {
                let mut reader = Keyed::open(&file)?;
                while let Some(group) = reader.next_group(&mut problems)? {
                    let rows = group.rows.into_iter();
                    let pivots = rows.filter(|r| r.language == self.pivot);
                    sentences.extend(pivots.map(|r| r.text));
                }
            }
        }
        report(&problems);
        Ok(sentences)
    }
}

/// Tells of lines that were skipped.
pub fn report(problems: &Problems) {
    if problems.count() > 0 {
        eprintln!("{} malformed lines skipped, the first:", problems.count());
        for example in problems.examples() {
            eprintln!("  {example}");
        }
    }
}

/// Embeds and measures sets.
///
/// # Errors
/// If the encoder fails or a set cannot be measured.
pub fn measure(
    encoder: &Encoder,
    sets: &[EvalSet],
    pivot: &str,
    metrics: &[Metric],
) -> Result<Vec<SetResult>> {
    let bar = spinner("sentences embedded");
    let mut done = 0;
    let mut results = Vec::with_capacity(sets.len());
    for set in sets {
        let embeddings = embed_all(encoder, set.texts(), &mut |n| bar.set_position(done + n))?;
        done += set.texts().len() as u64;
        results.push(evaluate(
            set,
            encoder.dimensions(),
            &embeddings,
            pivot,
            metrics,
        )?);
    }
    bar.finish_and_clear();
    Ok(results)
}

/// Prints to standard output or to a file.
///
/// # Errors
/// If the file cannot be written.
pub fn write_out(output: Option<&PathBuf>, text: &str) -> Result<()> {
    use std::io::Write as _;
    match output {
        Some(path) => std::fs::write(path, text)
            .with_context(|| format!("could not write \"{}\"", path.display())),
        None => Ok(std::io::stdout().lock().write_all(text.as_bytes())?),
    }
}
