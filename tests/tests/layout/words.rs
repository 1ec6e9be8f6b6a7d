//! Words that readers stumbled over stay out of names, messages and documents.

use super::files::{files, root};

/// Names and phrases that have plain ones: a timeout, `needs_rebuild`, a quantum, `filter_candidates`, a backward pass,
/// again; out of memory, busy, read or visited, at least or at most this many.
const DISCOURAGED: &[&str] = &[
    "GRAIN",
    "HOPELESS",
    "Pulse",
    "Trouble",
    "anew",
    "for want of",
    "is no mining state",
    "laden",
    "looked at",
    "rotten",
    "sieve",
    "so many",
    "the way back",
    "what is wished",
];

/// Records of what was, this list, and texts that are data.
const LEFT_OUT: [&str; 6] = [
    "docs/security-review.md",
    "tests/tests/layout/words.rs",
    "tests/fixtures/",
    "fuzz/corpus/",
    "crates/import/tests/fixtures/",
    "encoder/models/",
];

/// Whether a line has a word, or a phrase, that is not a part of a longer one.
fn has(text: &str, phrase: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(phrase).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + phrase.len()..]);
        !before.ends_with(part) && !after.starts_with(part)
    })
}

#[test]
fn discouraged_words_stay_out() {
    let (mut read, mut found) = (0, Vec::new());
    for path in files() {
        let is_text = [".rs", ".sql", ".slt", ".md", ".sh", ".toml"]
            .iter()
            .any(|ending| path.ends_with(ending));
        if !is_text || LEFT_OUT.iter().any(|left| path.starts_with(left)) {
            continue;
        }
        let text = std::fs::read_to_string(root().join(&path)).expect("a text");
        read += 1;
        for (number, line) in text.lines().enumerate() {
            let words = DISCOURAGED.iter().filter(|phrase| has(line, phrase));
            found.extend(words.map(|word| format!("{path}:{}: {word}", number + 1)));
        }
    }
    assert!(read > 500, "only {read} files");
    assert!(found.is_empty(), "discouraged words: {found:#?}");
}
