//! Documents name what exists, and the code map what there is.

use std::collections::BTreeSet;

use super::files::{files, root};

/// Placeholders in names of files.
const PATTERNS: [&str; 5] = ["NAME", "OLD", "NEW", "PAPER", "TABLE"];
/// Files that documents name, and that are not of this repository.
const ELSEWHERE: [&str; 3] = ["config.toml", "mine_bitexts.py", "models.py"];
/// Endings of names that are of files.
const ENDINGS: [&str; 13] = [
    "rs", "sql", "slt", "sh", "md", "toml", "py", "yml", "cu", "cuh", "cpp", "h", "svg",
];

/// The documents but for the changelog, which names what was.
fn documents() -> Vec<String> {
    let mut documents = files();
    documents.retain(|path| {
        let is_ours = !path.contains('/') || path.starts_with("docs/");
        is_ours && path.ends_with(".md") && path != "CHANGELOG.md"
    });
    documents
}

/// Whether a document names a file or folder of this repository here: by its path, or by the end of that.
fn is_path(word: &str, tops: &BTreeSet<String>) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._@-".contains(c);
    if !word.chars().all(plain) || PATTERNS.iter().any(|pattern| word.contains(pattern)) {
        return false;
    }
    let is_file = word
        .rsplit_once('.')
        .is_some_and(|(stem, ending)| !stem.is_empty() && ENDINGS.contains(&ending));
    let top = word.split_once('/').map(|(top, _)| top);
    (is_file && !word.starts_with('/')) || top.is_some_and(|top| tops.contains(top))
}

#[test]
fn what_documents_name_exists() {
    let files = files();
    let folders = || files.iter().filter_map(|path| path.split_once('/'));
    let tops: BTreeSet<String> = folders().map(|(top, _)| top.to_owned()).collect();
    let (mut named, mut missing) = (0, Vec::new());
    for document in documents() {
        let text = std::fs::read_to_string(root().join(&document)).expect("a document");
        for code in text.split('`').skip(1).step_by(2) {
            let word = code.split([' ', ':', '#', '\n']).next().unwrap_or_default();
            let word = word.trim_end_matches([',', '/']);
            if !is_path(word, &tops) || ELSEWHERE.contains(&word) {
                continue;
            }
            named += 1;
            let end = format!("/{word}");
            let is_there = |path: &String| path == word || path.ends_with(&end);
            if !root().join(word).exists() && !files.iter().any(is_there) {
                missing.push(format!("{document}: {word}"));
            }
        }
    }
    assert!(named > 200, "only {named} paths were found");
    assert!(missing.is_empty(), "documents name {missing:#?}");
}

/// Lines of the code map: a folder or file, and what is in it by deeper lines.
fn code_map() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("a document");
    let (_, map) = text.split_once("## Code map").expect("a code map");
    let map = map.split("```").nth(1).expect("a block of code");
    let (mut top, mut paths) = (String::new(), BTreeSet::new());
    for line in map.lines().skip(1) {
        let depth = line.len() - line.trim_start().len();
        // Several names may share a line of the top.
        for name in line.split_whitespace() {
            let (plain, more) = match name.strip_suffix(',') {
                Some(plain) => (plain, true),
                None => (name, false),
            };
            let is_name = plain.ends_with('/') || plain.contains('.') || depth == 0 && more;
            if depth > 2 || !is_name {
                break;
            }
            if depth == 0 {
                top = plain.to_owned();
                paths.insert(top.clone());
            } else {
                paths.insert(format!("{top}{plain}"));
            }
            if !more || depth > 0 {
                break;
            }
        }
    }
    paths
}

#[test]
fn the_code_map_is_complete() {
    let map = code_map();
    assert!(map.len() > 25, "only {} lines of the code map", map.len());
    for path in &map {
        assert!(root().join(path).exists(), "the code map has {path}");
    }
    let mut folders = BTreeSet::new();
    for path in files() {
        let mut parts = path.split_inclusive('/');
        let top = parts.next().unwrap_or_default();
        if top.ends_with('/') {
            folders.insert(top.to_owned());
        }
        if top == "crates/"
            && let Some(name) = parts.next()
        {
            folders.insert(format!("{top}{name}"));
        }
    }
    let is_named = |folder: &&String| !map.iter().any(|path| path.starts_with(&***folder));
    let missing: Vec<_> = folders.iter().filter(is_named).collect();
    assert!(missing.is_empty(), "the code map lacks {missing:?}");
}
