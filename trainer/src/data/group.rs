//! Sentences that belong together.

/// One sentence of a group: language code and text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Language code as the corpus writes it, `de` or `ckb` or `roa-tara`.
    pub language: String,
    /// One sentence, without line breaks.
    pub text: String,
}

/// Sentences that are translations of each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Key within the source; a line number where the format has no keys.
    pub key: String,
    /// At least one sentence; a language may occur more than once.
    pub rows: Vec<Row>,
}

#[cfg(test)]
impl Group {
    /// A group of languages and texts, for tests.
    pub fn of(key: &str, rows: &[(&str, &str)]) -> Self {
        let row = |(language, text): &(&str, &str)| Row {
            language: (*language).into(),
            text: (*text).into(),
        };
        Self {
            key: key.into(),
            rows: rows.iter().map(row).collect(),
        }
    }
}
