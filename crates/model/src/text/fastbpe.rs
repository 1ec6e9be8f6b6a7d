//! fastBPE's segmentation (`applybpe` with a vocabulary), after its published C++ source.

use std::collections::{HashMap, HashSet};

use crate::{ModelError, config};

/// End of a word inside of merges.
const END: &str = "</w>";
/// Mark of a piece that is not a word's last.
const CONTINUES: &str = "@@";

/// Merges and vocabulary.
pub(super) struct FastBpe {
    /// Rank of a pair.
    ranks: HashMap<(String, String), usize>,
    /// What a merged piece was made of.
    parts: HashMap<String, (String, String)>,
    vocabulary: HashSet<String>,
}

impl FastBpe {
    pub fn new(config: &config::FastBpe) -> Result<Self, ModelError> {
        let mut ranks = HashMap::new();
        let mut parts = HashMap::new();
        for (rank, merge) in config.merges.iter().enumerate() {
            let pair = merge
                .split_once(' ')
                .ok_or_else(|| ModelError::Config(format!("invalid merge \"{merge}\"")))?;
            let pair = (pair.0.to_owned(), pair.1.to_owned());
            parts.insert(format!("{}{}", pair.0, pair.1), pair.clone());
            ranks.entry(pair).or_insert(rank);
        }
        Ok(Self {
            ranks,
            parts,
            vocabulary: config.vocabulary.iter().cloned().collect(),
        })
    }

    /// Pieces of all words, separated by spaces; every piece but a word's last ends in `@@`.
    pub fn segment(&self, text: &str) -> String {
        let mut out = String::new();
        for word in text.split(' ').filter(|w| !w.is_empty()) {
            self.word(word, &mut out);
        }
        out
    }

    fn word(&self, word: &str, out: &mut String) {
        let mut pieces: Vec<String> = word.chars().map(String::from).collect();
        if let Some(last) = pieces.last_mut() {
            last.push_str(END);
        }
        loop {
            let best = pieces
                .windows(2)
                .filter_map(|pair| {
                    let key = (pair[0].clone(), pair[1].clone());
                    self.ranks.get(&key).map(|&rank| (rank, key))
                })
                .min();
            let Some((_, (left, right))) = best else {
                break;
            };
            // All occurrences, from the left.
            let mut merged = Vec::with_capacity(pieces.len());
            let mut rest = pieces.into_iter().peekable();
            while let Some(mut piece) = rest.next() {
                if piece == left && rest.peek() == Some(&right) {
                    piece.push_str(&right);
                    rest.next();
                }
                merged.push(piece);
            }
            pieces = merged;
        }
        let count = pieces.len();
        for (i, piece) in pieces.iter().enumerate() {
            self.limit(piece, i + 1 == count, out);
        }
    }

    /// Writes a piece, taken apart again until its parts are in the vocabulary.
    fn limit(&self, piece: &str, is_final: bool, out: &mut String) {
        let mut stack = vec![(piece.to_owned(), is_final)];
        while let Some((piece, is_final)) = stack.pop() {
            let shown = if is_final {
                piece.strip_suffix(END).unwrap_or(&piece).to_owned()
            } else {
                format!("{piece}{CONTINUES}")
            };
            match self.parts.get(&piece) {
                Some((left, right))
                    if !self.vocabulary.is_empty() && !self.vocabulary.contains(&shown) =>
                {
                    stack.push((right.clone(), is_final));
                    stack.push((left.clone(), false));
                }
                _ => {
                    if !out.is_empty() {
                        out.push(' ');
                    }
                    out.push_str(&shown);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bpe(vocabulary: &[&str]) -> FastBpe {
        FastBpe::new(&config::FastBpe {
            merges: ["l o", "lo w</w>", "lo w", "e r</w>", "low er</w>"]
                .map(String::from)
                .into(),
            vocabulary: vocabulary.iter().map(|s| (*s).into()).collect(),
        })
        .unwrap()
    }

    #[test]
    fn merges_in_order_of_rank() {
        assert_eq!(bpe(&[]).segment("low lower  slow"), "low lower s@@ low");
    }

    #[test]
    fn pieces_outside_the_vocabulary_are_taken_apart() {
        let vocabulary = ["lo@@", "w", "w@@", "er", "s@@"];
        assert_eq!(
            bpe(&vocabulary).segment("lower slow"),
            "lo@@ w@@ er s@@ lo@@ w"
        );
    }

    #[test]
    fn malformed_merges_are_refused() {
        let config = config::FastBpe {
            merges: vec!["ab".into()],
            vocabulary: vec![],
        };
        assert!(FastBpe::new(&config).is_err());
    }
}
