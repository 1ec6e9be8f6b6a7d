//! The encoders of transformers' library: BERT and its relatives ([`Family`]).

use std::path::Path;

use serde_json::Value;

use crate::family::Family;
use crate::json::Json;
use crate::layers;
use crate::model::Model;
use crate::options::Options;
use crate::settings::Settings;
use crate::state::State;
use crate::wordpiece::tokenizer;
use laser_model::ModelError;
use laser_model::config::{
    Activation, Architecture, NormPosition, TextConfig, TransformerConfig, TransformerPooling,
};
use laser_model::folder::Tensors;

/// The encoder in a folder, with its tokenizer. Settings of sentence-transformers may lie beside it or in
/// `source`.
pub(super) fn transformer(
    folder: &Path,
    source: &Path,
    options: &Options,
) -> Result<Model, ModelError> {
    let json = Json::open(folder.join("config.json"))?;
    let family = Family::of(&json)?;
    let position_offset = family.positions.offset(&json)?;
    if json
        .value
        .get("position_embedding_type")
        .is_some_and(|v| v != "absolute")
    {
        return Err(json.error("\"position_embedding_type\" is not \"absolute\"".into()));
    }
    let activation = match json.text(family.keys.activation)? {
        "gelu" => Activation::Gelu,
        "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
        "relu" => Activation::Relu,
        other => return Err(json.error(format!("activation \"{other}\" is not supported"))),
    };
    let eps = json
        .value
        .get("layer_norm_eps")
        .and_then(Value::as_f64)
        .unwrap_or(1e-12);
    let relative = family.relative;
    let buckets = json.value.get("relative_attention_num_buckets");
    if let (Some((relative, _)), Some(buckets)) = (relative, buckets)
        && *buckets != relative.buckets
    {
        return Err(json.error(format!(
            "\"relative_attention_num_buckets\" is {buckets}, not {}",
            relative.buckets
        )));
    }
    let keys = family.keys;
    let encoder = TransformerConfig {
        hidden_size: json.number(keys.hidden_size)?,
        layers: json.number(keys.layers)?,
        heads: json.number(keys.heads)?,
        intermediate_size: json.number(keys.intermediate_size)?,
        max_positions: json.number("max_position_embeddings")?,
        type_vocab_size: match family.token_types {
            true => json.number("type_vocab_size")?,
            false => 0,
        },
        layer_norm_eps: eps,
        activation,
        norm: NormPosition::Post,
        pooling: TransformerPooling::Cls,
        position_offset,
        scale_embedding: false,
        embedding_norm: true,
        relative_positions: relative.map(|(relative, _)| relative),
    };
    let vocabulary = json.number("vocab_size")?;
    if encoder.layers > 256 {
        return Err(json.error(format!("\"{}\" is out of range", keys.layers)));
    }
    let state = State::open(folder)?;
    let prefix = family
        .prefixes
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
    layers::each_tensor(family.names, &encoder, &mut take)?;
    if let Some((relative, name)) = relative {
        let shape = [relative.buckets, encoder.heads];
        take(name.into(), "relative_positions.weight".into(), &shape)?;
    }
    let limit = encoder.max_positions.saturating_sub(position_offset);
    let settings = Settings::of(folder, source)?;
    let text = TextConfig {
        lowercase: settings.lowercase,
        ..TextConfig::default()
    };
    Ok(Model::new(
        Architecture::Transformer(encoder),
        options.max_tokens.unwrap_or(settings.longest(limit)),
        text,
        tokenizer(folder, family)?,
        tensors,
    ))
}
