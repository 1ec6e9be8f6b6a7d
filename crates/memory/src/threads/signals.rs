//! Signals go to the server's own thread.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;

/// All signals of the calling thread are blocked until this is dropped; threads inherit that. Not SIGBUS, which comes of what the
/// thread itself has touched: of one that is blocked the system asks no handler.
pub struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    pub fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets are written before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::sigdelset(all.as_mut_ptr(), libc::SIGBUS);
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set that was read when this was made.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

/// Whether the calling thread has blocked a signal.
#[cfg(test)]
pub fn is_blocked(signal: i32) -> bool {
    let mut now = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is written before it is read.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), now.as_mut_ptr());
        libc::sigismember(now.as_ptr(), signal) == 1
    }
}
