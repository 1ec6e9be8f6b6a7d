//! `laser eval classify`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use laser_model::Languages;
use laser_model::config::Activation;

use super::args::spinner;
use super::measured::{ModelArgs, write_out};
use crate::data::labelled::{Labelled, read};
use crate::eval::classifier::FitOptions;
use crate::eval::classify::{Cell, ClassifyOptions, Part, Task, matrix};
use crate::report::table::{Align, Form, Table};

/// Activation of hidden layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Between {
    Relu,
    Tanh,
    None,
}

/// How a classifier is trained.
#[derive(Clone, Debug, Args)]
pub struct FitArgs {
    /// Widths of hidden layers, for instance `10` (MLDoc) or `512,384` (LASER on XNLI); none for logistic
    /// regression.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    hidden: Vec<usize>,
    /// Between the layers.
    #[arg(long, value_enum, default_value_t = Between::Relu)]
    activation: Between,
    /// Share of the inputs of each layer that is left out while training.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    dropout: f32,
    /// Weight decay in the gradient.
    #[arg(long, value_name = "LAMBDA", default_value_t = 0.0)]
    l2: f64,
    /// Learning rate of Adam.
    #[arg(long, value_name = "RATE", default_value_t = 1e-3)]
    learning_rate: f64,
    /// Examples an update.
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch: usize,
    /// Most passes over the training set.
    #[arg(long, value_name = "N", default_value_t = 200)]
    epochs: usize,
    /// Passes between measurements on the dev set.
    #[arg(long, value_name = "N", default_value_t = 2)]
    dev_epochs: usize,
    /// Measurements without a better one before training ends.
    #[arg(long, value_name = "N", default_value_t = 10)]
    patience: usize,
    /// Seed of the first run.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl FitArgs {
    /// The options.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn options(&self) -> Result<FitOptions> {
        if !(0.0..1.0).contains(&self.dropout) {
            bail!("--dropout must be at least 0 and below 1");
        }
        let positive = [self.batch, self.epochs, self.dev_epochs];
        if positive.contains(&0) || self.hidden.contains(&0) {
            bail!("--batch, --epochs, --dev-epochs and the widths of --hidden must be at least 1");
        }
        if !(self.learning_rate > 0.0 && self.l2 >= 0.0) {
            bail!("--learning-rate must be above 0, --l2 at least 0");
        }
        Ok(FitOptions {
            hidden: self.hidden.clone(),
            activation: match self.activation {
                Between::Relu => Activation::Relu,
                Between::Tanh => Activation::Tanh,
                Between::None => Activation::None,
            },
            dropout: self.dropout,
            l2: self.l2,
            learning_rate: self.learning_rate,
            batch: self.batch,
            epochs: self.epochs,
            dev_epochs: self.dev_epochs,
            patience: self.patience,
            seed: self.seed,
        })
    }
}

/// Arguments of `laser eval classify`.
#[derive(Debug, Args)]
pub struct ClassifyArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Labelled texts of a language, with a column that says to which part a line belongs
    /// (`split<TAB>label<TAB>text[<TAB>text]`).
    #[arg(value_name = "LANG=FILE")]
    files: Vec<String>,
    /// A file that is a training set as a whole. Besides the form above: `label<TAB>text` (MLDoc), and JSON
    /// lines or a TSV with the header of SNLI, MultiNLI or XNLI. `LANG=` may be left out where the file
    /// names the language of each line.
    #[arg(long, value_name = "[LANG=]FILE", num_args = 1..)]
    train: Vec<String>,
    /// The same for early stop.
    #[arg(long, value_name = "[LANG=]FILE", num_args = 1..)]
    dev: Vec<String>,
    /// The same for what is reported; replaces the test part of the language's other file.
    #[arg(long, value_name = "[LANG=]FILE", num_args = 1..)]
    test: Vec<String>,
    /// Name of the training part in files with such a column.
    #[arg(long, value_name = "NAME", default_value = "train")]
    train_split: String,
    /// Name of the part for early stop.
    #[arg(long, value_name = "NAME", default_value = "dev")]
    dev_split: String,
    /// Name of the part that is reported.
    #[arg(long, value_name = "NAME", default_value = "test")]
    test_split: String,
    /// Train in these languages only; in all that have a training set if not given.
    #[arg(long, value_name = "LANG", value_delimiter = ',')]
    from: Vec<String>,
    /// Two texts of a line are one text (headline and article, say) and no pair.
    #[arg(long)]
    join: bool,
    /// Pairs: the premise in one language and the hypothesis in another one, in all combinations. The test
    /// sets must be translations of each other, line by line.
    #[arg(long)]
    mixed: bool,
    /// Classifiers that are trained and averaged over, with seeds that follow each other.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    #[command(flatten)]
    fit: FitArgs,
    /// Form of the table. `text` and `markdown` show a matrix, the others one figure a line.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
    /// Write here instead of to standard output.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// `de=file`, or a file alone.
fn named(argument: &str) -> (Option<&str>, &Path) {
    match argument.split_once('=') {
        Some((language, file)) if !language.contains('/') => (Some(language), Path::new(file)),
        _ => (None, Path::new(argument)),
    }
}

