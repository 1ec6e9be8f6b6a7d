//! sentence-transformers folders around BERT and (XLM-)RoBERTa: LaBSE and its like.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::files::{read, read_text};
use crate::layers::{self, Names};
use crate::model::Model;
use crate::options::Options;
use crate::torch::Checkpoint;
use laser_model::ModelError;
use laser_model::config::{
    Activation, Architecture, Config, Dense, FORMAT, NormPosition, TextConfig, TransformerConfig,
    TransformerPooling,
};
use laser_model::folder::{Tensor, Tensors};

/// As transformers' `BertModel` calls them.
const NAMES: Names = Names {
    layer: "encoder.layer.",
    attention: [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
        "attention.output.dense",
    ],
    feed_forward: ["intermediate.dense", "output.dense"],
    norms: ["attention.output.LayerNorm", "output.LayerNorm"],
};

/// Tensors by their original names, whichever file they are in.
enum State {
    SafeTensors(PathBuf, Vec<u8>),
    Torch(Checkpoint, std::collections::HashMap<String, usize>),
}

impl State {
    /// `model.safetensors` or `pytorch_model.bin` of a folder.
    fn open(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("model.safetensors");
        if path.exists() {
            let bytes = read(&path)?;
            SafeTensors::deserialize(&bytes)
                .map_err(|e| ModelError::import(&path, e.to_string()))?;
            return Ok(Self::SafeTensors(path, bytes));
        }
        let path = folder.join("pytorch_model.bin");
        if !path.exists() {
            return Err(ModelError::import(
                folder,
                "there is neither \"model.safetensors\" nor \"pytorch_model.bin\"",
            ));
        }
        let checkpoint = Checkpoint::open(&path)?;
        let tensors = checkpoint.tensors(checkpoint.pickle.root())?;
        Ok(Self::Torch(checkpoint, tensors))
    }

    fn path(&self) -> &Path {
        match self {
            Self::SafeTensors(path, _) => path,
            Self::Torch(checkpoint, _) => checkpoint.path(),
        }
    }

    fn error(&self, message: String) -> ModelError {
        ModelError::import(self.path(), message)
    }

    fn contains(&self, name: &str) -> bool {
        match self {
            Self::SafeTensors(_, bytes) => {
                SafeTensors::deserialize(bytes).is_ok_and(|t| t.tensor(name).is_ok())
            }
            Self::Torch(_, tensors) => tensors.contains_key(name),
        }
    }

    /// A tensor of the shape given.
    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let missing = || self.error(format!("tensor \"{name}\" is missing"));
        let tensor = match self {
            Self::SafeTensors(_, bytes) => {
                let tensors =
                    SafeTensors::deserialize(bytes).map_err(|e| self.error(e.to_string()))?;
                let view = tensors.tensor(name).map_err(|_| missing())?;
                let data = view.data();
                let values: Vec<f32> = match view.dtype() {
                    safetensors::Dtype::F32 => data
                        .chunks_exact(4)
                        .map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")))
                        .collect(),
                    safetensors::Dtype::F16 => data
                        .chunks_exact(2)
                        .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                        .collect(),
                    safetensors::Dtype::BF16 => data
                        .chunks_exact(2)
                        .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
                        .collect(),
                    other => {
                        return Err(self.error(format!("tensor \"{name}\" is of type {other:?}")));
                    }
                };
                Tensor::f32(view.shape(), values)
            }
            Self::Torch(checkpoint, tensors) => {
                checkpoint.tensor(name, *tensors.get(name).ok_or_else(missing)?)?
            }
        };
        if tensor.shape() != shape {
            return Err(self.error(format!(
                "tensor \"{name}\": expected shape {shape:?}, found {:?}",
                tensor.shape()
            )));
        }
        Ok(tensor)
    }
}

/// A JSON file with access to typed fields.
struct Json {
    path: PathBuf,
    value: Value,
}

impl Json {
    fn open(path: PathBuf) -> Result<Self, ModelError> {
        let value = serde_json::from_str(&read_text(&path)?)
            .map_err(|e| ModelError::import(&path, e.to_string()))?;
        Ok(Self { path, value })
    }

    fn error(&self, message: String) -> ModelError {
        ModelError::import(&self.path, message)
    }

    fn number(&self, key: &str) -> Result<usize, ModelError> {
        self.value
            .get(key)
            .and_then(Value::as_u64)
            .and_then(|n| u32::try_from(n).ok())
            // No product of two can overflow.
            .map(|n| n as usize)
            .ok_or_else(|| self.error(format!("\"{key}\" is missing or no number in range")))
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.value
            .get(key)
            .and_then(Value::as_bool)
            .unwrap_or(default)
    }

    fn text(&self, key: &str) -> Result<&str, ModelError> {
        self.value
            .get(key)
            .and_then(Value::as_str)
            .ok_or_else(|| self.error(format!("\"{key}\" is missing or no string")))
    }
}

