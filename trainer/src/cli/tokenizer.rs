//! `laser tokenizer` and `laser coverage`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::Args;

use super::args::{DataArgs, spinner};
use crate::data::pipeline::Pipeline;
use crate::tokenizer::{self, Kind, TokenizerOptions};

/// Arguments of `laser tokenizer`.
#[derive(Debug, Args)]
pub struct TokenizerArgs {
    #[command(flatten)]
    data: DataArgs,
    /// The tokenizer.json to write.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Kind of model.
    #[arg(long, value_enum, default_value_t = Kind::Unigram)]
    kind: Kind,
    /// Size of the vocabulary, with 4 special tokens and 256 bytes.
    #[arg(long, value_name = "N", default_value_t = 32_000)]
    vocab_size: usize,
    /// Sentences to train on.
    #[arg(long, value_name = "N", default_value_t = 600_000)]
    sentences: usize,
    /// A language with n sentences gets a share of n to this power.
    #[arg(long, value_name = "X", default_value_t = 0.5)]
    exponent: f64,
    /// Lower-case all text.
    #[arg(long)]
    lowercase: bool,
    /// No Unicode compatibility normalisation (NFKC).
    #[arg(long)]
    no_nfkc: bool,
    /// Leave punctuation marks attached to words.
    #[arg(long)]
    keep_punctuation: bool,
    /// Let pieces cross from one script to another.
    #[arg(long)]
    mix_scripts: bool,
    /// Make each digit a token of its own.
    #[arg(long)]
    split_digits: bool,
    /// Share of the characters that must be in the vocabulary; the rest is spelled in bytes.
    #[arg(long, value_name = "SHARE", default_value_t = 0.9995)]
    coverage: f64,
    /// Longest piece in characters.
    #[arg(long, value_name = "N", default_value_t = 16)]
    max_piece: usize,
    /// Additional tokens for the most frequent beginnings of romanised words.
    #[arg(long, value_name = "N", default_value_t = 0)]
    ngrams: usize,
    /// Lengths of these beginnings in characters.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "3,5",
          value_parser = clap::value_parser!(u8).range(1..=30))]
    ngram_lengths: Vec<u8>,
    /// Also n-grams inside of words: behind Hebrew and Arabic proclitics, and everywhere in scripts
    /// that do not separate words.
    #[arg(long)]
    ngrams_inside: bool,
    /// Take the pieces of this tokenizer.json and choose n-grams only; what says how pieces are
    /// trained does not count.
    #[arg(long, value_name = "FILE")]
    pieces: Option<PathBuf>,
    /// For transformers: texts begin with <s> and end with </s>, and there is a token <mask> beside the vocabulary.
    #[arg(long, conflicts_with_all = ["ngrams", "pieces"])]
    transformer: bool,
    /// Seed of the sample.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Runs `laser tokenizer`.
pub fn train(args: &TokenizerArgs) -> Result<()> {
    let start = Instant::now();
    let config = args.data.config()?;
    let pipeline = Pipeline::new(&config, args.data.text.strict)?;
    let bar = spinner("drawing sentences");
    let sample = tokenizer::sample(&pipeline, args.sentences, args.exponent, args.seed)?;
    bar.set_message("training the vocabulary");
    let options = TokenizerOptions {
        kind: args.kind,
        vocab_size: args.vocab_size,
        nfkc: !args.no_nfkc,
        lowercase: args.lowercase,
        split_punctuation: !args.keep_punctuation,
        split_scripts: !args.mix_scripts,
        split_digits: args.split_digits,
        coverage: args.coverage,
        max_piece: args.max_piece,
        boundaries: args.transformer,
        ..TokenizerOptions::default()
    };
    let tokenizer = match &args.pieces {
        Some(path) => tokenizer::load(path)?.tokenizer,
        None => tokenizer::train(&sample.texts, &options)?,
    };
    let lengths: Vec<usize> = args.ngram_lengths.iter().map(|n| usize::from(*n)).collect();
    let inside = args.ngrams_inside;
    let ngrams =
        (args.ngrams > 0).then(|| tokenizer::ngrams(&sample.texts, &lengths, inside, args.ngrams));
    bar.finish_and_clear();
    tokenizer::save(&tokenizer, ngrams.as_ref(), &args.output)?;
    println!(
        "{} tokens and {} n-grams from {} sentences in {} languages, {:.0} s: {}",
        tokenizer.get_vocab_size(true),
        ngrams.map_or(0, |ngrams| ngrams.vocabulary.len()),
        sample.texts.len(),
        sample.languages.len(),
        start.elapsed().as_secs_f64(),
        args.output.display()
    );
    Ok(())
}

/// Arguments of `laser coverage`.
#[derive(Debug, Args)]
pub struct CoverageArgs {
    #[command(flatten)]
    data: DataArgs,
    /// The tokenizer.json.
    #[arg(long, value_name = "FILE")]
    tokenizer: PathBuf,
    /// Sentences of each language at most.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    limit: u64,
}

/// Runs `laser coverage`.
pub fn coverage(args: &CoverageArgs) -> Result<()> {
    let pipeline = Pipeline::new(&args.data.config()?, args.data.text.strict)?;
    let tokenizer = tokenizer::load(&args.tokenizer)?;
    let table = tokenizer::coverage(&pipeline, &tokenizer, args.limit)?;
    println!(
        "language\tsentences\ttokens_per_sentence\ttokens_per_word\ttokens_per_char\tbyte_share"
    );
    for (language, c) in table {
        println!(
            "{language}\t{}\t{:.2}\t{:.3}\t{:.3}\t{:.4}",
            c.sentences,
            c.tokens as f64 / c.sentences.max(1) as f64,
            c.tokens_per_word(),
            c.tokens_per_char(),
            c.byte_share()
        );
    }
    Ok(())
}
