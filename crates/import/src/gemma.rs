//! Gemma 3's text encoder where every token sees both sides, as in EmbeddingGemma (`Gemma3TextModel` of transformers).

use std::path::Path;

use serde_json::Value;

use crate::json::Json;
use crate::model::{EMBEDDINGS, Model};
use crate::options::Options;
use crate::settings::Settings;
use crate::state::State;
use crate::wordpiece::tokenizer_json;
use laser_model::ModelError;
use laser_model::config::{
    Activation, Architecture, LocalAttention, Reach, RotaryTransformerConfig, TextConfig,
    TransformerPooling,
};
use laser_model::folder::{Tensor, Tensors};

/// `model_type` of its `config.json`.
pub(super) const KIND: &str = "gemma3_text";

/// Layers of which the last one reaches everywhere, where `config.json` does not list them.
const PATTERN: usize = 6;

/// Longest token sequence of a model folder.
const MOST_POSITIONS: usize = 1 << 16;

/// The encoder in a folder, with its tokenizer. Settings of sentence-transformers may lie beside it or in `source`.
pub(super) fn gemma(
    config: &Json,
    folder: &Path,
    source: &Path,
    options: &Options,
) -> Result<Model, ModelError> {
    let encoder = encoder(config)?;
    let tensors = tensors(config, &encoder, &State::open(folder)?)?;
    let (tokenizer, notes) = tokenizer(config, folder)?;
    let settings = Settings::of(folder, source)?;
    let longest = settings.longest(encoder.max_positions);
    let text = TextConfig {
        lowercase: settings.lowercase,
        ..TextConfig::default()
    };
    let model = Model::new(
        Architecture::RotaryTransformer(encoder),
        options.max_tokens.unwrap_or(longest),
        text,
        tokenizer,
        tensors,
    );
    Ok(Model { notes, ..model })
}

/// A number that has a default.
fn number(config: &Json, key: &str, default: f64) -> Result<f64, ModelError> {
    match config.value.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_f64()
            .ok_or_else(|| config.error(format!("\"{key}\" is no number"))),
    }
}

/// What `config.json` says of the encoder.
fn encoder(config: &Json) -> Result<RotaryTransformerConfig, ModelError> {
    if !config.flag("use_bidirectional_attention", false) {
        return Err(config.error(
            "\"use_bidirectional_attention\" is not true: a model that sees only what stands before a token is not \
             supported"
                .into(),
        ));
    }
    if config.flag("attention_bias", false) {
        return Err(config.error("\"attention_bias\" is not supported".into()));
    }
    if config
        .value
        .get("attn_logit_softcapping")
        .is_some_and(|v| !v.is_null())
    {
        return Err(config.error("\"attn_logit_softcapping\" is not supported".into()));
    }
    let activation = match config.text("hidden_activation")? {
        "gelu_pytorch_tanh" => Activation::GeluTanh,
        "gelu" => Activation::Gelu,
        other => return Err(config.error(format!("activation \"{other}\" is not supported"))),
    };
    let layers = layers(config)?;
    let base = |layers, key, default| rotary_base(config, layers, key, default);
    let everywhere = base("full_attention", "rope_theta", 1e6)?;
    let local = match layers.contains(&Reach::Local) {
        // Half of it lies on each side of a token.
        true => Some(LocalAttention {
            window: config.number("sliding_window")? / 2 + 1,
            rotary_base: base("sliding_attention", "rope_local_base_freq", 1e4)?,
        }),
        false => None,
    };
    Ok(RotaryTransformerConfig {
        hidden_size: config.number("hidden_size")?,
        layers,
        heads: config.number("num_attention_heads")?,
        key_value_heads: config.number("num_key_value_heads")?,
        head_size: config.number("head_dim")?,
        intermediate_size: config.number("intermediate_size")?,
        max_positions: config
            .number("max_position_embeddings")?
            .min(MOST_POSITIONS),
        rms_norm_eps: number(config, "rms_norm_eps", 1e-6)?,
        activation,
        score_scale: 1.0 / number(config, "query_pre_attn_scalar", 256.0)?.sqrt(),
        rotary_base: everywhere,
        local,
        pooling: TransformerPooling::Mean,
    })
}

/// `layer_types`, or what they are where it is missing: local, but for each sixth (`sliding_window_pattern`).
fn layers(config: &Json) -> Result<Vec<Reach>, ModelError> {
    let count = config.number("num_hidden_layers")?;
    if count > 256 {
        return Err(config.error("\"num_hidden_layers\" is out of range".into()));
    }
    let types = match config.value.get("layer_types") {
        None | Some(Value::Null) => {
            let pattern = match config.value.get("sliding_window_pattern") {
                None | Some(Value::Null) => PATTERN,
                Some(_) => config.number("sliding_window_pattern")?,
            };
            let reach = |layer: usize| match (layer + 1).checked_rem(pattern) {
                Some(0) => Reach::Full,
                _ => Reach::Local,
            };
            return Ok((0..count).map(reach).collect());
        }
        Some(types) => types
            .as_array()
            .filter(|types| types.len() == count)
            .ok_or_else(|| config.error(format!("\"layer_types\" is no list of {count} layers")))?,
    };
    let reach = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Ok(Reach::Full),
        Some("sliding_attention") => Ok(Reach::Local),
        _ => Err(config.error(format!("layer type {kind} is not supported"))),
    };
    types.iter().map(reach).collect()
}

