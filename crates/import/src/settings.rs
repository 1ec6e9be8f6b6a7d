//! What sentence-transformers does before it tokenises.

use std::path::Path;

use crate::json::Json;
use laser_model::ModelError;

/// Lengths and lower-casing.
pub(super) struct Settings {
    /// Tokens that texts are cut to, if it says so.
    max_tokens: Option<usize>,
    /// Whether texts are lower-cased.
    pub lowercase: bool,
}

impl Settings {
    /// Those of an encoder in `folder`, which may lie in `source` instead, under one of the names that
    /// sentence-transformers gave to the file over time.
    ///
    /// # Errors
    /// If there is such a file, and it is malformed.
    pub fn of(folder: &Path, source: &Path) -> Result<Self, ModelError> {
        let json = ["bert", "roberta", "xlm-roberta", "distilbert"]
            .into_iter()
            .map(|kind| format!("sentence_{kind}_config.json"))
            .flat_map(|name| [folder.join(&name), source.join(&name)])
            .find(|path| path.exists())
            .map(Json::open)
            .transpose()?;
        let Some(json) = json else {
            return Ok(Self {
                max_tokens: None,
                lowercase: false,
            });
        };
        let given = json
            .value
            .get("max_seq_length")
            .is_some_and(|v| !v.is_null());
        Ok(Self {
            max_tokens: given.then(|| json.number("max_seq_length")).transpose()?,
            lowercase: json.flag("do_lower_case", false),
        })
    }

    /// Tokens that texts are cut to by an encoder of `limit` positions.
    pub fn longest(&self, limit: usize) -> usize {
        self.max_tokens.map_or(limit, |longest| longest.min(limit))
    }
}
