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
use std::sync::{Mutex, Once, PoisonError};

/// Mappings that are known at once. What is mapped beyond that is not removed.
const MOST: usize = 1024;

/// A mapping: none where it has no path.
struct Slot {
    start: AtomicUsize,
    len: AtomicUsize,
    path: AtomicPtr<c_char>,
}

static SLOTS: [Slot; MOST] = [const {
    Slot {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        path: AtomicPtr::new(null_mut()),
    }
}; MOST];

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
    slot.start.store(bytes.as_ptr() as usize, Ordering::Relaxed);
    slot.len.store(bytes.len(), Ordering::Relaxed);
    slot.path.store(path.into_raw(), Ordering::Release);
    Some(Known(at))
}

impl Drop for Known {
    fn drop(&mut self) {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let path = SLOTS[self.0].path.swap(null_mut(), Ordering::AcqRel);
        // SAFETY: the slot's own, from `into_raw`. The handler reads that of an address that is mapped, as this one is not
        // used any more.
        drop(unsafe { CString::from_raw(path) });
    }
}

/// Has this process remove a file when it touches a place of it that cannot be read, and end then as it would have.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeros are valid for this plain structure, and the handler is a function of the kind that SA_SIGINFO
        // asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = remove as *const () as usize;
            // The second time the process ends.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
            libc::sigaction(libc::SIGBUS, &action, null_mut());
        }
    });
}

/// Only what signal-safety(7) allows.
unsafe extern "C" fn remove(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes what SA_SIGINFO promises.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    if code <= 0 {
        // Another process has sent it. It comes again when this function has ended.
        // SAFETY: has no preconditions.
        unsafe { libc::raise(libc::SIGBUS) };
        return;
    }
    for slot in &SLOTS {
        let path = slot.path.load(Ordering::Acquire);
        let start = slot.start.load(Ordering::Relaxed);
        let len = slot.len.load(Ordering::Relaxed);
        if !path.is_null() && address.wrapping_sub(start) < len {
            // SAFETY: a string that ends with a zero, kept as long as the mapping is in use.
            unsafe { libc::unlink(path) };
        }
    }
    // What was touched is touched again, without a handler.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_back() {
        let bytes = [1, 2, 3];
        let path = Path::new("nowhere");
        let known: Vec<_> = (0..MOST).map_while(|_| register(&bytes, path)).collect();
        // Other tests have files mapped as well.
        assert!(known.len() > MOST / 2);
        assert!(register(&bytes, path).is_none());
        drop(known);
        assert!(register(&bytes, path).is_some());
        assert!(register(&bytes, Path::new("a\0b")).is_none());
    }
}
