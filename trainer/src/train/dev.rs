//! Retrieval on held-out sentences during training.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::TrainError;
use super::config::DevSet;
use crate::data::readers::{Keyed, Problems, Reader};
use crate::data::{Ragged, text_hash};
use crate::ops::threads::Threads;
use crate::tokenizer::Loaded;
use laser_kernels::training::Arithmetic;
use laser_kernels::training::l2::normalize;

/// A tokenised dev set.
#[derive(Debug)]
pub struct Dev {
    /// File name up to its first dot.
    pub name: String,
    /// Weight in the figure that chooses the best model.
    pub weight: f64,
    /// Language of the candidates.
    pub pivot: String,
    /// The candidates, then the sentences of each language.
    sentences: Ragged,
    /// Distinct sentences of the pivot language.
    candidates: usize,
    /// Key of each sentence that is not a candidate.
    keys: Vec<u32>,
    /// The right candidates of each key.
    right: Vec<Vec<u32>>,
    /// Range of each other language's sentences.
    languages: BTreeMap<String, Range<usize>>,
}

/// Accuracy on one dev set.
#[derive(Clone, Debug, PartialEq)]
pub struct Accuracy {
    /// Mean over languages, from 0 to 1.
    pub mean: f64,
    /// Accuracy of each language's sentences among the pivot's, from 0 to 1.
    pub languages: BTreeMap<String, f64>,
}

impl Dev {
    /// Reads and tokenises a dev set.
    ///
    /// # Errors
    /// [`TrainError::Data`] if it cannot be read, [`TrainError::Config`] if no sentence has a
    /// pivot sentence.
    pub fn load(set: &DevSet, tokenizer: &Loaded, max_tokens: usize) -> Result<Self, TrainError> {
        let mut reader = Keyed::open(&set.path)?;
        let mut problems = Problems::new(false);
        let mut pivots: Vec<String> = Vec::new();
        let mut known: HashMap<u64, u32> = HashMap::new();
        let mut others: BTreeMap<String, Vec<(u32, String)>> = BTreeMap::new();
        let mut right: Vec<Vec<u32>> = Vec::new();
        while let Some(group) = reader.next_group(&mut problems)? {
            if set.keys > 0 && right.len() >= set.keys {
                break;
            }
            if !group.rows.iter().any(|r| r.language == set.pivot) {
                continue;
            }
            let key = right.len() as u32;
            let mut own = Vec::new();
            for row in group.rows {
                if row.language == set.pivot {
                    // One candidate stands for all sentences of the same words.
                    let next = pivots.len() as u32;
                    let candidate = *known.entry(text_hash(&row.text)).or_insert(next);
                    if candidate == next {
                        pivots.push(row.text);
                    }
                    own.push(candidate);
                } else {
                    others
                        .entry(row.language)
                        .or_default()
                        .push((key, row.text));
                }
            }
            right.push(own);
        }
        let name = set.path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.split('.').next().unwrap_or_default().to_string();
        if others.is_empty() {
            return Err(TrainError::Config(format!(
                "dev set \"{name}\" has no sentence beside one in \"{}\"",
                set.pivot
            )));
        }
        let candidates = pivots.len();
        let mut languages = BTreeMap::new();
        let mut texts = pivots;
        let mut keys = Vec::new();
        for (language, rows) in others {
            languages.insert(language, texts.len()..texts.len() + rows.len());
            for (key, text) in rows {
                keys.push(key);
                texts.push(text);
            }
        }
        let mut sentences = Ragged::new();
        for block in texts.chunks(4096) {
            let block: Vec<&str> = block.iter().map(String::as_str).collect();
            for ids in tokenizer.encode(&block)? {
                sentences.push(&ids[..ids.len().min(max_tokens)]);
            }
        }
        Ok(Self {
            name,
            weight: set.weight,
            pivot: set.pivot.clone(),
            sentences,
            candidates,
            keys,
            right,
            languages,
        })
    }

    /// Number of sentences beside the candidates.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Token ids to embed: the candidates, then the sentences of each other language.
    pub fn sentences(&self) -> &Ragged {
        &self.sentences
    }

    /// Languages with their ranges of sentences, the pivot first.
    pub fn parts(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        let others = self.languages.iter();
        std::iter::once((&self.pivot[..], 0..self.candidates))
            .chain(others.map(|(l, range)| (&l[..], range.clone())))
    }

    /// Share of sentences whose nearest candidate by cosine is one of their key, in those languages that are
    /// `counted`, for embeddings of all [`Dev::sentences`].
    pub fn evaluate(
        &self,
        embeddings: (&[f32], usize),
        counted: &dyn Fn(&str) -> bool,
        threads: &Threads,
    ) -> Accuracy {
        let (x, width) = embeddings;
        // The length of a query does not change the order of its candidates.
        let mut candidates = x[..self.candidates * width].to_vec();
        normalize(&mut candidates, width);
        let candidates = &candidates[..];
        let languages: Vec<_> = self.languages.iter().filter(|l| counted(l.0)).collect();
        let ranges: Vec<_> = languages
            .iter()
            .map(|(_, range)| (*range).clone())
            .collect();
        let right = threads.map(ranges, |_, range| {
            const BLOCK: usize = 256;
            let mut similarities = vec![0f32; BLOCK * self.candidates];
            let mut right = 0usize;
            for from in range.clone().step_by(BLOCK) {
                let to = range.end.min(from + BLOCK);
                let n = to - from;
                let s = &mut similarities[..n * self.candidates];
                let queries = &x[from * width..to * width];
                Arithmetic::F32.nt((n, self.candidates, width), queries, candidates, s, false);
                for (q, row) in (from..to).zip(s.chunks_exact(self.candidates)) {
                    let best = row.iter().enumerate().fold((0, f32::MIN), |b, (i, v)| {
                        if *v > b.1 { (i, *v) } else { b }
                    });
                    let key = self.keys[q - self.candidates] as usize;
                    right += usize::from(self.right[key].contains(&(best.0 as u32)));
                }
            }
            right as f64 / range.len() as f64
        });
        let names = languages.iter().map(|(name, _)| (*name).clone());
        let languages: BTreeMap<String, f64> = names.zip(right).collect();
        Accuracy {
            mean: languages.values().sum::<f64>() / languages.len() as f64,
            languages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;
    use super::*;

    #[test]
    fn the_length_of_a_candidate_does_not_decide() {
        let world = World::new();
        let tokenizer = crate::tokenizer::load(&world.path("tokenizer.json")).unwrap();
        let set = DevSet {
            path: world.path("dev.tsv"),
            pivot: "en".into(),
            keys: 0,
            weight: 1.0,
        };
        let dev = Dev::load(&set, &tokenizer, 32).unwrap();
        let (width, all) = (dev.candidates, dev.sentences().len());
        let mut x = vec![0.1f32; all * width];
        for (sentence, row) in x.chunks_exact_mut(width).enumerate() {
            match sentence.checked_sub(width) {
                None => row[sentence] = 1.0,
                Some(query) => row[dev.right[dev.keys[query] as usize][0] as usize] = 1.0,
            }
        }
        x[..width].iter_mut().for_each(|v| *v *= 1000.0);
        let threads = Threads::new(1).unwrap();
        assert_eq!(dev.evaluate((&x, width), &|_| true, &threads).mean, 1.0);
    }
}
