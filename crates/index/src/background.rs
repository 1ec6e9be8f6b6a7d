//! Long work that cannot be interrupted, on a thread of its own.
//!
//! usearch serializes and loads a graph in one call, and checksums of a whole file take their time:
//! seconds for gigabytes. Meanwhile the caller's thread does what it must do now and then. Where
//! that unwinds, the work goes on by itself until the next place where it may end; so it owns all
//! that it touches, and nobody waits for it.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use laser_memory::threads;

use crate::error::{IndexError, Result};

/// How often the caller's thread looks up.
const INTERVAL: Duration = Duration::from_millis(20);

/// Tells the thread that nobody waits for it any more.
struct Leave(Arc<AtomicBool>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` on another thread and calls `pause` until it is done; `pause` may unwind. `work` is
/// given a pause of its own, which ends it once nobody waits for it.
///
/// # Errors
/// What `work` returns, or when there is no thread.
pub fn run<T: Send + 'static>(
    pause: &dyn Fn(),
    work: impl FnOnce(&dyn Fn()) -> Result<T> + Send + 'static,
) -> Result<T> {
    let left = Arc::new(AtomicBool::new(false));
    let leave = Leave(left.clone());
    let (sender, receiver) = bounded(1);
    let thread = threads::spawn("laser segment", move || {
        let pause = || {
            if left.load(Ordering::Relaxed) {
                // Past the hook for panics: this is no failure.
                resume_unwind(Box::new(()));
            }
        };
        let _ = sender.send(work(&pause));
    })
    .map_err(IndexError::Thread)?;
    let result = loop {
        match receiver.recv_timeout(INTERVAL) {
            Ok(result) => break result,
            Err(RecvTimeoutError::Timeout) => pause(),
            Err(RecvTimeoutError::Disconnected) => {
                break Err(IndexError::Graph("a thread stopped early".into()));
            }
        }
    };
    let _ = thread.join();
    drop(leave);
    result
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Instant;

    use super::*;

    #[test]
    fn gives_the_result() {
        let found = run(&|| (), |_| Ok(7)).unwrap();
        assert_eq!(found, 7);
        let error = run::<()>(&|| (), |_| Err(IndexError::NotFinite)).unwrap_err();
        assert!(matches!(error, IndexError::NotFinite));
    }

    #[test]
    fn nobody_waits_for_work_that_was_left() {
        let (told, heard) = bounded(1);
        let start = Instant::now();
        let left = catch_unwind(AssertUnwindSafe(|| {
            run(&|| resume_unwind(Box::new(())), move |pause| {
                std::thread::sleep(Duration::from_millis(600));
                let ended = catch_unwind(AssertUnwindSafe(pause)).is_err();
                let _ = told.send(ended);
                Ok(())
            })
        }));
        assert!(left.is_err());
        assert!(start.elapsed() < Duration::from_millis(400));
        assert!(heard.recv_timeout(Duration::from_secs(20)).unwrap());
    }

    #[test]
    fn a_thread_that_panics_is_an_error() {
        let result = run::<()>(&|| (), |_| resume_unwind(Box::new(())));
        assert!(matches!(result, Err(IndexError::Graph(_))));
    }
}
