//! `laser curves`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::report::curves;

/// Arguments of `laser curves`.
#[derive(Debug, Args)]
pub struct CurvesArgs {
    /// Output folders of training runs, with train.csv and dev.csv.
    #[arg(required = true, value_name = "FOLDER")]
    runs: Vec<PathBuf>,
    /// The SVG file to write.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Title; the names of the runs if not given.
    #[arg(long)]
    title: Option<String>,
}

/// Runs `laser curves`.
pub fn run(args: &CurvesArgs) -> Result<()> {
    let name = |path: &PathBuf| {
        path.file_name().map_or_else(
            || path.display().to_string(),
            |n| n.to_string_lossy().into(),
        )
    };
    let runs: Vec<_> = args
        .runs
        .iter()
        .map(|path| (name(path), path.as_path()))
        .collect();
    let names: Vec<&str> = runs.iter().map(|r| r.0.as_str()).collect();
    let title = args.title.clone().unwrap_or_else(|| names.join(", "));
    let picture = curves::draw(&title, "step", &curves::read_runs(&runs)?)?;
    std::fs::write(&args.output, picture)
        .with_context(|| format!("could not write \"{}\"", args.output.display()))
}
