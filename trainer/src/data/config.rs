//! The data configuration: which corpora are read, from where, and what is left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::filter::FilterOptions;
use super::manifest::Manifest;
use super::readers::{AlignedLines, Keyed, Reader, Tmx, Tsv, is_language};
use super::{DataError, Result};

/// One corpus: its format and files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "format", rename_all = "lowercase", deny_unknown_fields)]
pub enum CorpusSpec {
    /// `key <TAB> language <TAB> text`.
    Keyed {
        /// A file, or a folder of which every `*.tsv`, `*.tsv.gz` and `*.tsv.zst` is a source.
        path: PathBuf,
        /// Name of the source; the name of the file up to its first dot if not given.
        #[serde(default)]
        source: Option<String>,
    },
    /// Files aligned line by line (Moses, OPUS).
    Lines {
        /// File of each language.
        files: BTreeMap<String, PathBuf>,
        /// Name of the source; the name of the first file up to its first dot if not given.
        #[serde(default)]
        source: Option<String>,
    },
    /// One group a line, one language a column.
    Tsv {
        /// Path of the file.
        path: PathBuf,
        /// Language of each column; `-` for a column that is not text.
        columns: Vec<String>,
        /// Name of the source; the name of the file up to its first dot if not given.
        #[serde(default)]
        source: Option<String>,
    },
    /// Translation Memory eXchange.
    Tmx {
        /// Path of the file.
        path: PathBuf,
        /// Name of the source; the name of the file up to its first dot if not given.
        #[serde(default)]
        source: Option<String>,
    },
}

/// When two rows are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DedupMode {
    /// Language, text and pivot sentence are equal byte by byte.
    #[default]
    Exact,
    /// They are equal without case, punctuation and white space.
    Canonical,
    /// Repeats are kept.
    None,
}

/// What is read. The `[data]` table of a configuration, or a file of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataConfig {
    /// The corpora.
    pub corpus: Vec<CorpusSpec>,
    /// A TSV file with columns `source` and `restriction`.
    pub manifest: Option<PathBuf>,
    /// Sources to read; all if empty.
    pub include: Vec<String>,
    /// Sources to leave out.
    pub exclude: Vec<String>,
    /// Sources are left out if the manifest's restriction contains one of these words.
    pub exclude_restrictions: Vec<String>,
    /// Languages to read; all if empty.
    pub languages: Vec<String>,
    /// Keyed files, or folders of them, whose keys and sentences are not read.
    pub held_out: Vec<PathBuf>,
    /// The language that rows of a group are compared with.
    pub pivot: String,
    /// When rows are repeats.
    pub dedup: DedupMode,
    /// Memory for finding repeats, in MiB; more goes to a temporary file.
    pub dedup_memory: usize,
    /// About how many sentences of a language are kept, chosen by a hash of their keys; 0: all.
    /// Sentences of the pivot stay while they have a translation.
    pub max_per_language: u64,
    /// Limits on rows.
    pub filter: FilterOptions,
}

impl Default for DataConfig {
    fn default() -> Self {
        Self {
            corpus: Vec::new(),
            manifest: None,
            include: Vec::new(),
            exclude: Vec::new(),
            exclude_restrictions: Vec::new(),
            languages: Vec::new(),
            held_out: Vec::new(),
            pivot: "en".into(),
            dedup: DedupMode::Exact,
            dedup_memory: 512,
            max_per_language: 0,
            filter: FilterOptions::default(),
        }
    }
}

/// One corpus file (or aligned files) under the name of its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Name of the source.
    pub source: String,
    /// Where it lies; `path` is a single file.
    pub spec: CorpusSpec,
}

