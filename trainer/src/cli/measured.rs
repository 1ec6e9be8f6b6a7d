//! The model and the sets that are measured, as several commands name them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use laser_encoder::{Encoder, LoadOptions};
use laser_model::Languages;

use super::args::{TextArgs, spinner};
use crate::data::config::{DataConfig, keyed_files};
use crate::data::readers::{Keyed, Problems, Reader};
use crate::eval::cache::Cache;
use crate::eval::embed::{embed_all, load};
use crate::eval::{EvalError, EvalSet, Metric, Selection, SetResult, evaluate};

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
    /// Keep embeddings in this folder, and take them from there if they are of the same texts and model.
    #[arg(long, value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
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
        if let Some(list) = Languages::read(folder)? {
            bail!(
                "\"{}\" has an encoder for each language: name one of them, \"{}\" for instance",
                folder.display(),
                folder
                    .join(list.codes().next().unwrap_or_default())
                    .display()
            );
        }
        let options = LoadOptions {
            device: self.device.parse()?,
            precision: self.precision.parse()?,
            threads: threads.unwrap_or(0),
        };
        Ok(load(folder, &options)?)
    }

    /// Embeds texts, or takes what the cache has; row-major.
    ///
    /// # Errors
    /// If the encoder fails or the cache cannot be written.
    pub fn embed<T: AsRef<str>>(
        &self,
        encoder: &Encoder,
        texts: &[T],
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<f32>, EvalError> {
        match &self.cache {
            Some(folder) => Cache::new(folder)?.embed(encoder, texts, progress),
            None => embed_all(encoder, texts, progress),
        }
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

/// How sets are measured.
#[derive(Clone, Copy, Debug)]
pub struct Measures<'a> {
    /// The language that all others are compared with.
    pub pivot: &'a str,
    /// How candidates are ranked.
    pub metrics: &'a [Metric],
    /// Only the first keys of each set, this many at a time; all of them if empty.
    pub sizes: &'a [u32],
}

impl Measures<'_> {
    /// Results of a set whose texts have these embeddings, one for each size that is not beyond its keys.
    fn of(&self, set: &EvalSet, width: usize, x: &[f32]) -> Result<Vec<SetResult>> {
        let evaluate = |set: &EvalSet| Ok(evaluate(set, width, x, self.pivot, self.metrics)?);
        if self.sizes.is_empty() {
            return Ok(vec![evaluate(set)?]);
        }
        let sizes: Vec<u32> = (self.sizes.iter().copied())
            .filter(|size| *size <= set.keys())
            .collect();
        if sizes.is_empty() {
            bail!("set {} has {} keys", set.name(), set.keys());
        }
        sizes
            .iter()
            .map(|size| evaluate(&set.first(*size)))
            .collect()
    }
}

/// Embeds and measures sets; the second encoder, if there is one, embeds the pivot's sentences.
///
/// # Errors
/// If an encoder fails, the two have other dimensions, or a set cannot be measured.
pub fn measure(
    model: &ModelArgs,
    (encoder, of_pivot): (&Encoder, Option<&Encoder>),
    sets: &[EvalSet],
    measures: Measures<'_>,
) -> Result<Vec<SetResult>> {
    let width = encoder.dimensions();
    if let Some(other) = of_pivot.filter(|o| o.dimensions() != width) {
        bail!(
            "the models have {width} and {} dimensions: they have no space in common",
            other.dimensions()
        );
    }
    let bar = spinner("sentences embedded");
    let mut done = 0;
    let mut results = Vec::with_capacity(sets.len());
    for set in sets {
        let progress = &mut |n| bar.set_position(done + n);
        let mut embeddings = model.embed(encoder, set.texts(), progress)?;
        done += set.texts().len() as u64;
        if let (Some(other), Some(lines)) = (of_pivot, set.languages().get(measures.pivot)) {
            let texts: Vec<_> = lines
                .iter()
                .map(|l| &set.texts()[l.text as usize])
                .collect();
            let rows = model.embed(other, &texts, &mut |_| {})?;
            for (line, row) in lines.iter().zip(rows.chunks_exact(width)) {
                let at = line.text as usize * width;
                embeddings[at..at + width].copy_from_slice(row);
            }
        }
        results.extend(measures.of(set, width, &embeddings)?);
    }
    bar.finish_and_clear();
    Ok(results)
}

/// Embeds and measures sets by the encoders of a folder that has one for each language. Languages without an encoder
/// are left out.
///
/// # Errors
/// If an encoder fails, they have other dimensions, or a set cannot be measured.
pub fn measure_languages(
    model: &ModelArgs,
    list: &Languages,
    threads: Option<usize>,
    sets: &[EvalSet],
    measures: Measures<'_>,
) -> Result<Vec<SetResult>> {
    let keep = |language: &str| list.folder(&model.model, language).is_some();
    let sets: Vec<_> = sets.iter().map(|set| set.apart(&keep)).collect();
    let mut embeddings = vec![Vec::new(); sets.len()];
    let mut width = None;
    let bar = spinner("sentences embedded");
    let mut done = 0;
    // In the order of languages, in which texts are as well.
    let languages: BTreeSet<&String> = sets.iter().flat_map(|(_, ranges)| ranges.keys()).collect();
    for language in languages {
        let Some(folder) = list.folder(&model.model, language) else {
            continue;
        };
        let encoder = model.load_other(&folder, threads)?;
        let dimensions = encoder.dimensions();
        if *width.get_or_insert(dimensions) != dimensions {
            bail!(
                "the encoder of \"{language}\" has {dimensions} dimensions, others have {}",
                width.unwrap_or_default()
            );
        }
        for ((set, ranges), into) in sets.iter().zip(&mut embeddings) {
            if let Some(range) = ranges.get(language) {
                let texts = &set.texts()[range.clone()];
                let progress = &mut |n| bar.set_position(done + n);
                into.extend(model.embed(&encoder, texts, progress)?);
                done += texts.len() as u64;
            }
        }
    }
    bar.finish_and_clear();
    let width = width.unwrap_or_default();
    let mut results = Vec::with_capacity(sets.len());
    for ((set, _), x) in sets.iter().zip(&embeddings) {
        results.extend(measures.of(set, width, x)?);
    }
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
