//! Small model folders with random weights, written without the code under test.
//!
//! The tokenizer works on bytes (every text has tokens, none is unknown), so any sentence in any
//! script has an embedding, in microseconds. The embeddings mean nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tempfile::TempDir;

use crate::Cluster;

/// How tokens become one embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// The mean of token vectors: blind to the order of the bytes.
    Mean,
    /// Bidirectional LSTM layers, max-pooled: sees the order.
    BiLstm,
    /// The mean of token vectors plus a gated bidirectional LSTM layer.
    ResidualBilstm,
    /// One transformer layer with mean pooling.
    Transformer,
}

/// A model to write; the same values give the same files.
#[derive(Clone, Debug)]
pub struct Model {
    /// Name of the model and of its folder.
    pub name: String,
    /// Architecture of the encoder.
    pub architecture: Architecture,
    /// Components of an embedding; even.
    pub dimensions: usize,
    /// Layers of the LSTM; others have one.
    pub layers: usize,
    /// Longest text in tokens, special tokens included.
    pub max_tokens: usize,
    /// Seed of the weights: another seed is another model.
    pub seed: u64,
}

impl Model {
    /// A mean of token vectors with this many dimensions, texts of up to 128 tokens.
    pub fn tiny(name: &str, dimensions: usize) -> Model {
        Model {
            name: name.to_owned(),
            architecture: Architecture::Mean,
            dimensions,
            layers: 1,
            max_tokens: 128,
            seed: 1,
        }
    }

