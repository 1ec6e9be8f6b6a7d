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

    /// Loads the encoders of two sides, whose languages options name where the model has an encoder for each language.
    /// The second one is `None` if it is the first.
    ///
    /// # Errors
    /// As of [`ModelArgs::load_for`], and if the two have other dimensions.
    pub fn load_pair(
        &self,
        [first, second]: [Side<'_>; 2],
        threads: Option<usize>,
    ) -> Result<(Encoder, Option<Encoder>)> {
        let encoder = self.load_for(first, threads)?;
        if second.language == first.language {
            return Ok((encoder, None));
        }
        let other = self.load_for(second, threads)?;
        same_width(encoder.dimensions(), other.dimensions())?;
        Ok((encoder, Some(other)))
    }

    /// Loads the model; of one with an encoder for each language that of a side.
    ///
    /// # Errors
    /// If the folder is not a model, or the option is missing, names a language without an encoder, or is given for a
    /// model of one encoder.
    pub fn load_for(&self, side: Side<'_>, threads: Option<usize>) -> Result<Encoder> {
        let folder = self.model.display();
        match (Languages::read(&self.model)?, side.language) {
            (Some(list), Some(language)) => self.load_language(&list, language, threads),
            (Some(list), None) => bail!(
                "\"{folder}\" has an encoder for each language ({}): name one with {}",
                list.codes().collect::<Vec<_>>().join(", "),
                side.option
            ),
            (None, Some(_)) => bail!(
                "\"{folder}\" has one encoder for all languages: leave out {}",
                side.option
            ),
            (None, None) => self.load(threads),
        }
    }

    /// Loads the encoder of a language.
    ///
    /// # Errors
    /// If the model has none, or it cannot be loaded.
    pub fn load_language(
        &self,
        list: &Languages,
        language: &str,
        threads: Option<usize>,
    ) -> Result<Encoder> {
        let folder = list.folder(&self.model, language).with_context(|| {
            format!(
                "\"{}\" has no encoder of \"{language}\", only of {}",
                self.model.display(),
                list.codes().collect::<Vec<_>>().join(", ")
            )
        })?;
        self.load_other(&folder, threads)
    }

    /// Embeds lists of texts, each by the encoder of its language, of which one is loaded at a time; the dimensions and
    /// the rows of each list.
    ///
    /// # Errors
    /// As of [`ModelArgs::load_language`] and [`ModelArgs::embed`], and if encoders have other dimensions.
    pub fn embed_languages<T: AsRef<str>>(
        &self,
        list: &Languages,
        threads: Option<usize>,
        lists: &[(&str, Vec<T>)],
        progress: &mut dyn FnMut(u64),
    ) -> Result<(usize, Vec<Vec<f32>>)> {
        let mut embeddings = vec![Vec::new(); lists.len()];
        let (mut width, mut done) = (None, 0);
        let languages: BTreeSet<&str> = lists.iter().map(|l| l.0).collect();
        for language in languages {
            let encoder = self.load_language(list, language, threads)?;
            same_width(
                *width.get_or_insert(encoder.dimensions()),
                encoder.dimensions(),
            )?;
            let own = lists.iter().zip(&mut embeddings);
            for ((_, texts), into) in own.filter(|((l, _), _)| *l == language) {
                *into = self.embed(&encoder, texts, &mut |n| progress(done + n))?;
                done += texts.len() as u64;
            }
        }
        Ok((width.unwrap_or_default(), embeddings))
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

/// A side of what is measured: its language, and the option that names it.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The language, where the option is given.
    pub language: Option<&'a str>,
    /// The option.
    pub option: &'a str,
}

/// Whether two encoders can be of one space.
fn same_width(one: usize, other: usize) -> Result<()> {
    if one != other {
        bail!("the models have {one} and {other} dimensions: they have no space in common");
    }
    Ok(())
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
    if let Some(other) = of_pivot {
        same_width(width, other.dimensions())?;
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
    let (width, sets) = embed_sets(model, list, threads, sets)?;
    let mut results = Vec::with_capacity(sets.len());
    for (set, x) in &sets {
        results.extend(measures.of(set, width, x)?);
    }
    Ok(results)
}

/// A set with the embeddings of its texts.
type EmbeddedSet = (EvalSet, Vec<f32>);

/// Sets with the texts of each language for themselves, embedded by the encoder of their language; the dimensions. Languages without
/// an encoder are left out.
///
/// # Errors
/// If an encoder fails, or they have other dimensions.
pub fn embed_sets(
    model: &ModelArgs,
    list: &Languages,
    threads: Option<usize>,
    sets: &[EvalSet],
) -> Result<(usize, Vec<EmbeddedSet>)> {
    let keep = |language: &str| list.folder(&model.model, language).is_some();
    let apart: Vec<_> = sets.iter().map(|set| set.apart(&keep)).collect();
    let mut lists = Vec::new();
    for (set, ranges) in &apart {
        for (language, range) in ranges {
            let texts = set.texts()[range.clone()].iter().map(String::as_str);
            lists.push((&language[..], texts.collect::<Vec<_>>()));
        }
    }
    let bar = spinner("sentences embedded");
    let progress = &mut |n| bar.set_position(n);
    let (width, embedded) = model.embed_languages(list, threads, &lists, progress)?;
    bar.finish_and_clear();
    // In the order of languages, in which texts are as well.
    let mut embedded = embedded.into_iter();
    let mut all = Vec::with_capacity(apart.len());
    for (set, ranges) in &apart {
        let x = embedded.by_ref().take(ranges.len()).flatten().collect();
        all.push((set.clone(), x));
    }
    Ok((width, all))
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
