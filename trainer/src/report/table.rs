//! Tables of strings.

/// Side on which the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Left, for names.
    Left,
    /// Right, for numbers.
    Right,
}

/// Form of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Aligned columns for people.
    #[default]
    Text,
    /// One figure, or one row of the table, a line.
    Tsv,
    /// All figures.
    Json,
    /// Tables for a model card.
    Markdown,
}

/// A table with a header.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a column.
    pub fn column(&mut self, name: &str, align: Align) {
        self.columns.push((name.to_owned(), align));
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the row does not have as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "cells of a table row");
        self.rows.push(cells);
    }

    fn widths(&self) -> Vec<usize> {
        (0..self.columns.len())
            .map(|i| {
                let cells = self.rows.iter().map(|r| r[i].chars().count());
                cells
                    .chain([self.columns[i].0.chars().count()])
                    .max()
                    .unwrap_or(0)
            })
            .collect()
    }

    fn pad(cell: &str, width: usize, align: Align) -> String {
        let space = " ".repeat(width.saturating_sub(cell.chars().count()));
        match align {
            Align::Left => format!("{cell}{space}"),
            Align::Right => format!("{space}{cell}"),
        }
    }

    fn lines(&self) -> (String, Vec<String>, Vec<usize>) {
        let widths = self.widths();
        let join = |cells: Vec<&String>, by: &str| {
            let padded: Vec<String> = cells
                .into_iter()
                .zip(&self.columns)
                .zip(&widths)
                .map(|((cell, (_, align)), width)| Self::pad(cell, *width, *align))
                .collect();
            padded.join(by)
        };
        let header = join(self.columns.iter().map(|c| &c.0).collect(), "\u{1f}");
        let rows = self
            .rows
            .iter()
            .map(|r| join(r.iter().collect(), "\u{1f}"))
            .collect();
        (header, rows, widths)
    }

    /// The table as text, lines ended by a line feed.
    #[must_use]
    pub fn render(&self, form: Form) -> String {
        match form {
            Form::Text => self.text(),
            Form::Tsv => self.tsv(),
            Form::Json => self.json(),
            Form::Markdown => self.markdown(),
        }
    }

    /// Names and cells between tabs. Tabs and line breaks in a cell become spaces.
    #[must_use]
    pub fn tsv(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|c| &c.0[..]).collect();
        let mut out = names.join("\t") + "\n";
        for row in &self.rows {
            let cells: Vec<_> = row.iter().map(|c| c.replace(['\t', '\n'], " ")).collect();
            out += &(cells.join("\t") + "\n");
        }
        out
    }

    /// A JSON array with an object a row; cells of right-aligned columns are numbers, or null where
    /// there is none.
    #[must_use]
    pub fn json(&self) -> String {
        let value = |cell: &str, align: Align| match align {
            Align::Left => serde_json::Value::from(cell),
            Align::Right => cell
                .parse::<f64>()
                .map_or(serde_json::Value::Null, Into::into),
        };
        let object = |row: &Vec<String>| -> serde_json::Value {
            let cells = row.iter().zip(&self.columns);
            let pairs = cells.map(|(cell, (name, align))| (name.clone(), value(cell, *align)));
            serde_json::Value::Object(pairs.collect())
        };
        let rows: Vec<_> = self.rows.iter().map(object).collect();
        serde_json::to_string_pretty(&rows).unwrap_or_default() + "\n"
    }

    /// Aligned columns.
    #[must_use]
    pub fn text(&self) -> String {
        let (header, rows, widths) = self.lines();
        let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
        let mut out = format!(
            "{}\n{}\n",
            header.replace('\u{1f}', "  "),
            "-".repeat(total)
        );
        for row in rows {
            out.push_str(row.replace('\u{1f}', "  ").trim_end());
            out.push('\n');
        }
        out
    }

    /// A Markdown table.
    #[must_use]
    pub fn markdown(&self) -> String {
        let (header, rows, widths) = self.lines();
        let rule: Vec<String> = widths
            .iter()
            .zip(&self.columns)
            .map(|(w, (_, align))| match align {
                Align::Left => "-".repeat((*w).max(3)),
                Align::Right => format!("{}:", "-".repeat((*w).max(3) - 1)),
            })
            .collect();
        let mut out = format!(
            "| {} |\n| {} |\n",
            header.replace('\u{1f}', " | "),
            rule.join(" | ")
        );
        for row in rows {
            out.push_str(&format!("| {} |\n", row.replace('\u{1f}', " | ")));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new();
        table.column("set", Align::Left);
        table.column("n", Align::Right);
        table.row(vec!["añ".into(), "100".into()]);
        assert_eq!(table.text(), "set    n\n--------\nañ   100\n");
        assert_eq!(
            table.markdown(),
            "| set |   n |\n| --- | --: |\n| añ  | 100 |\n"
        );
        table.row(vec!["b\tc".into(), "-".into()]);
        assert_eq!(table.render(Form::Tsv), "set\tn\nañ\t100\nb c\t-\n");
        let json: serde_json::Value = serde_json::from_str(&table.json()).unwrap();
        let wanted = serde_json::json!([{"set": "añ", "n": 100.0}, {"set": "b\tc", "n": null}]);
        assert_eq!(json, wanted);
    }
}
