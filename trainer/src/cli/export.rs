//! `laser export`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::args::OutputArgs;
use crate::data::PackedCorpus;
use crate::export::{self, ExportOptions, Format};

/// Arguments of `laser export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// A model folder, or the output folder of a training run (its best model is taken, or its
    /// last where no dev set was given).
    #[arg(value_name = "FOLDER", required_unless_present = "model")]
    from: Option<PathBuf>,
    /// The same, as other commands name it.
    #[arg(long, short, value_name = "FOLDER", conflicts_with = "from")]
    model: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
    /// Build on the model in this folder, which must lie beside the output and have the same tokenizer and
    /// embedding table: those are not written again.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["table", "count"])]
    base: Option<PathBuf>,
    /// Name of the model; the name of the output folder if not given.
    #[arg(long)]
    name: Option<String>,
    /// Format of the embedding table.
    #[arg(long, value_enum, default_value_t = Format::I8)]
    table: Format,
    /// Format of the other matrices.
    #[arg(long, value_enum, default_value_t = Format::Bf16)]
    matrices: Format,
    /// Multiply the gate of a `residual_bilstm` by this: less of the BiLSTM, more of the mean.
    #[arg(long, value_name = "FACTOR")]
    gate: Option<f32>,
    /// Remove the tokens that occur less often than this in the corpus of --count.
    #[arg(long, value_name = "N", requires = "count")]
    prune_below: Option<u64>,
    /// Keep only about this many tokens, the most frequent ones in the corpus of --count.
    #[arg(
        long,
        value_name = "N",
        requires = "count",
        conflicts_with = "prune_below"
    )]
    prune_to: Option<usize>,
    /// Packed corpus in which tokens are counted.
    #[arg(long, value_name = "FILE")]
    count: Option<PathBuf>,
    /// A file of sentences on which the encoder compares reduced arithmetic with f32.
    #[arg(long, value_name = "FILE")]
    checks: Option<PathBuf>,
}

/// The folder with the model: the folder itself, or the best or last model of a run.
fn model_folder(folder: &Path) -> Result<PathBuf> {
    for candidate in [folder.to_owned(), folder.join("best"), folder.join("last")] {
        if candidate.join(laser_model::folder::CONFIG).is_file() {
            return Ok(candidate);
        }
    }
    bail!(
        "\"{}\" is neither a model folder nor the output of a training run",
        folder.display()
    )
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

/// Runs `laser export`.
pub fn run(args: &ExportArgs) -> Result<()> {
    let from = args.from.as_ref().or(args.model.as_ref());
    let from = model_folder(from.context("a model folder is needed")?)?;
    args.output.check()?;
    let output = &args.output.output;
    let mut model = export::read(&from)?;
    let before = model.vocabulary();
    if let Some(path) = &args.count {
        let corpus = PackedCorpus::open(path)?;
        let config = laser_model::folder::read_config(&from)?;
        let tokens = laser_model::base::token_folder(&from, &config)?;
        let bytes = std::fs::read(tokens.join(laser_model::folder::TOKENIZER))?;
        if blake3::hash(&bytes).to_hex().as_str() != corpus.header().tokenizer {
            bail!("\"{}\" was packed with another tokenizer", path.display());
        }
        let mut counts = export::token_counts(&corpus);
        counts.resize(before, 0);
        let least = match (args.prune_below, args.prune_to) {
            (Some(least), _) => least,
            (None, Some(wanted)) => {
                let mut sorted = counts.clone();
                sorted.sort_unstable_by_key(|c| std::cmp::Reverse(*c));
                sorted
                    .get(wanted.saturating_sub(1))
                    .copied()
                    .unwrap_or(0)
                    .max(1)
            }
            (None, None) => bail!("--count is of no use without --prune-below or --prune-to"),
        };
        let keep: Vec<bool> = counts.iter().map(|c| *c >= least).collect();
        model.prune(&keep)?;
    }
    if let Some(factor) = args.gate {
        if !factor.is_finite() {
            bail!("--gate needs a finite number");
        }
        model.scale_gate(factor)?;
    }
    let checks = match &args.checks {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("could not read \"{}\"", path.display()))?
            .lines()
            .filter(|l| !l.trim().is_empty())
            .map(str::to_owned)
            .collect(),
        None => Vec::new(),
    };
    let name = args
        .name
        .clone()
        .or_else(|| output.file_name().map(|n| n.to_string_lossy().into_owned()));
    let options = ExportOptions {
        name,
        table: args.table,
        matrices: args.matrices,
        checks,
        base: args.base.clone(),
    };
    model.write(output, &options)?;
    println!(
        "{} of {before} tokens, {:.1} MB (from {:.1} MB) in {}",
        model.vocabulary(),
        size(output)? as f64 / 1e6,
        size(&from)? as f64 / 1e6,
        output.display()
    );
    Ok(())
}