impl ClassifyArgs {
    /// The labelled texts; those of each language for themselves, if they are `apart`.
    fn task(&self, apart: bool) -> Result<Task> {
        let mut task = Task::new(apart);
        for argument in &self.files {
            let (Some(language), path) = named(argument) else {
                bail!("\"{argument}\" is not of the form LANG=FILE");
            };
            let mut used = 0;
            let examples = read(path)?;
            for (part, name) in [
                (Part::Train, &self.train_split),
                (Part::Dev, &self.dev_split),
                (Part::Test, &self.test_split),
            ] {
                let of = |e: &&Labelled| e.split.as_ref() == Some(name);
                let examples: Vec<_> = examples.iter().filter(of).cloned().collect();
                used += examples.len();
                task.add(language, part, examples, self.join)?;
            }
            if used == 0 {
                bail!(
                    "\"{}\" has no line of the parts \"{}\", \"{}\" and \"{}\"; name others with \
                     --train-split, --dev-split or --test-split, or the file by --train, --dev or --test",
                    path.display(),
                    self.train_split,
                    self.dev_split,
                    self.test_split
                );
            }
        }
        for (part, files) in [
            (Part::Train, &self.train),
            (Part::Dev, &self.dev),
            (Part::Test, &self.test),
        ] {
            for argument in files {
                let (language, path) = named(argument);
                if let Some(language) = language {
                    task.clear(language, part);
                }
                let mut languages: Vec<(String, Vec<Labelled>)> = Vec::new();
                for example in read(path)? {
                    let named = language.or(example.language.as_deref());
                    let named = named.with_context(|| {
                        format!("which language is \"{argument}\"? Write LANG={argument}")
                    })?;
                    match languages.iter_mut().find(|l| l.0 == named) {
                        Some((_, examples)) => examples.push(example),
                        None => languages.push((named.to_owned(), vec![example])),
                    }
                }
                for (language, examples) in languages {
                    task.add(&language, part, examples, self.join)?;
                }
            }
        }
        Ok(task)
    }
}

/// Runs `laser eval classify`.
pub fn run(args: &ClassifyArgs, threads: Option<usize>) -> Result<()> {
    let options = ClassifyOptions {
        fit: args.fit.options()?,
        seeds: args.seeds,
        train: args.from.clone(),
        mixed: args.mixed,
    };
    let languages = Languages::read(&args.model.model)?;
    let task = args.task(languages.is_some())?;
    let bar = spinner("texts embedded");
    let progress = &mut |n| bar.set_position(n);
    let (width, embeddings) = match &languages {
        Some(list) => embed_apart(&args.model, list, threads, &task, progress)?,
        None => {
            let encoder = args.model.load(threads)?;
            let embeddings = args.model.embed(&encoder, task.texts(), progress)?;
            (encoder.dimensions(), embeddings)
        }
    };
    bar.finish_and_clear();
    let cells = matrix(&task, width, &embeddings, &options)?;
    let table = match args.format {
        Form::Text | Form::Markdown => square(&cells),
        Form::Tsv | Form::Json => list(&cells),
    };
    write_out(args.output.as_ref(), &table.render(args.format))
}

/// Embeddings of a task's texts, each by the encoder of its language.
fn embed_apart(
    model: &ModelArgs,
    list: &Languages,
    threads: Option<usize>,
    task: &Task,
    progress: &mut dyn FnMut(u64),
) -> Result<(usize, Vec<f32>)> {
    let of_language = task.texts_of_languages();
    let mut lists = Vec::with_capacity(of_language.len());
    for (language, positions) in of_language {
        let texts = positions.iter().map(|at| &task.texts()[*at as usize][..]);
        lists.push((&language[..], texts.collect::<Vec<_>>()));
    }
    let (width, rows) = model.embed_languages(list, threads, &lists, progress)?;
    let mut embeddings = vec![0f32; task.texts().len() * width];
    for (positions, rows) in of_language.values().zip(rows) {
        for (at, row) in positions.iter().zip(rows.chunks_exact(width)) {
            let at = *at as usize * width;
            embeddings[at..at + width].copy_from_slice(row);
        }
    }
    Ok((width, embeddings))
}

/// A row a training language, a column a test language; the last column is the mean over languages
/// other than that of the training.
fn square(cells: &[Cell]) -> Table {
    let mut table = Table::new();
    table.column("trained in", Align::Left);
    table.column("dev", Align::Right);
    let mut trained: Vec<&str> = cells.iter().map(|c| &c.train[..]).collect();
    trained.dedup();
    let tests = cells.iter().filter(|c| c.train == trained[0]);
    for cell in tests {
        table.column(&cell.test, Align::Right);
    }
    table.column("zero-shot mean", Align::Right);
    let percent = |x: f64| format!("{:.1}", 100.0 * x);
    for language in trained {
        let cells: Vec<_> = cells.iter().filter(|c| c.train == language).collect();
        let mut row = vec![language.to_owned(), percent(cells[0].dev)];
        row.extend(cells.iter().map(|c| percent(c.accuracy)));
        let own = format!("{language}/{language}");
        let others = cells.iter().filter(|c| c.test != language && c.test != own);
        let others: Vec<f64> = others.map(|c| c.accuracy).collect();
        row.push(if others.is_empty() {
            "-".into()
        } else {
            percent(others.iter().sum::<f64>() / others.len() as f64)
        });
        table.row(row);
    }
    table
}

fn list(cells: &[Cell]) -> Table {
    let mut table = Table::new();
    for name in ["train", "test"] {
        table.column(name, Align::Left);
    }
    for name in ["examples", "accuracy", "deviation", "dev"] {
        table.column(name, Align::Right);
    }
    for cell in cells {
        table.row(vec![
            cell.train.clone(),
            cell.test.clone(),
            cell.examples.to_string(),
            format!("{:.6}", cell.accuracy),
            format!("{:.6}", cell.deviation),
            format!("{:.6}", cell.dev),
        ]);
    }
    table
}
