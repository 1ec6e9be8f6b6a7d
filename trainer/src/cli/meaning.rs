//! `laser eval mixed`, `laser eval order` and `laser eval sts`.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use laser_model::Languages;

use super::args::spinner;
use super::measured::{ModelArgs, SetArgs, Side, embed_sets, write_out};
use crate::data::perturb::{Kind, LANGUAGE};
use crate::eval::mixed::mixed;
use crate::eval::order::{Counts, Perturbed, Share, order};
use crate::eval::sts::{Scored, cosines, pearson, spearman};
use crate::report::table::{Align, Form, Table};

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
    let mut table = Table::new();
    table.column("set", Align::Left);
    table.column("language", Align::Left);
    table.column("queries", Align::Right);
    table.column("accuracy", Align::Right);
    let sets = args.sets.read()?;
    let (width, embedded) = match Languages::read(&args.model.model)? {
        Some(list) => embed_sets(&args.model, &list, threads, &sets)?,
        None => {
            let encoder = args.model.load(threads)?;
            let bar = spinner("sentences embedded");
            let mut embedded = Vec::with_capacity(sets.len());
            for set in sets {
                let progress = &mut |n| bar.set_position(n);
                let x = args.model.embed(&encoder, set.texts(), progress)?;
                embedded.push((set, x));
            }
            bar.finish_and_clear();
            (encoder.dimensions(), embedded)
        }
    };
    for (set, x) in &embedded {
        let counts = mixed(set, width, x)?;
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

/// Arguments of `laser eval order`.
#[derive(Debug, Args)]
pub struct OrderArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder of another model, whose figures are shown as well; may be repeated.
    #[arg(long, value_name = "FOLDER")]
    beside: Vec<PathBuf>,
    #[command(flatten)]
    sets: SetArgs,
    /// Show the figures of every language, not only their means.
    #[arg(long)]
    detail: bool,
}

/// The figures of a row: accuracies by kind, against a sentence's own, and of retrieval.
fn figures(counts: &Counts) -> Vec<Option<f64>> {
    let kind = |k: &Kind| counts.kinds.get(k).copied().unwrap_or_default();
    let kinds = Kind::ALL.iter().map(kind);
    kinds
        .chain([counts.own, counts.retrieval])
        .map(Share::value)
        .collect()
}

/// Runs `laser eval order`.
pub fn run_order(args: &OrderArgs, threads: Option<usize>) -> Result<()> {
    let pivot = &args.sets.pivot;
    if pivot != LANGUAGE {
        bail!("the rules that change sentences are for \"{LANGUAGE}\", not for \"{pivot}\"");
    }
    let mut table = Table::new();
    for name in ["set", "model", "language"] {
        table.column(name, Align::Left);
    }
    table.column("queries", Align::Right);
    for kind in Kind::ALL {
        table.column(kind.name(), Align::Right);
    }
    table.column("own", Align::Right);
    table.column("retrieval", Align::Right);
    let show = |value: &Option<f64>| value.map_or_else(|| "-".into(), percent);
    let sets = args.sets.read()?;
    let mut encoders = vec![args.model.load(threads)?];
    for folder in &args.beside {
        encoders.push(args.model.load_other(folder, threads)?);
    }
    for set in &sets {
        let others = Perturbed::new(set, pivot);
        for encoder in &encoders {
            let bar = spinner("sentences embedded");
            let progress = &mut |n| bar.set_position(n);
            let x = args.model.embed(encoder, set.texts(), progress)?;
            let y = args.model.embed(encoder, &others.texts, progress)?;
            bar.finish_and_clear();
            let counts = order(set, &others, pivot, encoder.dimensions(), (&x, &y))?;
            let rows: Vec<_> = counts.values().map(figures).collect();
            let mut add = |language: &str, queries: usize, figures: &[Option<f64>]| {
                let name = encoder.config().name.clone();
                let mut cells = vec![set.name().to_owned(), name, language.to_owned()];
                cells.push(queries.to_string());
                cells.extend(figures.iter().map(show));
                table.row(cells);
            };
            if args.detail {
                for ((language, counts), row) in counts.iter().zip(&rows) {
                    add(language, counts.own.of, row);
                }
            }
            let mean = |column: usize| {
                let values: Vec<f64> = rows.iter().filter_map(|r| r[column]).collect();
                (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
            };
            let means: Vec<_> = (0..Kind::ALL.len() + 2).map(mean).collect();
            let queries = counts.values().map(|c| c.own.of).sum();
            add("mean", queries, &means);
        }
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
    /// The language of the first sentences: for a model with an encoder for each language.
    #[arg(long, value_name = "LANG")]
    first_language: Option<String>,
    /// The language of the second sentences.
    #[arg(long, value_name = "LANG")]
    second_language: Option<String>,
    /// Only lines whose first column is this.
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Form of the table.
    #[arg(long, value_enum, default_value_t = Form::Text)]
    format: Form,
}

/// Runs `laser eval sts`.
pub fn run_sts(args: &StsArgs, threads: Option<usize>) -> Result<()> {
    let sides = [
        Side {
            language: args.first_language.as_deref(),
            option: "--first-language",
        },
        Side {
            language: args.second_language.as_deref(),
            option: "--second-language",
        },
    ];
    let (encoder, other) = args.model.load_pair(sides, threads)?;
    let other = other.as_ref().unwrap_or(&encoder);
    let mut table = Table::new();
    table.column("set", Align::Left);
    table.column("pairs", Align::Right);
    table.column("Pearson", Align::Right);
    table.column("Spearman", Align::Right);
    let (mut pairs, mut sums) = (0, (0.0, 0.0));
    for path in &args.files {
        let set = Scored::read(path, args.split.as_deref())?;
        let x = args.model.embed(&encoder, &set.first, &mut |_| {})?;
        let y = args.model.embed(other, &set.second, &mut |_| {})?;
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
    write_out(None, &table.render(args.format))
}
