//! From a trained model to the model folder that ships: smaller number formats, and a vocabulary
//! without the tokens that hardly occur.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use laser_model::base;
use laser_model::config::{Architecture, Base, Config};
use laser_model::folder::{self, Tensor, Tensors};
use rayon::prelude::*;
use serde_json::Value;

use crate::data::PackedCorpus;

/// Number format of matrices; vectors (biases, norms, token weights) stay f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// 32-bit floats.
    F32,
    /// Half floats.
    F16,
    /// Brain floats.
    Bf16,
    /// Row-wise int8 with a scale for each row.
    I8,
}

/// Failures of an export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file could not be read.
    #[error("could not access \"{0}\": {1}")]
    Io(String, std::io::Error),
    /// The model folder is damaged.
    #[error(transparent)]
    Model(#[from] laser_model::ModelError),
    /// What was written cannot be loaded.
    #[error(transparent)]
    Encoder(#[from] laser_encoder::EncoderError),
    /// The tokenizer cannot be pruned.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The model cannot build on this one.
    #[error("\"{0}\" cannot be the base: {1}")]
    Base(String, String),
    /// A gate was to be changed where there is none.
    #[error("the architecture \"{0}\" has no gate")]
    NoGate(&'static str),
}

/// How a model is exported.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// Name of the exported model; the old one if not given.
    pub name: Option<String>,
    /// Format of the embedding table.
    pub table: Format,
    /// Format of the other matrices.
    pub matrices: Format,
    /// Sentences on which reduced precision is compared when the model is loaded.
    pub checks: Vec<String>,
    /// Folder of the model that this one builds on: what belongs to tokens is not written.
    pub base: Option<PathBuf>,
}

/// A model in memory.
pub struct Model {
    /// `config.json`.
    pub config: Config,
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// Tensors in f32, by name.
    pub tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    /// Dictionary of word segmentation, where the model's text preparation has that step.
    pub dictionary: Option<Vec<u8>>,
}

/// The embedding table.
const TABLE: &str = "embed_tokens.weight";

/// Reads a model folder of any number format, with what is its base's.
///
/// # Errors
/// [`ExportError`].
pub fn read(from: &Path) -> Result<Model, ExportError> {
    let mut config = folder::read_config(from)?;
    let tokens = base::token_folder(from, &config)?;
    base::verify(from, &config, folder::fingerprint)?;
    let path = tokens.join(folder::TOKENIZER);
    let json = std::fs::read(&path).map_err(|e| ExportError::Io(path.display().to_string(), e))?;
    let tokenizer =
        serde_json::from_slice(&json).map_err(|e| ExportError::Tokenizer(e.to_string()))?;
    let weights = base::weights(from, &config)?;
    let mut tensors = BTreeMap::new();
    for (name, shape) in weights.shapes() {
        let values = match *shape {
            [rows, columns] => weights.matrix(name, rows, columns)?.to_f32(),
            _ => weights.vector(name, shape.iter().product())?,
        };
        tensors.insert(name.to_owned(), (shape.to_vec(), values));
    }
    let dictionary = config
        .text
        .segmentation
        .map(|_| folder::read_dictionary(&tokens))
        .transpose()?;
    config.base = None;
    Ok(Model {
        config,
        tokenizer,
        tensors,
        dictionary,
    })
}

impl Model {
    /// Number of tokens of the table.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.tensors.get(TABLE).map_or(0, |(shape, _)| shape[0])
    }

    /// Removes the tokens for which `keep` is false from the vocabulary and the tables. Special
    /// tokens, bytes and what the kept tokens are merged from stay. Returns the number of tokens
    /// that are left.
    ///
    /// # Errors
    /// [`ExportError::Tokenizer`] if the tokenizer is neither BPE nor unigram, or its ids do not
    /// fit the table.
    pub fn prune(&mut self, keep: &[bool]) -> Result<usize, ExportError> {
        let old = self.vocabulary();
        if keep.len() != old {
            let message = format!("{} flags for {old} tokens", keep.len());
            return Err(ExportError::Tokenizer(message));
        }
        let order = prune_tokenizer(&mut self.tokenizer, keep)?;
        if let Some(id) = order.iter().find(|id| **id >= old) {
            return Err(ExportError::Tokenizer(format!(
                "token {id} has no embedding"
            )));
        }
        if let Architecture::ResidualBilstm(c) = &mut self.config.encoder
            && let Some(first) = c.ngrams_from
        {
            let before = order.iter().filter(|id| **id < first as usize).count();
            c.ngrams_from = Some(before as u32);
        }
        for name in folder::PER_TOKEN {
            if let Some((shape, values)) = self.tensors.get_mut(name) {
                let width: usize = shape[1..].iter().product();
                let kept = order
                    .iter()
                    .flat_map(|id| values[id * width..(id + 1) * width].to_vec());
                *values = kept.collect();
                shape[0] = order.len();
            }
        }
        Ok(order.len())
    }

    /// Multiplies the gate of a residual: 0 leaves the mean, 1 changes nothing.
    ///
    /// # Errors
    /// [`ExportError::NoGate`] for another architecture.
    pub fn scale_gate(&mut self, factor: f32) -> Result<(), ExportError> {
        let residual = matches!(self.config.encoder, Architecture::ResidualBilstm(_));
        match self.tensors.get_mut("gate").filter(|_| residual) {
            Some((_, values)) => values.iter_mut().for_each(|g| *g *= factor),
            None => return Err(ExportError::NoGate(self.config.encoder.name())),
        }
        Ok(())
    }

    /// The model in `folder` as the base of this one in `to`.
    fn base(&self, to: &Path, folder: &Path) -> Result<Base, ExportError> {
        let shown = folder.display();
        let resolved = folder
            .canonicalize()
            .map_err(|e| ExportError::Io(shown.to_string(), e))?;
        let model = resolved.file_name().unwrap_or_default().to_string_lossy();
        let found = Base {
            model: model.into_owned(),
            fingerprint: base::hex(&folder::fingerprint(folder)?),
        };
        std::fs::create_dir_all(to).map_err(|e| ExportError::Io(to.display().to_string(), e))?;
        if base::folder_of(to, &found)?.canonicalize().ok() != Some(resolved) {
            let message = format!("\"{}\" is not beside it", to.display());
            return Err(ExportError::Base(shown.to_string(), message));
        }
        let theirs = read(folder)?;
        let differs = |what: &str| {
            let message = format!("it has another {what} than the model");
            Err(ExportError::Base(shown.to_string(), message))
        };
        if theirs.tokenizer != self.tokenizer || theirs.dictionary != self.dictionary {
            return differs("tokenizer");
        }
        if theirs.config.text != self.config.text {
            return differs("preparation of texts");
        }
        for name in folder::PER_TOKEN {
            // A tensor that the model has no use for may be there.
            let own = self.tensors.get(name);
            if own.is_some() && own != theirs.tensors.get(name) {
                return differs(&format!("tensor \"{name}\""));
            }
        }
        Ok(found)
    }

    /// Writes a model folder.
    ///
    /// # Errors
    /// [`ExportError::Encoder`] if it cannot be written or does not load; [`ExportError::Base`].
    pub fn write(&self, to: &Path, options: &ExportOptions) -> Result<(), ExportError> {
        let mut config = self.config.clone();
        if let Some(name) = &options.name {
            config.name.clone_from(name);
        }
        if !options.checks.is_empty() {
            config.checks.clone_from(&options.checks);
        }
        if let Some(folder) = &options.base {
            config.base = Some(self.base(to, folder)?);
        }
        let mut tensors = Tensors::new();
        for (name, (shape, values)) in &self.tensors {
            if config.base.is_some() && folder::PER_TOKEN.contains(&name.as_str()) {
                continue;
            }
            let tensor = Tensor::f32(shape, values.clone());
            let format = match (shape.len(), name.as_str()) {
                (2, TABLE) => options.table,
                (2, _) => options.matrices,
                _ => Format::F32,
            };
            match format {
                Format::F32 => drop(tensors.insert(name.clone(), tensor)),
                Format::F16 => drop(tensors.insert(name.clone(), tensor.to_f16())),
                Format::Bf16 => drop(tensors.insert(name.clone(), tensor.to_bf16())),
                Format::I8 => {
                    let (values, scale) = tensor.to_i8();
                    tensors.insert(name.clone(), values);
                    tensors.insert(format!("{name}.scale"), scale);
                }
            }
        }
        let json = self.tokenizer.to_string();
        if let Some(dictionary) = self.dictionary.as_ref().filter(|_| config.base.is_none()) {
            folder::write_dictionary(to, dictionary)?;
        }
        folder::write_parts(to, &config, &json, &tensors)?;
        Ok(laser_encoder::verify(to)?)
    }
}