/// The base of the angles of layers of a type: in `rope_parameters`, or, in older files, under a key of its own.
fn rotary_base(config: &Json, layers: &str, key: &str, default: f64) -> Result<f64, ModelError> {
    let unscaled = |name: &str, parameters: &Value| {
        let kind = parameters.get("rope_type").or(parameters.get("type"));
        let scaled = parameters.get("factor").is_some()
            || kind.is_some_and(|kind| !kind.is_null() && kind != "default");
        match scaled {
            true => Err(config.error(format!(
                "\"{name}\" is {parameters}: rotary positions that are scaled are not supported"
            ))),
            false => Ok(()),
        }
    };
    if let Some(scaling) = config.value.get("rope_scaling").filter(|v| !v.is_null()) {
        unscaled("rope_scaling", scaling)?;
    }
    let Some(parameters) = config.value.get("rope_parameters").filter(|v| !v.is_null()) else {
        return number(config, key, default);
    };
    let parameters = parameters
        .get(layers)
        .ok_or_else(|| config.error(format!("\"rope_parameters\" has no \"{layers}\"")))?;
    unscaled("rope_parameters", parameters)?;
    parameters
        .get("rope_theta")
        .and_then(Value::as_f64)
        .ok_or_else(|| {
            config.error(format!(
                "\"rope_theta\" of \"{layers}\" is missing or no number"
            ))
        })
}

/// The tensors of a model folder. Gemma's weights of norms are distances from one.
fn tensors(
    config: &Json,
    encoder: &RotaryTransformerConfig,
    state: &State,
) -> Result<Tensors, ModelError> {
    let prefix = ["", "model."]
        .into_iter()
        .find(|prefix| state.contains(&format!("{prefix}{EMBEDDINGS}")))
        .ok_or_else(|| state.error(format!("tensor \"{EMBEDDINGS}\" is missing")))?;
    let get = |name: &str, shape: &[usize]| state.get(&format!("{prefix}{name}"), shape);
    let norm = |name: &str, size: usize| {
        let weight = get(&format!("{name}.weight"), &[size])?.to_vec();
        let weight = weight.iter().map(|x| 1.0 + x).collect();
        Ok::<_, ModelError>(Tensor::f32(&[size], weight))
    };
    let (d, f, s) = (
        encoder.hidden_size,
        encoder.intermediate_size,
        encoder.head_size,
    );
    // None of the numbers is above 2^32, and no tensor has this many values.
    let (queries, keys) = (
        encoder.heads.saturating_mul(s),
        encoder.key_value_heads.saturating_mul(s),
    );
    let mut tensors = Tensors::new();
    let vocabulary = config.number("vocab_size")?;
    tensors.insert(EMBEDDINGS.into(), get(EMBEDDINGS, &[vocabulary, d])?);
    tensors.insert("final_norm.weight".into(), norm("norm", d)?);
    for layer in 0..encoder.layers.len() {
        for (from, to, shape) in [
            ("self_attn.q_proj", "attention.query", [queries, d]),
            ("self_attn.k_proj", "attention.key", [keys, d]),
            ("self_attn.v_proj", "attention.value", [keys, d]),
            ("self_attn.o_proj", "attention.output", [d, queries]),
            ("mlp.gate_proj", "feed_forward.gate", [f, d]),
            ("mlp.up_proj", "feed_forward.up", [f, d]),
            ("mlp.down_proj", "feed_forward.down", [d, f]),
        ] {
            let weight = get(&format!("layers.{layer}.{from}.weight"), &shape)?;
            tensors.insert(format!("layers.{layer}.{to}.weight"), weight);
        }
        for (from, to, size) in [
            ("self_attn.q_norm", "attention.query_norm", s),
            ("self_attn.k_norm", "attention.key_norm", s),
            ("input_layernorm", "attention_norm", d),
            ("post_attention_layernorm", "attention_output_norm", d),
            ("pre_feedforward_layernorm", "feed_forward_norm", d),
            ("post_feedforward_layernorm", "feed_forward_output_norm", d),
        ] {
            let weight = norm(&format!("layers.{layer}.{from}"), size)?;
            tensors.insert(format!("layers.{layer}.{to}.weight"), weight);
        }
    }
    Ok(tensors)
}

/// `tokenizer.json` without added tokens that the table of embeddings has no row for: Gemma's has one that stands for
/// an image. What looks like one in a text is text.
fn tokenizer(config: &Json, folder: &Path) -> Result<(Value, Vec<String>), ModelError> {
    let mut json = tokenizer_json(folder)?
        .ok_or_else(|| ModelError::import(folder, "there is no \"tokenizer.json\""))?;
    let vocabulary = config.number("vocab_size")? as u64;
    let mut notes = Vec::new();
    if let Some(added) = json.get_mut("added_tokens").and_then(Value::as_array_mut) {
        added.retain(|token| {
            let known = token
                .get("id")
                .and_then(Value::as_u64)
                .is_none_or(|id| id < vocabulary);
            if !known {
                let content = token.get("content").unwrap_or(&Value::Null);
                notes.push(format!(
                    "the model has no embedding of token {content}, which is left out"
                ));
            }
            known
        });
    }
    Ok((json, notes))
}
