//! Threads that borrow: as [`std::thread::scope`], of threads that are made here.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::exit_hook::{INTERVAL, exit_if_thread_failed};
use super::start::{Thread, spawn_unchecked};

/// Threads that end before what they borrow does.
pub struct Scope<'scope, 'env: 'scope> {
    running: Arc<Running>,
    /// Both lifetimes are invariant, as in the standard library: neither can be shortened.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Calls `f`, which may start threads that borrow, and waits for the end of their work, also where `f`
/// panics. The panic of a thread is what joining it gives.
pub fn scope<'env, T>(f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    let scope = Scope {
        running: Arc::default(),
        scope: PhantomData,
        env: PhantomData,
    };
    let result = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    scope.running.wait();
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

impl<'scope> Scope<'scope, '_> {
    /// As [`spawn`](super::spawn); what `work` refers to need only outlive the scope.
    ///
    /// # Errors
    /// What the operating system says; no memory for the thread.
    pub fn spawn<T: Send + 'scope>(
        &'scope self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedThread<'scope, T>> {
        let end = End::new(&self.running);
        // SAFETY: 'scope ends after `scope` has waited for `end`, which is dropped after the work and
        // its result; a result that is left to the handle ends with it, within 'scope.
        let thread = unsafe { spawn_unchecked(name, work, end) }?;
        Ok(ScopedThread {
            thread,
            scope: PhantomData,
        })
    }
}

/// A thread of a [`Scope`].
pub struct ScopedThread<'scope, T> {
    thread: Thread<T>,
    scope: PhantomData<&'scope mut &'scope ()>,
}

impl<T> ScopedThread<'_, T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// The panic of its work.
    pub fn join(self) -> std::thread::Result<T> {
        self.thread.join()
    }

    /// Whether its work has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

/// How many threads of a scope are at work.
#[derive(Default)]
struct Running {
    threads: Mutex<usize>,
    ended: Condvar,
}

impl Running {
    fn wait(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while *threads > 0 {
            threads = self
                .ended
                .wait_timeout(threads, INTERVAL)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            exit_if_thread_failed();
        }
    }
}

/// One of the threads, until this is dropped.
struct End(Arc<Running>);

impl End {
    fn new(running: &Arc<Running>) -> Self {
        *running
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner) += 1;
        Self(running.clone())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut threads = self
            .0
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *threads -= 1;
        self.0.ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::threads::set_exit_hook;

    #[test]
    fn threads_borrow() {
        let (numbers, sum) = ([1, 2, 3], AtomicUsize::new(0));
        let lengths = scope(|scope| {
            let add = |number: &usize| sum.fetch_add(*number, Ordering::Relaxed);
            let threads: Vec<_> = numbers
                .iter()
                .map(|number| scope.spawn("test", move || add(number)).unwrap())
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().is_ok())
                .collect::<Vec<_>>()
        });
        assert_eq!((lengths, sum.into_inner()), (vec![true; 3], 6));
    }

    /// Waits before it says that it was dropped.
    struct Late<'a>(&'a AtomicBool);

    impl Drop for Late<'_> {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(100));
            self.0.store(true, Ordering::Release);
        }
    }

    #[test]
    fn results_that_nobody_takes_end_with_the_scope() {
        let dropped = AtomicBool::new(false);
        scope(|scope| drop(scope.spawn("test", || Late(&dropped)).unwrap()));
        assert!(dropped.load(Ordering::Acquire));
    }

    thread_local! {
        static STOPPED: AtomicBool = const { AtomicBool::new(false) };
    }

    /// Where a process would end, a test unwinds; its thread borrows nothing.
    #[test]
    fn nobody_waits_for_a_thread_that_has_stopped() {
        set_exit_hook(|| {
            if STOPPED.with(|stopped| stopped.load(Ordering::Relaxed)) {
                resume_unwind(Box::new(9));
            }
        });
        let panic = catch_unwind(|| {
            scope(|scope| {
                let forever = || loop {
                    std::thread::park();
                };
                drop::<ScopedThread<'_, ()>>(scope.spawn("test", forever).unwrap());
                STOPPED.with(|stopped| stopped.store(true, Ordering::Relaxed));
                // As a cancel does.
                resume_unwind(Box::new(8))
            })
        });
        STOPPED.with(|stopped| stopped.store(false, Ordering::Relaxed));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&9));
    }

    #[test]
    fn a_scope_that_panics_waits_for_its_threads() {
        let ended = AtomicBool::new(false);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            scope(|scope| {
                let work = || {
                    std::thread::sleep(Duration::from_millis(100));
                    ended.store(true, Ordering::Release);
                };
                drop(scope.spawn("test", work).unwrap());
                resume_unwind(Box::new(7))
            })
        }));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&7));
        assert!(ended.load(Ordering::Acquire));
    }
}
