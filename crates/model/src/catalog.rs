//! Model folders by name: where a model lies, which one is the default, whether its files have
//! changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use laser_protocol::valid_model_name;

use crate::folder;

/// How often a loaded model's folder is looked at.
pub const RECHECK: Duration = Duration::from_secs(1);

/// What distinguishes one state of a model folder from another: its path, and device, inode, size
/// and modification time of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    path: PathBuf,
    files: [(u64, u64, u64, i64, i64); 4],
}

impl Stamp {
    /// The stamp of a folder; missing files count as zeros.
    pub fn of(path: &Path) -> Self {
        let file = |name: &str| {
            std::fs::metadata(path.join(name))
                .map(|m| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
                .unwrap_or_default()
        };
        Self {
            path: path.to_owned(),
            files: [
                folder::CONFIG,
                folder::TOKENIZER,
                folder::WEIGHTS,
                folder::DICTIONARY,
            ]
            .map(file),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of `model.safetensors` in bytes.
    pub fn weights_bytes(&self) -> u64 {
        self.files[2].2
    }
}

/// The folder of a model: the first below `folders` that has a `config.json`.
pub fn find(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    if !valid_model_name(name) {
        return None;
    }
    folders
        .iter()
        .map(|f| f.join(name))
        .find(|p| p.join(folder::CONFIG).exists())
}

/// Names of the model folders below `base`, sorted.
pub fn names_in(base: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(base) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|name| valid_model_name(name) && base.join(name).join(folder::CONFIG).exists())
        .collect();
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
