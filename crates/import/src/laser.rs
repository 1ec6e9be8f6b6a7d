//! LASER1 and LASER2: stacked LSTMs (the published ones are bidirectional) saved as `params`, `model` and `dictionary`.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::files::{find, read, read_text};
use crate::model::{EMBEDDINGS, Model};
use crate::options::Options;
use crate::spm::SentencePiece;
use crate::torch::Checkpoint;
use laser_model::config::{
    Architecture, BilstmConfig, BilstmPooling, FastBpe, Moses, NonPrinting, Segmentation,
    TextConfig,
};
use laser_model::folder::{Tensor, Tensors};
use laser_model::text::segment;
use laser_model::{ModelError, config};

/// Ids that LASER's code forces, whatever the dictionary says.
pub(super) const SPECIAL: [(&str, usize); 4] =
    [("<s>", 0), ("<pad>", 1), ("</s>", 2), ("<unk>", 3)];
pub(super) const UNKNOWN: usize = 3;

/// Length limit where the original has none.
pub(super) const MAX_TOKENS: usize = 512;

struct Laser {
    dictionary: HashMap<String, usize>,
    /// Rows of the embedding table.
    size: usize,
    encoder: BilstmConfig,
    tensors: Tensors,
}

/// What both versions have in common.
fn open(path: &Path) -> Result<Laser, ModelError> {
    let checkpoint = Checkpoint::open(path)?;
    let pickle = &checkpoint.pickle;
    let root = pickle.root();
    let params = checkpoint.find(root, "params")?;
    let number = |key: &str| {
        let id = checkpoint.find(params, key)?;
        pickle
            .int(id)
            .and_then(|n| u32::try_from(n).ok())
            // No product of two can overflow.
            .map(|n| n as usize)
            .ok_or_else(|| checkpoint.error(format!("params[\"{key}\"] is no number in range")))
    };
    let size = number("num_embeddings")?;
    let bidirectional = pickle
        .truth(checkpoint.find(params, "bidirectional")?)
        .ok_or_else(|| checkpoint.error("params[\"bidirectional\"] is no truth value"))?;
    let encoder = BilstmConfig {
        embedding_size: number("embed_dim")?,
        hidden_size: number("hidden_size")?,
        layers: number("num_layers")?,
        pooling: BilstmPooling::Max,
        append_eos: true,
        bidirectional,
    };
    if encoder.layers > 64 || size <= UNKNOWN {
        return Err(checkpoint.error("params are out of range"));
    }
    let id = checkpoint.find(root, "dictionary")?;
    let items = pickle
        .dict(id)
        .ok_or_else(|| checkpoint.error("\"dictionary\" is none"))?;
    let mut dictionary = HashMap::new();
    for &(key, value) in items {
        let piece = pickle
            .str(key)
            .ok_or_else(|| checkpoint.error("a key of \"dictionary\" is no string"))?;
        let id = pickle
            .int(value)
            .and_then(|n| usize::try_from(n).ok())
            .filter(|&n| n < size)
            .ok_or_else(|| checkpoint.error(format!("dictionary[\"{piece}\"] is out of range")))?;
        dictionary.insert(piece.to_owned(), id);
    }
    for (token, id) in SPECIAL {
        dictionary.insert(token.to_owned(), id);
    }
    let state = checkpoint.tensors(checkpoint.find(root, "model")?)?;
    let mut tensors = Tensors::new();
    let mut names = vec![(EMBEDDINGS.to_owned(), vec![size, encoder.embedding_size])];
    let hidden = encoder.hidden_size;
    for l in 0..encoder.layers {
        for suffix in encoder.suffixes() {
            names.push((
                format!("lstm.weight_ih_l{l}{suffix}"),
                vec![4 * hidden, encoder.input_size(l)],
            ));
            names.push((
                format!("lstm.weight_hh_l{l}{suffix}"),
                vec![4 * hidden, hidden],
            ));
            names.push((format!("lstm.bias_ih_l{l}{suffix}"), vec![4 * hidden]));
            names.push((format!("lstm.bias_hh_l{l}{suffix}"), vec![4 * hidden]));
        }
    }
    for (name, shape) in names {
        let id = *state
            .get(&name)
            .ok_or_else(|| checkpoint.error(format!("tensor \"{name}\" is missing")))?;
        let tensor = checkpoint.tensor(&name, id)?;
        if tensor.shape() != shape {
            return Err(checkpoint.error(format!(
                "tensor \"{name}\": expected shape {shape:?}, found {:?}",
                tensor.shape()
            )));
        }
        tensors.insert(name, tensor);
    }
    Ok(Laser {
        dictionary,
        size,
        encoder,
        tensors,
    })
}

impl Laser {
    fn finish(self, text: TextConfig, tokenizer: Value, options: &Options) -> Model {
        let encoder = Architecture::Bilstm(self.encoder);
        let max_tokens = options.max_tokens.unwrap_or(MAX_TOKENS);
        // LASER itself never normalises; its mining scripts do.
        Model::new(encoder, max_tokens, text, tokenizer, self.tensors)
    }
}

