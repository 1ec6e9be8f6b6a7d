//! Labelled texts and pairs of texts in the forms in which they are published.

use std::path::Path;

use serde::Deserialize;

use super::input::{Line, Lines, open};
use super::{DataError, Result};

/// Form of a file of labelled texts. Files may be plain, gzip or Zstandard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One object a line with `gold_label`, `sentence1`, `sentence2` and perhaps `language`: SNLI,
    /// MultiNLI, XNLI.
    Json,
    /// Tab-separated with a header that has these names.
    Named(Columns),
    /// `label<TAB>text`: MLDoc.
    Label,
    /// `split<TAB>label<TAB>text[<TAB>text]`.
    Split,
}

/// Positions of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Columns {
    label: usize,
    first: usize,
    second: usize,
    language: Option<usize>,
}

/// A labelled text, or pair of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labelled {
    /// Part of the file, where it says so.
    pub split: Option<String>,
    /// Language, where the file says so.
    pub language: Option<String>,
    /// Label as it stands in the file.
    pub label: String,
    /// Text, or premise.
    pub text: String,
    /// The hypothesis, where lines are pairs.
    pub second: Option<String>,
}

#[derive(Deserialize)]
struct Object {
    gold_label: String,
    sentence1: String,
    sentence2: String,
    language: Option<String>,
}

impl Form {
    fn of(line: &str) -> Result<Self, String> {
        if line.starts_with('{') {
            return Ok(Self::Json);
        }
        let columns: Vec<&str> = line.split('\t').collect();
        let at = |name: &str| columns.iter().position(|c| *c == name);
        let named = |label, first, second| {
            Some(Self::Named(Columns {
                label: at(label)?,
                first: at(first)?,
                second: at(second)?,
                language: at("language"),
            }))
        };
        let header = named("gold_label", "sentence1", "sentence2")
            .or_else(|| named("label", "premise", "hypo"));
        match (header, columns.len()) {
            (Some(form), _) => Ok(form),
            (None, 2) => Ok(Self::Label),
            (None, 3 | 4) => Ok(Self::Split),
            (None, n) => Err(format!(
                "{n} columns; expected split, label, text[, text]; label, text; JSON; or a header with \
                 gold_label, sentence1, sentence2"
            )),
        }
    }

    fn has_header(self) -> bool {
        matches!(self, Self::Named(_))
    }

    /// The example of a line; none if people did not agree on its label.
    fn parse(self, line: &str) -> Result<Option<Labelled>, String> {
        let columns: Vec<&str> = line.split('\t').collect();
        let own = |text: &str| text.to_owned();
        let column = |i: usize| {
            let cell = columns.get(i).copied().map(own);
            cell.ok_or_else(|| format!("column {} is missing", i + 1))
        };
        let mut example = match (self, &columns[..]) {
            (Self::Json, _) => {
                let object: Object = serde_json::from_str(line).map_err(|e| e.to_string())?;
                Labelled {
                    split: None,
                    language: object.language,
                    label: object.gold_label,
                    text: object.sentence1,
                    second: Some(object.sentence2),
                }
            }
            (Self::Named(named), _) => Labelled {
                split: None,
                language: named.language.map(column).transpose()?,
                label: column(named.label)?,
                text: column(named.first)?,
                second: Some(column(named.second)?),
            },
            (Self::Label, [label, text]) => Labelled {
                label: own(label),
                text: own(text),
                ..Labelled::default()
            },
            (Self::Split, [split, label, text, rest @ ..]) if rest.len() < 2 => Labelled {
                split: Some(own(split)),
                language: None,
                label: own(label),
                text: own(text),
                second: rest.first().copied().map(own),
            },
            (Self::Label | Self::Split, _) => {
                return Err(format!("{} columns, unlike the first line", columns.len()));
            }
        };
        // XNLI's translated training sets have it so.
        if example.label == "contradictory" {
            example.label = "contradiction".into();
        }
        if example.label.is_empty() {
            return Err("the label is empty".into());
        }
        Ok((example.label != "-").then_some(example))
    }
}