    /// Writes the folder `<path>/<name>`, readable by every account, and returns it.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, path: &Path) -> Result<PathBuf> {
        self.write_files(
            path,
            &[
                ("config.json", self.config("").into_bytes()),
                ("tokenizer.json", tokenizer().into_bytes()),
                ("model.safetensors", safetensors(&self.tensors())),
            ],
        )
    }

    /// As [`Model::write`], but with tokenizer and table of the model `base` beside it, whose fingerprint is
    /// given in hexadecimal digits.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_on(&self, path: &Path, base: &str, fingerprint: &str) -> Result<PathBuf> {
        let base = format!(
            r#",
  "base": {{ "model": "{base}", "fingerprint": "{fingerprint}" }}"#
        );
        let mut tensors = self.tensors();
        tensors.remove("embed_tokens.weight");
        self.write_files(
            path,
            &[
                ("config.json", self.config(&base).into_bytes()),
                ("model.safetensors", safetensors(&tensors)),
            ],
        )
    }

    /// As [`Model::write`], for a model that reads these before queries and passages.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_with_prefixes(&self, path: &Path, query: &str, passage: &str) -> Result<PathBuf> {
        let prefixes = format!(
            r#",
  "prefixes": {{ "query": "{query}", "passage": "{passage}" }}"#
        );
        self.write_files(
            path,
            &[
                ("config.json", self.config(&prefixes).into_bytes()),
                ("tokenizer.json", tokenizer().into_bytes()),
                ("model.safetensors", safetensors(&self.tensors())),
            ],
        )
    }

    /// A transformer that scores pairs: as [`Model::write`], with a layer that gives a score.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_reranker(&self, path: &Path) -> Result<PathBuf> {
        let d = self.dimensions;
        let more = format!(
            r#",
  "task": "rerank",
  "dense": [{{ "in": {d}, "out": 1, "activation": "none" }}]"#
        );
        let config = self.config(&more);
        let config = config.replace(&format!("\"dimensions\": {d}"), "\"dimensions\": 1");
        let config = config.replace("\"normalize\": true", "\"normalize\": false");
        let mut tensors = self.tensors();
        let weight = (0..d).map(|i| (i as f32).sin()).collect();
        tensors.insert("dense.0.weight".to_owned(), (vec![1, d], weight));
        tensors.insert("dense.0.bias".to_owned(), (vec![1], vec![0.5]));
        self.write_files(
            path,
            &[
                ("config.json", config.into_bytes()),
                ("tokenizer.json", tokenizer().into_bytes()),
                ("model.safetensors", safetensors(&tensors)),
            ],
        )
    }

    fn write_files(&self, path: &Path, files: &[(&str, Vec<u8>)]) -> Result<PathBuf> {
        let folder = path.join(&self.name);
        fs::create_dir_all(&folder)?;
        for open in [path, &folder] {
            let mode = fs::metadata(open)?.permissions().mode() | 0o755;
            // Best effort: the parent may belong to the system, and is open then.
            let _ = fs::set_permissions(open, fs::Permissions::from_mode(mode));
        }
        for (name, contents) in files {
            let file = folder.join(name);
            fs::write(&file, contents)?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644))?;
        }
        Ok(folder)
    }

    fn config(&self, more: &str) -> String {
        let d = self.dimensions;
        let encoder = match self.architecture {
            Architecture::Mean => {
                format!(r#""architecture": "mean", "embedding_size": {d}, "pooling": "mean""#)
            }
            Architecture::BiLstm => format!(
                r#""architecture": "bilstm", "embedding_size": {d}, "hidden_size": {}, "layers": {},
      "pooling": "max", "append_eos": false"#,
                d / 2,
                self.layers
            ),
            Architecture::ResidualBilstm => format!(
                r#""architecture": "residual_bilstm", "embedding_size": {d}, "pooling": "mean",
      "hidden_size": {d}, "layers": {}, "state_pooling": "max""#,
                self.layers
            ),
            Architecture::Transformer => format!(
                r#""architecture": "transformer", "hidden_size": {d}, "layers": 1, "heads": 2,
      "intermediate_size": {}, "max_positions": {}, "type_vocab_size": 1,
      "layer_norm_eps": 1e-12, "activation": "gelu", "norm": "post", "pooling": "mean""#,
                2 * d,
                self.max_tokens
            ),
        };
        format!(
            r#"{{
  "format": 1,
  "name": "{}",
  "dimensions": {d},
  "max_tokens": {},
  "normalize": true,
  "encoder": {{ {encoder} }}{more}
}}
"#,
            self.name, self.max_tokens
        )
    }

    fn tensors(&self) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut tensors = BTreeMap::new();
        let mut add = |name: &str, shape: &[usize], centre: f32, spread: f32| {
            let count = shape.iter().product();
            let data = (0..count)
                .map(|_| centre + random.random_range(-spread..=spread))
                .collect();
            tensors.insert(name.to_owned(), (shape.to_vec(), data));
        };
        let d = self.dimensions;
        match self.architecture {
            Architecture::Mean => add("embed_tokens.weight", &[VOCABULARY, d], 0.0, 1.0),
            Architecture::BiLstm | Architecture::ResidualBilstm => {
                let residual = self.architecture == Architecture::ResidualBilstm;
                let h = if residual { d } else { d / 2 };
                add("embed_tokens.weight", &[VOCABULARY, d], 0.0, 1.0);
                for layer in 0..self.layers {
                    let input = if layer == 0 { d } else { 2 * h };
                    for suffix in ["", "_reverse"] {
                        let mut add = |part: &str, shape: &[usize]| {
                            add(&format!("lstm.{part}_l{layer}{suffix}"), shape, 0.0, 0.5);
                        };
                        add("weight_ih", &[4 * h, input]);
                        add("weight_hh", &[4 * h, h]);
                        add("bias_ih", &[4 * h]);
                        add("bias_hh", &[4 * h]);
                    }
                }
                if residual {
                    add("gate", &[1], 1.0, 0.1);
                    add("projection.weight", &[d, 2 * h], 0.0, 0.3);
                    add("projection.bias", &[d], 0.0, 0.1);
                }
            }
            Architecture::Transformer => {
                let layer = "layers.0";
                add("embed_tokens.weight", &[VOCABULARY, d], 0.0, 1.0);
                add("embed_positions.weight", &[self.max_tokens, d], 0.0, 0.2);
                add("embed_types.weight", &[1, d], 0.0, 0.2);
                let mut norm = |name: &str| {
                    add(&format!("{name}.weight"), &[d], 1.0, 0.1);
                    add(&format!("{name}.bias"), &[d], 0.0, 0.1);
                };
                norm("embed_norm");
                norm(&format!("{layer}.attention_norm"));
                norm(&format!("{layer}.feed_forward_norm"));
                for (part, rows, columns) in [
                    ("attention.query", d, d),
                    ("attention.key", d, d),
                    ("attention.value", d, d),
                    ("attention.output", d, d),
                    ("feed_forward.up", 2 * d, d),
                    ("feed_forward.down", d, 2 * d),
                ] {
                    add(
                        &format!("{layer}.{part}.weight"),
                        &[rows, columns],
                        0.0,
                        0.3,
                    );
                    add(&format!("{layer}.{part}.bias"), &[rows], 0.0, 0.1);
                }
            }
        }
        tensors
    }
}

