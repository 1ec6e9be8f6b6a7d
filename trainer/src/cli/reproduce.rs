//! `laser reproduce`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use crate::papers::runner::{Paths, run};
use crate::papers::{PaperTable, Scale};

/// Begin and end of what is written into a document.
const MARKS: (&str, &str) = ("<!-- tables -->", "<!-- end of tables -->");

/// Arguments of `laser reproduce`.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// The paper: sd17, laser, labse, xnli, ad19, or `all`.
    #[arg(value_name = "PAPER")]
    paper: String,
    /// Minutes on two cores, or the paper's setting.
    #[arg(long, value_enum, default_value_t = Scale::Small)]
    scale: Scale,
    /// Folder of the data that the tables name.
    #[arg(long, value_name = "FOLDER")]
    data: PathBuf,
    /// Folder for models and outcomes; rows that have an outcome there are not run again.
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
    /// Folder of the papers' tables.
    #[arg(long, value_name = "FOLDER", default_value = "trainer/configs/papers")]
    configs: PathBuf,
    /// Only these tables.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    tables: Vec<String>,
    /// Another value of a variable of the scale, in the tables that have it: `steps=20`.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Run nothing: show what there is.
    #[arg(long)]
    show: bool,
    /// Write the tables into this document, between the lines `<!-- tables -->` and `<!-- end of tables -->`,
    /// instead of to standard output.
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
}

/// Names of the entries of a folder, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let failed = || format!("could not read \"{}\"", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(failed)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Runs `laser reproduce`.
pub fn run_tables(args: &ReproduceArgs, threads: Option<usize>) -> Result<()> {
    let papers = match &args.paper[..] {
        "all" => names(&args.configs)?,
        paper => vec![paper.to_owned()],
    };
    let program = std::env::current_exe().context("which program is this?")?;
    // What steps are told stands in configurations, where paths are relative to the file.
    let absolute = |path: &Path| {
        std::path::absolute(path).with_context(|| format!("where is \"{}\"?", path.display()))
    };
    let (data, output) = (absolute(&args.data)?, absolute(&args.output)?);
    let configs = absolute(&args.configs)?;
    let set = args.set.iter().map(|set| {
        let pair = set.split_once('=');
        let (name, value) = pair.with_context(|| format!("\"{set}\" is not NAME=VALUE"))?;
        Ok((name.to_owned(), value.to_owned()))
    });
    let set: Vec<(String, String)> = set.collect::<Result<_>>()?;
    let mut known = BTreeSet::new();
    let (mut text, mut failed) = (String::new(), Vec::new());
    for paper in papers {
        let folder = configs.join(&paper);
        for file in names(&folder)? {
            let Some(name) = file
                .strip_suffix(".toml")
                .filter(|n| !n.starts_with("train-"))
            else {
                continue;
            };
            if !(args.tables.is_empty() || args.tables.iter().any(|t| t == name)) {
                continue;
            }
            let mut table = PaperTable::read(&folder.join(&file)).map_err(|e| anyhow!(e))?;
            let variables = table.of_scale_mut(args.scale);
            for (name, value) in &set {
                if let Some(old) = variables.get_mut(name) {
                    old.clone_from(value);
                    known.insert(name.clone());
                }
            }
            let out = output.join(&paper).join(name);
            let paths = Paths {
                program: &program,
                data: &data,
                configs: &folder,
                shared: &output,
                out: &out,
            };
            let outcomes = crate::papers::Outcomes::read(&out.join("outcomes.json"));
            let outcomes = if args.show {
                outcomes
            } else {
                let say = &mut |what: &str| eprintln!("{paper}/{name}: {what}");
                run(&table, args.scale, paths, threads, say).or_else(|error| {
                    failed.push(format!("{paper}/{name}: {error}"));
                    outcomes
                })
            };
            text += &outcomes.map_err(|e| anyhow!(e))?.markdown(&table);
            text.push('\n');
        }
    }
    if text.is_empty() {
        bail!("there is no such table in \"{}\"", args.configs.display());
    }
    if let Some((name, _)) = set.iter().find(|(name, _)| !known.contains(name)) {
        failed.push(format!("no table has a variable \"{name}\""));
    }
    match &args.into {
        Some(path) => insert(path, &text)?,
        None => print!("{text}"),
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

/// Puts a text between the marks of a document.
fn insert(path: &Path, text: &str) -> Result<()> {
    let failed = || format!("could not read \"{}\"", path.display());
    let document = std::fs::read_to_string(path).with_context(failed)?;
    let (begin, end) = MARKS;
    let parts = document
        .split_once(begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(end)?.1)));
    let Some((before, after)) = parts else {
        bail!("\"{}\" has no lines {begin} and {end}", path.display());
    };
    let document = format!("{before}{begin}\n\n{text}{end}{after}");
    std::fs::write(path, document).with_context(failed)
}
