//! The models that are installed, as users see them: without loading any, and in names instead of paths.

use std::path::{Path, PathBuf};

use laser_protocol::{ErrorCode, Failure, ModelInfo, language_model_name, model_and_language};

use crate::config::Task;
use crate::{Languages, ModelError, base, catalog, folder, languages};

/// Names and folders of all models below `folders`, sorted by name; of two with one name that in the earlier
/// folder.
pub fn list(folders: &[PathBuf]) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for base in folders {
        for name in catalog::names_in(base) {
            if !found.iter().any(|(known, _)| *known == name) {
                let path = match model_and_language(&name) {
                    (model, Some(language)) => base.join(model).join(language),
                    (model, None) => base.join(model),
                };
                found.push((name, path));
            }
        }
    }
    found.sort();
    found
}

/// What can be told of a model without loading it. `fingerprint` hashes a folder, or knows its hash.
pub fn describe(
    name: String,
    path: &Path,
    mut fingerprint: impl FnMut(&Path) -> Result<[u8; 32], ModelError>,
) -> ModelInfo {
    let mut info = ModelInfo {
        name,
        dimensions: 0,
        architecture: String::new(),
        reranker: false,
        max_tokens: 0,
        fingerprint: None,
        loaded: false,
        precision: String::new(),
        default: false,
        query_prefix: String::new(),
        passage_prefix: String::new(),
        error: String::new(),
    };
    let checked = Languages::read(path).and_then(|_| {
        let config = folder::read_config(path)?;
        info.dimensions = config.dimensions as u32;
        info.architecture = config.encoder.name().to_owned();
        info.reranker = config.task == Task::Rerank;
        info.max_tokens = config.max_tokens as u32;
        info.query_prefix.clone_from(&config.prefixes.query);
        info.passage_prefix.clone_from(&config.prefixes.passage);
        base::token_folder(path, &config)?;
        base::verify(path, &config, &mut fingerprint)
    });
    if let Err(e) = checked {
        info.error = without_path(e.to_string(), path);
    }
    match fingerprint(path).and_then(|own| languages::fingerprint(&info.name, path, own)) {
        Ok(fingerprint) => info.fingerprint = Some(fingerprint),
        Err(e) if info.error.is_empty() => info.error = without_path(e.to_string(), path),
        Err(_) => {}
    }
    info
}

/// Folders that are configured and do not exist.
pub fn missing_folders(folders: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    folders.iter().filter(|folder| !folder.is_dir())
}

/// No model is named, and none is the default.
pub fn no_default() -> Failure {
    Failure {
        code: ErrorCode::UnknownModel,
        message: "there is no default model".into(),
        hint: format!(
            "Set laser.model to one of view laser_models, or install \"{}\", which ships with laser.",
            catalog::SHIPPED
        ),
    }
}

/// There is no model of this name below `folders`.
pub fn unknown(name: &str, folders: &[PathBuf]) -> Failure {
    let mut message = format!("model \"{name}\" does not exist");
    let mut hint = "See view laser_models for the models that are installed.".to_owned();
    let (model, language) = model_and_language(name);
    if let Some((_, Ok(list))) = catalog::languages_of(folders, model) {
        message = match language {
            Some(language) => {
                format!("model \"{model}\" has no encoder for language \"{language}\"")
            }
            None => format!("model \"{model}\" has an encoder for each language and none for all"),
        };
        hint = format!("Name one of its encoders: {}.", some_of(model, &list));
    }
    // Users see names, not where the server keeps its files.
    if missing_folders(folders).next().is_some() {
        hint.insert_str(
            0,
            "A directory in laser.model_path does not exist, the server's log names it. ",
        );
    }
    Failure {
        code: ErrorCode::UnknownModel,
        message,
        hint,
    }
}

/// The names of a model's encoders, of very many only the first.
fn some_of(model: &str, list: &Languages) -> String {
    const MOST: usize = 20;
    let mut names: Vec<String> = list
        .codes()
        .take(MOST)
        .map(|code| language_model_name(model, code))
        .collect();
    if list.codes().nth(MOST).is_some() {
        names.push("…".into());
    }
    names.join(", ")
}

/// The model in this folder cannot be loaded.
pub fn broken(name: &str, path: &Path, error: String, hint: &str) -> Failure {
    Failure {
        code: ErrorCode::BrokenModel,
        message: format!(
            "could not load model \"{name}\": {}",
            without_path(error, path)
        ),
        hint: hint.into(),
    }
}

/// The model embeds queries and passages differently, and it is not known which of the two a text is.
pub fn undecided(name: &str) -> Failure {
    Failure {
        code: ErrorCode::Undecided,
        message: format!(
            "model \"{name}\" embeds queries and passages differently, and the role of this text is not known"
        ),
        hint: "Compare a column with a constant or a parameter, which is the query, or say what each is: \
               laser_embed(a, NULL, 'passage') <=> laser_embed(b, NULL, 'query')."
            .into(),
    }
}

/// A model that embeds is asked for scores, or one that scores for embeddings.
pub fn wrong_task(name: &str, task: Task) -> Failure {
    let (message, hint) = match task {
        Task::Rerank => (
            format!("model \"{name}\" scores pairs of a query and a text, it does not embed"),
            "Use it in laser_rerank(query, text, model), and a model that embeds here: see laser_models.reranker.",
        ),
        Task::Embed => (
            format!("model \"{name}\" embeds texts, it does not score pairs"),
            "laser_rerank takes a cross-encoder: see laser_models.reranker. laser import makes such models of \
             checkpoints for sequence classification.",
        ),
    };
    Failure {
        code: ErrorCode::WrongTask,
        message,
        hint: hint.into(),
    }
}

/// What a session hears of an error of a model that concerns what it asked; `None` for all others.
pub fn refusal(name: &str, error: &ModelError) -> Option<Failure> {
    match error {
        ModelError::Undecided => Some(undecided(name)),
        ModelError::Reranker => Some(wrong_task(name, Task::Rerank)),
        ModelError::NoReranker => Some(wrong_task(name, Task::Embed)),
        _ => None,
    }
}

/// What to do about files that are not as they must be.
pub const REPAIR: &str = "Repair or replace the files of the model's folder; the next call tries again. \
                          See view laser_models for the models that are installed.";

/// Users see file names, not where the server keeps them: that of a base with its folder's name.
fn without_path(message: String, folder: &Path) -> String {
    let parent = folder.parent().unwrap_or(folder);
    let paths = [folder, parent]
        .into_iter()
        .filter(|path| path.is_absolute());
    paths.fold(message, |message, path| {
        message.replace(&format!("{}/", path.display()), "")
    })
}
