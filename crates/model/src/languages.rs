//! Models with an encoder for each language (Schwenk and Douze, RepL4NLP 2017): a folder with
//! `languages.json` and, for each language, a model folder named by its code. All embed into one space, so
//! that vectors of different languages can be compared.

use std::io::Read;
use std::path::{Path, PathBuf};

use laser_protocol::valid_model_name;
use serde::{Deserialize, Serialize};

use crate::ModelError;
use crate::files::{open_plain, replace};

/// File name of the list of languages.
pub const LANGUAGES: &str = "languages.json";
/// Version of the file.
const FORMAT: u32 = 1;
/// Largest `languages.json` that is read.
const MAX_BYTES: u64 = 1 << 20;

/// What `languages.json` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Languages {
    format: u32,
    /// Name of the model; `NAME@LANGUAGE` is its encoder for a language.
    pub name: String,
    /// Codes of the languages, which are the names of their folders.
    pub languages: Vec<String>,
}

impl Languages {
    /// A model of some languages.
    ///
    /// # Errors
    /// [`ModelError::Config`] for codes that cannot be names of folders or occur twice, and for none.
    pub fn new(name: &str, languages: Vec<String>) -> Result<Self, ModelError> {
        let model = Self {
            format: FORMAT,
            name: name.to_owned(),
            languages,
        };
        model.check().map_err(ModelError::Config)?;
        Ok(model)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("format {} is not known", self.format));
        }
        if self.languages.is_empty() {
            return Err("a model with an encoder for each language needs a language".into());
        }
        for (i, code) in self.languages.iter().enumerate() {
            // A code is the name of a folder, whoever has written it.
            if !valid_model_name(code) {
                return Err(format!("\"{code}\" is no code of a language"));
            }
            if self.languages[..i].contains(code) {
                return Err(format!("language \"{code}\" is listed twice"));
            }
        }
        Ok(())
    }

    /// Reads the list of a folder; `None` if it has none, as folders of one model.
    ///
    /// # Errors
    /// [`ModelError::Io`], or [`ModelError::Format`] if it is not as [`Languages::write`] makes it.
    pub fn read(folder: &Path) -> Result<Option<Self>, ModelError> {
        let path = folder.join(LANGUAGES);
        let file = match open_plain(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(ModelError::io(&path, e)),
        };
        let mut json = Vec::new();
        file.take(MAX_BYTES)
            .read_to_end(&mut json)
            .map_err(|e| ModelError::io(&path, e))?;
        let model: Self =
            serde_json::from_slice(&json).map_err(|e| ModelError::format(&path, e.to_string()))?;
        model.check().map_err(|e| ModelError::format(&path, e))?;
        Ok(Some(model))
    }

    /// Writes the list into a folder, by renaming.
    ///
    /// # Errors
    /// [`ModelError::Io`].
    pub fn write(&self, folder: &Path) -> Result<(), ModelError> {
        let path = folder.join(LANGUAGES);
        let json = serde_json::to_string_pretty(self)
            .map_err(|e| ModelError::format(&path, e.to_string()))?;
        replace(&path, |temporary| {
            std::fs::write(temporary, json.clone() + "\n")
        })
    }

    /// The model folder of a language in the folder of this model; `None` if there is no such language.
    #[must_use]
    pub fn folder(&self, of: &Path, language: &str) -> Option<PathBuf> {
        let known = self.languages.iter().any(|l| l == language);
        known.then(|| of.join(language))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written_and_no_code_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        assert_eq!(Languages::read(at).unwrap(), None);
        let codes = ["de", "roa-tara"].map(str::to_owned).to_vec();
        let model = Languages::new("two", codes).unwrap();
        model.write(at).unwrap();
        assert_eq!(Languages::read(at).unwrap().as_ref(), Some(&model));
        assert_eq!(model.folder(at, "de"), Some(at.join("de")));
        assert_eq!(model.folder(at, "fr"), None);
        for wrong in [&[".."][..], &["a/b"], &[""], &["de", "de"], &[]] {
            let codes: Vec<String> = wrong.iter().map(|c| (*c).to_owned()).collect();
            assert!(Languages::new("x", codes).is_err(), "{wrong:?}");
            let json = serde_json::json!({ "format": 1, "name": "x", "languages": wrong });
            std::fs::write(at.join(LANGUAGES), json.to_string()).unwrap();
            let error = Languages::read(at).unwrap_err().to_string();
            assert!(error.contains(LANGUAGES), "{error}");
        }
        std::fs::write(
            at.join(LANGUAGES),
            r#"{"format":2,"name":"x","languages":["de"]}"#,
        )
        .unwrap();
        let error = Languages::read(at).unwrap_err().to_string();
        assert!(error.contains("format 2"), "{error}");
    }
}
