//! `MANIFEST.tsv`: what is known of each source, above all under which terms it may be used.

use std::collections::BTreeMap;
use std::path::Path;

use super::{DataError, Result};

/// One source of a manifest, by column name.
pub type Entry = BTreeMap<String, String>;

/// A manifest: a TSV file with a header line and a column `source`.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    entries: BTreeMap<String, Entry>,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// [`DataError::Io`], or [`DataError::Malformed`] if there is no column `source`.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| DataError::io(path, e))?;
        let malformed = |line: usize, message: &str| DataError::Malformed {
            path: path.display().to_string(),
            line: line as u64 + 1,
            message: message.to_owned(),
        };
        let mut lines = text.lines().enumerate();
        let names: Vec<&str> = lines
            .next()
            .map(|l| l.1.split('\t').collect())
            .unwrap_or_default();
        if !names.contains(&"source") {
            return Err(malformed(0, "the manifest has no column \"source\""));
        }
        let mut entries = BTreeMap::new();
        for (number, line) in lines.filter(|(_, l)| !l.is_empty()) {
            let values: Vec<&str> = line.split('\t').collect();
            if values.len() != names.len() {
                return Err(malformed(
                    number,
                    "the number of columns differs from the header's",
                ));
            }
            let entry: Entry = names
                .iter()
                .zip(values)
                .map(|(n, v)| ((*n).to_owned(), v.to_owned()))
                .collect();
            entries.insert(entry["source"].clone(), entry);
        }
        Ok(Self { entries })
    }

    /// What the manifest says of a source.
    #[must_use]
    pub fn get(&self, source: &str) -> Option<&Entry> {
        self.entries.get(source)
    }

    /// The first of `terms` that the restriction of `source` names, if any: `non-commercial`
    /// matches `non-commercial, no-derivatives` as well as `permissive (a few non-commercial)`.
    #[must_use]
    pub fn restricted<'a>(&self, source: &str, terms: &'a [String]) -> Option<&'a str> {
        let restriction = self.get(source)?.get("restriction")?;
        terms
            .iter()
            .find(|t| restriction.contains(t.as_str()))
            .map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restrictions() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("MANIFEST.tsv");
        let text = "source\trestriction\nnews\tresearch\nui\tmixed, partly copyleft\n";
        std::fs::write(&path, text).expect("write");
        let manifest = Manifest::read(&path).expect("manifest");
        let terms = ["non-commercial".to_owned(), "research".to_owned()];
        assert_eq!(manifest.restricted("news", &terms), Some("research"));
        assert_eq!(manifest.restricted("ui", &terms), None);
        assert_eq!(manifest.restricted("other", &terms), None);
        std::fs::write(&path, "a\tb\n").expect("write");
        assert!(Manifest::read(&path).is_err());
    }
}