/// How often each token occurs in a packed corpus.
#[must_use]
pub fn token_counts(corpus: &PackedCorpus) -> Vec<u64> {
    let vocabulary = corpus.header().vocab_size as usize;
    (0..corpus.sentences())
        .into_par_iter()
        .fold(
            || (vec![0u64; vocabulary], Vec::new()),
            |(mut counts, mut ids), sentence| {
                ids.clear();
                corpus.tokens_into(sentence, usize::MAX, &mut ids);
                for id in &ids {
                    counts[*id as usize] += 1;
                }
                (counts, ids)
            },
        )
        .map(|(counts, _)| counts)
        .reduce(
            || vec![0u64; vocabulary],
            |mut a, b| {
                a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
                a
            },
        )
}

/// Removes tokens and n-grams from a `tokenizer.json`; returns the old ids in the order of the new ones.
fn prune_tokenizer(file: &mut Value, keep: &[bool]) -> Result<Vec<usize>, ExportError> {
    let Some(tokenizer) = file.get_mut("tokenizer") else {
        return Ok(prune_pieces(file, keep)?.0);
    };
    let (mut order, pieces) = prune_pieces(tokenizer, keep)?;
    if let Some(Value::Array(ngrams)) = file.pointer_mut("/ngrams/vocabulary") {
        let mut ids = pieces..;
        ngrams.retain(|_| {
            let id = ids.next().unwrap_or_default();
            let kept = keep.get(id).copied().unwrap_or(true);
            order.extend(kept.then_some(id));
            kept
        });
    }
    Ok(order)
}

