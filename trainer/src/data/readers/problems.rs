//! What cannot be read.

use std::path::Path;

use crate::data::{DataError, Result};

/// Malformed lines: fatal if strict, else counted, with the first few kept for the report.
#[derive(Debug, Default)]
pub struct Problems {
    strict: bool,
    count: u64,
    examples: Vec<String>,
}

/// Malformed lines that are kept word for word.
const EXAMPLES: usize = 20;

impl Problems {
    /// Collects problems, or fails at the first if `strict`.
    #[must_use]
    pub fn new(strict: bool) -> Self {
        Self {
            strict,
            ..Self::default()
        }
    }

    /// Records a malformed line.
    ///
    /// # Errors
    /// [`DataError::Malformed`] if strict.
    pub fn report(&mut self, path: &Path, line: u64, message: impl Into<String>) -> Result<()> {
        let path = path.display().to_string();
        let error = DataError::Malformed {
            path,
            line,
            message: message.into(),
        };
        if self.strict {
            return Err(error);
        }
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push(error.to_string());
        }
        Ok(())
    }

    /// Number of malformed lines.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first of them, as `file:line: message`.
    #[must_use]
    pub fn examples(&self) -> &[String] {
        &self.examples
    }
}
