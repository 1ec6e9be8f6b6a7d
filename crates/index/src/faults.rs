//! What becomes of a file that its disk cannot read any more while it is mapped.
//!
//! The system ends a process that touches such a place (SIGBUS), and a server that loses one ends the others and starts
//! again. A file that outlives the server would meet the next search as well. So the process removes it before
//! it ends, and the next one makes it again from the index's pages.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Mappings that are known at once. What is mapped beyond that is not removed.
const MOST: usize = 1024;

/// A mapping: none where it has no path. What is read of it is of one mapping where `changes` is the same before and after: then an address
/// within it is one that is mapped, and so the path is kept.
struct Slot {
    changes: AtomicUsize,
    start: AtomicUsize,
    len: AtomicUsize,
    path: AtomicPtr<c_char>,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        changes: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        path: AtomicPtr::new(null_mut()),
    }
}; MOST];

/// What was there before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Held while a slot is taken or given up; the handler reads without it.
static TURN: Mutex<()> = Mutex::new(());

/// Keeps a mapping known. To be dropped before what it is of is unmapped.
#[derive(Debug)]
pub struct Known(usize);

/// Makes a mapped file known by the path that it has, if there is a slot.
pub(crate) fn register(bytes: &[u8], path: &Path) -> Option<Known> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut slots = SLOTS.iter();
    let at = slots.position(|slot| slot.path.load(Ordering::Relaxed).is_null())?;
    let slot = &SLOTS[at];
    slot.start.store(bytes.as_ptr() as usize, Ordering::SeqCst);
    slot.len.store(bytes.len(), Ordering::SeqCst);
    slot.path.store(path.into_raw(), Ordering::SeqCst);
    Some(Known(at))
}

impl Drop for Known {
    fn drop(&mut self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &SLOTS[self.0];
        let path = slot.path.swap(null_mut(), Ordering::SeqCst);
        slot.changes.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the slot's own, from `into_raw`. The handler uses that of an address that somebody reads, as nobody does of
        // this mapping any more.
        drop(unsafe { CString::from_raw(path) });
    }
}

/// Has this process remove a file when it touches a place of it that cannot be read, and end then as it would have.
pub fn watch() {
    // SAFETY: all zeros are valid for these plain structures, and the handler is a function of the kind that SA_SIGINFO
    // asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = remove as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        BEFORE.get_or_init(|| {
            let mut before: libc::sigaction = std::mem::zeroed();
            libc::sigaction(libc::SIGBUS, null_mut(), &mut before);
            libc::sigaction(libc::SIGBUS, &action, null_mut());
            before
        });
    }
}

/// Only what signal-safety(7) allows.
unsafe extern "C" fn remove(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes what SA_SIGINFO promises.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    let mut is_ours = false;
    for slot in &SLOTS {
        let changes = slot.changes.load(Ordering::SeqCst);
        let path = slot.path.load(Ordering::SeqCst);
        let start = slot.start.load(Ordering::SeqCst);
        let len = slot.len.load(Ordering::SeqCst);
        let is_one = slot.changes.load(Ordering::SeqCst) == changes;
        // One that another process has sent has no address.
        if code > 0 && is_one && !path.is_null() && address.wrapping_sub(start) < len {
            // SAFETY: a string that ends with a zero, kept as long as the mapping is in use.
            unsafe { libc::unlink(path) };
            is_ours = true;
        }
    }
    // What was touched is touched again when this function has ended, and what was sent is sent again: then for who had the
    // signal before. Not earlier, or another thread that meets the same would end the process.
    // SAFETY: all have no preconditions; `BEFORE` was filled by the system, or before it asks this function.
    unsafe {
        match BEFORE.get() {
            Some(before) if !is_ours => {
                libc::sigaction(libc::SIGBUS, before, null_mut());
            }
            _ => {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
            }
        }
        if code <= 0 {
            libc::raise(libc::SIGBUS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_back() {
        // Other tests have files mapped as well.
        for _ in 0..5 {
            let known: Vec<_> = (0..MOST / 2)
                .map_while(|_| register(&[1, 2, 3], Path::new("nowhere")))
                .collect();
            assert_eq!(known.len(), MOST / 2);
        }
        assert!(register(&[1], Path::new("a\0b")).is_none());
    }
}
