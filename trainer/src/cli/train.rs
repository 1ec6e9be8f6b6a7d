//! `laser train`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use clap::Args;

use crate::report::curves;
use crate::train::{Options, TrainConfig};

/// Arguments of `laser train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// The training configuration (TOML).
    config: PathBuf,
    /// Replace a value of the configuration, for example `run.steps=500`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    changes: Vec<String>,
    /// Go on from the checkpoint in the output folder, if there is one.
    #[arg(long)]
    resume: bool,
    /// Only say how it ended.
    #[arg(long, short)]
    quiet: bool,
}

/// Runs `laser train`. Ctrl-C saves a checkpoint and stops; a second one ends the program.
pub fn run(args: &TrainArgs, threads: Option<usize>) -> Result<()> {
    let mut config = TrainConfig::load_with(&args.config, &args.changes)?;
    if let Some(threads) = threads {
        config.threads = threads;
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The first is registered first, so that it sees whether an earlier signal set the flag.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let options = Options {
        resume: args.resume,
        quiet: args.quiet,
        updates: None,
        stop: Some(stop),
    };
    let summary = crate::train::run(&config, &options)?;
    draw_curves(&config);
    print!("{} steps", summary.step);
    if summary.loss.is_nan() {
        print!(", nothing left to do");
    } else {
        print!(", loss {:.4}", summary.loss);
    }
    if let Some((figure, step)) = summary.best {
        print!(", best dev accuracy {:.2} % at step {step}", figure * 100.0);
    }
    println!(
        "{}; models in {}",
        if summary.interrupted {
            " (interrupted; --resume goes on)"
        } else {
            ""
        },
        config.output.display()
    );
    Ok(())
}

/// Draws the learning curves into the output folder. A run too short for a log line has none.
fn draw_curves(config: &TrainConfig) {
    let drawn = curves::read_runs(&[(config.name.clone(), config.output.as_path())])
        .and_then(|panels| curves::draw(&config.name, "step", &panels));
    if let Ok(picture) = drawn
        && let Err(error) = std::fs::write(config.output.join("curves.svg"), picture)
    {
        eprintln!("laser: could not write the learning curves: {error}");
    }
}
