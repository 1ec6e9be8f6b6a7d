//! What was read, kept and dropped, and why.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::filter::Reason;

/// Counts of one source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceCounts {
    /// Groups before filters.
    pub groups_read: u64,
    /// Groups kept.
    pub groups: u64,
    /// Rows (a sentence in one language) before filters.
    pub rows_read: u64,
    /// Rows kept.
    pub rows: u64,
    /// Rows dropped, by reason.
    pub dropped: BTreeMap<Reason, u64>,
}

impl SourceCounts {
    fn add(&mut self, other: &Self) {
        self.groups_read += other.groups_read;
        self.groups += other.groups;
        self.rows_read += other.rows_read;
        self.rows += other.rows;
        for (reason, n) in &other.dropped {
            *self.dropped.entry(*reason).or_default() += n;
        }
    }
}

/// Report of a pass over a corpus.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Counts by the source's name in the configuration.
    pub sources: BTreeMap<String, SourceCounts>,
    /// Sources that were not read, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Rows kept by language.
    pub languages: BTreeMap<String, u64>,
    /// Number of malformed lines, which were skipped.
    pub malformed: u64,
    /// The first malformed lines.
    pub examples: Vec<String>,
}

impl Report {
    /// Adds the counts of another report.
    pub fn merge(&mut self, other: Self) {
        for (name, counts) in other.sources {
            self.sources.entry(name).or_default().add(&counts);
        }
        for (language, n) in other.languages {
            *self.languages.entry(language).or_default() += n;
        }
        self.skipped.extend(other.skipped);
        self.malformed += other.malformed;
        self.examples.extend(other.examples);
    }

    /// Sums over all sources.
    #[must_use]
    pub fn total(&self) -> SourceCounts {
        let mut total = SourceCounts::default();
        for counts in self.sources.values() {
            total.add(counts);
        }
        total
    }

    /// Table of one line per source, as TSV with a header.
    #[must_use]
    pub fn tsv(&self) -> String {
        let mut out = String::from("source\tgroups_read\tgroups\trows_read\trows");
        for reason in Reason::ALL {
            let _ = write!(out, "\t{}", reason.name().replace(' ', "_"));
        }
        out.push('\n');
        let total = self.total();
        let rows = self
            .sources
            .iter()
            .map(|(n, c)| (n.as_str(), c))
            .chain([("total", &total)]);
        for (name, c) in rows {
            let _ = write!(
                out,
                "{name}\t{}\t{}\t{}\t{}",
                c.groups_read, c.groups, c.rows_read, c.rows
            );
            for reason in Reason::ALL {
                let _ = write!(out, "\t{}", c.dropped.get(&reason).copied().unwrap_or(0));
            }
            out.push('\n');
        }
        for (name, reason) in &self.skipped {
            let _ = writeln!(out, "# {name} not read: {reason}");
        }
        if self.malformed > 0 {
            let _ = writeln!(out, "# malformed lines: {}", self.malformed);
            for example in &self.examples {
                let _ = writeln!(out, "# {example}");
            }
        }
        out
    }

    /// The counts as a table for a terminal.
    #[must_use]
    pub fn text(&self) -> String {
        let total = self.total();
        let mut out = String::new();
        let _ = writeln!(
            out,
            "{} of {} sentences kept in {} groups, {} languages, {} sources",
            total.rows,
            total.rows_read,
            total.groups,
            self.languages.len(),
            self.sources.len()
        );
        for (reason, n) in &total.dropped {
            let by: Vec<_> = self
                .sources
                .iter()
                .filter_map(|(s, c)| c.dropped.get(reason).map(|n| (*n, s)))
                .collect();
            let largest = by.iter().max().map_or("", |b| b.1.as_str());
            let _ = writeln!(out, "  dropped, {}: {n} (most in {largest})", reason.name());
        }
        for (name, reason) in &self.skipped {
            let _ = writeln!(out, "  source {name} not read: {reason}");
        }
        if self.malformed > 0 {
            let _ = writeln!(out, "  malformed lines skipped: {}", self.malformed);
            for example in &self.examples {
                let _ = writeln!(out, "    {example}");
            }
        }
        out
    }
}
