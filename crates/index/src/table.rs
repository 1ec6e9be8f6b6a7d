//! Numbers of which a build needs some for every node: in memory, or where there is too little of that in a file that
//! is mapped, which the system keeps in memory as far as it has room.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use bytemuck::Pod;
use memmap2::MmapMut;

use crate::error::Result;
use crate::scratch::Scratch;

/// Where a table is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place<'a> {
    Memory,
    /// In a file without a name, of a folder.
    Folder(&'a Path),
}

/// A slice of numbers.
pub(crate) enum Table<T> {
    Memory(Vec<T>),
    Mapped {
        map: MmapMut,
        len: usize,
        of: PhantomData<T>,
    },
}

impl<T: Pod> Table<T> {
    /// `len` zeroes.
    ///
    /// # Errors
    /// No memory, or no room on the disk.
    pub(crate) fn zeroed(len: usize, place: Place<'_>) -> Result<Self> {
        Ok(match place {
            Place::Memory => Self::Memory(laser_memory::filled(T::zeroed(), len)?),
            Place::Folder(folder) => {
                let bytes = (len * size_of::<T>()).max(1);
                Self::Mapped {
                    // The mapping stays when the file loses its name.
                    map: Scratch::new(folder)?.map(bytes as u64)?,
                    len,
                    of: PhantomData,
                }
            }
        })
    }
}

impl<T: Pod> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Memory(all) => all,
            Self::Mapped { map, len, .. } => bytemuck::cast_slice(&map[..len * size_of::<T>()]),
        }
    }
}

impl<T: Pod> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Memory(all) => all,
            Self::Mapped { map, len, .. } => {
                bytemuck::cast_slice_mut(&mut map[..*len * size_of::<T>()])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_in_files_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        for len in [0, 1, 5000] {
            let mut table = Table::<u64>::zeroed(len, Place::Folder(folder.path())).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
            assert!(table.iter().all(|&number| number == 0));
            assert_eq!(table.len(), len);
            if let Some(last) = table.last_mut() {
                *last = 7;
            }
            assert_eq!(table.iter().sum::<u64>(), if len > 0 { 7 } else { 0 });
        }
    }
}
