//! Files in the making, which have temporary names.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use memmap2::MmapMut;

use crate::error::{IndexError, Result};

/// How often a folder is made that others remove.
const ATTEMPTS: usize = 3;

/// What names of this process's temporary files begin with.
pub fn scratch_prefix() -> String {
    format!("pgsql_tmp.laser.{}.", std::process::id())
}

/// A temporary file that is removed when it is dropped before it was kept.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    file: File,
    kept: bool,
}

impl Scratch {
    /// Creates a file in `folder`, and the folder if need be.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(folder: &Path) -> Result<Self> {
        let create = |path: &Path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            options.open(path)
        };
        let name = format!("{}{:016x}", scratch_prefix(), crate::meta::nonce());
        let path = folder.join(name);
        let mut file = create(&path);
        if file.is_err() && !folder.is_dir() {
            make_folder(folder).map_err(|e| IndexError::io("create", folder, e))?;
            file = create(&path);
        }
        let file = file.map_err(|e| IndexError::io("create", &path, e))?;
        Ok(Self {
            path,
            file,
            kept: false,
        })
    }

    /// The file, open for reading and writing, with mode 0600.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The file's temporary path: [`scratch_prefix`] and a random number, in the folder that it was made in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file `len` bytes that exist on disk, and maps them for writing. Without room on
    /// the disk this is an error here, where a hole would be a SIGBUS at the first write.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn map(&self, len: u64) -> Result<MmapMut> {
        // SAFETY: the descriptor is open.
        let code = unsafe { libc::posix_fallocate(self.file.as_raw_fd(), 0, len as libc::off_t) };
        if code != 0 {
            let error = io::Error::from_raw_os_error(code);
            return Err(IndexError::io("extend", &self.path, error));
        }
        // SAFETY: only this process knows the file's name, and its space is allocated.
        unsafe { MmapMut::map_mut(&self.file) }.map_err(|e| IndexError::io("map", &self.path, e))
    }

    /// Gives the file its final name, in a folder that is made if need be. Others may remove that while it is empty. On another file
    /// system a copy has the name; the copy is returned then.
    ///
    /// # Errors
    /// What the operating system says.
    pub(crate) fn keep(mut self, path: &Path) -> Result<Self> {
        let mut renamed = fs::rename(&self.path, path);
        for _ in 0..ATTEMPTS {
            match (&renamed, path.parent()) {
                (Err(e), Some(folder)) if e.kind() == io::ErrorKind::NotFound => {
                    make_folder(folder).map_err(|e| IndexError::io("create", folder, e))?;
                    renamed = fs::rename(&self.path, path);
                }
                (Err(e), Some(folder)) if e.kind() == io::ErrorKind::CrossesDevices => {
                    return self.copy(folder)?.keep(path);
                }
                _ => break,
            }
        }
        renamed.map_err(|e| IndexError::io("rename", &self.path, e))?;
        self.kept = true;
        Ok(self)
    }

    /// The same file in another folder, with its time of change. What a crash leaves of it goes with the next sweep of that folder.
    fn copy(&self, folder: &Path) -> Result<Self> {
        let copy = Self::new(folder)?;
        let all = || {
            let (mut from, mut to) = (&self.file, &copy.file);
            from.rewind()?;
            io::copy(&mut from, &mut to)?;
            let changed = self.file.metadata()?.modified()?;
            copy.file.set_modified(changed)
        };
        all().map_err(|e| IndexError::io("copy", &self.path, e))?;
        Ok(copy)
    }
}

/// Makes a folder. A plain file, a pipe or a link that leads nowhere makes room for it: a folder whose
/// contents may go at any time may itself.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true);
    let Err(error) = builder.create(folder) else {
        return Ok(());
    };
    if folder.symlink_metadata().is_err() || folder.is_dir() {
        return Err(error);
    }
    fs::remove_file(folder)?;
    builder.create(folder)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// A file is kept where its folder is on another file system than its name, with the time that is its stamp.
    #[test]
    fn names_may_be_on_another_file_system() {
        let (here, there) = (tempfile::tempdir(), tempfile::tempdir_in("/dev/shm"));
        let device = |folder: &Path| folder.metadata().unwrap().dev();
        let (here, there) = match (here, there) {
            (Ok(here), Ok(there)) if device(here.path()) != device(there.path()) => (here, there),
            _ => {
                eprintln!("skipped: there is no other file system at /dev/shm");
                return;
            }
        };
        let stamp = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
        let path = there.path().join("made/file");
        let scratch = Scratch::new(here.path()).unwrap();
        scratch.file().write_all(&[7; 100_000]).unwrap();
        scratch.file().set_modified(stamp).unwrap();
        let kept = scratch.keep(&path).unwrap();
        let found = kept.file().metadata().unwrap();
        assert_eq!(found.ino(), path.metadata().unwrap().ino());
        assert_eq!(found.modified().unwrap(), stamp);
        assert_eq!(found.mode() & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap(), [7; 100_000]);
        assert_eq!(fs::read_dir(here.path()).unwrap().count(), 0);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
