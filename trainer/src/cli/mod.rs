//! The command line of `laser`.

mod args;
mod pack;
mod tokenizer;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Trains, evaluates, imports and exports multilingual sentence encoders.
#[derive(Debug, Parser)]
#[command(name = "laser", version, propagate_version = true)]
struct Cli {
    /// Threads to use; all cores if not given.
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a joint subword vocabulary and write it as tokenizer.json.
    Tokenizer(tokenizer::TokenizerArgs),
    /// Count the tokens per word that a tokenizer makes in each language.
    Coverage(tokenizer::CoverageArgs),
    /// Train a model as a TOML configuration says.
    Train(train::TrainArgs),
    /// Filter, deduplicate and tokenise parallel text into one memory-mapped file.
    Pack(pack::PackArgs),
}

/// Runs the program with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(threads) = cli.threads {
        // Fails only if the pool exists already, and nothing has used it yet.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    }
    let result = match cli.command {
        Command::Tokenizer(args) => tokenizer::train(&args),
        Command::Coverage(args) => tokenizer::coverage(&args),
        Command::Train(args) => train::run(&args, cli.threads),
        Command::Pack(args) => pack::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("laser: {error:#}");
            ExitCode::FAILURE
        }
    }
}