/// One token per byte.
const VOCABULARY: usize = 256;

/// A byte-level BPE tokenizer without merges.
fn tokenizer() -> String {
    let mut vocabulary = String::new();
    for (id, symbol) in byte_symbols().into_iter().enumerate() {
        let separator = if id == 0 { "" } else { ", " };
        let symbol = match symbol {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            other => other.to_string(),
        };
        write!(vocabulary, "{separator}\"{symbol}\": {id}").expect("a String takes everything");
    }
    format!(
        r#"{{
  "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
  "normalizer": {{ "type": "NFC" }},
  "pre_tokenizer": {{ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false }},
  "post_processor": null,
  "decoder": {{ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false }},
  "model": {{
    "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
    "vocab": {{ {vocabulary} }},
    "merges": []
  }}
}}
"#
    )
}

/// The printable characters that stand for bytes in byte-level BPE (Radford et al. 2019,
/// `bytes_to_unicode` of GPT-2's encoder): printable Latin-1 bytes stand for themselves, the
/// others follow from U+0100 on, in the order of the bytes.
fn byte_symbols() -> Vec<char> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => {
                let symbol = char::from_u32(next).expect("U+0100 to U+0143 are characters");
                next += 1;
                symbol
            }
        })
        .collect()
}

/// The safetensors format: length of the header (u64), header (JSON), data (little endian).
fn safetensors(tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) -> Vec<u8> {
    let mut header = String::from("{");
    let mut data = Vec::new();
    for (name, (shape, values)) in tensors {
        let from = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let separator = if from == 0 { "" } else { "," };
        write!(
            header,
            r#"{separator}"{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{from},{}]}}"#,
            data.len()
        )
        .expect("a String takes everything");
    }
    header.push('}');
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(data);
    file
}

/// A server with two models of the same dimensions that embed differently, `one` and `two`, the first as
/// the default; and the folder with them.
pub fn with_two_models() -> Result<(TempDir, Cluster)> {
    let models = tempfile::tempdir()?;
    for (seed, name) in (1..).zip(["one", "two"]) {
        let model = Model::tiny(name, 32);
        Model { seed, ..model }.write(models.path())?;
    }
    let cluster = Cluster::builder().models(models.path(), "one").start()?;
    Ok((models, cluster))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_symbol_of_its_own() {
        let mut symbols = byte_symbols();
        assert_eq!(symbols[usize::from(b' ')], 'Ġ');
        symbols.sort_unstable();
        symbols.dedup();
        assert_eq!(symbols.len(), VOCABULARY);
    }

    #[test]
    fn the_same_model_is_the_same_file() {
        let model = Model::tiny("a", 8);
        assert_eq!(safetensors(&model.tensors()), safetensors(&model.tensors()));
        let other = Model {
            seed: 2,
            ..model.clone()
        };
        assert_ne!(safetensors(&model.tensors()), safetensors(&other.tensors()));
    }
}