/// Reads a file; its form is told by its first line. Pairs with the label `-` (SNLI's, for which there was
/// no majority) are left out.
///
/// # Errors
/// If the file cannot be read or is empty, and [`DataError::Malformed`] with file and line.
pub fn read(path: &Path) -> Result<Vec<Labelled>> {
    let mut lines = Lines::new(open(path)?);
    let mut form = None;
    let mut examples = Vec::new();
    loop {
        let parsed = match lines.next_line().map_err(|e| DataError::io(path, e))? {
            Line::End => break,
            Line::Malformed(message) => Err(message.to_string()),
            Line::Text(line) => match form {
                Some(form) => Form::parse(form, line),
                None => Form::of(line).and_then(|found| {
                    form = Some(found);
                    if found.has_header() {
                        Ok(None)
                    } else {
                        found.parse(line)
                    }
                }),
            },
        };
        match parsed {
            Ok(example) => examples.extend(example),
            Err(message) => {
                return Err(DataError::Malformed {
                    path: path.display().to_string(),
                    line: lines.number(),
                    message,
                });
            }
        }
    }
    if examples.is_empty() {
        let message = format!("\"{}\" has no labelled texts", path.display());
        return Err(DataError::Config(message));
    }
    Ok(examples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<Labelled>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.tsv");
        std::fs::write(&path, text).unwrap();
        read(&path).map_err(|e| e.to_string())
    }

    fn example(language: Option<&str>, label: &str, text: &str, second: Option<&str>) -> Labelled {
        Labelled {
            split: None,
            language: language.map(str::to_owned),
            label: label.into(),
            text: text.into(),
            second: second.map(str::to_owned),
        }
    }

    #[test]
    fn every_published_form_is_read() {
        let json = concat!(
            r#"{"gold_label": "neutral", "sentence1": "a\tb", "sentence2": "c", "pairID": "1"}"#,
            "\n",
            r#"{"gold_label": "-", "sentence1": "x", "sentence2": "y"}"#,
            "\n"
        );
        let wanted = vec![example(None, "neutral", "a\tb", Some("c"))];
        assert_eq!(read_text(json), Ok(wanted));

        let xnli = "language\tgold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpairID\n\
                    de\tentailment\t( x )\tA \"b.\tC.\t1\nfr\t-\t( x )\tA\tB\t2\n";
        let wanted = vec![example(Some("de"), "entailment", "A \"b.", Some("C."))];
        assert_eq!(read_text(xnli), Ok(wanted));

        let translated = "premise\thypo\tlabel\nA\tB\tcontradictory\n";
        let wanted = vec![example(None, "contradiction", "A", Some("B"))];
        assert_eq!(read_text(translated), Ok(wanted));

        let wanted = vec![example(None, "CCAT", "Some text.", None)];
        assert_eq!(read_text("CCAT\tSome text.\n"), Ok(wanted));

        let mut plain = example(None, "1", "A", Some("B"));
        plain.split = Some("dev".into());
        assert_eq!(read_text("dev\t1\tA\tB\n"), Ok(vec![plain]));
    }

    #[test]
    fn mistakes_name_file_and_line() {
        for (text, wanted) in [
            ("", "no labelled texts"),
            ("train\tone column too many\t\t\t\n", "x.tsv:1: 5 columns"),
            ("CCAT\ttext\nCCAT\n", "x.tsv:2: 1 columns, unlike"),
            ("train\t1\ta\ntrain\t\tb\n", "x.tsv:2: the label is empty"),
            (
                "gold_label\tsentence1\tsentence2\nx\ty\n",
                "x.tsv:2: column 3",
            ),
            ("{\"gold_label\": 1}\n", "x.tsv:1: "),
        ] {
            let error = read_text(text).unwrap_err();
            assert!(error.contains(wanted), "{text:?}: {error}");
        }
    }
}
