//! Word vectors as a model folder: a sentence is the mean of its words.

use std::collections::BTreeMap;

use laser_model::config::{Architecture, Config, FORMAT, MeanConfig, MeanPooling};
use serde_json::json;

use crate::data::vectors::WordVectors;
use crate::export::Model;

/// Name of the token of words without a vector; its embedding is zero.
const UNKNOWN: &str = "<unk>";

/// A model whose tokens are the words. Text is split at white space and around punctuation, in lower case if
/// `lowercase`.
#[must_use]
pub fn model(vectors: WordVectors, name: &str, lowercase: bool) -> Model {
    let WordVectors {
        words,
        width,
        mut values,
    } = vectors;
    let mut vocabulary: serde_json::Map<String, serde_json::Value> = words
        .into_iter()
        .enumerate()
        .map(|(i, word)| (word, i.into()))
        .collect();
    let unknown = vocabulary.len();
    if !vocabulary.contains_key(UNKNOWN) {
        vocabulary.insert(UNKNOWN.into(), unknown.into());
        values.extend(std::iter::repeat_n(0.0, width));
    }
    let rows = vocabulary.len();
    let normalizer = lowercase.then(|| json!({"type": "Lowercase"}));
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN},
    });
    let config = Config {
        format: FORMAT,
        name: name.to_owned(),
        dimensions: width,
        max_tokens: 512,
        normalize: true,
        text: Default::default(),
        encoder: Architecture::Mean(MeanConfig {
            embedding_size: width,
            pooling: MeanPooling::Mean,
        }),
        dense: Vec::new(),
        checks: Vec::new(),
        base: None,
        prefixes: Default::default(),
        task: Default::default(),
    };
    let table = (vec![rows, width], values);
    Model {
        config,
        tokenizer,
        tensors: BTreeMap::from([("embed_tokens.weight".to_owned(), table)]),
        dictionary: None,
    }
}

#[cfg(test)]
mod tests {
    use laser_encoder::{Encoder, LoadOptions};

    use super::super::sif;
    use super::*;
    use crate::export::{ExportOptions, Format};

    /// "the" is frequent; all words lie near (0, 0, 1).
    fn words() -> WordVectors {
        WordVectors {
            words: ["the", "dog", "cat", "runs"].map(str::to_owned).to_vec(),
            width: 3,
            values: [
                [0.1, 0.1, 1.0],
                [1.0, 0.0, 1.0],
                [0.0, 1.0, 1.0],
                [0.5, -0.5, 1.0],
            ]
            .concat(),
        }
    }

    fn embed(model: &Model, texts: &[&str]) -> Vec<f32> {
        let folder = tempfile::tempdir().unwrap();
        let options = ExportOptions {
            name: None,
            table: Format::F32,
            matrices: Format::F32,
            checks: Vec::new(),
            base: None,
        };
        model.write(folder.path(), &options).unwrap();
        let encoder = Encoder::load(folder.path(), &LoadOptions::default()).unwrap();
        encoder.encode(texts).unwrap().data
    }

    fn unit(mut v: [f32; 3]) -> [f32; 3] {
        let norm = v.iter().map(|x| x * x).sum::<f32>().sqrt();
        v.iter_mut().for_each(|x| *x /= norm);
        v
    }

    fn close(a: &[f32], b: &[f32]) {
        let near = a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        assert!(a.len() == b.len() && near, "{a:?} {b:?}");
    }

    #[test]
    fn a_sentence_is_the_mean_of_its_words() {
        let model = model(words(), "words", true);
        let found = embed(&model, &["The dog, unheard-of", "runs"]);
        close(&found[..3], &unit([1.1, 0.1, 2.0]));
        close(&found[3..], &unit([0.5, -0.5, 1.0]));
    }

    #[test]
    fn sif_weighs_and_removes_what_all_have_in_common() {
        let mut model = model(words(), "words", true);
        let sentences = vec![vec![0, 1], vec![0, 2], vec![0, 3], vec![0, 0, 1, 3], vec![]];
        let a = 0.1;
        sif::weight(&mut model, &sentences, a, 1).unwrap();
        // By the definition, in f64: frequencies of 10 tokens are 5, 2, 1, 2.
        let factor = |count: f64| a / (a + count / 10.0);
        let factors = [5.0, 2.0, 1.0, 2.0].map(factor);
        let table = words();
        let average = |ids: &[u32]| -> [f64; 3] {
            let mut sum = [0.0; 3];
            for id in ids {
                for (s, v) in sum.iter_mut().zip(table.row(*id as usize)) {
                    *s += factors[*id as usize] * f64::from(*v) / ids.len() as f64;
                }
            }
            sum
        };
        let averages: Vec<[f64; 3]> = sentences[..4].iter().map(|s| average(s)).collect();
        // Power iteration.
        let mut u = [0.3f64, 0.2, 1.0];
        for _ in 0..1000 {
            let mut next = [0.0; 3];
            for x in &averages {
                let along: f64 = x.iter().zip(&u).map(|(a, b)| a * b).sum();
                next.iter_mut().zip(x).for_each(|(n, x)| *n += along * x);
            }
            let norm = next.iter().map(|x| x * x).sum::<f64>().sqrt();
            u = next.map(|x| x / norm);
        }
        let wanted = |ids: &[u32]| {
            let x = average(ids);
            let along: f64 = x.iter().zip(&u).map(|(a, b)| a * b).sum();
            let mut left = [0f32; 3];
            for ((l, x), u) in left.iter_mut().zip(x).zip(u) {
                *l = (x - along * u) as f32;
            }
            unit(left)
        };
        let found = embed(&model, &["the dog", "the the dog runs", "cat"]);
        close(&found[..3], &wanted(&[0, 1]));
        close(&found[3..6], &wanted(&[0, 0, 1, 3]));
        close(&found[6..], &wanted(&[2]));
        assert!(sif::weight(&mut model, &sentences, a, 1).is_err(), "twice");
        let mut fresh = super::model(words(), "words", false);
        assert!(sif::weight(&mut fresh, &[vec![]], a, 1).is_err(), "no text");
    }
}