/// Removes tokens from a tokenizer proper; returns the old ids in the order of the new ones, and
/// the old number of tokens.
fn prune_pieces(json: &mut Value, keep: &[bool]) -> Result<(Vec<usize>, usize), ExportError> {
    let wrong = |message: &str| ExportError::Tokenizer(message.to_owned());
    let kind = json["model"]["type"].as_str().unwrap_or("").to_owned();
    let mut pieces: Vec<String> = match kind.as_str() {
        "Unigram" => {
            let vocab = json["model"]["vocab"]
                .as_array()
                .ok_or_else(|| wrong("no vocabulary"))?;
            vocab
                .iter()
                .map(|p| p[0].as_str().unwrap_or("").to_owned())
                .collect()
        }
        "BPE" => {
            let vocab = json["model"]["vocab"]
                .as_object()
                .ok_or_else(|| wrong("no vocabulary"))?;
            let mut pieces = vec![String::new(); vocab.len()];
            for (piece, id) in vocab {
                let id = id
                    .as_u64()
                    .map(|id| id as usize)
                    .filter(|id| *id < pieces.len());
                let id = id.ok_or_else(|| wrong("ids are not consecutive"))?;
                pieces[id].clone_from(piece);
            }
            pieces
        }
        other => {
            return Err(wrong(&format!(
                "a model of type \"{other}\" cannot be pruned"
            )));
        }
    };
    let added: Vec<(usize, String)> = json["added_tokens"]
        .as_array()
        .map(|tokens| {
            let parse = |t: &Value| {
                (
                    t["id"].as_u64().unwrap_or(u64::MAX) as usize,
                    t["content"].as_str().unwrap_or("").to_owned(),
                )
            };
            tokens.iter().map(parse).collect()
        })
        .unwrap_or_default();
    if added
        .iter()
        .any(|(id, content)| pieces.get(*id) != Some(content))
    {
        return Err(wrong(
            "added tokens outside the model's vocabulary are not supported",
        ));
    }
    let is_byte = |p: &str| p.len() == 6 && p.starts_with("<0x") && p.ends_with('>');
    let mut kept: Vec<bool> = pieces
        .iter()
        .enumerate()
        .map(|(id, p)| keep.get(id).copied().unwrap_or(true) || is_byte(p))
        .collect();
    for (id, _) in &added {
        kept[*id] = true;
    }
    if let Some(unk) = json["model"]["unk_id"].as_u64() {
        kept[unk as usize] = true;
    }
    let by_piece: HashMap<String, usize> = pieces
        .iter()
        .enumerate()
        .map(|(id, p)| (p.clone(), id))
        .collect();
    if kind == "BPE" {
        let merges = merges(json)?;
        // Later merges build on earlier ones, so that one pass backwards keeps all parts.
        for (left, right) in merges.iter().rev() {
            if by_piece
                .get(&format!("{left}{right}"))
                .is_some_and(|id| kept[*id])
            {
                for part in [left, right] {
                    if let Some(id) = by_piece.get(part) {
                        kept[*id] = true;
                    }
                }
            }
        }
        let left = merges.into_iter().filter(|(l, r)| {
            [l.clone(), r.clone(), format!("{l}{r}")]
                .iter()
                .all(|p| by_piece.get(p).is_some_and(|id| kept[*id]))
        });
        json["model"]["merges"] = left
            .map(|(l, r)| Value::from(vec![l, r]))
            .collect::<Vec<_>>()
            .into();
    }
    let order: Vec<usize> = (0..pieces.len()).filter(|id| kept[*id]).collect();
    let new_id: HashMap<usize, usize> = order
        .iter()
        .enumerate()
        .map(|(new, old)| (*old, new))
        .collect();
    if kind == "BPE" {
        let vocab: serde_json::Map<String, Value> = order
            .iter()
            .enumerate()
            .map(|(new, old)| (std::mem::take(&mut pieces[*old]), Value::from(new)))
            .collect();
        json["model"]["vocab"] = vocab.into();
    } else if let Some(vocab) = json["model"]["vocab"].as_array_mut() {
        let mut id = 0;
        vocab.retain(|_| {
            id += 1;
            kept[id - 1]
        });
    }
    if let Some(unk) = json["model"]["unk_id"].as_u64() {
        json["model"]["unk_id"] = Value::from(new_id[&(unk as usize)]);
    }
    if let Some(tokens) = json["added_tokens"].as_array_mut() {
        for (token, (id, _)) in tokens.iter_mut().zip(&added) {
            token["id"] = Value::from(new_id[id]);
        }
    }
    Ok((order, pieces.len()))
}

