//! One group a line, one language a column.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use super::super::input::{self, Lines};
use super::super::{DataError, Group, Result, Row};
use super::reader::next_parsed;
use super::{Problems, Reader};

/// Reads tab-separated columns.
pub struct Tsv {
    path: PathBuf,
    lines: Lines<Box<dyn BufRead + Send>>,
    columns: Vec<Option<String>>,
}

impl Tsv {
    /// Opens a file whose columns are in the given languages; `-` skips a column (a score, say).
    ///
    /// # Errors
    /// [`DataError::Io`] if it cannot be opened, [`DataError::Config`] for fewer than two
    /// languages.
    pub fn open(path: &Path, columns: &[String]) -> Result<Self> {
        let columns: Vec<_> = columns
            .iter()
            .map(|c| (c != "-").then(|| c.clone()))
            .collect();
        if columns.iter().flatten().count() < 2 {
            return Err(DataError::Config(
                "a TSV corpus needs columns of two languages".into(),
            ));
        }
        Ok(Self {
            path: path.to_owned(),
            lines: Lines::new(input::open(path)?),
            columns,
        })
    }
}

impl Reader for Tsv {
    fn next_group(&mut self, problems: &mut Problems) -> Result<Option<Group>> {
        let rows = next_parsed(&mut self.lines, &self.path, problems, |line| {
            split(line, &self.columns)
        })?;
        Ok(rows.map(|rows| Group {
            key: self.lines.number().to_string(),
            rows,
        }))
    }
}

fn split(line: &str, columns: &[Option<String>]) -> std::result::Result<Vec<Row>, String> {
    let found = line.split('\t').count();
    if found != columns.len() {
        return Err(format!("expected {} columns, found {found}", columns.len()));
    }
    Ok(line
        .split('\t')
        .zip(columns)
        .filter_map(|(text, language)| {
            language.as_ref().map(|l| Row {
                language: l.clone(),
                text: text.to_owned(),
            })
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_may_be_skipped() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("x.tsv");
        std::fs::write(
            &path,
            "1.08\teins\tone\nonly two\tcolumns\n1.05\tzwei\ttwo\n",
        )
        .expect("write");
        let columns = ["-".to_owned(), "de".to_owned(), "en".to_owned()];
        let mut reader = Tsv::open(&path, &columns).expect("open");
        let mut problems = Problems::new(false);
        let first = reader
            .next_group(&mut problems)
            .expect("io")
            .expect("group");
        assert_eq!(
            first.rows[1],
            Row {
                language: "en".into(),
                text: "one".into()
            }
        );
        let second = reader
            .next_group(&mut problems)
            .expect("io")
            .expect("group");
        assert_eq!(second.rows[0].text, "zwei");
        assert_eq!(reader.next_group(&mut problems).expect("io"), None);
        assert!(problems.examples()[0].ends_with("x.tsv:2: expected 3 columns, found 2"));
        assert!(Tsv::open(&path, &columns[..2]).is_err());
    }
}
