//! Threads beside the server's own.
//!
//! A thread needs more than its stack to start: the C library makes its copy of a loaded library's
//! thread-local variables when the thread first touches one, and ends the *process* where there is no
//! memory for that (`exit(127)`, which the server takes for a crash). So there must be room for both
//! before a thread is made, and whoever makes it waits until it runs.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};
use std::time::Duration;

use crate::room::can_be_mapped;

/// Bytes of a stack.
const STACK: usize = 2 << 20;
/// Bytes for what a thread asks for until it runs: some kilobytes, which the allocator rounds up.
const ROOM: usize = 256 << 10;
/// How long a thread is waited for. One that has stopped for want of memory never runs.
const PATIENCE: Duration = Duration::from_secs(1);

/// Starts a thread that receives no signals: the server's handlers must run on its own thread.
///
/// # Errors
/// What the operating system says; no memory for the thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start(name, |builder, running| {
        builder.spawn(move || {
            running.tell();
            work()
        })
    })
}

/// As [`spawn`], in a scope.
///
/// # Errors
/// What the operating system says; no memory for the thread.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    start(name, |builder, running| {
        builder.spawn_scoped(scope, move || {
            running.tell();
            work()
        })
    })
}

fn start<H>(
    name: &str,
    make: impl FnOnce(Builder, Arc<Running>) -> io::Result<H>,
) -> io::Result<H> {
    let running = Arc::new(Running::default());
    let builder = Builder::new().name(name.into()).stack_size(STACK);
    let _blocked = SignalsBlocked::new();
    can_be_mapped(STACK + ROOM)?;
    let thread = make(builder, running.clone())?;
    running.wait();
    Ok(thread)
}

/// Whether a thread has begun its work.
#[derive(Default)]
struct Running {
    begun: Mutex<bool>,
    told: Condvar,
}

impl Running {
    fn tell(&self) {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_one();
    }

    fn wait(&self) {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        // Whether it runs by now makes no difference to what is done next.
        let _ = self
            .told
            .wait_timeout_while(begun, PATIENCE, |begun| !*begun);
    }
}

/// All signals of the calling thread are blocked until this is dropped; threads inherit that.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets are written before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the calling thread has blocked SIGTERM.
    fn blocked() -> bool {
        let mut now = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is written before it is read.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), libc::SIGTERM) == 1
        }
    }

    #[test]
    fn threads_receive_no_signals() {
        assert!(spawn("test", blocked).unwrap().join().unwrap());
        let value = 7;
        let scoped = std::thread::scope(|scope| {
            let thread = spawn_scoped(scope, "test", || (blocked(), value)).unwrap();
            thread.join().unwrap()
        });
        assert_eq!(scoped, (true, 7));
        assert!(!blocked());
    }
}
