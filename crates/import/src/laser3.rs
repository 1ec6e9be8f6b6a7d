//! LASER3: fairseq transformer encoders for single languages.

use std::collections::HashMap;
use std::path::Path;

use serde_json::json;

use crate::files::{find, read, read_text};
use crate::laser::{MAX_TOKENS, SPECIAL, UNKNOWN, extend_table};
use crate::layers::{self, Names};
use crate::model::{EMBEDDINGS, Model};
use crate::options::Options;
use crate::pickle::{Id, Node, Pickle};
use crate::spm::SentencePiece;
use crate::torch::Checkpoint;
use laser_model::ModelError;
use laser_model::config::{
    Activation, Architecture, NonPrinting, NormPosition, TextConfig, TransformerConfig,
    TransformerPooling,
};
use laser_model::folder::{Tensor, Tensors};

/// As fairseq's `TransformerEncoder` calls them.
const NAMES: Names = Names {
    layer: "layers.",
    attention: [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.out_proj",
    ],
    feed_forward: ["fc1", "fc2"],
    norms: ["self_attn_layer_norm", "final_layer_norm"],
};

/// fairseq's padding id; positions are counted from behind it.
const PADDING: usize = 1;

/// Epsilon of fairseq's layer normalisation.
const LAYER_NORM_EPS: f64 = 1e-5;

/// A field of a configuration, however it was pickled: dictionaries, `Namespace`s, and OmegaConf's
/// containers (`_content`) and nodes (`_val`).
fn field(pickle: &Pickle, id: Id, key: &str) -> Option<Id> {
    let id = plain(pickle, id);
    let direct = pickle.get(id, key);
    let content = || {
        pickle
            .get(id, "_content")
            .and_then(|inner| pickle.get(inner, key))
    };
    direct.or_else(content).map(|id| plain(pickle, id))
}

fn plain(pickle: &Pickle, mut id: Id) -> Id {
    // Bounded: a hostile file can contain cycles.
    for _ in 0..16 {
        match pickle.node(id) {
            Node::Object { .. } => match pickle.get(id, "_val") {
                Some(inner) => id = inner,
                None => break,
            },
            _ => break,
        }
    }
    id
}

