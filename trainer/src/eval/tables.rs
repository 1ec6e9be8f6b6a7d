//! Tables of retrieval results as text, TSV, JSON and Markdown.

use std::fmt::Write as _;

use super::similarity::{Direction, Metric, PairResult, SetResult};
pub use crate::report::table::Form;
use crate::report::table::{Align, Table};

/// What a table shows.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// Metrics, in the order of columns.
    pub metrics: Vec<Metric>,
    /// Languages with fewer queries do not count in means.
    pub min_queries: usize,
    /// Show error rates instead of accuracies.
    pub errors: bool,
    /// Show only the means of each set.
    pub summary: bool,
}

fn percent(value: f64, errors: bool) -> String {
    if value.is_nan() {
        return "-".into();
    }
    format!("{:.1}", 100.0 * if errors { 1.0 - value } else { value })
}

fn short(metric: Metric) -> &'static str {
    match metric {
        Metric::Cosine => "cosine",
        Metric::L2 => "L2",
        Metric::InnerProduct => "inner",
        Metric::Margin => "xsim",
        Metric::MarginDistance => "margin-d",
    }
}

/// Formats results.
#[must_use]
pub fn render(results: &[SetResult], form: Form, options: &TableOptions) -> String {
    match form {
        Form::Text => people(results, options, Table::text),
        Form::Markdown => people(results, options, Table::markdown),
        Form::Tsv if options.summary => tsv_means(results, options),
        Form::Tsv => tsv(results),
        Form::Json => json(results, options),
    }
}

fn people(results: &[SetResult], options: &TableOptions, print: fn(&Table) -> String) -> String {
    let mut out = String::new();
    let what = if options.errors { "error" } else { "accuracy" };
    if !options.summary {
        for result in results {
            let what_of = if result.pivot.is_some() {
                ""
            } else {
                ", means over all partners"
            };
            let _ = writeln!(out, "{}: {what} in %{what_of}\n", result.name);
            out.push_str(&print(&languages(result, options)));
            out.push('\n');
        }
    }
    if options.summary || results.len() > 1 {
        let _ = writeln!(out, "Macro average over languages, {what} in %\n");
        out.push_str(&print(&summary(results, options)));
    }
    out
}

/// One line of a table of languages: name, queries, accuracy to and from by metric.
type LanguageRow = (String, usize, Vec<(f64, f64)>);

fn with_pivot(result: &SetResult, metrics: &[Metric]) -> Vec<LanguageRow> {
    result
        .pairs
        .iter()
        .map(|pair| {
            let both = |m: &Metric| (pair.forward.accuracy(*m), pair.backward.accuracy(*m));
            (
                pair.source.clone(),
                pair.forward.queries,
                metrics.iter().map(both).collect(),
            )
        })
        .collect()
}

/// Without a pivot: means of each language over its partners.
fn without_pivot(result: &SetResult, metrics: &[Metric]) -> Vec<LanguageRow> {
    let mut names: Vec<&String> = result
        .pairs
        .iter()
        .flat_map(|p| [&p.source, &p.target])
        .collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .map(|name| {
            // Queries of this language, and queries of others for it.
            let of = |p: &PairResult| -> Option<(Direction, Direction)> {
                if p.source == *name {
                    Some((p.forward.clone(), p.backward.clone()))
                } else if p.target == *name {
                    Some((p.backward.clone(), p.forward.clone()))
                } else {
                    None
                }
            };
            let all: Vec<(Direction, Direction)> = result.pairs.iter().filter_map(of).collect();
            let mean = |m: &Metric| {
                let n = all.len() as f64;
                let there = all.iter().map(|d| d.0.accuracy(*m)).sum::<f64>() / n;
                (there, all.iter().map(|d| d.1.accuracy(*m)).sum::<f64>() / n)
            };
            let queries = all.iter().map(|d| d.0.queries).sum();
            (name.clone(), queries, metrics.iter().map(mean).collect())
        })
        .collect()
}

fn languages(result: &SetResult, options: &TableOptions) -> Table {
    let pivot = result.pivot.as_deref().unwrap_or("yy");
    let mut table = Table::new();
    table.column("language", Align::Left);
    table.column("queries", Align::Right);
    for metric in &options.metrics {
        table.column(&format!("xx→{pivot} {}", short(*metric)), Align::Right);
        table.column(&format!("{pivot}→xx {}", short(*metric)), Align::Right);
    }
    let lines = match result.pivot {
        Some(_) => with_pivot(result, &options.metrics),
        None => without_pivot(result, &options.metrics),
    };
    let means = options
        .metrics
        .iter()
        .map(|m| result.macro_accuracy(*m, options.min_queries))
        .collect();
    let last = ("macro average".to_owned(), queries(result), means);
    for (name, queries, values) in lines.into_iter().chain([last]) {
        let mut row = vec![name, queries.to_string()];
        for (there, back) in values {
            row.push(percent(there, options.errors));
            row.push(percent(back, options.errors));
        }
        table.row(row);
    }
    table
}

