//! The threads of a search.

use std::sync::atomic::{AtomicUsize, Ordering};

use laser_memory::threads::{self, Gate};

use crate::Error;
use crate::control::Control;
use crate::engine::Engine;

/// What all phases of a search share.
pub(crate) struct Run<'a> {
    pub engine: Engine<'a>,
    pub threads: usize,
    pub control: &'a Control,
}

impl Run<'_> {
    /// Calls `work` for 0..items from `threads` threads, each with a scratch tile of its own; stops
    /// at the first error.
    pub fn each(
        &self,
        threads: usize,
        items: usize,
        work: impl Fn(&mut Vec<f32>, usize) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let next = AtomicUsize::new(0);
        let worker = || {
            let mut scratch = Vec::new();
            loop {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    return Ok(());
                }
                let result = self.control.check().and_then(|()| work(&mut scratch, item));
                if result.is_err() {
                    next.store(items, Ordering::Relaxed);
                    return result;
                }
            }
        };
        let count = threads.min(items).max(1);
        if count == 1 {
            return worker();
        }
        let gate = Gate::default();
        threads::scope(|scope| {
            let closed = gate.close();
            let spawn = |_| {
                let work = || {
                    gate.pass();
                    worker()
                };
                scope.spawn("laser mining", work).ok()
            };
            // Where the system has no more threads, those that there are do the work.
            let handles: Vec<_> = (0..count).map_while(spawn).collect();
            drop(closed);
            if handles.is_empty() {
                return worker();
            }
            handles
                .into_iter()
                .map(|handle| {
                    handle
                        .join()
                        .unwrap_or_else(|e| std::panic::resume_unwind(e))
                })
                .fold(Ok(()), Result::and)
        })
    }
}
