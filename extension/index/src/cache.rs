//! Files of segments, made from their pages.
//!
//! A file has a name that contains the segment's random identity, is written under a temporary name
//! and renamed when it is complete, and is compared with its checksums whenever it is opened. It may
//! be deleted at any time: who has it mapped keeps it, the next one makes it again.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use memmap2::MmapMut;

use crate::error::{IndexError, Result};
use crate::meta::{Parameters, SegmentEntry};
use crate::segment::SegmentMap;
use crate::store::PageStore;
use crate::view::{SegmentBytes, SegmentView};

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
        let name = format!(
            "pgsql_tmp.laser.{}.{:016x}",
            std::process::id(),
            crate::meta::nonce()
        );
        let path = folder.join(name);
        let mut file = create(&path);
        if matches!(&file, Err(e) if e.kind() == io::ErrorKind::NotFound) {
            let mut builder = fs::DirBuilder::new();
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder
                .recursive(true)
                .create(folder)
                .map_err(|e| IndexError::io("create", folder, e))?;
            file = create(&path);
        }
        let file = file.map_err(|e| IndexError::io("create", &path, e))?;
        Ok(Self {
            path,
            file,
            kept: false,
        })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its name.
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

    /// Gives the file its final name.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn keep(mut self, path: &Path) -> Result<()> {
        fs::rename(&self.path, path).map_err(|e| IndexError::io("rename", &self.path, e))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens the file of a segment; makes it from the pages if it is missing or damaged, and does
/// without a file if there is no room for one.
///
/// # Errors
/// [`IndexError::Moved`] when the segment is gone, or damage of the pages.
pub fn open(
    store: &impl PageStore,
    parameters: &Parameters,
    entry: &SegmentEntry,
    path: &Path,
) -> Result<SegmentView> {
    if let Ok(file) = File::open(path) {
        let good = file.metadata().is_ok_and(|m| m.len() == entry.bytes);
        let view = good
            .then(|| SegmentBytes::map(&file, path))
            .and_then(Result::ok)
            .and_then(|bytes| SegmentView::open(parameters, entry, bytes).ok());
        if let Some(view) = view {
            return Ok(view);
        }
        let _ = fs::remove_file(path);
    }
    let map = SegmentMap::read(store, entry)?;
    map.header(store, parameters)?;
    let folder = path.parent().unwrap_or(Path::new("."));
    if let Ok(scratch) = Scratch::new(folder)
        && let Ok(mut bytes) = scratch.map(entry.bytes)
    {
        map.read_bytes(store, 0, &mut bytes)?;
        drop(bytes);
        let view = SegmentView::open(
            parameters,
            entry,
            SegmentBytes::map(scratch.file(), scratch.path())?,
        )?;
        // Without its name the file still serves this process.
        let _ = scratch.keep(path);
        return Ok(view);
    }
    let mut bytes = MmapMut::map_anon(entry.bytes as usize)
        .map_err(|e| IndexError::io("map memory for", path, e))?;
    map.read_bytes(store, 0, &mut bytes)?;
    SegmentView::open(parameters, entry, SegmentBytes::Memory(bytes))
}
