//! The memory of what the postmaster keeps for its sessions.
//!
//! A fork shares the postmaster's pages until one of the two writes to them. `malloc` does write: to
//! the free memory between what is in use, of which loading a model leaves a lot. A session copied a
//! thousand pages while it embedded its first thousand texts, which took longer than embedding them.
//! So what is kept is copied to a region of its own, block after block, where nothing is ever written
//! again, and the heap becomes what it was before.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::pg::memory;

/// Size of the region; what does not fit goes to the heap.
const RESERVED: usize = 512 << 20;

#[global_allocator]
static ARENA: Arena = Arena {
    open: AtomicBool::new(false),
    start: AtomicUsize::new(0),
    next: AtomicUsize::new(0),
    end: AtomicUsize::new(0),
};

/// The allocator of this library: the heap, except within [`filled_by`]. What the heap has no memory
/// for goes to [`memory::exhausted`], which returns null to those who can cope.
struct Arena {
    /// Whether allocations come from the region.
    open: AtomicBool,
    /// The region, and where its free part begins; all 0 where there is none.
    start: AtomicUsize,
    next: AtomicUsize,
    end: AtomicUsize,
}

/// Calls `copy`, whose allocations stay in the region for the rest of the process's life, and gives
/// free memory of the heap back to the system. To be called once, by a process with one thread.
pub fn filled_by<T>(copy: impl FnOnce() -> T) -> T {
    struct Closing;
    impl Drop for Closing {
        fn drop(&mut self) {
            ARENA.close();
        }
    }
    ARENA.open();
    let _closing = Closing;
    copy()
}

impl Arena {
    /// Makes the region; where there is no memory for it, allocations stay on the heap.
    fn open(&self) {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let region = unsafe {
            libc::mmap(
                ptr::null_mut(),
                RESERVED,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if region == libc::MAP_FAILED {
            return;
        }
        // With large pages a fork copies a few entries instead of thousands. There may be none.
        #[cfg(target_os = "linux")]
        // SAFETY: advice on the mapping from above.
        unsafe {
            libc::madvise(region, RESERVED, libc::MADV_HUGEPAGE)
        };
        let start = region.expose_provenance();
        self.start.store(start, Relaxed);
        self.next.store(start, Relaxed);
        self.end.store(start + RESERVED, Relaxed);
        self.open.store(true, Relaxed);
    }

    /// Gives back what is left of the region, for which every fork would need the kernel's promise of
    /// memory.
    fn close(&self) {
        if !self.open.swap(false, Relaxed) {
            return;
        }
        // SAFETY: queries a constant.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let used = self.next.load(Relaxed).next_multiple_of(page);
        let end = self.end.swap(used, Relaxed);
        if used < end {
            // SAFETY: the unused end of the mapping, to which there are no pointers.
            unsafe { libc::munmap(ptr::with_exposed_provenance_mut(used), end - used) };
        }
        laser_memory::heap::trim();
    }

    fn region(&self) -> Range<usize> {
        self.start.load(Relaxed)..self.end.load(Relaxed)
    }

    /// A new block of the region; null if it is closed or full.
    fn take(&self, layout: Layout) -> *mut u8 {
        if !self.open.load(Relaxed) {
            return ptr::null_mut();
        }
        let end = self.end.load(Relaxed);
        let start = |next: usize| next.checked_next_multiple_of(layout.align());
        let taken = self.next.fetch_update(Relaxed, Relaxed, |next| {
            let after = start(next)?.checked_add(layout.size())?;
            (after <= end).then_some(after)
        });
        match taken.ok().and_then(start) {
            Some(start) => ptr::with_exposed_provenance_mut(start),
            None => ptr::null_mut(),
        }
    }

    /// Moves the end of the block that was taken last; whether it was that one.
    fn resize_last(&self, block: *mut u8, from: usize, to: usize) -> bool {
        let (old, new) = (block.addr() + from, block.addr() + to);
        new <= self.end.load(Relaxed)
            && self.open.load(Relaxed)
            && self
                .next
                .compare_exchange(old, new, Relaxed, Relaxed)
                .is_ok()
    }
}

/// A block of the heap; if there is none, what becomes of those who asked for it.
#[inline]
fn or_exhausted(block: *mut u8, bytes: usize) -> *mut u8 {
    if block.is_null() {
        memory::exhausted(bytes);
    }
    block
}

// SAFETY: a block is one of the heap, or lies in the region, where blocks are aligned and never
// overlap: `next` only moves back over a block that is given back. Nothing here panics or allocates.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = self.take(layout);
        if block.is_null() {
            // SAFETY: by contract.
            or_exhausted(unsafe { System.alloc(layout) }, layout.size())
        } else {
            block
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = self.take(layout);
        if block.is_null() {
            // SAFETY: by contract.
            or_exhausted(unsafe { System.alloc_zeroed(layout) }, layout.size())
        } else {
            // SAFETY: a new block of that size; a block before it may have been there.
            unsafe { block.write_bytes(0, layout.size()) };
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if self.region().contains(&block.addr()) {
            self.resize_last(block, layout.size(), 0);
        } else {
            // SAFETY: what is not of the region is of the heap.
            unsafe { System.dealloc(block, layout) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.region().contains(&block.addr()) {
            // SAFETY: what is not of the region is of the heap.
            return or_exhausted(unsafe { System.realloc(block, layout, size) }, size);
        }
        if self.resize_last(block, layout.size(), size) || size <= layout.size() {
            return block;
        }
        // SAFETY: by contract the size is valid for the alignment; the new block is another one, and
        // larger than the old.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                ptr::copy_nonoverlapping(block, new, layout.size());
            }
            new
        }
    }
}
