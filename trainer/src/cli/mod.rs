//! The command line of `laser`.

mod args;
mod card;
mod classify;
mod curves;
mod embed;
mod eval;
mod export;
mod import;
mod languages;
mod lexmix;
mod map;
mod meaning;
mod measured;
mod pack;
mod parent;
mod reproduce;
mod senteval;
mod tokenizer;
mod train;
mod words;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Trains, evaluates, imports and exports multilingual sentence encoders.
#[derive(Debug, Parser)]
#[command(name = "laser", version, propagate_version = true)]
struct Cli {
    /// Threads to use; all cores if not given.
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
    /// Process that has started this one, and whose end ends it.
    #[arg(long, hide = true, value_name = "PID")]
    parent: Option<u32>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a joint subword vocabulary and write it as tokenizer.json.
    Tokenizer(tokenizer::TokenizerArgs),
    /// Count the tokens per word that a tokenizer makes in each language.
    Coverage(tokenizer::CoverageArgs),
    /// Replace words of sentences by entries of lexica: text for languages that have little else.
    Lexmix(lexmix::LexmixArgs),
    /// Filter, deduplicate and tokenise parallel text into one memory-mapped file.
    Pack(pack::PackArgs),
    /// Train a model as a TOML configuration says.
    Train(train::TrainArgs),
    /// Measure a model on any aligned text.
    #[command(subcommand)]
    Eval(eval::EvalCommand),
    /// Make a smaller model folder: int8 or 16-bit weights, fewer tokens.
    Export(export::ExportArgs),
    /// Convert a published checkpoint (LASER, LASER2, LASER3, sentence-transformers) or word vectors.
    Import(import::ImportArgs),
    /// Map word vectors, or a model of sentences, to another space by an orthogonal matrix.
    #[command(subcommand)]
    Map(map::MapCommand),
    /// Make one model of encoders for one language each, whose embeddings are of one space.
    Languages(languages::LanguagesArgs),
    /// Weigh the tokens of a mean model by their frequency and remove what all sentences have in common (SIF).
    Sif(map::SifArgs),
    /// Train and measure the contestants of a paper's tables, beside the paper's figures.
    Reproduce(reproduce::ReproduceArgs),
    /// Embed the lines of standard input.
    Embed(embed::EmbedArgs),
    /// Draw the learning curves of a run as SVG.
    Curves(curves::CurvesArgs),
    /// Write the tables of a model card: accuracy per set and per language.
    Card(card::CardArgs),
}

/// Runs the program with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Err(error)) = cli.parent.map(parent::end_with) {
        eprintln!("laser: {error}");
        return ExitCode::FAILURE;
    }
    if let Some(threads) = cli.threads {
        // Fails only if the pool exists already, and nothing has used it yet.
        let _ = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build_global();
    }
    let result = match cli.command {
        Command::Tokenizer(args) => tokenizer::train(&args),
        Command::Coverage(args) => tokenizer::coverage(&args),
        Command::Lexmix(args) => lexmix::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Train(args) => train::run(&args, cli.threads),
        Command::Eval(eval::EvalCommand::Similarity(args)) => eval::similarity(&args, cli.threads),
        Command::Eval(eval::EvalCommand::Classify(args)) => classify::run(&args, cli.threads),
        Command::Eval(eval::EvalCommand::Senteval(args)) => senteval::run(&args, cli.threads),
        Command::Eval(eval::EvalCommand::Words(args)) => words::run(&args, cli.threads),
        Command::Eval(eval::EvalCommand::Bucc(args)) => eval::bucc(&args, cli.threads),
        Command::Eval(eval::EvalCommand::Mixed(args)) => meaning::run_mixed(&args, cli.threads),
        Command::Eval(eval::EvalCommand::Order(args)) => meaning::run_order(&args, cli.threads),
        Command::Eval(eval::EvalCommand::Sts(args)) => meaning::run_sts(&args, cli.threads),
        Command::Export(args) => export::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Map(map::MapCommand::Words(args)) => map::words(&args),
        Command::Map(map::MapCommand::Sentences(args)) => map::sentences(&args, cli.threads),
        Command::Languages(args) => languages::run(&args),
        Command::Sif(args) => map::sif(&args, cli.threads),
        Command::Reproduce(args) => reproduce::run_tables(&args, cli.threads),
        Command::Embed(args) => embed::run(&args, cli.threads),
        Command::Curves(args) => curves::run(&args),
        Command::Card(args) => card::run(&args, cli.threads),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("laser: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, those left out that it names itself.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}
