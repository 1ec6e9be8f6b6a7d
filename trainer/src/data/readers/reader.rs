//! What every reader does.

use std::io::BufRead;
use std::path::Path;

use super::problems::Problems;
use crate::data::input::{Line, Lines};
use crate::data::{DataError, Group, Result};

/// Most rows under one key; more are malformed. Bounds the memory of a group.
pub const MAX_ROWS: usize = 1 << 14;

/// A stream of groups.
pub trait Reader {
    /// The next group, `None` at the end. What cannot be read is told to `problems` and skipped.
    ///
    /// # Errors
    /// [`DataError::Io`]; [`DataError::Malformed`] if `problems` is strict.
    fn next_group(&mut self, problems: &mut Problems) -> Result<Option<Group>>;
}

/// The next line that `parse` takes, `None` at the end. Other lines are told to `problems` and
/// skipped; `path` is what they are told of.
pub(super) fn next_parsed<T>(
    lines: &mut Lines<impl BufRead>,
    path: &Path,
    problems: &mut Problems,
    parse: impl Fn(&str) -> std::result::Result<T, String>,
) -> Result<Option<T>> {
    loop {
        let line = lines.next_line().map_err(|e| DataError::io(path, e))?;
        let parsed = match line {
            Line::End => return Ok(None),
            Line::Malformed(message) => Err(message.to_owned()),
            Line::Text(text) => parse(text),
        };
        match parsed {
            Ok(value) => return Ok(Some(value)),
            Err(message) => problems.report(path, lines.number(), message)?,
        }
    }
}

/// Whether `code` can be a language code: 1 to 24 ASCII letters, digits, `-` and `_`.
#[must_use]
pub fn is_language(code: &str) -> bool {
    (1..=24).contains(&code.len())
        && code
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// All groups of a reader and the problems it had.
#[cfg(test)]
pub(super) fn read_all(mut reader: impl Reader, strict: bool) -> Result<(Vec<Group>, Vec<String>)> {
    let mut problems = Problems::new(strict);
    let mut groups = Vec::new();
    while let Some(group) = reader.next_group(&mut problems)? {
        groups.push(group);
    }
    Ok((groups, problems.examples().to_vec()))
}
