//! Work on many things, shared by several threads.

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use laser_memory::threads::{self, Gate, ScopedThread};

use crate::error::Result;

/// What a thread takes at once.
const BLOCK: usize = 64;
/// How often the calling thread looks whether the others are done.
const INTERVAL: Duration = Duration::from_millis(1);

/// Shows each of the items to a worker, which `start` makes for each thread; this one is among them. `done` grows by one for
/// every item. `pause` is called on this thread, and may unwind.
///
/// # Errors
/// The first of `start` or a worker.
pub(super) fn each<T: Send, W: FnMut(&mut T) -> Result<()>>(
    items: &mut [T],
    threads: usize,
    done: &AtomicUsize,
    pause: &dyn Fn(),
    start: impl Fn() -> Result<W> + Sync,
) -> Result<()> {
    let blocks = Mutex::new(items.chunks_mut(BLOCK));
    let stop = AtomicBool::new(false);
    let work = |pause: &dyn Fn()| {
        let mut worker = start()?;
        loop {
            let next = blocks.lock().unwrap_or_else(|e| e.into_inner()).next();
            let Some(block) = next else { break };
            for item in block.iter_mut() {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                worker(item)?;
                pause();
            }
            done.fetch_add(block.len(), Ordering::Relaxed);
        }
        Ok(())
    };
    let gate = Gate::default();
    threads::scope(|scope| {
        let closed = gate.close();
        let waiting = || {
            gate.pass();
            work(&|| ())
        };
        let others: Vec<_> = (1..threads)
            // Where the system has no more threads, those that there are do the work.
            .map_while(|_| scope.spawn("laser build", waiting).ok())
            .collect();
        drop(closed);
        // Where this thread unwinds or fails, the others do not go on for nobody.
        let leave = Stop(&stop);
        let own = work(pause);
        if own.is_err() {
            drop(leave);
        }
        // One that has stopped because it is out of memory never ends, but `pause` does not return then.
        while !others.iter().all(ScopedThread::is_finished) {
            pause();
            thread::sleep(INTERVAL);
        }
        let join =
            |other: ScopedThread<'_, _>| other.join().unwrap_or_else(|panic| resume_unwind(panic));
        others.into_iter().map(join).fold(own, Result::and)
    })
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
