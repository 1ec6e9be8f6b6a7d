//! What was measured, kept beside the models, and the document that shows it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::table::PaperTable;
use crate::report::table::{Align, Table};

/// A row that was run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What [`PaperTable::measure`] names, in its unit.
    pub figure: f64,
    /// Seconds of training and measuring.
    pub seconds: f64,
}

/// Outcomes of the rows of a table, by their names, of one scale and one set of variables.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcomes {
    /// Rows with a figure.
    #[serde(default)]
    pub rows: BTreeMap<String, Outcome>,
    /// What the other rows that were run ended with.
    #[serde(default)]
    pub failures: BTreeMap<String, String>,
}

impl Outcomes {
    /// Reads a file; nothing, if there is none.
    ///
    /// # Errors
    /// If there is one that cannot be read.
    pub fn read(path: &Path) -> Result<Self, String> {
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| fail(&e)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(fail(&e)),
        }
    }

    /// Writes the file, by renaming.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), String> {
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        let json = serde_json::to_string_pretty(self).map_err(|e| fail(&e))?;
        let part = path.with_extension("part");
        std::fs::write(&part, json + "\n").map_err(|e| fail(&e))?;
        std::fs::rename(&part, path).map_err(|e| fail(&e))
    }

    /// Pairs of rows with figures of both that are in one order, and all such pairs. Pairs that are equal in the
    /// paper have no order.
    #[must_use]
    pub fn agreement(&self, table: &PaperTable) -> (usize, usize) {
        let sign = |higher: bool| if higher { 1.0 } else { -1.0 };
        let figures: Vec<(f64, f64)> = table
            .rows
            .iter()
            .filter_map(|row| {
                let ours = self.rows.get(&row.name)?.figure;
                Some((
                    row.paper? * sign(table.paper_higher),
                    ours * sign(table.higher),
                ))
            })
            .collect();
        let (mut agree, mut all) = (0, 0);
        for (i, a) in figures.iter().enumerate() {
            for b in &figures[i + 1..] {
                if a.0 != b.0 {
                    all += 1;
                    agree += usize::from((a.0 > b.0) == (a.1 > b.1) && a.1 != b.1);
                }
            }
        }
        (agree, all)
    }

    /// A Markdown table of all rows: the paper's figure, the one measured here, minutes, or why there is none.
    #[must_use]
    pub fn markdown(&self, table: &PaperTable) -> String {
        let mut shown = Table::new();
        shown.column("", Align::Left);
        shown.column("paper", Align::Right);
        shown.column("here", Align::Right);
        shown.column("minutes", Align::Right);
        for row in &table.rows {
            let outcome = self.rows.get(&row.name);
            let failure = self.failures.get(&row.name);
            let reason = row.not_run.as_deref().map(|r| format!("not run: {r}"));
            let reason = reason.or_else(|| failure.map(|f| format!("failed: {}", brief(f))));
            shown.row(vec![
                row.name.clone(),
                row.paper.map_or("-".into(), |p| p.to_string()),
                match outcome {
                    Some(outcome) => format!("{:.1}", outcome.figure),
                    None => reason.unwrap_or_else(|| "not run yet".into()),
                },
                outcome.map_or("-".into(), |o| format!("{:.1}", o.seconds / 60.0)),
            ]);
        }
        let mut out = format!("### {}\n\n", table.title);
        let (agree, all) = self.agreement(table);
        let _ = writeln!(
            out,
            "{}. In the paper: {}. Here: {}; data: {}.\n",
            table.source, table.paper_measure, table.measure, table.data
        );
        out += &shown.markdown();
        if all > 0 {
            let _ = writeln!(
                out,
                "\nPairs of rows in the paper's order: {agree} of {all}."
            );
        }
        if !table.notes.is_empty() {
            let _ = writeln!(out, "\n{}", table.notes.trim());
        }
        out
    }
}

/// Most characters of a failure in a table.
const BRIEF: usize = 160;

/// What a program says last, in a cell of a table.
fn brief(failure: &str) -> String {
    // Progress stands before it; `laser:` begins the program's own errors.
    let said = failure.rsplit("laser: ").next().unwrap_or(failure).trim();
    let words: Vec<&str> = said.split_whitespace().collect();
    let text = words.join(" ").replace('|', "/");
    match text.char_indices().nth(BRIEF) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_compared_pair_by_pair() {
        let text = r#"
            title = "t"
            source = "s"
            paper_measure = "error"
            paper_higher = false
            measure = "accuracy"
            data = "d"
            figure = { args = [], pointers = [] }
            [[row]]
            name = "a"
            paper = 1.0
            [[row]]
            name = "b"
            paper = 2.0
            [[row]]
            name = "c"
            paper = 2.0
            [[row]]
            name = "d"
            not_run = "no data"
        "#;
        let table: PaperTable = toml::from_str(text).unwrap();
        let outcome = |figure| Outcome {
            figure,
            seconds: 60.0,
        };
        let figures = [("a", 80.0), ("b", 70.0), ("c", 90.0)];
        let rows = figures.map(|(n, f)| (n.to_owned(), outcome(f))).into();
        let outcomes = Outcomes {
            rows,
            ..Outcomes::default()
        };
        // a before b agrees, a before c does not, b and c are equal.
        assert_eq!(outcomes.agreement(&table), (1, 2));
        let shown = outcomes.markdown(&table);
        assert!(shown.contains("| d |"), "{shown}");
        assert!(shown.contains("not run: no data"), "{shown}");
        assert!(shown.contains("order: 1 of 2"), "{shown}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("outcomes.json");
        assert_eq!(Outcomes::read(&path), Ok(Outcomes::default()));
        outcomes.write(&path).unwrap();
        assert_eq!(Outcomes::read(&path), Ok(outcomes));
    }
    #[test]
    fn a_failure_is_shown_in_its_row_in_one_line() {
        let said = "laser train a.toml failed:  10.0 % step 1 loss 2\n\
                    laser: a | b\nand more";
        assert_eq!(brief(said), "a / b and more");
        assert_eq!(brief("killed by a signal"), "killed by a signal");
        let long = brief(&"ä".repeat(1000));
        assert_eq!(long.chars().count(), BRIEF + 1);
        assert!(long.ends_with('…'));
    }
}
