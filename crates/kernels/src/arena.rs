//! Memory for the packed weights of one model: in large pages where the system has them, and given back
//! whole as soon as the model goes.
//!
//! A product reads its weights once per batch, so with small pages a large part of its time goes into
//! looking up addresses. The C library's heap would also keep blocks of this size for later.
#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Zeroable;
use laser_memory::{OutOfMemory, Result};
use memmap2::MmapMut;

/// Bytes of address space that are asked for at once; memory is used as far as it is written to.
const CHUNK: usize = 32 << 20;

/// What blocks begin at a multiple of: a cache line, and AVX-512's register.
const ALIGNMENT: usize = 64;

/// Hands out blocks one behind another.
#[derive(Default)]
pub struct Arena {
    current: Mutex<Option<Current>>,
}

struct Current {
    chunk: Arc<Chunk>,
    used: usize,
}

/// Mapped memory. Blocks hold pointers into it, which no two blocks share.
struct Chunk {
    start: NonNull<u8>,
    length: usize,
    _map: MmapMut,
}

// SAFETY: the pointer is only a place, and belongs to the mapping, which may move between threads.
unsafe impl Send for Chunk {}
// SAFETY: nothing is read or written through a chunk; blocks are, each by its owner.
unsafe impl Sync for Chunk {}

impl Chunk {
    fn new(length: usize) -> Result<Self> {
        let mut map = MmapMut::map_anon(length).map_err(|_| OutOfMemory { bytes: length })?;
        // There may be none.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self {
            start: NonNull::from(&mut map[..]).cast(),
            length,
            _map: map,
        })
    }
}

impl Arena {
    /// A block of `len` values, all bits of which are zero.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn zeroed<T: Zeroable>(&self, len: usize) -> Result<Block<T>> {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_next_multiple_of(ALIGNMENT))
            .ok_or(OutOfMemory { bytes: usize::MAX })?;
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |at: &&mut Current| at.chunk.length - at.used >= bytes;
        let place = match current.as_mut().filter(fits) {
            Some(place) => place,
            None => current.insert(Current {
                chunk: Arc::new(Chunk::new(bytes.max(CHUNK))?),
                used: 0,
            }),
        };
        // SAFETY: the block ends within the chunk.
        let start = unsafe { place.chunk.start.add(place.used) }.cast();
        place.used += bytes;
        Ok(Block {
            start,
            len,
            _chunk: Arc::clone(&place.chunk),
        })
    }
}

/// Values in an arena's memory. Invariant: nobody else reads or writes them, they are initialised, and
/// they stay as long as the chunk.
pub struct Block<T> {
    start: NonNull<T>,
    len: usize,
    _chunk: Arc<Chunk>,
}

// SAFETY: a block owns its values as a box does.
unsafe impl<T: Send> Send for Block<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Block<T> {}

impl<T> Deref for Block<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the invariant; the values are aligned, since blocks and the mapping are.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Block<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the block is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_memory_is_an_error() {
        for len in [1 << 44, usize::MAX / 16, usize::MAX] {
            assert!(Arena::default().zeroed::<u64>(len).is_err(), "{len}");
        }
    }

    #[test]
    fn blocks_are_aligned_zeroed_and_apart() {
        let arena = Arena::default();
        let lengths = [1usize, 0, 3, 64, 1000, CHUNK / 8, CHUNK, 5, CHUNK - 128, 77];
        let made: Result<Vec<Block<u64>>> = lengths.iter().map(|n| arena.zeroed(*n)).collect();
        let mut blocks = made.expect("memory");
        drop(arena);
        for (i, block) in blocks.iter_mut().enumerate() {
            assert_eq!(block.len(), lengths[i]);
            assert!(block.as_ptr().addr().is_multiple_of(ALIGNMENT));
            assert!(block.iter().all(|x| *x == 0));
            block.fill(i as u64 + 1);
        }
        for (i, block) in blocks.iter().enumerate() {
            assert!(block.iter().all(|x| *x == i as u64 + 1));
        }
        // The last blocks keep their chunk.
        let last = blocks.pop().expect("there are some");
        drop(blocks);
        assert!(last.iter().all(|x| *x == 10));
    }
}
