//! `laser reproduce`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum as _};

use crate::papers::runner::{OUTCOMES, Paths, run};
use crate::papers::{Outcomes, PaperTable, Scale};

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
    /// Folder for models and outcomes, each scale and each choice of --set in a folder of its own; rows that have an
    /// outcome there are not run again.
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
    let mut set = BTreeMap::new();
    for pair in &args.set {
        let (name, value) = pair
            .split_once('=')
            .with_context(|| format!("\"{pair}\" is not NAME=VALUE"))?;
        set.insert(name.to_owned(), value.to_owned());
    }
    // What is trained with another scale or other variables is something else.
    let output = output.join(setting(args.scale, &set));
    let mut known = BTreeSet::new();
    let mut tables = Vec::new();
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
            let path = folder.join(&file);
            let mut table = PaperTable::read(&path).map_err(|e| anyhow!(e))?;
            let variables = table.of_scale_mut(args.scale);
            for (name, value) in &set {
                if let Some(old) = variables.get_mut(name) {
                    old.clone_from(value);
                    known.insert(name.clone());
                }
            }
            table
                .name_rows(args.scale)
                .map_err(|e| anyhow!("{}: {e}", path.display()))?;
            tables.push((paper.clone(), name.to_owned(), table));
        }
    }
    if tables.is_empty() {
        bail!("there is no such table in \"{}\"", args.configs.display());
    }
    if let Some(name) = set.keys().find(|name| !known.contains(*name)) {
        bail!("no table has a variable \"{name}\" of this scale");
    }
    let (mut text, mut failed) = (String::new(), Vec::new());
    for (paper, name, table) in &tables {
        let out = output.join(paper).join(name);
        let paths = Paths {
            program: &program,
            data: &data,
            configs: &configs.join(paper),
            shared: &output,
            out: &out,
        };
        let outcomes = if args.show {
            Outcomes::read(&out.join(OUTCOMES))
        } else {
            let say = &mut |what: &str| {
                // A run of hours must not end because nobody is listening.
                let _ = writeln!(std::io::stderr(), "{paper}/{name}: {what}");
            };
            run(table, args.scale, paths, threads, say)
        };
        let outcomes = outcomes.map_err(|e| anyhow!(e))?;
        if !args.show {
            let failures = outcomes.failures.iter();
            failed.extend(failures.map(|(row, error)| format!("{paper}/{name}, {row}: {error}")));
        }
        text += &outcomes.markdown(table);
        text.push('\n');
    }
    match &args.into {
        Some(path) => insert(path, &text)?,
        None => print!("{text}"),
    }
    if !failed.is_empty() {
        bail!("rows failed:\n{}", failed.join("\n"));
    }
    Ok(())
}

/// Longest name of a folder.
const LONGEST: usize = 100;

/// The folder of what is run with a scale and other values of variables: `small`, `full,steps=20`.
fn setting(scale: Scale, set: &BTreeMap<String, String>) -> String {
    let scale = scale.to_possible_value();
    let mut exact = scale.map_or_else(String::new, |v| v.get_name().to_owned());
    for (name, value) in set {
        exact += &format!(",{name}={value}");
    }
    let keep = |c: char| {
        if c.is_ascii_alphanumeric() || ".,=_+-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let folder: String = exact.chars().map(keep).take(LONGEST).collect();
    if folder == exact {
        return folder;
    }
    format!("{folder}-{}", &blake3::hash(exact.as_bytes()).to_hex()[..8])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_and_choice_of_variables_has_a_folder() {
        let set = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(n, v)| ((*n).into(), (*v).into()));
            pairs.collect::<BTreeMap<String, String>>()
        };
        assert_eq!(setting(Scale::Small, &set(&[])), "small");
        let steps = set(&[("vocabulary", "300"), ("steps", "20")]);
        assert_eq!(setting(Scale::Full, &steps), "full,steps=20,vocabulary=300");
        let (a, b) = (set(&[("dev", "[ ]")]), set(&[("dev", "{ }")]));
        let (a, b) = (setting(Scale::Small, &a), setting(Scale::Small, &b));
        assert!(a.starts_with("small,dev=----") && a != b, "{a} {b}");
        let long = set(&[("dev", &"x".repeat(300))]);
        assert!(setting(Scale::Small, &long).len() < 120);
    }
}