/// Lengthens the embedding table to `rows` rows with copies of the unknown token's.
pub(super) fn extend_table(tensors: &mut Tensors, rows: usize) {
    let table = &tensors[EMBEDDINGS];
    let [size, width] = table.shape()[..] else {
        return;
    };
    if rows <= size {
        return;
    }
    let mut data = table.to_vec();
    let unknown = data[UNKNOWN * width..(UNKNOWN + 1) * width].to_vec();
    for _ in size..rows {
        data.extend_from_slice(&unknown);
    }
    tensors.insert(EMBEDDINGS.into(), Tensor::f32(&[rows, width], data));
}

/// LASER2: SentencePiece on normalised, lower-cased text.
pub(super) fn laser2(source: &Path, options: &Options) -> Result<Model, ModelError> {
    let mut laser = open(&find(source, "pt")?)?;
    let path = find(source, "spm")?;
    let fail = |message| ModelError::import(&path, message);
    let pieces = SentencePiece::parse(&read(&path)?).map_err(fail)?;
    let (tokenizer, rows) = pieces
        .to_tokenizer(&laser.dictionary, laser.size, UNKNOWN, Value::Null)
        .map_err(fail)?;
    let foreign = rows - laser.size;
    extend_table(&mut laser.tensors, rows);
    let text = TextConfig {
        non_printing: NonPrinting::Space,
        punctuation: Some("en".into()),
        lowercase: true,
        ..TextConfig::default()
    };
    let mut model = laser.finish(text, tokenizer, options);
    if foreign > 0 {
        model.notes.push(format!(
            "{foreign} pieces of the SentencePiece model are not in the dictionary and stand for \
             <unk>, as in the original"
        ));
    }
    Ok(model)
}

/// LASER1: Moses tokenisation and fastBPE.
pub(super) fn laser1(source: &Path, options: &Options) -> Result<Model, ModelError> {
    let laser = open(&find(source, "pt")?)?;
    let codes = find(source, "fcodes")?;
    // The vocabulary that belongs to the codes has their name, like any two files of a pair.
    let vocabulary = find(&codes, "fvocab")?;
    let mut merges = Vec::new();
    for (i, line) in read_text(&codes)?.lines().enumerate() {
        // left, right, count
        let mut parts = line.split(' ');
        match (parts.next(), parts.next()) {
            (Some(left), Some(right)) if !left.is_empty() && !right.is_empty() => {
                merges.push(format!("{left} {right}"));
            }
            _ => {
                return Err(ModelError::import(
                    &codes,
                    format!("line {} is no merge", i + 1),
                ));
            }
        }
    }
    let vocabulary = read_text(&vocabulary)?
        .lines()
        .filter_map(|line| line.split(' ').next())
        .filter(|piece| !piece.is_empty())
        .map(str::to_owned)
        .collect();
    let language = options.language.clone().unwrap_or_else(|| "en".into());
    let mut moses = Moses {
        language: language.clone(),
        ..Moses::default()
    };
    let mut notes = Vec::new();
    match &options.prefixes {
        Some(path) => read_prefixes(path, &mut moses)?,
        None => notes.push(
            "no list of non-breaking prefixes was given (option \"prefixes\"): full stops after \
             abbreviations are split off"
                .to_owned(),
        ),
    }
    let segmentation = segmentation(&language);
    let dictionary = match (segmentation, &options.dictionary) {
        (Some(kind), Some(path)) => Some(segment::compile(kind, path)?),
        (Some(kind), None) => {
            let dictionary = match kind {
                Segmentation::Jieba => "jieba's dict.txt",
                Segmentation::Mecab => "a folder with the sources of MeCab's dictionary in UTF-8",
            };
            return Err(ModelError::import(
                source,
                format!(
                    "language \"{language}\" needs a dictionary of its words, option \
                     \"dictionary\": {dictionary}"
                ),
            ));
        }
        (None, Some(path)) => {
            return Err(ModelError::import(
                path,
                format!("language \"{language}\" is written with spaces and uses no dictionary"),
            ));
        }
        (None, None) => None,
    };
    let text = TextConfig {
        non_printing: NonPrinting::Space,
        punctuation: Some(language.clone()),
        descape: true,
        moses: Some(moses),
        segmentation,
        romanize_greek: language == "el",
        lowercase: true,
        fast_bpe: Some(FastBpe { merges, vocabulary }),
    };
    let vocabulary: serde_json::Map<String, Value> = laser
        .dictionary
        .iter()
        .map(|(piece, id)| (piece.clone(), Value::from(*id)))
        .collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    });
    let mut model = laser.finish(text, tokenizer, options);
    model.dictionary = dictionary;
    model.notes = notes;
    Ok(model)
}

/// How LASER1's scripts find the words of a language that writes no spaces.
fn segmentation(language: &str) -> Option<Segmentation> {
    match language {
        "zh" | "cmn" | "wuu" | "yue" => Some(Segmentation::Jieba),
        "ja" | "jpn" => Some(Segmentation::Mecab),
        _ => None,
    }
}

/// Moses' `nonbreaking_prefix.*`: a word a line, `#NUMERIC_ONLY#` after some.
fn read_prefixes(path: &Path, moses: &mut config::Moses) -> Result<(), ModelError> {
    for line in read_text(path)?.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.strip_suffix("#NUMERIC_ONLY#") {
            Some(word) => moses.numeric_prefixes.push(word.trim().to_owned()),
            None => moses.prefixes.push(line.to_owned()),
        }
    }
    Ok(())
}
