//! Model folders by name: where a model lies, which one is the default, whether its files have
//! changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use laser_protocol::{
    language_model_name, model_and_language, valid_folder_name, valid_model_name,
};

use crate::languages::LANGUAGES;
use crate::{Languages, base, folder};

/// How often a loaded model's folder is checked for changes.
pub const RECHECK: Duration = Duration::from_secs(1);

/// What distinguishes one state of a model folder from another: its path, and device, inode, size
/// and modification time of its files, of those of its base, and of the list of languages that it may be of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    path: PathBuf,
    files: Files,
    base: Option<(PathBuf, Files)>,
}

/// Of each file: device, inode, size, seconds and nanoseconds of its modification.
type Files = Box<[(u64, u64, u64, i64, i64); 5]>;

/// Missing files count as zeros.
fn files(path: &Path) -> Files {
    let file = |path: &Path| {
        std::fs::metadata(path)
            .map(|m| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
            .unwrap_or_default()
    };
    let names = [
        folder::CONFIG,
        folder::TOKENIZER,
        folder::WEIGHTS,
        folder::DICTIONARY,
    ];
    let [config, tokenizer, weights, dictionary] = names.map(|name| file(&path.join(name)));
    let languages = file(&path.with_file_name(LANGUAGES));
    Box::new([config, tokenizer, weights, dictionary, languages])
}

impl Stamp {
    /// The stamp of a folder. The configuration is read where there is no tokenizer alone: the model may
    /// have that of its base.
    pub fn of(path: &Path) -> Self {
        let files = files(path);
        let based = files[1] == Default::default();
        let base = based
            .then(|| folder::read_config(path).ok()?.base)
            .flatten()
            .and_then(|base| base::folder_of(path, &base).ok())
            .map(|path| {
                let files = self::files(&path);
                (path, files)
            });
        Self {
            path: path.to_owned(),
            files,
            base,
        }
    }

    /// Whether the folder `path` is in this state. No file is opened: which base the model has is in a
    /// file that has not changed.
    pub fn is_of(&self, path: &Path) -> bool {
        let base = self.base.as_ref();
        self.path == path
            && self.files == files(path)
            && base.is_none_or(|(path, files)| *files == self::files(path))
    }

    /// Path of the model folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of all files of the model in bytes, and of those of the base, if there is one.
    pub fn bytes(&self) -> u64 {
        let own = self.files.iter();
        let base = self.base.iter().flat_map(|(_, files)| files.iter());
        own.chain(base)
            .fold(0, |sum, file| file.2.saturating_add(sum))
    }

    /// Size of `model.safetensors` in bytes, and of that of the base, if there is one.
    pub fn weights_bytes(&self) -> u64 {
        let base = self.base.as_ref().map_or(0, |(_, files)| files[2].2);
        self.files[2].2.saturating_add(base)
    }
}

/// The folder of a model: the first below `folders` that has a `config.json`. That of `MODEL@LANGUAGE` lies in
/// the first folder of that name with a list of languages.
pub fn find(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    if !valid_model_name(name) {
        return None;
    }
    let (model, language) = model_and_language(name);
    match language {
        Some(language) => languages_of(folders, model)
            .and_then(|(whole, list)| list.ok()?.folder(&whole, language))
            .filter(|p| p.join(folder::CONFIG).exists()),
        None => folders
            .iter()
            .map(|f| f.join(name))
            .find(|p| p.join(folder::CONFIG).exists()),
    }
}

/// The folder of a model that has an encoder for each language, the first below `folders`, and its list.
pub fn languages_of(
    folders: &[PathBuf],
    model: &str,
) -> Option<(PathBuf, Result<Languages, crate::ModelError>)> {
    if !valid_folder_name(model) {
        return None;
    }
    folders.iter().find_map(|f| {
        let whole = f.join(model);
        let list = Languages::read(&whole).transpose()?;
        Some((whole, list))
    })
}

/// Names of the models below `base`, sorted: of those with an encoder for each language the names of all
/// encoders, or of the folder where its list cannot be read.
pub fn names_in(base: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(base) else {
        return Vec::new();
    };
    let mut names: Vec<String> = Vec::new();
    let found = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok());
    for name in found.filter(|name| valid_folder_name(name)) {
        let path = base.join(&name);
        match Languages::read(&path) {
            Ok(Some(list)) => {
                let encoders = list.codes().map(|code| language_model_name(&name, code));
                names.extend(encoders.filter(|name| valid_model_name(name)));
            }
            // What is no folder has no list either.
            Err(_) if path.join(LANGUAGES).exists() => names.push(name.clone()),
            Err(_) | Ok(None) => {}
        }
        if path.join(folder::CONFIG).exists() && !names.contains(&name) {
            names.push(name);
        }
    }
    names.sort();
    names
}

/// The model that ships with laser.
pub const SHIPPED: &str = "laser-mean-384";

/// The model that is used where none is named and none is configured: the one that ships with laser,
/// if it is there. Not any other, however few there are: what was embedded before a folder came or went
/// is compared with what is embedded after.
pub fn default_name(configured: &str, folders: &[PathBuf]) -> Option<String> {
    if !configured.is_empty() {
        return Some(configured.to_owned());
    }
    find(folders, SHIPPED).map(|_| SHIPPED.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_folders_and_those_of_several_encoders_are_named_by_language() {
        let base = tempfile::tempdir().unwrap();
        let at = |path: &str| base.path().join(path);
        std::fs::write(at("README"), "no folder").unwrap();
        for folder in ["empty", "one", "pair/de", "pair/en", "broken/de", "gone/de"] {
            std::fs::create_dir_all(at(folder)).unwrap();
        }
        for folder in ["one", "pair/de", "pair/en", "broken/de"] {
            std::fs::write(at(folder).join(folder::CONFIG), "{}").unwrap();
        }
        let encoder = |code: &str| serde_json::json!({ "language": code, "fingerprint": "" });
        let list = |codes: &[&str]| {
            let encoders: Vec<_> = codes.iter().map(|code| encoder(code)).collect();
            serde_json::json!({ "format": 1, "name": "x", "encoders": encoders }).to_string()
        };
        std::fs::write(at("pair").join(LANGUAGES), list(&["en", "de"])).unwrap();
        std::fs::write(at("gone").join(LANGUAGES), list(&["fr"])).unwrap();
        std::fs::write(at("broken").join(LANGUAGES), list(&[".."])).unwrap();
        let found = ["broken", "gone@fr", "one", "pair@de", "pair@en"];
        assert_eq!(names_in(base.path()), found);
        let folders = [base.path().to_owned()];
        assert_eq!(find(&folders, "one"), Some(at("one")));
        assert_eq!(find(&folders, "pair@en"), Some(at("pair/en")));
        for none in [
            "pair",
            "pair@fr",
            "pair@",
            "one@de",
            "gone@fr",
            "broken@de",
            "broken@..",
        ] {
            assert_eq!(find(&folders, none), None, "{none}");
        }
        // Its state changes with the list.
        let stamp = Stamp::of(&at("pair/en"));
        assert!(stamp.is_of(&at("pair/en")));
        std::fs::write(at("pair").join(LANGUAGES), list(&["en"])).unwrap();
        assert!(!stamp.is_of(&at("pair/en")));
    }
}
