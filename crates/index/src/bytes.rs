//! Bytes of segments: those of a file that is mapped, or memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use memmap2::{Mmap, MmapMut};

use crate::error::{IndexError, Result};
use crate::faults::{self, Known};

/// Bytes of a segment's file that stay where they are.
#[derive(Debug)]
pub enum SegmentBytes {
    /// A file that nobody writes to any more, and that [`faults`] knows unless there are very many.
    File(Mmap, Option<Known>),
    /// Memory of this process, when there is no room for a file.
    Memory(MmapMut),
}

impl SegmentBytes {
    /// Maps a file.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn map(file: &File, path: &Path) -> Result<Self> {
        // SAFETY: files in the cache folder are written under another name, renamed when they are
        // complete and never changed; the folder belongs to the server's account alone.
        let map = unsafe { Mmap::map(file) }.map_err(|e| IndexError::io("map", path, e))?;
        let known = faults::register(&map, path);
        Ok(Self::File(map, known))
    }
}

impl std::ops::Deref for SegmentBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::File(map, _) => map,
            Self::Memory(map) => map,
        }
    }
}