/// LASER3.
pub(super) fn laser3(source: &Path, options: &Options) -> Result<Model, ModelError> {
    let checkpoint = Checkpoint::open(&find(source, "pt")?)?;
    let pickle = &checkpoint.pickle;
    let root = pickle.root();
    let settings = match pickle
        .get(root, "cfg")
        .and_then(|cfg| field(pickle, cfg, "model"))
    {
        Some(id) => id,
        None => pickle
            .get(root, "args")
            .ok_or_else(|| checkpoint.error("neither \"cfg.model\" nor \"args\" is there"))?,
    };
    let get = |key: &str| field(pickle, settings, key);
    let number = |key: &str| {
        get(key)
            .and_then(|id| pickle.int(id))
            .and_then(|n| u32::try_from(n).ok())
            // No product of two can overflow.
            .map(|n| n as usize)
            .ok_or_else(|| {
                checkpoint.error(format!("cfg.model.{key} is missing or no number in range"))
            })
    };
    let flag = |key: &str| get(key).and_then(|id| pickle.truth(id)).unwrap_or(false);
    let text = |key: &str| get(key).and_then(|id| pickle.str(id));

    // With a decoder, the encoder's tensors carry a prefix.
    let all = checkpoint.tensors(checkpoint.find(root, "model")?)?;
    let mut state: HashMap<String, Id> = HashMap::new();
    let with_decoder = all.keys().any(|key| key.starts_with("decoder."));
    for (key, id) in all {
        match (with_decoder, key.strip_prefix("encoder.")) {
            (_, Some(inner)) => {
                state.insert(inner.to_owned(), id);
            }
            (false, None) => {
                state.insert(key, id);
            }
            (true, None) => {}
        }
    }
    let tensor = |name: &str, shape: Option<&[usize]>| {
        let id = *state
            .get(name)
            .ok_or_else(|| checkpoint.error(format!("tensor \"{name}\" is missing")))?;
        let tensor = checkpoint.tensor(name, id)?;
        match shape {
            Some(shape) if tensor.shape() != shape => Err(checkpoint.error(format!(
                "tensor \"{name}\": expected shape {shape:?}, found {:?}",
                tensor.shape()
            ))),
            _ => Ok(tensor),
        }
    };
    let mut encoder = TransformerConfig {
        hidden_size: number("encoder_embed_dim")?,
        layers: number("encoder_layers")?,
        heads: number("encoder_attention_heads")?,
        intermediate_size: number("encoder_ffn_embed_dim")?,
        max_positions: 0,
        type_vocab_size: 0,
        layer_norm_eps: LAYER_NORM_EPS,
        activation: match text("activation_fn").unwrap_or("relu") {
            "relu" => Activation::Relu,
            "gelu" | "gelu_accurate" => Activation::Gelu,
            other => {
                return Err(checkpoint.error(format!("activation_fn \"{other}\" is not known")));
            }
        },
        norm: if flag("encoder_normalize_before") {
            NormPosition::Pre
        } else {
            NormPosition::Post
        },
        pooling: match text("sentemb_criterion").unwrap_or("maxpool") {
            "cls" => TransformerPooling::Cls,
            "maxpool" => TransformerPooling::Max,
            other => {
                return Err(checkpoint.error(format!("sentemb_criterion \"{other}\" is not known")));
            }
        },
        position_offset: PADDING + 1,
        scale_embedding: !flag("no_scale_embedding"),
        embedding_norm: state.contains_key("layernorm_embedding.weight"),
        relative_positions: None,
    };
    if encoder.layers > 256 || encoder.hidden_size > 65_536 {
        return Err(checkpoint.error("cfg.model is out of range"));
    }
    let d = encoder.hidden_size;
    let prepend = flag("prepend_bos") || encoder.pooling == TransformerPooling::Cls;
    let mut max_tokens = options.max_tokens.unwrap_or(MAX_TOKENS);
    let mut tensors = Tensors::new();
    let positions = if state.contains_key("embed_positions.weight") {
        let learned = tensor("embed_positions.weight", None)?;
        let [rows, width] = learned.shape()[..] else {
            return Err(checkpoint.error("tensor \"embed_positions.weight\" is no matrix"));
        };
        if width != d || rows <= PADDING + 1 {
            return Err(checkpoint.error(format!(
                "tensor \"embed_positions.weight\": shape {:?} does not fit width {d}",
                learned.shape()
            )));
        }
        max_tokens = max_tokens.min(rows - PADDING - 1);
        learned
    } else {
        sinusoidal(max_tokens + PADDING + 1, d)
    };
    encoder.max_positions = positions.shape()[0];
    tensors.insert("embed_positions.weight".into(), positions);

    let mut take = |from: String, to: String, shape: &[usize]| {
        tensors.insert(to, tensor(&from, Some(shape))?);
        Ok(())
    };
    if encoder.embedding_norm {
        layers::norm("layernorm_embedding", "embed_norm", d, &mut take)?;
    }
    if encoder.norm == NormPosition::Pre {
        layers::norm("layer_norm", "final_norm", d, &mut take)?;
    }
    layers::each_tensor(&NAMES, &encoder, &mut take)?;

    // fairseq's dictionary: four special symbols, then a piece a line.
    let path = find(source, "cvocab")?;
    let mut dictionary: HashMap<String, usize> = SPECIAL
        .iter()
        .map(|(token, id)| ((*token).to_owned(), *id))
        .collect();
    let mut size = SPECIAL.len();
    for line in read_text(&path)?.lines() {
        let piece = line.rsplit_once(' ').map_or(line, |(piece, _)| piece);
        dictionary.entry(piece.to_owned()).or_insert(size);
        size += 1;
    }
    let table = tensor(EMBEDDINGS, None)?;
    let rows = match table.shape()[..] {
        // One more for a mask symbol that fairseq adds.
        [rows, width] if width == d && rows >= size => rows,
        ref shape => {
            return Err(checkpoint.error(format!(
                "tensor \"embed_tokens.weight\": expected shape [{size}, {d}], found {shape:?}"
            )));
        }
    };
    tensors.insert(EMBEDDINGS.into(), table);

    let path = find(source, "spm")?;
    let fail = |message| ModelError::import(&path, message);
    let pieces = SentencePiece::parse(&read(&path)?).map_err(fail)?;
    let special = |token: &str, id: usize| json!({"id": token, "ids": [id], "tokens": [token]});
    let mut template = vec![json!({"Sequence": {"id": "A", "type_id": 0}})];
    if prepend {
        template.insert(0, json!({"SpecialToken": {"id": "<s>", "type_id": 0}}));
    }
    template.push(json!({"SpecialToken": {"id": "</s>", "type_id": 0}}));
    let processor = json!({
        "type": "TemplateProcessing",
        "single": template,
        "pair": [
            {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}},
        ],
        "special_tokens": {"<s>": special("<s>", 0), "</s>": special("</s>", 2)},
    });
    let (tokenizer, total) = pieces
        .to_tokenizer(&dictionary, rows, UNKNOWN, processor)
        .map_err(fail)?;
    extend_table(&mut tensors, total);
    let text = TextConfig {
        non_printing: NonPrinting::Space,
        punctuation: Some("en".into()),
        lowercase: true,
        ..TextConfig::default()
    };
    let encoder = Architecture::Transformer(encoder);
    Ok(Model::new(encoder, max_tokens, text, tokenizer, tensors))
}

/// fairseq's sinusoidal positions (Vaswani et al. 2017, section 3.5, with sines first, then
/// cosines); row [`PADDING`] is zero.
fn sinusoidal(rows: usize, width: usize) -> Tensor {
    let half = width / 2;
    let step = 10_000f64.ln() / (half.max(2) - 1) as f64;
    let mut data = vec![0f32; rows * width];
    for (position, row) in data.chunks_exact_mut(width).enumerate() {
        if position == PADDING {
            continue;
        }
        for i in 0..half {
            let angle = position as f64 * (i as f64 * -step).exp();
            row[i] = angle.sin() as f32;
            row[half + i] = angle.cos() as f32;
        }
    }
    Tensor::f32(&[rows, width], data)
}
