//! `laser pack`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use super::args::{DataArgs, spinner};
use crate::data::config::DedupMode;
use crate::data::pack_writer::PackWriter;
use crate::data::pipeline::Pipeline;
use crate::pack::pack;
use crate::tokenizer;

/// Arguments of `laser pack`.
#[derive(Debug, Args)]
pub struct PackArgs {
    #[command(flatten)]
    data: DataArgs,
    /// The tokenizer.json of the model.
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// The packed corpus to write.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Sentences are cut at this many tokens.
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_tokens: u32,
    /// When two pairs are the same: exact, canonical (case and punctuation ignored) or none.
    #[arg(long, value_name = "MODE", value_parser = ["exact", "canonical", "none"])]
    dedup: Option<String>,
    /// Keep about this many sentences of each language, for a smaller corpus.
    #[arg(long, value_name = "N")]
    max_per_language: Option<u64>,
    /// Compress the file at this Zstandard level; it is then read into memory when used.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "12")]
    compress: Option<i32>,
    /// Add English sentences that differ in word order, a name, a number or a negation alone, for
    /// `objective.dual.perturbed`.
    #[arg(long)]
    perturb: bool,
    /// Where to write what was kept and dropped, per source, as TSV.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Runs `laser pack`.
pub fn run(args: &PackArgs) -> Result<()> {
    let mut config = args.data.config()?;
    config.max_per_language = args.max_per_language.unwrap_or(config.max_per_language);
    config.dedup = match args.dedup.as_deref() {
        Some("exact") => DedupMode::Exact,
        Some("canonical") => DedupMode::Canonical,
        Some(_) => DedupMode::None,
        None => config.dedup,
    };
    let tokenizer = tokenizer::load(&args.tokenizer)?;
    let mut pipeline = Pipeline::new(&config, args.data.text.strict)?;
    let folder = args.output.parent().filter(|p| !p.as_os_str().is_empty());
    let bar = spinner("looking for repeats");
    pipeline.survey(folder.unwrap_or(Path::new(".")))?;
    bar.set_message("sentences packed");
    let mut writer = PackWriter::create(
        &args.output,
        tokenizer.fingerprint.clone(),
        tokenizer.vocab_size,
        args.max_tokens,
    )?;
    let report = pack(&pipeline, &tokenizer, &mut writer, args.perturb, &mut |n| {
        bar.set_position(n)
    })?;
    bar.set_message("writing");
    let header = writer.finish(args.compress)?;
    bar.finish_and_clear();
    if let Some(path) = &args.report {
        std::fs::write(path, report.tsv())
            .with_context(|| format!("could not write \"{}\"", path.display()))?;
    }
    print!("{}", report.text());
    let bytes = std::fs::metadata(&args.output)?.len();
    if header.perturbed > 0 {
        println!("{} perturbed sentences", header.perturbed);
    }
    println!(
        "{} tokens ({:.1} a sentence), {:.1} MB in {}",
        header.tokens,
        header.tokens as f64 / header.sentences.max(1) as f64,
        bytes as f64 / 1e6,
        args.output.display()
    );
    Ok(())
}
