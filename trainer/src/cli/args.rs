//! Arguments that several commands share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::data::config::{CorpusSpec, DataConfig};

/// The model folder that a command writes.
#[derive(Clone, Debug, Args)]
pub struct OutputArgs {
    /// The model folder to write.
    #[arg(long, short, value_name = "FOLDER")]
    pub output: PathBuf,
    /// Replace the model that is in the folder.
    #[arg(long)]
    pub force: bool,
}

impl OutputArgs {
    /// Whether the folder may be written to: a model in it may be in use.
    ///
    /// # Errors
    /// There is something else, and --force was not given.
    pub fn check(&self) -> Result<()> {
        let vacant = match std::fs::read_dir(&self.output) {
            Ok(mut entries) => entries.next().is_none(),
            Err(_) => !self.output.exists(),
        };
        if vacant || self.force {
            return Ok(());
        }
        bail!(
            "\"{}\" exists already; --force replaces the model in it",
            self.output.display()
        )
    }
}

/// Parallel text in the forms that all commands read. Files may be plain, gzip or Zstandard.
#[derive(Clone, Debug, Args)]
pub struct TextArgs {
    /// Files aligned line by line (Moses, OPUS), for example `de=a.de,en=a.en`.
    #[arg(long, value_name = "LANG=FILE,LANG=FILE")]
    pub lines: Vec<String>,
    /// Tab-separated columns, for example `de,en=pairs.tsv`; `-` skips a column.
    #[arg(long, value_name = "LANG,LANG=FILE")]
    pub tsv: Vec<String>,
    /// Translation Memory eXchange.
    #[arg(long, value_name = "FILE")]
    pub tmx: Vec<PathBuf>,
    /// Stop at the first malformed line instead of skipping it.
    #[arg(long)]
    pub strict: bool,
}

impl TextArgs {
    /// The corpora that are named, those of keyed text first.
    ///
    /// # Errors
    /// If an argument is malformed.
    pub fn corpora(&self, keyed: &[PathBuf]) -> Result<Vec<CorpusSpec>> {
        let mut corpora = Vec::new();
        for path in keyed {
            let path = path.clone();
            corpora.push(CorpusSpec::Keyed { path, source: None });
        }
        for text in &self.lines {
            let files = aligned(text)?;
            corpora.push(CorpusSpec::Lines {
                files,
                source: None,
            });
        }
        for text in &self.tsv {
            let (columns, path) = columns(text)?;
            corpora.push(CorpusSpec::Tsv {
                path,
                columns,
                source: None,
            });
        }
        for path in &self.tmx {
            let path = path.clone();
            corpora.push(CorpusSpec::Tmx { path, source: None });
        }
        Ok(corpora)
    }
}

/// Which parallel text is read: a TOML file, files named here, or both.
#[derive(Debug, Args)]
pub struct DataArgs {
    /// Data configuration (TOML) with [[corpus]] tables, filters and restrictions.
    #[arg(long, value_name = "TOML")]
    pub data: Option<PathBuf>,
    /// Keyed text, `key<TAB>language<TAB>text`: a file, or a folder of *.tsv[.gz|.zst].
    #[arg(long, value_name = "PATH")]
    pub keyed: Vec<PathBuf>,
    /// Text in other forms.
    #[command(flatten)]
    pub text: TextArgs,
    /// Read only these sources.
    #[arg(long, value_name = "SOURCE", value_delimiter = ',')]
    pub include: Vec<String>,
    /// Leave these sources out.
    #[arg(long, value_name = "SOURCE", value_delimiter = ',')]
    pub exclude: Vec<String>,
    /// MANIFEST.tsv with the columns `source` and `restriction`.
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,
    /// Leave out sources whose restriction in the manifest contains this word.
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    pub exclude_restriction: Vec<String>,
    /// Read only these languages.
    #[arg(long, value_name = "LANG", value_delimiter = ',')]
    pub languages: Vec<String>,
    /// Keyed files or folders whose keys and sentences are left out.
    #[arg(long, value_name = "PATH")]
    pub held_out: Vec<PathBuf>,
    /// Fewest characters of a sentence.
    #[arg(long, value_name = "N")]
    pub min_chars: Option<usize>,
    /// Most characters of a sentence.
    #[arg(long, value_name = "N")]
    pub max_chars: Option<usize>,
    /// Largest length ratio of two sides; 0 = no limit.
    #[arg(long, value_name = "RATIO")]
    pub max_ratio: Option<f64>,
}

impl DataArgs {
    /// The configuration that the arguments make together.
    ///
    /// # Errors
    /// If the file cannot be read or an argument is malformed.
    pub fn config(&self) -> Result<DataConfig> {
        let mut config = match &self.data {
            Some(path) => DataConfig::read(path)?,
            None => DataConfig::default(),
        };
        config.corpus.extend(self.text.corpora(&self.keyed)?);
        if config.corpus.is_empty() {
            bail!("no text is named: use --data, --keyed, --lines, --tsv or --tmx");
        }
        config.include.extend(self.include.iter().cloned());
        config.exclude.extend(self.exclude.iter().cloned());
        config
            .exclude_restrictions
            .extend(self.exclude_restriction.iter().cloned());
        config.languages.extend(self.languages.iter().cloned());
        config.held_out.extend(self.held_out.iter().cloned());
        config.manifest = self.manifest.clone().or(config.manifest);
        config.filter.min_chars = self.min_chars.unwrap_or(config.filter.min_chars);
        config.filter.max_chars = self.max_chars.unwrap_or(config.filter.max_chars);
        config.filter.max_ratio = self.max_ratio.unwrap_or(config.filter.max_ratio);
        Ok(config)
    }
}

/// `de,en=pairs.tsv`.
///
/// # Errors
/// If the text is of another form.
fn columns(text: &str) -> Result<(Vec<String>, PathBuf)> {
    let (columns, path) = text
        .split_once('=')
        .with_context(|| format!("--tsv \"{text}\" is not of the form de,en=FILE"))?;
    Ok((columns.split(',').map(str::to_owned).collect(), path.into()))
}

/// `de=a.de,en=a.en`.
///
/// # Errors
/// If the text is of another form.
fn aligned(text: &str) -> Result<BTreeMap<String, PathBuf>> {
    text.split(',')
        .map(|part| {
            let (language, path) = part
                .split_once('=')
                .with_context(|| format!("\"{part}\" is not of the form LANG=FILE"))?;
            Ok((language.to_owned(), PathBuf::from(path)))
        })
        .collect()
}

/// A line on standard error that shows that something goes on; silent where that is no terminal.
#[must_use]
pub fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(message.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {human_pos} ({per_sec})") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