fn merges(json: &Value) -> Result<Vec<(String, String)>, ExportError> {
    let wrong = || ExportError::Tokenizer("malformed merges".into());
    json["model"]["merges"]
        .as_array()
        .ok_or_else(wrong)?
        .iter()
        .map(|merge| match merge {
            Value::String(text) => text
                .split_once(' ')
                .map(|(l, r)| (l.to_owned(), r.to_owned()))
                .ok_or_else(wrong),
            Value::Array(parts) => match parts.as_slice() {
                [Value::String(l), Value::String(r)] => Ok((l.clone(), r.clone())),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::{Kind, SPECIAL, TokenizerOptions, train};

    #[test]
    fn a_pruned_tokenizer_still_covers_everything() {
        let texts: Vec<String> = (0..300)
            .map(|i| format!("lower newest widest {} слово слова", i % 17))
            .collect();
        for kind in [Kind::Bpe, Kind::Unigram] {
            let options = TokenizerOptions {
                kind,
                vocab_size: 330,
                coverage: 1.0,
                ..Default::default()
            };
            let tokenizer = train(&texts, &options).expect("trained");
            let size = tokenizer.get_vocab_size(true);
            let mut json = serde_json::json!({
                "ngrams": {"lengths": [3], "vocabulary": ["low", "new", "wid"]},
                "tokenizer": tokenizer,
            });
            // Keep every third token, and the second n-gram.
            let mut keep: Vec<bool> = (0..size).map(|id| id % 3 == 0).collect();
            keep.extend([false, true, false]);
            let mut order = prune_tokenizer(&mut json, &keep).expect("pruned");
            assert_eq!(json["ngrams"]["vocabulary"], serde_json::json!(["new"]));
            assert_eq!(order.pop(), Some(size + 1));
            assert!(order.len() < size && order.len() >= 260);
            let json = json.to_string();
            let (pruned, _) = laser_model::ngrams::read_tokenizer(json.as_bytes()).expect("loads");
            assert_eq!(pruned.get_vocab_size(true), order.len());
            for (id, token) in SPECIAL.iter().enumerate() {
                assert_eq!(pruned.token_to_id(token), Some(id as u32));
            }
            for (new, old) in order.iter().enumerate() {
                assert_eq!(
                    pruned.id_to_token(new as u32),
                    tokenizer.id_to_token(*old as u32)
                );
            }
            let encoding = pruned.encode("newest слово x", true).expect("encode");
            assert!(!encoding.get_ids().contains(&1), "{kind:?}");
            let text = pruned.decode(encoding.get_ids(), false).expect("decode");
            assert_eq!(text, "newest слово x", "{kind:?}");
        }
    }

    #[test]
    fn the_first_ngram_moves_when_pieces_are_pruned() {
        let texts = vec!["lower newest widest".to_owned(); 50];
        let options = TokenizerOptions {
            vocab_size: 290,
            coverage: 1.0,
            ..Default::default()
        };
        let tokenizer = train(&texts, &options).expect("trained");
        let size = tokenizer.get_vocab_size(true);
        let encoder = format!(
            r#"{{"architecture":"residual_bilstm","embedding_size":1,"pooling":"mean","hidden_size":1,
               "layers":1,"state_pooling":"max","ngrams_from":{size}}}"#
        );
        let config = format!(
            r#"{{"format":1,"name":"t","dimensions":1,"max_tokens":9,"normalize":true,"encoder":{encoder}}}"#
        );
        let ids = (0..size + 2).map(|id| id as f32).collect();
        let mut model = Model {
            config: Config::from_json(&config).expect("valid"),
            tokenizer: serde_json::json!({
                "ngrams": {"lengths": [3], "vocabulary": ["low", "new"]},
                "tokenizer": tokenizer,
            }),
            tensors: BTreeMap::from([(TABLE.to_owned(), (vec![size + 2, 1], ids))]),
            dictionary: None,
        };
        // The last piece, which nothing is merged from, and the first n-gram go.
        let mut keep = vec![true; size + 2];
        keep[size - 1] = false;
        keep[size] = false;
        model.prune(&keep).expect("pruned");
        let Architecture::ResidualBilstm(c) = &model.config.encoder else {
            panic!("{:?}", model.config.encoder)
        };
        let first = c.ngrams_from.expect("it has n-grams") as usize;
        assert!(first < size);
        let values = &model.tensors[TABLE].1;
        assert_eq!(values[first..], [(size + 1) as f32]);
    }
}
