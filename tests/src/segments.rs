//! Files of segments, which a server keeps beside its relations.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::Cluster;

/// The folder of a server's files of segments, which outlive it.
pub fn segment_folder(cluster: &Cluster) -> PathBuf {
    cluster.data().join("laser/pgsql_tmp_segments")
}

/// The folder of those that do not: files in the making, and those of temporary relations.
pub fn passing_folder(cluster: &Cluster) -> PathBuf {
    cluster.data().join("base/pgsql_tmp/pgsql_tmp.laser")
}

/// The files of segments of a server, those in the making included, with their bytes; not the files that name sessions.
///
/// # Errors
/// What the operating system says; what vanishes meanwhile is none.
pub fn segment_files(cluster: &Cluster) -> Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for folder in [segment_folder(cluster), passing_folder(cluster)] {
        let mut found = Vec::new();
        collect(&folder, &mut found)?;
        found.retain(|(path, _)| {
            let below = path.strip_prefix(&folder).ok();
            let database = below.and_then(|path| path.iter().next());
            !database.is_some_and(|name| name.as_encoded_bytes().starts_with(b"s"))
        });
        files.append(&mut found);
    }
    Ok(files)
}

fn collect(folder: &Path, files: &mut Vec<(PathBuf, u64)>) -> Result<(), Error> {
    let Some(entries) = if_there(folder.read_dir())? else {
        return Ok(());
    };
    for entry in entries {
        let path = entry?.path();
        match if_there(path.symlink_metadata())? {
            Some(found) if found.is_dir() => collect(&path, files)?,
            Some(found) => files.push((path, found.len())),
            None => {}
        }
    }
    Ok(())
}

fn if_there<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}
