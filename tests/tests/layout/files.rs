//! What the repository consists of.

use std::path::{Path, PathBuf};

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files of this repository, by their paths from its root; what is built or downloaded is left out.
pub fn files() -> Vec<String> {
    fn collect(folder: &Path, prefix: &str, files: &mut Vec<String>) {
        const NOT_OURS: [&str; 7] = [
            ".git",
            "target",
            "__pycache__",
            "trainer/configs/data",
            "trainer/configs/runs",
            "fuzz/target",
            "shared",
        ];
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name();
            let path = format!("{prefix}{}", name.to_string_lossy());
            if NOT_OURS.contains(&&*path) || name == "__pycache__" {
                continue;
            }
            match entry.file_type().expect("a type").is_dir() {
                true => collect(&entry.path(), &format!("{path}/"), files),
                false => files.push(path),
            }
        }
    }
    let mut files = Vec::new();
    collect(&root(), "", &mut files);
    files
}
