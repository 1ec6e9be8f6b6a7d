//! sentence-transformers folders: LaBSE and its like.

use std::path::Path;

use serde_json::Value;

use crate::gemma::{self, gemma};
use crate::json::Json;
use crate::model::Model;
use crate::options::Options;
use crate::state::State;
use crate::transformer::transformer;
use laser_model::ModelError;
use laser_model::config::{Activation, Architecture, Dense, Prefixes, TransformerPooling};
use laser_model::folder::Tensor;

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
            ("Transformer", None) => model = Some(encoder(&folder, source, options)?),
            ("Pooling", Some(model)) if pooling.is_none() => {
                let mode = pooling_mode(&Json::open(folder.join("config.json"))?)?;
                match &mut model.config.encoder {
                    Architecture::Transformer(c) => c.pooling = mode,
                    Architecture::RotaryTransformer(c) => c.pooling = mode,
                    _ => {}
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
    let mut model = model.ok_or_else(|| modules.error("there is no Transformer module".into()))?;
    if pooling.is_none() {
        return Err(modules.error("there is no Pooling module".into()));
    }
    prefixes(source, &mut model)?;
    Ok(model)
}

/// The encoder of a Transformer module, by its `model_type`.
fn encoder(folder: &Path, source: &Path, options: &Options) -> Result<Model, ModelError> {
    let config = Json::open(folder.join("config.json"))?;
    if config.text("model_type")? == gemma::KIND {
        return gemma(&config, folder, source, options);
    }
    transformer(folder, source, options)
}

/// Takes up the prompts for queries and passages.
fn prefixes(source: &Path, model: &mut Model) -> Result<(), ModelError> {
    let path = source.join("config_sentence_transformers.json");
    if !path.exists() {
        return Ok(());
    }
    let json = Json::open(path)?;
    let prompts = json.value.get("prompts").and_then(Value::as_object);
    let prompt = |names: &[&str]| -> Result<String, ModelError> {
        let found = names.iter().find_map(|name| prompts?.get(*name));
        match found.unwrap_or(&Value::Null) {
            Value::Null => Ok(String::new()),
            Value::String(prompt) => Ok(prompt.clone()),
            _ => Err(json.error(format!("prompt \"{}\" is no string", names[0]))),
        }
    };
    model.config.prefixes = Prefixes {
        query: prompt(&["query"])?,
        passage: prompt(&["passage", "document"])?,
    };
    let default = json.value.get("default_prompt_name");
    if let Some(Value::String(name)) = default {
        model.notes.push(format!(
            "the original puts its prompt \"{name}\" before texts that come without a role; here they are \
             embedded as they are"
        ));
    }
    Ok(())
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
    if !json.flag("include_prompt", true) {
        return Err(json.error("\"include_prompt\" is not true".into()));
    }
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
