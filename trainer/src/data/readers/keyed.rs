//! `key <TAB> language <TAB> text`, lines of a key together.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use super::super::input::{self, Lines};
use super::super::{Group, Result, Row};
use super::reader::next_parsed;
use super::{MAX_ROWS, Problems, Reader, is_language};

/// Reads the keyed format.
pub struct Keyed {
    path: PathBuf,
    lines: Lines<Box<dyn BufRead + Send>>,
    /// First row of the next group, read one line too far.
    next: Option<(String, Row)>,
}

impl Keyed {
    /// Opens a keyed file.
    ///
    /// # Errors
    /// [`DataError::Io`] if it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            lines: Lines::new(input::open(path)?),
            next: None,
        })
    }

    fn next_row(&mut self, problems: &mut Problems) -> Result<Option<(String, Row)>> {
        next_parsed(&mut self.lines, &self.path, problems, |line| {
            parse(line).map_err(str::to_owned)
        })
    }
}

/// Splits a line of the keyed format.
fn parse(line: &str) -> std::result::Result<(String, Row), &'static str> {
    let mut columns = line.split('\t');
    let (Some(key), Some(language), Some(text), None) = (
        columns.next(),
        columns.next(),
        columns.next(),
        columns.next(),
    ) else {
        return Err("expected three columns: key, language, text");
    };
    if key.is_empty() {
        return Err("the key is empty");
    }
    if !is_language(language) {
        return Err("the second column is not a language code");
    }
    Ok((
        key.to_owned(),
        Row {
            language: language.to_owned(),
            text: text.to_owned(),
        },
    ))
}

impl Reader for Keyed {
    fn next_group(&mut self, problems: &mut Problems) -> Result<Option<Group>> {
        let first = match self.next.take() {
            Some(row) => Some(row),
            None => self.next_row(problems)?,
        };
        let Some((key, row)) = first else {
            return Ok(None);
        };
        let mut group = Group {
            key,
            rows: vec![row],
        };
        while let Some((key, row)) = self.next_row(problems)? {
            if key != group.key {
                self.next = Some((key, row));
                break;
            }
            if group.rows.len() < MAX_ROWS {
                group.rows.push(row);
            } else {
                problems.report(
                    &self.path,
                    self.lines.number(),
                    "too many rows under one key",
                )?;
            }
        }
        Ok(Some(group))
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_all;
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8], strict: bool) -> Result<(Vec<Group>, Vec<String>)> {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("x.tsv");
        std::fs::write(&path, bytes).expect("write");
        read_all(Keyed::open(&path)?, strict)
    }

    #[test]
    fn groups_by_key_and_reports_lines() {
        let text = b"k1\ten\tone\nk1\tde\teins\nbroken line\nk1\tfr\tun\n\xff\tx\ty\nk2\ten\ttwo\n";
        let (groups, problems) = read(text, false).expect("lenient");
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].rows.len(), 3);
        assert_eq!(groups[1].rows[0].text, "two");
        assert_eq!(problems.len(), 2);
        assert!(problems[0].contains("x.tsv:3:"), "{}", problems[0]);
        assert!(problems[1].contains("x.tsv:5:"), "{}", problems[1]);
        let error = read(text, true).expect_err("strict").to_string();
        assert!(error.contains("x.tsv:3: expected three columns"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            read(&bytes, false).expect("lenient");
        }

        #[test]
        fn well_formed_rows_come_back(
            rows in proptest::collection::vec(("[a-c]", "[a-z]{2,3}", "[^\t\n\r\0]{0,12}"), 1..30)
        ) {
            let text: String =
                rows.iter().map(|(k, l, t)| format!("{k}\t{l}\t{t}\n")).collect();
            let (groups, problems) = read(text.as_bytes(), true).expect("well-formed");
            prop_assert!(problems.is_empty());
            let back: Vec<_> = groups
                .iter()
                .flat_map(|g| g.rows.iter().map(|r| (g.key.clone(), r.language.clone(), r.text.clone())))
                .collect();
            prop_assert_eq!(back, rows);
        }
    }
}
