//! The tokenizer of a folder as transformers writes it.

use std::path::Path;

use serde_json::{Value, json};

use crate::family::Family;
use crate::files::read_text;
use crate::json::Json;
use laser_model::ModelError;

/// `tokenizer.json`, which cuts and pads nothing; `None` if there is no such file.
///
/// # Errors
/// If it is malformed.
pub(super) fn tokenizer_json(folder: &Path) -> Result<Option<Value>, ModelError> {
    let path = folder.join("tokenizer.json");
    if !path.exists() {
        return Ok(None);
    }
    let mut json = Json::open(path)?;
    if let Some(fields) = json.value.as_object_mut() {
        fields.insert("truncation".into(), Value::Null);
        fields.insert("padding".into(), Value::Null);
    }
    Ok(Some(json.value))
}

/// `tokenizer.json`, or WordPiece from `vocab.txt`.
pub(super) fn tokenizer(folder: &Path, family: &Family) -> Result<Value, ModelError> {
    if let Some(json) = tokenizer_json(folder)? {
        return Ok(json);
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
    let [begin, end, padding, mask] = family.special;
    let added = [padding, "[UNK]", begin, end, mask]
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
        // Of two texts, MPNet has two ends between them, as RoBERTa.
        "post_processor": match begin {
            "[CLS]" => json!({
                "type": "BertProcessing",
                "sep": [end, id(end)?],
                "cls": [begin, id(begin)?],
            }),
            _ => json!({
                "type": "RobertaProcessing",
                "sep": [end, id(end)?],
                "cls": [begin, id(begin)?],
                "trim_offsets": true,
                "add_prefix_space": false,
            }),
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
