//! Files aligned line by line (Moses, OPUS): line n of every file is a translation of line n of
//! the others.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use super::super::input::{self, Line, Lines};
use super::super::{DataError, Group, Result, Row};
use super::{Problems, Reader};

struct Side {
    language: String,
    path: PathBuf,
    lines: Lines<Box<dyn BufRead + Send>>,
}

/// Reads two or more line-aligned files.
pub struct AlignedLines {
    sides: Vec<Side>,
    line: u64,
}

impl AlignedLines {
    /// Opens one file per language.
    ///
    /// # Errors
    /// [`DataError::Io`] if one cannot be opened, [`DataError::Config`] for fewer than two.
    pub fn open<'a>(files: impl IntoIterator<Item = (&'a str, &'a Path)>) -> Result<Self> {
        let sides: Vec<Side> = files
            .into_iter()
            .map(|(language, path)| {
                let lines = Lines::new(input::open(path)?);
                Ok(Side {
                    language: language.to_owned(),
                    path: path.to_owned(),
                    lines,
                })
            })
            .collect::<Result<_>>()?;
        if sides.len() < 2 {
            return Err(DataError::Config(
                "line-aligned text needs at least two files".into(),
            ));
        }
        Ok(Self { sides, line: 0 })
    }
}

impl Reader for AlignedLines {
    fn next_group(&mut self, problems: &mut Problems) -> Result<Option<Group>> {
        loop {
            self.line += 1;
            let mut rows = Vec::with_capacity(self.sides.len());
            let mut malformed = None;
            let mut ended = None;
            for side in &mut self.sides {
                match side
                    .lines
                    .next_line()
                    .map_err(|e| DataError::io(&side.path, e))?
                {
                    Line::End => ended = Some(side.path.clone()),
                    Line::Malformed(message) => malformed = Some((side.path.clone(), message)),
                    Line::Text(text) => {
                        rows.push(Row {
                            language: side.language.clone(),
                            text: text.to_owned(),
                        });
                    }
                }
            }
            if let Some(path) = ended {
                if !rows.is_empty() || malformed.is_some() {
                    let message = "the file ends here, but another that is aligned with it goes on";
                    problems.report(&path, self.line, message)?;
                }
                return Ok(None);
            }
            match malformed {
                // The line is dropped from all files, so that the rest stays aligned.
                Some((path, message)) => problems.report(&path, self.line, message)?,
                None => {
                    return Ok(Some(Group {
                        key: self.line.to_string(),
                        rows,
                    }));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_all;
    use super::*;

    fn read(a: &[u8], b: &[u8], strict: bool) -> Result<(Vec<Group>, Vec<String>)> {
        let folder = tempfile::tempdir().expect("folder");
        let (pa, pb) = (folder.path().join("x.de"), folder.path().join("x.en"));
        std::fs::write(&pa, a).expect("write");
        std::fs::write(&pb, b).expect("write");
        read_all(
            AlignedLines::open([("de", pa.as_path()), ("en", pb.as_path())])?,
            strict,
        )
    }

    #[test]
    fn stays_aligned_over_a_bad_line() {
        let (groups, problems) =
            read(b"eins\n\xff\ndrei\n", b"one\ntwo\nthree\n", false).expect("ok");
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[1].rows[0].text, "drei");
        assert_eq!(groups[1].rows[1].text, "three");
        assert_eq!(groups[1].key, "3");
        assert!(problems[0].contains("x.de:2:"));
    }

    #[test]
    fn different_lengths_are_reported() {
        let (groups, problems) = read(b"a\nb\nc\n", b"x\n", false).expect("ok");
        assert_eq!(groups.len(), 1);
        assert!(
            problems[0].contains("x.en:2: the file ends here"),
            "{}",
            problems[0]
        );
        assert!(read(b"a\nb\nc\n", b"x\n", true).is_err());
    }

    #[test]
    fn files_of_two_compressions() {
        let packed = zstd::encode_all(&b"eins\nzwei"[..], 1).expect("zstd");
        let (groups, problems) = read(&packed, b"one\r\ntwo\r\n", true).expect("ok");
        assert!(problems.is_empty());
        assert_eq!(groups[1].rows[0].text, "zwei");
        assert_eq!(groups[1].rows[1].text, "two");
    }
}
