//! Chooses the n-grams of a vocabulary.

use std::collections::HashMap;

use laser_model::ngrams::{NgramConfig, for_each};
use rayon::prelude::*;

/// The `count` most frequent beginnings of words in `texts` ([`laser_model::ngrams`]), the most
/// frequent first; equally frequent ones in alphabetical order. `inside` is as in the configuration.
#[must_use]
pub fn ngrams(texts: &[String], lengths: &[usize], inside: bool, count: usize) -> NgramConfig {
    let counts = texts
        .par_chunks(4096)
        .map(|chunk| {
            let mut words: HashMap<&str, u64> = HashMap::new();
            for word in chunk.iter().flat_map(|text| text.split_whitespace()) {
                *words.entry(word).or_default() += 1;
            }
            let mut counts: HashMap<String, u64> = HashMap::new();
            for (word, n) in words {
                for_each(word, lengths, inside, |ngram| match counts.get_mut(ngram) {
                    Some(count) => *count += n,
                    None => drop(counts.insert(ngram.to_owned(), n)),
                });
            }
            counts
        })
        .reduce(HashMap::new, |a, b| {
            let (mut large, small) = if a.len() >= b.len() { (a, b) } else { (b, a) };
            for (ngram, n) in small {
                *large.entry(ngram).or_default() += n;
            }
            large
        });
    let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
    counts.sort_unstable_by(|(a, n), (b, m)| m.cmp(n).then_with(|| a.cmp(b)));
    counts.truncate(count);
    NgramConfig {
        lengths: lengths.to_vec(),
        inside,
        vocabulary: counts.into_iter().map(|(ngram, _)| ngram).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_beginnings_come_first() {
        let texts = ["Tom and Tomas", "Том, Mary", "and Mar"].map(str::to_owned);
        let config = ngrams(&texts, &[3, 5], false, 3);
        assert_eq!(config.lengths, [3, 5]);
        assert_eq!(config.vocabulary, ["tom", "and", "mar"]);
        assert_eq!(ngrams(&texts, &[5], false, 9).vocabulary, ["tomas"]);
    }
}
