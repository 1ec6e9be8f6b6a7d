//! Cross-encoders: folders for sequence classification with one label, as transformers writes them. The head
//! becomes dense layers above the state of the first token.

use std::path::Path;

use serde_json::Value;

use crate::family::Family;
use crate::json::Json;
use crate::model::Model;
use crate::options::Options;
use crate::state::State;
use crate::transformer::transformer;
use laser_model::ModelError;
use laser_model::config::{Activation, Dense, Task};

/// Whether a folder says that it is for classification.
pub(super) fn is_classifier(source: &Path) -> bool {
    let config = Json::open(source.join("config.json"));
    let classifies = |json: Json| {
        let architectures = json.value.get("architectures")?.as_array()?;
        let mut names = architectures.iter().filter_map(Value::as_str);
        Some(names.any(|name| name.ends_with("ForSequenceClassification")))
    };
    config.is_ok_and(|json| classifies(json).unwrap_or(false))
}

/// A folder with a classifier of one label.
pub(super) fn cross_encoder(source: &Path, options: &Options) -> Result<Model, ModelError> {
    let json = Json::open(source.join("config.json"))?;
    let labels = json.value.get("id2label").and_then(Value::as_object);
    if let Some(labels) = labels
        .map(serde_json::Map::len)
        .filter(|labels| *labels != 1)
    {
        return Err(json.error(format!(
            "it has {labels} labels, and a reranker has one: the score"
        )));
    }
    let head = Family::of(&json)?.head;
    let mut model = transformer(source, source, options)?;
    let state = State::open(source)?;
    let width = model.config.dimensions;
    let layers = [
        (head.dense, width, head.activation),
        (head.output, 1, Activation::None),
    ];
    for (i, (name, output, activation)) in layers.into_iter().enumerate() {
        let weight = state.get(&format!("{name}.weight"), &[output, width])?;
        let bias = state.get(&format!("{name}.bias"), &[output])?;
        model.tensors.insert(format!("dense.{i}.weight"), weight);
        model.tensors.insert(format!("dense.{i}.bias"), bias);
        model.config.dense.push(Dense {
            input: width,
            output,
            activation,
            residual: false,
            layer_norm: false,
        });
    }
    if options.max_tokens.is_none()
        && let Some(longest) = longest(source)?
    {
        model.config.max_tokens = model.config.max_tokens.min(longest);
    }
    model.config.dimensions = 1;
    model.config.task = Task::Rerank;
    model.notes.push(match activation(&json) {
        Some("Identity") => "scores are the logits of the original, as in sentence-transformers".into(),
        None | Some("Sigmoid") => "scores are the logits of the original: the sigmoid of one is what \
                                   sentence-transformers gives"
            .into(),
        Some(other) => format!(
            "scores are the logits of the original, without the activation \"{other}\" that sentence-transformers \
             applies"
        ),
    });
    Ok(model)
}

/// Tokens that the tokenizer of the original cuts pairs to, if it says so.
fn longest(source: &Path) -> Result<Option<usize>, ModelError> {
    let path = source.join("tokenizer_config.json");
    if !path.exists() {
        return Ok(None);
    }
    // Where there is no limit, transformers writes an integer that no type holds.
    let json = Json::open(path)?;
    let longest = json.value.get("model_max_length").and_then(Value::as_u64);
    Ok(longest.and_then(|longest| usize::try_from(longest).ok()))
}

/// What sentence-transformers makes a score of, as a class of PyTorch, if the folder says so.
fn activation(json: &Json) -> Option<&str> {
    let now = json.value.get("sentence_transformers");
    let before = json.value.get("sbert_ce_default_activation_function");
    let name = now.and_then(|s| s.get("activation_fn")).or(before)?;
    name.as_str()?.rsplit('.').next()
}
