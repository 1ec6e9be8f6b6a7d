//! Bytes of segments: those of a file that is mapped, or memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use memmap2::{Advice, Mmap, MmapMut};

use crate::error::{IndexError, Result};
use crate::faults::{self, Known};

/// Bytes of a segment's file that stay where they are.
#[derive(Debug)]
pub enum SegmentBytes {
    /// A file that nobody writes to any more.
    File(Mapped),
    /// Memory of this process, when there is no room for a file.
    Memory(MmapMut),
}

/// A mapped file.
#[derive(Debug)]
pub struct Mapped {
    // In front of the mapping, and so dropped before it.
    _known: Option<Known>,
    inode: u64,
    map: Mmap,
}

impl SegmentBytes {
    /// Tells the system how they will be read, if they are a file's.
    pub(crate) fn advise(&self, advice: Advice) {
        if let Self::File(mapped) = self {
            let _ = mapped.map.advise(advice);
        }
    }

    /// Number of the file on its file system, zero where it is not known; none of memory.
    pub fn inode(&self) -> Option<u64> {
        match self {
            Self::File(mapped) => Some(mapped.inode),
            Self::Memory(_) => None,
        }
    }

    /// Maps a file, which has the name `path` or will have: by that [`faults`] removes it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn map(file: &File, path: &Path) -> Result<Self> {
        // SAFETY: files in the cache folder are written under another name, renamed when they are
        // complete and never changed; the folder belongs to the server's account alone.
        let map = unsafe { Mmap::map(file) }.map_err(|e| IndexError::io("map", path, e))?;
        Ok(Self::File(Mapped {
            _known: faults::register(&map, path),
            inode: file.metadata().map_or(0, |found| found.ino()),
            map,
        }))
    }
}

impl From<Mmap> for SegmentBytes {
    /// What is mapped of a file without a name.
    fn from(map: Mmap) -> Self {
        Self::File(Mapped {
            _known: None,
            inode: 0,
            map,
        })
    }
}

impl std::ops::Deref for SegmentBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::File(mapped) => &mapped.map,
            Self::Memory(map) => map,
        }
    }
}