fn queries(result: &SetResult) -> usize {
    result.pairs.iter().map(|p| p.forward.queries).sum()
}

/// Pairs that count in means.
fn counted(result: &SetResult, options: &TableOptions) -> usize {
    let pairs = result.pairs.iter();
    pairs
        .filter(|p| p.forward.queries >= options.min_queries.max(1))
        .count()
}

fn summary(results: &[SetResult], options: &TableOptions) -> Table {
    let mut table = Table::new();
    table.column("set", Align::Left);
    table.column("pairs", Align::Right);
    table.column("queries", Align::Right);
    for metric in &options.metrics {
        table.column(&format!("to pivot {}", short(*metric)), Align::Right);
        table.column(&format!("from pivot {}", short(*metric)), Align::Right);
    }
    let mut sums = vec![(0.0, 0usize); options.metrics.len() * 2];
    for result in results {
        let counted = counted(result, options);
        let mut name = result.name.clone();
        if result.pivot.is_none() {
            name.push_str(" (all pairs)");
        }
        let mut row = vec![name, counted.to_string(), queries(result).to_string()];
        for (i, metric) in options.metrics.iter().enumerate() {
            let (there, back) = result.macro_accuracy(*metric, options.min_queries);
            for (value, sum) in [there, back].into_iter().zip(&mut sums[2 * i..]) {
                row.push(percent(value, options.errors));
                if !value.is_nan() {
                    sum.0 += value;
                    sum.1 += 1;
                }
            }
        }
        table.row(row);
    }
    if results.len() > 1 {
        let mut row = vec!["mean over sets".to_owned(), String::new(), String::new()];
        row.extend(
            sums.iter()
                .map(|(sum, n)| percent(sum / *n as f64, options.errors)),
        );
        table.row(row);
    }
    table
}

fn tsv(results: &[SetResult]) -> String {
    let mut out =
        String::from("set\tsource\ttarget\tmetric\tqueries\tcandidates\tcorrect\taccuracy\n");
    for result in results {
        for pair in &result.pairs {
            let mut direction = |from: &str, to: &str, d: &Direction| {
                for (metric, correct) in &d.correct {
                    let _ = writeln!(
                        out,
                        "{}\t{from}\t{to}\t{}\t{}\t{}\t{correct}\t{:.6}",
                        result.name,
                        metric.name(),
                        d.queries,
                        d.candidates,
                        d.accuracy(*metric)
                    );
                }
            };
            direction(&pair.source, &pair.target, &pair.forward);
            direction(&pair.target, &pair.source, &pair.backward);
        }
    }
    out
}

/// The means of each set, a line a metric; accuracies, as in the lines of pairs.
fn tsv_means(results: &[SetResult], options: &TableOptions) -> String {
    let mut out = String::from("set\tpivot\tmetric\tpairs\tqueries\tforward\tbackward\n");
    for result in results {
        for metric in &options.metrics {
            let (there, back) = result.macro_accuracy(*metric, options.min_queries);
            let _ = writeln!(
                out,
                "{}\t{}\t{}\t{}\t{}\t{there:.6}\t{back:.6}",
                result.name,
                result.pivot.as_deref().unwrap_or("-"),
                metric.name(),
                counted(result, options),
                queries(result),
            );
        }
    }
    out
}

fn json(results: &[SetResult], options: &TableOptions) -> String {
    let sets: Vec<serde_json::Value> = results
        .iter()
        .map(|result| {
            let means: serde_json::Map<String, serde_json::Value> = options
                .metrics
                .iter()
                .map(|m| {
                    let (there, back) = result.macro_accuracy(*m, options.min_queries);
                    let value = serde_json::json!({ "forward": there, "backward": back });
                    (m.name().to_owned(), value)
                })
                .collect();
            let mut set = serde_json::json!({
                "set": result.name,
                "pivot": result.pivot,
                "macro_accuracy": means,
            });
            if !options.summary {
                set["pairs"] = serde_json::json!(result.pairs);
            }
            set
        })
        .collect();
    let mut text = serde_json::to_string_pretty(&sets).unwrap_or_default();
    text.push('\n');
    text
}
