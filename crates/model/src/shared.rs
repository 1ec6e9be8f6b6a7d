//! Memory that a process shares with the children it forks.
#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Numbers, zero at first, in pages of their own. A child of `fork` has the same ones, not a copy.
/// Pages take memory once they are written to.
pub struct Shared {
    numbers: NonNull<[AtomicU64]>,
}

// SAFETY: the memory belongs to the value and is only reached through atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// `count` zeros, at the beginning of a page.
    ///
    /// # Errors
    /// Of `mmap`; for a count of 0.
    pub fn new(count: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * size_of::<AtomicU64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            numbers: NonNull::slice_from_raw_parts(first, count),
        })
    }
}

impl Deref for Shared {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is as long as the slice, aligned to pages, zeros are valid numbers,
        // and it is there until the value is dropped.
        unsafe { self.numbers.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the whole mapping of new(), to which no reference is left.
        unsafe { libc::munmap(self.numbers.as_ptr().cast(), size_of_val(&**self)) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn children_write_to_the_same_numbers() {
        let shared = Shared::new(1000).unwrap();
        assert!(shared.iter().all(|n| n.load(Ordering::Relaxed) == 0));
        // SAFETY: the child writes a number and exits, which is safe in a copy of one thread of a
        // process with several.
        let child = unsafe { libc::fork() };
        if child == 0 {
            shared[999].store(7, Ordering::Relaxed);
            // SAFETY: ends the child without the parent's handlers.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: waits for the child of this function.
        let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        assert_eq!(waited, child);
        assert_eq!(shared[999].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn nothing_and_too_much_are_errors() {
        assert!(Shared::new(0).is_err());
        assert!(Shared::new(1 << 56).is_err());
    }
}
