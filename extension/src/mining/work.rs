//! Searches in threads, while the session's thread stays with the server.
//!
//! Only the session's thread calls the server. The threads are made with all signals blocked, so
//! that signals reach the session's thread alone. Whatever takes that thread away (a cancel, a
//! timeout: pgrx turns them into panics that unwind; the end of the session) first tells the
//! threads to stop and waits for them, a few milliseconds.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use laser_memory::threads;
use laser_mining::knn::{Control, Options};
use laser_mining::{Error, Kernel};
use pgrx::{PgSqlErrorCode, check_for_interrupts, pg_sys};

use super::guc;
use super::load;
use super::progress::Progress;
use crate::pg::errors::raise;
use crate::pg::memory;

/// How often the waiting thread looks for interrupts.
const PULSE: Duration = Duration::from_millis(20);

/// Runs a search with the session's settings. `bytes` is the memory that is left for it.
pub fn search<T: Send>(
    progress: &mut Progress,
    bytes: usize,
    job: impl FnOnce(&Options<'_>) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    progress.phase("searching");
    let control = Control::default();
    let options = Options {
        threads: guc::threads(),
        kernel: Kernel::Auto,
        device: None,
        memory: Some(bytes),
        folder: Some(load::spill_folder()),
        control: Some(&control),
    };
    threads::scope(|scope| {
        // Dropped before the scope joins its threads, also when an interrupt unwinds.
        let stop = Stop(&control);
        let (sender, receiver) = mpsc::channel();
        let spawned = scope.spawn("laser mining", || {
            // The receiver is gone only when the result is no longer wanted.
            let _ = sender.send(job(&options));
            drop(sender);
        });
        if let Err(error) = spawned {
            raise(
                PgSqlErrorCode::ERRCODE_INSUFFICIENT_RESOURCES,
                format!("could not start a thread for mining: {error}"),
            );
        }
        loop {
            match receiver.recv_timeout(PULSE) {
                Ok(result) => {
                    report(progress, &control);
                    return result;
                }
                Err(RecvTimeoutError::Timeout) => {
                    if terminated() {
                        // The process ends without unwinding: nobody else waits for the threads.
                        drop(stop);
                        while !memory::thread_stopped()
                            && matches!(
                                receiver.recv_timeout(PULSE),
                                Err(RecvTimeoutError::Timeout)
                            )
                        {}
                        check_for_interrupts!();
                        return Err(Error::Cancelled);
                    }
                    check_for_interrupts!();
                    report(progress, &control);
                }
                Err(RecvTimeoutError::Disconnected) => raise(
                    PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                    "a mining thread panicked",
                ),
            }
        }
    })
}

fn report(progress: &mut Progress, control: &Control) {
    let number = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (done, total) = (number(&control.done), number(&control.total));
    match control.is_unmeasured.load(Ordering::Relaxed) {
        true => progress.measuring(done, total),
        false => progress.search(done, total),
    }
}

/// Whether the session was told to end.
fn terminated() -> bool {
    // SAFETY: a flag of the server that its signal handler sets, read on its only thread.
    unsafe { std::ptr::read_volatile(&raw const pg_sys::ProcDiePending) != 0 }
}

struct Stop<'a>(&'a Control);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.cancel.store(true, Ordering::Relaxed);
    }
}
