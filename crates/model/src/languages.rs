//! Models with an encoder for each language (Schwenk and Douze, RepL4NLP 2017; Conneau et al., EMNLP 2018;
//! Aldarmaki and Diab, NAACL 2019): a folder with `languages.json` and, for each language, a model folder named by
//! its code. `MODEL@LANGUAGE` names an encoder. All embed into one space, so that vectors of different languages
//! can be compared: they have one fingerprint, that of the list, which holds those of the folders.

use std::io::Read;
use std::path::{Path, PathBuf};

use laser_protocol::{model_and_language, valid_folder_name};
use serde::{Deserialize, Serialize};

use crate::base::hex;
use crate::files::{open_plain, replace};
use crate::{ModelError, folder};

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
    /// Name of the model where it was made.
    pub name: String,
    encoders: Vec<Listed>,
}

/// The encoder of a language.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    /// Code of the language, which is the name of the folder.
    language: String,
    /// Of the folder ([`folder::fingerprint`]), in hexadecimal digits.
    fingerprint: String,
}

/// Says why these cannot be the languages of a model: there are none, one occurs twice or cannot be the name of
/// a folder.
///
/// # Errors
/// A message that says which of these it is, and names the code.
pub fn check_codes<'a>(codes: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    let mut known: Vec<&str> = Vec::new();
    for code in codes {
        // A code is the name of a folder, whoever has written it.
        if !valid_folder_name(code) {
            return Err(format!("\"{code}\" is no code of a language"));
        }
        if known.contains(&code) {
            return Err(format!("language \"{code}\" is listed twice"));
        }
        known.push(code);
    }
    if known.is_empty() {
        return Err("a model with an encoder for each language needs a language".into());
    }
    Ok(())
}

impl Languages {
    /// The list for the model folders of these languages in `at`, which are hashed.
    ///
    /// # Errors
    /// [`ModelError::Config`] for codes that [`check_codes`] refuses and for encoders of different
    /// dimensions, and what keeps a folder from being read.
    pub fn of_folders(name: &str, at: &Path, codes: &[String]) -> Result<Self, ModelError> {
        check_codes(codes.iter().map(String::as_str)).map_err(ModelError::Config)?;
        let mut dimensions = None;
        let mut encoders = Vec::new();
        for code in codes {
            let folder = at.join(code);
            let own = folder::read_config(&folder)?.dimensions;
            if *dimensions.get_or_insert(own) != own {
                return Err(ModelError::Config(format!(
                    "the encoder of \"{code}\" has {own} dimensions, that of \"{}\" {}",
                    codes[0],
                    dimensions.unwrap_or_default()
                )));
            }
            encoders.push(Listed {
                language: code.clone(),
                fingerprint: hex(&folder::fingerprint(&folder)?),
            });
        }
        Ok(Self {
            format: FORMAT,
            name: name.to_owned(),
            encoders,
        })
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("format {} is not known", self.format));
        }
        check_codes(self.codes())
    }

    /// Codes of the languages.
    pub fn codes(&self) -> impl Iterator<Item = &str> {
        self.encoders.iter().map(|e| e.language.as_str())
    }

    /// One fingerprint for the embeddings of all languages: blake3 over code and fingerprint of each, preceded by
    /// their lengths (u64, little endian).
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for Listed {
            language,
            fingerprint,
        } in &self.encoders
        {
            for part in [language, fingerprint] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part.as_bytes());
            }
        }
        *hasher.finalize().as_bytes()
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
        let known = self.codes().any(|code| code == language);
        known.then(|| of.join(language))
    }
}

