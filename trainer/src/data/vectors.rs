//! Word vectors in fastText's text format, and dictionaries of word pairs.
//!
//! The first line of the format has the number of words and the width; each other one a word and its
//! values, separated by spaces (Bojanowski et al., TACL 2017; also what word2vec and MUSE write).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write as _;
use std::path::Path;

use super::input::{Line, Lines, open};
use super::{DataError, Result};

/// Words with a vector each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WordVectors {
    /// Words, each once, the most frequent one first in published files.
    pub words: Vec<String>,
    /// Elements of a vector.
    pub width: usize,
    /// [words, width].
    pub values: Vec<f32>,
}

impl WordVectors {
    /// Reads a file, plain, gzip or Zstandard; at most the first `max_vectors` words. Of a word that occurs twice the
    /// first vector counts; words whose vector is zero have no direction and are left out.
    ///
    /// # Errors
    /// [`DataError::Io`]; [`DataError::Malformed`] with file and line.
    pub fn read(path: &Path, max_vectors: Option<usize>) -> Result<Self> {
        let mut lines = Lines::new(open(path)?);
        let mut all = Self::default();
        let mut known = std::collections::HashSet::new();
        let mut row: Vec<f32> = Vec::new();
        loop {
            let number = lines.number() + 1;
            let malformed = |message: String| DataError::Malformed {
                path: path.display().to_string(),
                line: number,
                message,
            };
            let line = match lines.next_line().map_err(|e| DataError::io(path, e))? {
                Line::End if all.width == 0 => {
                    return Err(malformed("the file is empty".into()));
                }
                Line::End => break,
                Line::Malformed(message) => return Err(malformed(message.into())),
                Line::Text(line) => line.trim_end(),
            };
            if all.width == 0 {
                let width = line
                    .split_once(' ')
                    .filter(|(words, _)| words.parse::<u64>().is_ok())
                    .and_then(|(_, width)| width.trim().parse().ok());
                let what = "the first line is not the number of words and the width";
                all.width = width
                    .filter(|w| (1..=1 << 16).contains(w))
                    .ok_or_else(|| malformed(what.into()))?;
                continue;
            }
            if max_vectors.is_some_and(|max| all.words.len() >= max) {
                break;
            }
            // A word may contain a space; the values do not.
            row.clear();
            let mut rest = line;
            for _ in 0..all.width {
                let (before, value) = rest.rsplit_once(' ').unwrap_or(("", rest));
                let value: f32 = value
                    .parse()
                    .ok()
                    .filter(|v: &f32| v.is_finite())
                    .ok_or_else(|| malformed(format!("\"{value}\" is no finite number")))?;
                row.push(value);
                rest = before;
            }
            if rest.is_empty() {
                return Err(malformed(format!("not a word and {} values", all.width)));
            }
            if row.iter().any(|v| *v != 0.0) && known.insert(rest.to_owned()) {
                all.words.push(rest.to_owned());
                all.values.extend(row.iter().rev());
            }
        }
        Ok(all)
    }

    /// Writes the file. Values are read back as they were.
    ///
    /// # Errors
    /// [`DataError::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let fail = |e| DataError::io(path, e);
        let mut out = std::io::BufWriter::new(std::fs::File::create(path).map_err(fail)?);
        writeln!(out, "{} {}", self.words.len(), self.width).map_err(fail)?;
        for (word, row) in self.words.iter().zip(self.values.chunks_exact(self.width)) {
            out.write_all(word.as_bytes()).map_err(fail)?;
            for value in row {
                write!(out, " {value}").map_err(fail)?;
            }
            out.write_all(b"\n").map_err(fail)?;
        }
        out.into_inner().map_err(|e| fail(e.into_error()))?;
        Ok(())
    }

    /// The vector of [`WordVectors::words`]`[i]`, `width` elements.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.width..(i + 1) * self.width]
    }

    /// Where each word is in [`WordVectors::words`].
    #[must_use]
    pub fn positions(&self) -> HashMap<&str, u32> {
        self.words.iter().map(String::as_str).zip(0..).collect()
    }
}

