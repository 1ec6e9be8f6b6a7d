//! Cancellation and progress of a search.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Error;

/// What a running search shares with the thread that watches it.
#[derive(Debug, Default)]
pub struct Control {
    /// Set it to make the search stop with [`Error::Cancelled`]; checked once for each tile,
    /// that is every few milliseconds.
    pub cancel: AtomicBool,
    /// Pairs of rows compared so far, by all searches that had this control.
    pub done: AtomicU64,
    /// Pairs of rows to compare by the searches that have begun.
    pub total: AtomicU64,
    /// Whether a search is finding out how many of these it need not compare.
    pub is_unmeasured: AtomicBool,
}

impl Control {
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.cancel.load(Ordering::Relaxed) {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }
}