/// A folder with `modules.json`.
pub(super) fn sentence_transformer(source: &Path, options: &Options) -> Result<Model, ModelError> {
    let modules = Json::open(source.join("modules.json"))?;
    let list = modules
        .value
        .as_array()
        .ok_or_else(|| modules.error("it contains no list of modules".into()))?;
    let mut model: Option<Model> = None;
    let mut pooling = None;
    for module in list {
        let field = |key: &str| {
            module
                .get(key)
                .and_then(Value::as_str)
                .ok_or_else(|| modules.error(format!("a module has no \"{key}\"")))
        };
        let folder = field("path")?;
        // A path is a folder of the model, never one outside.
        if Path::new(folder)
            .components()
            .any(|c| !matches!(c, std::path::Component::Normal(_)))
        {
            return Err(modules.error(format!("path \"{folder}\" is no folder of the model")));
        }
        let folder = source.join(folder);
        let kind = field("type")?;
        match (kind.rsplit('.').next().unwrap_or(kind), &mut model) {
            ("Transformer", None) => model = Some(transformer(&folder, source, options)?),
            ("Pooling", Some(model)) if pooling.is_none() => {
                let mode = pooling_mode(&Json::open(folder.join("config.json"))?)?;
                if let Architecture::Transformer(c) = &mut model.config.encoder {
                    c.pooling = mode;
                }
                pooling = Some(mode);
            }
            ("Dense", Some(model)) if pooling.is_some() => dense(&folder, model)?,
            ("Normalize", Some(model)) => model.config.normalize = true,
            (other, _) => {
                return Err(modules.error(format!("module \"{other}\" is not supported here")));
            }
        }
    }
    let model = model.ok_or_else(|| modules.error("there is no Transformer module".into()))?;
    if pooling.is_none() {
        return Err(modules.error("there is no Pooling module".into()));
    }
    Ok(model)
}

fn pooling_mode(json: &Json) -> Result<TransformerPooling, ModelError> {
    let modes = [
        ("pooling_mode_cls_token", Some(TransformerPooling::Cls)),
        ("pooling_mode_max_tokens", Some(TransformerPooling::Max)),
        ("pooling_mode_mean_tokens", Some(TransformerPooling::Mean)),
        ("pooling_mode_mean_sqrt_len_tokens", None),
        ("pooling_mode_weightedmean_tokens", None),
        ("pooling_mode_lasttoken", None),
    ];
    let set: Vec<_> = modes
        .into_iter()
        .filter(|(key, _)| json.flag(key, false))
        .collect();
    match set[..] {
        [(_, Some(mode))] => Ok(mode),
        [(key, None)] => Err(json.error(format!("\"{key}\" is not supported"))),
        _ => Err(json.error(format!("expected one pooling mode, found {}", set.len()))),
    }
}

fn dense(folder: &Path, model: &mut Model) -> Result<(), ModelError> {
    let json = Json::open(folder.join("config.json"))?;
    let (input, output) = (json.number("in_features")?, json.number("out_features")?);
    let name = json.text("activation_function")?;
    let activation = match name.rsplit('.').next().unwrap_or(name) {
        "Tanh" => Activation::Tanh,
        "Identity" => Activation::None,
        "GELU" => Activation::Gelu,
        "ReLU" => Activation::Relu,
        other => return Err(json.error(format!("activation \"{other}\" is not supported"))),
    };
    let state = State::open(folder)?;
    let i = model.config.dense.len();
    let weight = state.get("linear.weight", &[output, input])?;
    let bias = if json.flag("bias", true) {
        state.get("linear.bias", &[output])?
    } else {
        Tensor::f32(&[output], vec![0.0; output])
    };
    model.tensors.insert(format!("dense.{i}.weight"), weight);
    model.tensors.insert(format!("dense.{i}.bias"), bias);
    model.config.dense.push(Dense {
        input,
        output,
        activation,
        residual: false,
        layer_norm: false,
    });
    model.config.dimensions = output;
    Ok(())
}