/// The fingerprint of what model `name` embeds, whose folder has the fingerprint `own`: for `MODEL@LANGUAGE` that
/// of the whole model, in whose folder the other one lies.
///
/// # Errors
/// [`ModelError::Format`] if the encoder is not the one that is listed, and those of [`Languages::read`].
pub fn fingerprint(name: &str, folder: &Path, own: [u8; 32]) -> Result<[u8; 32], ModelError> {
    let (_, Some(language)) = model_and_language(name) else {
        return Ok(own);
    };
    let whole = folder.parent().unwrap_or(folder);
    let path = whole.join(LANGUAGES);
    let list = Languages::read(whole)?;
    let found = list.as_ref().and_then(|list| {
        let mut encoders = list.encoders.iter();
        Some((list, encoders.find(|e| e.language == language)?))
    });
    match found {
        Some((list, encoder)) if encoder.fingerprint == hex(&own) => Ok(list.fingerprint()),
        Some(_) => Err(ModelError::format(
            &path,
            format!("the encoder of \"{language}\" is not the one that is listed"),
        )),
        None => Err(ModelError::format(
            &path,
            format!("language \"{language}\" is not listed"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_of(at: &Path, code: &str, dimensions: usize) {
        let folder = at.join(code);
        std::fs::create_dir_all(&folder).unwrap();
        let config = serde_json::json!({
            "format": 1, "name": code, "dimensions": dimensions, "max_tokens": 16, "normalize": true,
            "encoder": { "architecture": "mean", "embedding_size": dimensions, "pooling": "mean" },
        });
        std::fs::write(folder.join(folder::CONFIG), config.to_string()).unwrap();
        std::fs::write(folder.join(folder::TOKENIZER), "{}").unwrap();
        std::fs::write(folder.join(folder::WEIGHTS), code).unwrap();
    }

    fn model(at: &Path, codes: &[&str]) -> Result<Languages, ModelError> {
        let codes: Vec<String> = codes.iter().map(|c| (*c).to_owned()).collect();
        Languages::of_folders("two", at, &codes)
    }

    #[test]
    fn a_list_is_read_as_it_was_written_and_no_code_leads_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        assert_eq!(Languages::read(at).unwrap(), None);
        folder_of(at, "de", 8);
        folder_of(at, "roa-tara", 8);
        let list = model(at, &["de", "roa-tara"]).unwrap();
        list.write(at).unwrap();
        assert_eq!(Languages::read(at).unwrap().as_ref(), Some(&list));
        assert_eq!(list.folder(at, "de"), Some(at.join("de")));
        assert_eq!(list.folder(at, "fr"), None);
        for wrong in [&[".."][..], &["a/b"], &[""], &["de@at"], &["de", "de"], &[]] {
            assert!(model(at, wrong).is_err(), "{wrong:?}");
            let encoders: Vec<_> = wrong
                .iter()
                .map(|code| serde_json::json!({ "language": code, "fingerprint": "" }))
                .collect();
            let json = serde_json::json!({ "format": 1, "name": "x", "encoders": encoders });
            std::fs::write(at.join(LANGUAGES), json.to_string()).unwrap();
            let error = Languages::read(at).unwrap_err().to_string();
            assert!(error.contains(LANGUAGES), "{error}");
        }
        let json = serde_json::json!({ "format": 2, "name": "x", "encoders": [] });
        std::fs::write(at.join(LANGUAGES), json.to_string()).unwrap();
        let error = Languages::read(at).unwrap_err().to_string();
        assert!(error.contains("format 2"), "{error}");
    }

    #[test]
    fn all_languages_have_one_fingerprint_which_changes_with_each_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        folder_of(at, "de", 8);
        folder_of(at, "en", 8);
        model(at, &["de", "en"]).unwrap().write(at).unwrap();
        let of = |code: &str| {
            let own = folder::fingerprint(&at.join(code)).unwrap();
            let name = format!("two@{code}");
            assert_eq!(fingerprint("two", &at.join(code), own).unwrap(), own);
            fingerprint(&name, &at.join(code), own)
        };
        let before = of("de").unwrap();
        assert_eq!(of("en").unwrap(), before);
        assert!(of("en").unwrap() != folder::fingerprint(&at.join("en")).unwrap());
        std::fs::write(at.join("en").join(folder::WEIGHTS), "other").unwrap();
        let error = of("en").unwrap_err().to_string();
        assert!(error.contains("\"en\" is not the one"), "{error}");
        assert_eq!(of("de").unwrap(), before);
        model(at, &["de", "en"]).unwrap().write(at).unwrap();
        assert!(of("de").unwrap() != before);
        assert_eq!(of("de").unwrap(), of("en").unwrap());
        folder_of(at, "fr", 16);
        let error = model(at, &["de", "fr"]).unwrap_err().to_string();
        assert!(error.contains("16 dimensions"), "{error}");
        let own = folder::fingerprint(&at.join("fr")).unwrap();
        let error = fingerprint("two@fr", &at.join("fr"), own).unwrap_err();
        assert!(error.to_string().contains("not listed"), "{error}");
    }
}