impl Input {
    /// Opens it.
    ///
    /// # Errors
    /// [`DataError::Io`] if a file cannot be opened.
    pub fn open(&self) -> Result<Box<dyn Reader>> {
        Ok(match &self.spec {
            CorpusSpec::Keyed { path, .. } => Box::new(Keyed::open(path)?),
            CorpusSpec::Lines { files, .. } => Box::new(AlignedLines::open(
                files.iter().map(|(l, p)| (l.as_str(), p.as_path())),
            )?),
            CorpusSpec::Tsv { path, columns, .. } => Box::new(Tsv::open(path, columns)?),
            CorpusSpec::Tmx { path, .. } => Box::new(Tmx::open(path)?),
        })
    }

    /// Whether its keys name sentences beyond this file.
    #[must_use]
    pub fn is_keyed(&self) -> bool {
        matches!(self.spec, CorpusSpec::Keyed { .. })
    }
}

/// Inputs that are read, and sources that are not, with the reason.
pub type Resolved = (Vec<Input>, Vec<(String, String)>);

impl DataConfig {
    /// Reads a TOML file; relative paths in it are relative to its folder. The configuration may
    /// stand at the top or in a table `[data]`.
    ///
    /// # Errors
    /// [`DataError::Io`] or [`DataError::Config`].
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| DataError::io(path, e))?;
        let fail =
            |e: &dyn std::fmt::Display| DataError::Config(format!("{}: {e}", path.display()));
        let table: toml::Table = toml::from_str(&text).map_err(|e| fail(&e))?;
        let table = match table.get("data") {
            Some(toml::Value::Table(data)) => data.clone(),
            _ => table,
        };
        let mut config: Self = table.try_into().map_err(|e: toml::de::Error| fail(&e))?;
        config.resolve_paths(path.parent().unwrap_or(Path::new(".")));
        Ok(config)
    }

    /// Makes relative paths relative to `folder`.
    pub fn resolve_paths(&mut self, folder: &Path) {
        let fix = |path: &mut PathBuf| *path = folder.join(&*path);
        if let Some(path) = &mut self.manifest {
            fix(path);
        }
        self.held_out.iter_mut().for_each(fix);
        for corpus in &mut self.corpus {
            match corpus {
                CorpusSpec::Keyed { path, .. }
                | CorpusSpec::Tsv { path, .. }
                | CorpusSpec::Tmx { path, .. } => fix(path),
                CorpusSpec::Lines { files, .. } => files.values_mut().for_each(fix),
            }
        }
    }

    /// Lists the files to read, in order, after the restrictions.
    ///
    /// # Errors
    /// [`DataError::Config`] for unknown names, [`DataError::Io`] for folders that cannot be read.
    pub fn resolve(&self) -> Result<Resolved> {
        let manifest = self.manifest.as_deref().map(Manifest::read).transpose()?;
        if manifest.is_none() && !self.exclude_restrictions.is_empty() {
            return Err(DataError::Config(
                "exclude_restrictions needs a manifest".into(),
            ));
        }
        let mut all = Vec::new();
        for corpus in &self.corpus {
            expand(corpus, &mut all)?;
        }
        for name in self.include.iter().chain(&self.exclude) {
            let known = all.iter().any(|i| i.source == *name)
                || manifest.as_ref().is_some_and(|m| m.get(name).is_some());
            if !known {
                return Err(DataError::Config(format!("there is no source \"{name}\"")));
            }
        }
        let mut inputs = Vec::new();
        let mut skipped: Vec<(String, String)> = Vec::new();
        for input in all {
            let name = &input.source;
            let reason = if !self.include.is_empty() && !self.include.contains(name) {
                Some("not included".to_owned())
            } else if self.exclude.contains(name) {
                Some("excluded".to_owned())
            } else {
                manifest
                    .as_ref()
                    .and_then(|m| m.restricted(name, &self.exclude_restrictions))
                    .map(|term| format!("its licence is restricted ({term})"))
            };
            match reason {
                Some(reason) => skipped.push((name.clone(), reason)),
                None => inputs.push(input),
            }
        }
        skipped.dedup();
        if inputs.is_empty() {
            return Err(DataError::Config("no corpus is left to read".into()));
        }
        Ok((inputs, skipped))
    }

    /// The held-out files, folders expanded.
    ///
    /// # Errors
    /// [`DataError::Io`] for folders that cannot be read.
    pub fn held_out_files(&self) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for path in &self.held_out {
            files.extend(keyed_files(path)?);
        }
        Ok(files)
    }
}

