//! `laser card`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use super::measured::{Measures, ModelArgs, SetArgs, measure, write_out};
use crate::eval::tables::{Form, TableOptions, render};
use crate::eval::{Metric, SetResult};

/// Arguments of `laser card`.
#[derive(Debug, Args)]
pub struct CardArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    sets: SetArgs,
    /// The set whose mean over languages is the main figure.
    #[arg(long, value_name = "SET", default_value = "ntrex")]
    main: String,
    /// Further sets with a table per language.
    #[arg(long, value_name = "SET", value_delimiter = ',')]
    detail: Vec<String>,
    /// Replace the tables in this Markdown file, between the lines `<!-- dev tables -->` and
    /// `<!-- end of dev tables -->`, instead of printing them.
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
}

const BEGIN: &str = "<!-- dev tables -->";
const END: &str = "<!-- end of dev tables -->";

/// Runs `laser card`.
pub fn run(args: &CardArgs, threads: Option<usize>) -> Result<()> {
    let encoder = args.model.load(threads)?;
    let sets = args.sets.read()?;
    for name in args.detail.iter().chain([&args.main]) {
        if !sets.iter().any(|s| s.name() == name) {
            bail!("there is no set \"{name}\" among the files");
        }
    }
    let metrics = [Metric::Cosine, Metric::Margin];
    let results = measure(
        &args.model,
        (&encoder, None),
        &sets,
        Measures {
            pivot: &args.sets.pivot,
            metrics: &metrics,
            sizes: &[],
        },
    )?;
    let fingerprint: String = encoder.fingerprint()[..8]
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let text = tables(
        &results,
        &args.main,
        &args.detail,
        &encoder.config().name,
        &fingerprint,
    );
    match &args.into {
        None => write_out(None, &text),
        Some(path) => replace(path, &text),
    }
}

fn tables(
    results: &[SetResult],
    main: &str,
    detail: &[String],
    model: &str,
    fingerprint: &str,
) -> String {
    let mut out = String::new();
    let options = |summary| TableOptions {
        metrics: vec![Metric::Cosine, Metric::Margin],
        min_queries: 1,
        errors: false,
        summary,
    };
    if let Some(result) = results.iter().find(|r| r.name == main) {
        let (there, back) = result.macro_accuracy(Metric::Cosine, 1);
        let pivot = result.pivot.as_deref().unwrap_or("xx");
        let candidates = result
            .pairs
            .iter()
            .map(|p| p.forward.candidates)
            .max()
            .unwrap_or(0);
        let _ = writeln!(
            out,
            "Model `{model}`, fingerprint `{fingerprint}`. **Mean over the {} languages of {main}, \
             cosine, {candidates} candidates: xx→{pivot} {:.1} %, {pivot}→xx {:.1} %.**\n",
            result.pairs.len(),
            100.0 * there,
            100.0 * back
        );
    }
    out.push_str(&render(results, Form::Markdown, &options(true)));
    for name in detail.iter().map(String::as_str).chain([main]) {
        if let Some(result) = results.iter().find(|r| r.name == name) {
            out.push('\n');
            out.push_str(&render(
                std::slice::from_ref(result),
                Form::Markdown,
                &options(false),
            ));
        }
    }
    out
}

/// Puts `text` between the two marks of a file.
fn replace(path: &Path, text: &str) -> Result<()> {
    let old = std::fs::read_to_string(path)
        .with_context(|| format!("could not read \"{}\"", path.display()))?;
    let new = between(&old, text)
        .with_context(|| format!("\"{}\" lacks the lines {BEGIN} and {END}", path.display()))?;
    write_out(Some(&path.to_owned()), &new)
}

fn between(old: &str, text: &str) -> Option<String> {
    let begin = old.find(BEGIN)? + BEGIN.len();
    let end = begin + old[begin..].find(END)?;
    Some(format!(
        "{}\n\n{}\n{}",
        &old[..begin],
        text.trim_end_matches('\n'),
        &old[end..]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_replaced_in_place() {
        let card = format!("# Card\n{BEGIN}\nold\n{END}\nrest\n");
        let new = between(&card, "| new |\n").expect("marks");
        assert_eq!(new, format!("# Card\n{BEGIN}\n\n| new |\n{END}\nrest\n"));
        assert_eq!(between(&new, "| new |\n"), Some(new.clone()));
        assert_eq!(between("no marks", "x"), None);
    }
}
