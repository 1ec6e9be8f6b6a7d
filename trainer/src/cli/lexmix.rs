//! `laser lexmix`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use super::args::{DataArgs, spinner};
use crate::data::lexmix::{Lexmix, LexmixOptions};
use crate::data::pipeline::Pipeline;

/// Arguments of `laser lexmix`.
#[derive(Debug, Args)]
pub struct LexmixArgs {
    #[command(flatten)]
    data: DataArgs,
    /// Sources that are lexica.
    #[arg(long, value_name = "SOURCE", value_delimiter = ',', required = true)]
    lexica: Vec<String>,
    /// Sources whose sentences in the pivot language are changed.
    #[arg(long, value_name = "SOURCE", value_delimiter = ',', required = true)]
    sentences: Vec<String>,
    /// Languages that get none.
    #[arg(long, value_name = "LANG", value_delimiter = ',')]
    skip: Vec<String>,
    /// Most sentences of a language.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    per_language: usize,
    /// Seed of all draws.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The keyed file to write, Zstandard.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// Runs `laser lexmix`.
pub fn run(args: &LexmixArgs) -> Result<()> {
    let mut config = args.data.config()?;
    config.include = args.lexica.iter().chain(&args.sentences).cloned().collect();
    let pivot = config.pivot.clone();
    let pipeline = Pipeline::new(&config, args.data.text.strict)?;
    let options = LexmixOptions {
        per_language: args.per_language,
        seed: args.seed,
        ..LexmixOptions::default()
    };
    let bar = spinner("groups read");
    let mut lexmix = Lexmix::default();
    pipeline.run(&mut |source, mut group| {
        let is = |sources: &[String]| sources.iter().any(|s| s == source);
        if is(&args.sentences) {
            lexmix.add_sentences(&group, &pivot, options.longest);
        }
        if is(&args.lexica) {
            let wanted = |language: &String| *language == pivot || !args.skip.contains(language);
            group.rows.retain(|row| wanted(&row.language));

            lexmix.add_entry(&group, &pivot);
        }
        bar.inc(1);
        Ok(())
    })?;
    bar.set_message("writing");
    let failed = || format!("could not write \"{}\"", args.output.display());
    let file = BufWriter::new(File::create(&args.output).with_context(failed)?);
    let mut out = zstd::Encoder::new(file, 12).with_context(failed)?;
    let (mut pairs, mut languages) = (0u64, BTreeSet::new());
    let mut each = |language: &str, plain: &str, mixed: &str| {
        pairs += 1;
        languages.insert(language.to_owned());
        writeln!(
            out,
            "lexmix:{pairs}\t{pivot}\t{plain}\nlexmix:{pairs}\t{language}\t{mixed}"
        )
    };
    lexmix.make(&options, &mut each).with_context(failed)?;
    out.finish()
        .and_then(|mut file| file.flush())
        .with_context(failed)?;
    bar.finish_and_clear();
    if pairs == 0 {
        bail!("no sentence has enough words of a lexicon: check --lexica and --sentences");
    }
    println!(
        "{pairs} pairs in {} languages: {}",
        languages.len(),
        args.output.display()
    );
    Ok(())
}