/// `ntrex` of `dev/ntrex.tsv.zst`.
#[must_use]
pub fn source_name(path: &Path) -> String {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    name.split('.')
        .find(|part| !part.is_empty())
        .unwrap_or("corpus")
        .to_owned()
}

/// The keyed files of a folder in the order of their names, or the file itself.
///
/// # Errors
/// [`DataError::Io`] if the folder cannot be read.
pub fn keyed_files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| DataError::io(path, e))? {
        let file = entry.map_err(|e| DataError::io(path, e))?.path();
        let name = file.to_string_lossy();
        if [".tsv", ".tsv.gz", ".tsv.zst"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn expand(corpus: &CorpusSpec, out: &mut Vec<Input>) -> Result<()> {
    let (first, named) = match corpus {
        CorpusSpec::Keyed { path, source } => {
            for file in keyed_files(path)? {
                let source = source.clone().unwrap_or_else(|| source_name(&file));
                out.push(Input {
                    source,
                    spec: CorpusSpec::Keyed {
                        path: file,
                        source: None,
                    },
                });
            }
            return Ok(());
        }
        CorpusSpec::Lines { files, source } => {
            check_languages(files.keys())?;
            (files.values().next(), source)
        }
        CorpusSpec::Tsv {
            path,
            columns,
            source,
        } => {
            check_languages(columns.iter())?;
            (Some(path), source)
        }
        CorpusSpec::Tmx { path, source } => (Some(path), source),
    };
    let source = match (named, first) {
        (Some(name), _) => name.clone(),
        (None, Some(path)) => source_name(path),
        (None, None) => return Err(DataError::Config("a corpus names no files".into())),
    };
    out.push(Input {
        source,
        spec: corpus.clone(),
    });
    Ok(())
}

fn check_languages<'a>(codes: impl Iterator<Item = &'a String>) -> Result<()> {
    for code in codes {
        if !is_language(code) {
            return Err(DataError::Config(format!(
                "\"{code}\" is not a language code"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_filtered_by_name_and_terms() {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path();
        std::fs::create_dir(root.join("train")).expect("folder");
        for name in ["a.tsv", "b.tsv.zst", "c.tsv.gz", "notes.txt"] {
            std::fs::write(root.join("train").join(name), "").expect("write");
        }
        std::fs::write(root.join("M.tsv"), "source\trestriction\na\tresearch\n").expect("write");
        let toml = "[data]\nmanifest = \"M.tsv\"\nexclude_restrictions = [\"research\"]\n\
                    exclude = [\"c\"]\n[[data.corpus]]\nformat = \"keyed\"\npath = \"train\"\n\
                    [[data.corpus]]\nformat = \"lines\"\nsource = \"moses\"\n\
                    files = { de = \"x.de\", en = \"x.en\" }\n";
        std::fs::write(root.join("d.toml"), toml).expect("write");
        let config = DataConfig::read(&root.join("d.toml")).expect("config");
        let (inputs, skipped) = config.resolve().expect("resolve");
        let names: Vec<_> = inputs.iter().map(|i| i.source.as_str()).collect();
        assert_eq!(names, ["b", "moses"]);
        assert_eq!(
            skipped[0],
            ("a".into(), "its licence is restricted (research)".into())
        );
        assert_eq!(skipped[1].1, "excluded");
        let wrong = DataConfig {
            include: vec!["nosuch".into()],
            ..config
        };
        assert!(wrong.resolve().is_err());
        std::fs::write(root.join("d.toml"), "typo = 1\n").expect("write");
        assert!(DataConfig::read(&root.join("d.toml")).is_err());
    }
}