fn transformer(folder: &Path, source: &Path, options: &Options) -> Result<Model, ModelError> {
    let json = Json::open(folder.join("config.json"))?;
    let kind = json.text("model_type")?;
    // RoBERTa counts positions from behind the padding id.
    let position_offset = match kind {
        "bert" => 0,
        "roberta" | "xlm-roberta" => json.number("pad_token_id")? + 1,
        other => return Err(json.error(format!("model_type \"{other}\" is not supported"))),
    };
    if json
        .value
        .get("position_embedding_type")
        .is_some_and(|v| v != "absolute")
    {
        return Err(json.error("\"position_embedding_type\" is not \"absolute\"".into()));
    }
    let activation = match json.text("hidden_act")? {
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        other => return Err(json.error(format!("hidden_act \"{other}\" is not supported"))),
    };
    let eps = json
        .value
        .get("layer_norm_eps")
        .and_then(Value::as_f64)
        .unwrap_or(1e-12);
    let encoder = TransformerConfig {
        hidden_size: json.number("hidden_size")?,
        layers: json.number("num_hidden_layers")?,
        heads: json.number("num_attention_heads")?,
        intermediate_size: json.number("intermediate_size")?,
        max_positions: json.number("max_position_embeddings")?,
        type_vocab_size: json.number("type_vocab_size")?,
        layer_norm_eps: eps,
        activation,
        norm: NormPosition::Post,
        pooling: TransformerPooling::Cls,
        position_offset,
        scale_embedding: false,
        embedding_norm: true,
    };
    let vocabulary = json.number("vocab_size")?;
    if encoder.layers > 256 {
        return Err(json.error("\"num_hidden_layers\" is out of range".into()));
    }
    let state = State::open(folder)?;
    let prefix = ["", "bert.", "roberta."]
        .into_iter()
        .find(|p| state.contains(&format!("{p}embeddings.word_embeddings.weight")))
        .ok_or_else(|| {
            state.error("tensor \"embeddings.word_embeddings.weight\" is missing".into())
        })?;
    let d = encoder.hidden_size;
    let mut tensors = Tensors::new();
    let mut take = |from: String, to: String, shape: &[usize]| {
        let mut from = format!("{prefix}{from}");
        // Old checkpoints call them gamma and beta.
        if !state.contains(&from) {
            let old = from
                .replace("LayerNorm.weight", "LayerNorm.gamma")
                .replace("LayerNorm.bias", "LayerNorm.beta");
            if state.contains(&old) {
                from = old;
            }
        }
        tensors.insert(to, state.get(&from, shape)?);
        Ok::<_, ModelError>(())
    };
    for (from, to, rows) in [
        ("word", "tokens", vocabulary),
        ("position", "positions", encoder.max_positions),
        ("token_type", "types", encoder.type_vocab_size),
    ] {
        if rows > 0 {
            take(
                format!("embeddings.{from}_embeddings.weight"),
                format!("embed_{to}.weight"),
                &[rows, d],
            )?;
        }
    }
    layers::norm("embeddings.LayerNorm", "embed_norm", d, &mut take)?;
    layers::each_tensor(&NAMES, &encoder, &mut take)?;
    let limit = encoder.max_positions.saturating_sub(position_offset);
    let settings = settings(folder, source)?;
    let longest = match &settings {
        Some(json)
            if json
                .value
                .get("max_seq_length")
                .is_some_and(|v| !v.is_null()) =>
        {
            json.number("max_seq_length")?.min(limit)
        }
        _ => limit,
    };
    let lowercase = settings.is_some_and(|json| json.flag("do_lower_case", false));
    let config = Config {
        format: FORMAT,
        name: String::new(),
        dimensions: d,
        max_tokens: options.max_tokens.unwrap_or(longest),
        normalize: false,
        text: TextConfig {
            lowercase,
            ..TextConfig::default()
        },
        encoder: Architecture::Transformer(encoder),
        dense: vec![],
        checks: vec![],
        base: None,
    };
    Ok(Model {
        config,
        tokenizer: tokenizer(folder)?,
        tensors,
        dictionary: None,
        notes: vec![],
    })
}

/// What sentence-transformers does before it tokenises: lengths and lower-casing, under one of the
/// names it gave to the file over time.
fn settings(folder: &Path, source: &Path) -> Result<Option<Json>, ModelError> {
    ["bert", "roberta", "xlm-roberta"]
        .into_iter()
        .map(|kind| format!("sentence_{kind}_config.json"))
        .flat_map(|name| [folder.join(&name), source.join(&name)])
        .find(|path| path.exists())
        .map(Json::open)
        .transpose()
}

/// `tokenizer.json`, or WordPiece from `vocab.txt`.
fn tokenizer(folder: &Path) -> Result<Value, ModelError> {
    let path = folder.join("tokenizer.json");
    if path.exists() {
        let mut json = Json::open(path)?;
        if let Some(fields) = json.value.as_object_mut() {
            fields.insert("truncation".into(), Value::Null);
            fields.insert("padding".into(), Value::Null);
        }
        return Ok(json.value);
    }
    let path = folder.join("vocab.txt");
    if !path.exists() {
        return Err(ModelError::import(
            folder,
            "there is neither \"tokenizer.json\" nor \"vocab.txt\"",
        ));
    }
    let mut vocabulary = serde_json::Map::new();
    for (id, token) in read_text(&path)?.lines().enumerate() {
        vocabulary.insert(token.trim_end_matches('\r').to_owned(), id.into());
    }
    let id = |token: &str| {
        vocabulary
            .get(token)
            .cloned()
            .ok_or_else(|| ModelError::import(&path, format!("token \"{token}\" is missing")))
    };
    let special = |token: &str| {
        Ok::<_, ModelError>(json!({
            "id": id(token)?, "content": token, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true,
        }))
    };
    let added = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        .into_iter()
        .filter(|token| vocabulary.contains_key(*token))
        .map(special)
        .collect::<Result<Vec<_>, _>>()?;
    let settings = folder.join("tokenizer_config.json");
    let settings = if settings.exists() {
        Json::open(settings)?
    } else {
        Json {
            path: settings,
            value: json!({}),
        }
    };
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": settings.flag("tokenize_chinese_chars", true),
            "strip_accents": settings.value.get("strip_accents").cloned().unwrap_or(Value::Null),
            "lowercase": settings.flag("do_lower_case", true),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "sep": ["[SEP]", id("[SEP]")?],
            "cls": ["[CLS]", id("[CLS]")?],
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }))
}
