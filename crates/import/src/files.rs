//! The files of a checkpoint.

use std::path::{Path, PathBuf};

use laser_model::ModelError;

/// Names of the model files at `source`, for messages.
pub(crate) fn listing(source: &Path) -> String {
    const EXTENSIONS: [&str; 6] = ["pt", "spm", "cvocab", "fcodes", "fvocab", "json"];
    let mut names: Vec<String> = folder_of(source)
        .read_dir()
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(PathBuf::from(entry.ok()?.file_name())))
        .filter(|name| {
            EXTENSIONS
                .iter()
                .any(|e| name.extension().is_some_and(|n| n == *e))
        })
        .map(|name| format!("\"{}\"", name.display()))
        .collect();
    names.sort();
    if names.is_empty() {
        return "none of these".into();
    }
    names.truncate(8);
    names.join(", ")
}

/// The folder `source`, or the one it lies in.
fn folder_of(source: &Path) -> &Path {
    if !source.is_file() {
        return source;
    }
    match source.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// The file with this extension that belongs to `source`: the only one in a folder; for a file, the
/// one of its name, else one whose name is a part of it, else the only one beside it (LASER1's codes,
/// and LASER2's SentencePiece model, which some of LASER3's models share, have names of their own).
pub(crate) fn find(source: &Path, extension: &str) -> Result<PathBuf, ModelError> {
    if source.is_file() {
        let path = source.with_extension(extension);
        if path.exists() {
            return Ok(path);
        }
    }
    let folder = folder_of(source);
    let entries = std::fs::read_dir(folder).map_err(|e| ModelError::io(folder, e))?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    if found.len() > 1 && source.is_file() {
        // `bilstm.93langs.2018-12-26.pt` belongs to `93langs.fcodes`.
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let part_of_name = |path: &PathBuf| {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            name.split('.').any(|part| part == stem)
        };
        let named: Vec<PathBuf> = found.iter().filter(|p| part_of_name(p)).cloned().collect();
        if named.len() == 1 {
            found = named;
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => Err(ModelError::import(
            folder,
            format!("there is no \".{extension}\" file"),
        )),
        n => Err(ModelError::import(
            folder,
            format!(
                "there are {n} \".{extension}\" files, expected one: name the checkpoint's \".pt\" \
                 file, or put its files into a folder of their own"
            ),
        )),
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    std::fs::read(path).map_err(|e| ModelError::io(path, e))
}

pub(crate) fn read_text(path: &Path) -> Result<String, ModelError> {
    String::from_utf8(read(path)?).map_err(|_| ModelError::import(path, "it is not UTF-8"))
}
