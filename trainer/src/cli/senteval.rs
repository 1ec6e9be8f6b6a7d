//! `laser eval senteval`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum as _};
use laser_model::Languages;

use super::args::spinner;
use super::measured::{ModelArgs, Side, write_out};
use crate::eval::classifier::FitOptions;
use crate::eval::senteval::{SentEvalOptions, Task, measure};
use crate::report::table::{Align, Form, Table};

/// Arguments of `laser eval senteval`.
#[derive(Debug, Args)]
pub struct SentEvalArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder with the tasks: `MR.tsv` (`split<TAB>label<TAB>sentence[<TAB>sentence]`), `STS12.tsv`
    /// (`split<TAB>set<TAB>score<TAB>sentence<TAB>sentence`) and so on, also in folders `senteval`, `nli`
    /// and `sts` of it.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Tasks; all whose files are there if not given.
    #[arg(long, value_enum, value_delimiter = ',')]
    tasks: Vec<Task>,
    /// Folds of cross-validation, outer and inner ones.
    #[arg(long, value_name = "N", default_value_t = 10)]
    folds: usize,
    /// Seed of folds and classifiers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The language of the tasks, "en" if not given: for a model with an encoder for each language.
    #[arg(long, value_name = "LANG")]
    language: Option<String>,
    /// Form of the table.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
    /// Write here instead of to standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Runs `laser eval senteval`.
pub fn run(args: &SentEvalArgs, threads: Option<usize>) -> Result<()> {
    if args.folds < 2 {
        bail!("--folds must be at least 2");
    }
    let mut files = Vec::new();
    if args.tasks.is_empty() {
        let all = Task::value_variants().iter();
        files.extend(all.filter_map(|t| Some((*t, t.file(&args.folder).ok()?))));
        if files.is_empty() {
            bail!("there is no task in \"{}\"", args.folder.display());
        }
    }
    for task in &args.tasks {
        files.push((*task, task.file(&args.folder)?));
    }
    let options = SentEvalOptions {
        folds: args.folds,
        fit: FitOptions {
            seed: args.seed,
            ..FitOptions::default()
        },
    };
    // SentEval's own tasks are English.
    let several = Languages::read(&args.model.model)?.is_some();
    let side = Side {
        language: args.language.as_deref().or(several.then_some("en")),
        option: "--language",
    };
    let encoder = args.model.load_for(side, threads)?;
    let mut table = Table::new();
    table.column("task", Align::Left);
    table.column("measure", Align::Left);
    table.column("examples", Align::Right);
    table.column("figure", Align::Right);
    let bar = spinner("texts of the task embedded");
    for (task, path) in files {
        bar.set_message(format!("texts of {} embedded", task.name()));
        let mut embed = |texts: &[&str]| {
            args.model
                .embed(&encoder, texts, &mut |n| bar.set_position(n))
        };
        for figure in measure(task, &path, encoder.dimensions(), &mut embed, &options)? {
            table.row(vec![
                task.name(),
                figure.name,
                figure.examples.to_string(),
                format!("{:.1}", 100.0 * figure.value),
            ]);
        }
    }
    bar.finish_and_clear();
    write_out(args.output.as_ref(), &table.render(args.format))
}
