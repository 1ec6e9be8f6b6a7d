//! JSON files of a checkpoint.

use std::path::PathBuf;

use serde_json::Value;

use crate::files::read_text;
use laser_model::ModelError;

/// A JSON file with access to typed fields.
pub(super) struct Json {
    /// Path of the file, for messages.
    pub path: PathBuf,
    /// Its contents.
    pub value: Value,
}

impl Json {
    pub fn open(path: PathBuf) -> Result<Self, ModelError> {
        let value = serde_json::from_str(&read_text(&path)?)
            .map_err(|e| ModelError::import(&path, e.to_string()))?;
        Ok(Self { path, value })
    }

    pub fn error(&self, message: String) -> ModelError {
        ModelError::import(&self.path, message)
    }

    pub fn number(&self, key: &str) -> Result<usize, ModelError> {
        self.value
            .get(key)
            .and_then(Value::as_u64)
            .and_then(|n| u32::try_from(n).ok())
            // No product of two can overflow.
            .map(|n| n as usize)
            .ok_or_else(|| self.error(format!("\"{key}\" is missing or no number in range")))
    }

    pub fn flag(&self, key: &str, default: bool) -> bool {
        self.value
            .get(key)
            .and_then(Value::as_bool)
            .unwrap_or(default)
    }

    pub fn text(&self, key: &str) -> Result<&str, ModelError> {
        self.value
            .get(key)
            .and_then(Value::as_str)
            .ok_or_else(|| self.error(format!("\"{key}\" is missing or no string")))
    }
}
