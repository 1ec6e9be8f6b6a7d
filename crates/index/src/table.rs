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

/// Numbers of which the last comes first, no more of them than there is room for.
pub(crate) struct Stack<T> {
    room: Table<T>,
    len: usize,
}

impl<T: Pod> Stack<T> {
    /// An empty one with room for this many.
    ///
    /// # Errors
    /// No memory, or no room on the disk.
    pub(crate) fn of(room: usize, place: Place<'_>) -> Result<Self> {
        let room = Table::zeroed(room, place)?;
        Ok(Self { room, len: 0 })
    }

    pub(crate) fn push(&mut self, value: T) {
        self.room[self.len] = value;
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        Some(self.room[self.len])
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut T> {
        self.room[..self.len].last_mut()
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

    #[test]
    fn what_is_put_last_on_a_stack_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        for place in [Place::Memory, Place::Folder(folder.path())] {
            let mut stack = Stack::<[u32; 3]>::of(3, place).unwrap();
            assert!(stack.pop().is_none() && stack.last_mut().is_none());
            for number in 0..3 {
                stack.push([number; 3]);
            }
            stack.last_mut().unwrap()[1] = 9;
            assert_eq!(stack.pop(), Some([2, 9, 2]));
            stack.push([7; 3]);
            let left = std::iter::from_fn(|| stack.pop());
            assert_eq!(left.collect::<Vec<_>>(), [[7; 3], [1; 3], [0; 3]]);
        }
    }
}
