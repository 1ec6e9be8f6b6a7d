//! `laser eval mixed` and `laser eval sts`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use super::args::spinner;
use super::eval::{ModelArgs, SetArgs, write_out};
use crate::eval::embed::embed_all;
use crate::eval::mixed::mixed;
use crate::eval::sts::{Scored, pearson, spearman};
use crate::report::table::{Align, Table};

/// Arguments of `laser eval mixed`.
#[derive(Debug, Args)]
pub struct MixedArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sets: SetArgs,
    /// Show only the means of each set.
    #[arg(long)]
    summary: bool,
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

/// Runs `laser eval mixed`.
pub fn run_mixed(args: &MixedArgs, threads: Option<usize>) -> Result<()> {
    let encoder = args.model.load(threads)?;
    let mut table = Table::new();
    table.column("set", Align::Left);
    table.column("language", Align::Left);
    table.column("queries", Align::Right);
    table.column("accuracy", Align::Right);
    for set in args.sets.read()? {
        let bar = spinner("sentences embedded");
        let x = embed_all(&encoder, set.texts(), &mut |n| bar.set_position(n))?;
        bar.finish_and_clear();
        let counts = mixed(&set, encoder.dimensions(), &x)?;
        let (mut queries, mut correct) = (0, 0);
        for (language, count) in counts {
            queries += count.queries;
            correct += count.correct;
            if !args.summary {
                table.row(vec![
                    set.name().to_owned(),
                    language,
                    count.queries.to_string(),
                    percent(count.correct as f64 / count.queries as f64),
                ]);
            }
        }
        table.row(vec![
            set.name().to_owned(),
            "all".into(),
            queries.to_string(),
            percent(correct as f64 / queries as f64),
        ]);
    }
    write_out(None, &table.text())
}

/// Arguments of `laser eval sts`.
#[derive(Debug, Args)]
pub struct StsArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Tab-separated files; the last three columns are score, sentence, sentence.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Only lines whose first column is this.
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
}

fn cosines(x: &[f32], y: &[f32], dimensions: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    x.chunks_exact(dimensions)
        .zip(y.chunks_exact(dimensions))
        .map(|(a, b)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt())
        .collect()
}

/// Runs `laser eval sts`.
pub fn run_sts(args: &StsArgs, threads: Option<usize>) -> Result<()> {
    let encoder = args.model.load(threads)?;
    let mut table = Table::new();
    table.column("set", Align::Left);
    table.column("pairs", Align::Right);
    table.column("Pearson", Align::Right);
    table.column("Spearman", Align::Right);
    let (mut pairs, mut sums) = (0, (0.0, 0.0));
    for path in &args.files {
        let set = Scored::read(path, args.split.as_deref())?;
        let x = embed_all(&encoder, &set.first, &mut |_| {})?;
        let y = embed_all(&encoder, &set.second, &mut |_| {})?;
        let cosines = cosines(&x, &y, encoder.dimensions());
        let found = (
            pearson(&cosines, &set.scores),
            spearman(&cosines, &set.scores),
        );
        let name = path.file_name().context("a file has a name")?;
        table.row(vec![
            name.to_string_lossy().into_owned(),
            cosines.len().to_string(),
            percent(found.0),
            percent(found.1),
        ]);
        pairs += cosines.len();
        sums = (sums.0 + found.0, sums.1 + found.1);
    }
    let n = args.files.len() as f64;
    let means = [percent(sums.0 / n), percent(sums.1 / n)];
    table.row([vec!["mean".into(), pairs.to_string()], means.to_vec()].concat());
    write_out(None, &table.text())
}
