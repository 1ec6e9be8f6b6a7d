//! Work on many things, shared by several threads.

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use laser_memory::threads::{self, Gate, ScopedThread};

use crate::error::{IndexError, Result};

/// What a thread takes at once where an item is a node.
pub(crate) const NODES: usize = 64;
/// How often the calling thread looks whether the others are done.
const INTERVAL: Duration = Duration::from_millis(1);

/// Whether a worker goes on; an error tells it that nobody wants what it does any more.
pub(crate) type Pause<'a> = &'a dyn Fn() -> Result<()>;

/// Shows each of the items to a worker, which `start` makes for each thread; this one is among them. A thread takes `at_once` of
/// them. `done` grows by one for every item. `pause` is called on this thread, and may unwind; a worker whose items take long asks
/// the one that it is given whether it goes on.
///
/// # Errors
/// The first of `start` or a worker.
pub(crate) fn each<T: Send, W: FnMut(&mut T, Pause<'_>) -> Result<()>>(
    items: &mut [T],
    (at_once, threads): (usize, usize),
    done: &AtomicUsize,
    pause: &dyn Fn(),
    start: impl Fn() -> Result<W> + Sync,
) -> Result<()> {
    let blocks = Mutex::new(items.chunks_mut(at_once));
    let stop = AtomicBool::new(false);
    let go_on = || match stop.load(Ordering::Relaxed) {
        true => Err(IndexError::Graph("a thread stopped early".into())),
        false => Ok(()),
    };
    let work = |pause: Pause<'_>| {
        let mut worker = start()?;
        loop {
            let next = blocks.lock().unwrap_or_else(|e| e.into_inner()).next();
            let Some(block) = next else { break };
            for item in block.iter_mut() {
                go_on()?;
                worker(item, pause)?;
                pause()?;
            }
            done.fetch_add(block.len(), Ordering::Relaxed);
        }
        Ok(())
    };
    // The first that a thread has met. What the others meet is that it has stopped them.
    let error = Mutex::new(None);
    let run = |pause: Pause<'_>| {
        // Where this thread unwinds or fails, the others do not go on for nobody.
        let leave = Stop(&stop);
        match work(pause) {
            // Nor does who has found no more work end that of the others.
            Ok(()) => std::mem::forget(leave),
            Err(met) if !stop.swap(true, Ordering::Relaxed) => {
                *error.lock().unwrap_or_else(|e| e.into_inner()) = Some(met);
            }
            Err(_) => (),
        }
    };
    let gate = Gate::default();
    threads::scope(|scope| {
        let closed = gate.close();
        let waiting = || {
            gate.pass();
            run(&go_on);
        };
        let others: Vec<_> = (1..threads)
            // Where the system has no more threads, those that there are do the work.
            .map_while(|_| scope.spawn("laser build", waiting).ok())
            .collect();
        drop(closed);
        // Also while it waits.
        let leave = Stop(&stop);
        run(&|| {
            pause();
            go_on()
        });
        // One that has stopped because it is out of memory never ends, but `pause` does not return then.
        while !others.iter().all(ScopedThread::is_finished) {
            pause();
            thread::sleep(INTERVAL);
        }
        std::mem::forget(leave);
        for other in others {
            other.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
    match error.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Instant;

    use super::*;

    /// Items that take long, unless their worker asks whether it goes on.
    fn long(go_on: Pause<'_>) -> Result<()> {
        for _ in 0..20_000 {
            thread::sleep(INTERVAL);
            go_on()?;
        }
        panic!("nobody has ended this");
    }

    #[test]
    fn who_fails_ends_the_others() {
        let begin = Instant::now();
        let mut items: Vec<usize> = (0..4).collect();
        let failed = each(&mut items, (1, 3), &AtomicUsize::new(0), &|| (), || {
            Ok(|item: &mut usize, go_on: Pause<'_>| match *item {
                2 => Err(IndexError::GraphMemory),
                _ => long(go_on),
            })
        });
        assert!(matches!(failed, Err(IndexError::GraphMemory)));
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn who_unwinds_ends_the_others() {
        let begin = Instant::now();
        let pause = || {
            if begin.elapsed() > Duration::from_millis(20) {
                resume_unwind(Box::new(7));
            }
        };
        let mut items = [0; 8];
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            each(&mut items, (1, 3), &AtomicUsize::new(0), &pause, || {
                Ok(|_: &mut i32, go_on: Pause<'_>| long(go_on))
            })
        }));
        assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&7));
        assert!(begin.elapsed() < Duration::from_secs(10));
    }
}