/// Pairs of words that translate each other, in the order of the file: `source<TAB or space>target` a line, as in
/// MUSE's dictionaries.
///
/// # Errors
/// [`DataError::Io`]; [`DataError::Malformed`] with file and line.
pub fn read_dictionary(path: &Path) -> Result<Vec<(String, String)>> {
    let mut lines = Lines::new(open(path)?);
    let mut pairs = Vec::new();
    loop {
        let number = lines.number() + 1;
        let malformed = |message: &str| DataError::Malformed {
            path: path.display().to_string(),
            line: number,
            message: message.to_owned(),
        };
        let line = match lines.next_line().map_err(|e| DataError::io(path, e))? {
            Line::End => return Ok(pairs),
            Line::Malformed(message) => return Err(malformed(message)),
            Line::Text(line) => line.trim(),
        };
        if line.is_empty() {
            continue;
        }
        let by_tab = line.split_once('\t');
        let pair = by_tab.or_else(|| line.split_once(' '));
        let (source, target) = pair.ok_or_else(|| malformed("not two words"))?;
        pairs.push((source.trim().to_owned(), target.trim().to_owned()));
    }
}

/// A dictionary by positions: each source word with its translations. Pairs one of whose words is not
/// known are left out.
#[must_use]
pub fn by_position(
    pairs: &[(String, String)],
    source: &HashMap<&str, u32>,
    target: &HashMap<&str, u32>,
) -> BTreeMap<u32, BTreeSet<u32>> {
    let mut dictionary: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for (a, b) in pairs {
        if let (Some(a), Some(b)) = (source.get(&a[..]), target.get(&b[..])) {
            dictionary.entry(*a).or_default().insert(*b);
        }
    }
    dictionary
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &[u8], max_vectors: Option<usize>) -> Result<WordVectors> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.vec");
        std::fs::write(&path, text).unwrap();
        WordVectors::read(&path, max_vectors)
    }

    #[test]
    fn words_are_read_and_mistakes_named() {
        let text = b"5 2\nthe 1 -2e-1\nof 0 0 \nNew York 3 4\nthe 9 9\nand 5 6\n";
        let all = read(text, None).unwrap();
        assert_eq!(all.words, ["the", "New York", "and"]);
        assert_eq!(all.values, [1.0, -0.2, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(all.row(1), [3.0, 4.0]);
        assert_eq!(read(text, Some(2)).unwrap().words.len(), 2);
        for (text, wanted) in [
            (&b""[..], "x.vec:1: the file is empty"),
            (b"the 1 2\n", "x.vec:1: the first line"),
            (b"1 2\nthe 1 nan\n", "x.vec:2: \"nan\""),
            (b"1 2\nthe 1\n", "x.vec:2: \"the\""),
            (b"1 2\n1 2\n", "x.vec:2: not a word"),
            (b"1 2\n\xff 1 2\n", "x.vec:2: the line is not valid UTF-8"),
        ] {
            let error = read(text, None).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn dictionaries_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.txt");
        std::fs::write(
            &path,
            "Hund dog\n\nHund\thound\nKatze cat\nNew York\tNew York\n",
        )
        .unwrap();
        let pairs = read_dictionary(&path).unwrap();
        assert_eq!(pairs.len(), 4);
        assert_eq!(pairs[3].1, "New York");
        let source = HashMap::from([("Hund", 0), ("Katze", 1)]);
        let target = HashMap::from([("dog", 5), ("hound", 7)]);
        let wanted = BTreeMap::from([(0, BTreeSet::from([5, 7]))]);
        assert_eq!(by_position(&pairs, &source, &target), wanted);
        std::fs::write(&path, "one\n").unwrap();
        let error = read_dictionary(&path).unwrap_err().to_string();
        assert!(error.contains("d.txt:1: not two words"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            rows in proptest::collection::btree_map(
                "[a-zäß'][a-z ]{0,5}[a-z]", proptest::array::uniform3(-1e6f32..1e6), 1..20)
        ) {
            let all = WordVectors {
                words: rows.keys().cloned().collect(),
                width: 3,
                values: rows.values().flatten().copied().collect(),
            };
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x.vec");
            all.write(&path).unwrap();
            prop_assert_eq!(WordVectors::read(&path, None).unwrap(), all);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut text = b"3 2\n".to_vec();
            text.extend(bytes);
            let _ = read(&text, None);
        }
    }
}
