//! How much longer a build will take.
//!
//! The server has no place for it: it is told in the last of the numbers that a command reports (`PGSTAT_NUM_PROGRESS_PARAM`
//! in `src/include/utils/backend_progress.h`), of which `CREATE INDEX` uses fewer (`PROGRESS_CREATEIDX_…` in
//! `src/include/commands/progress.h`), and the view `laser_index_progress` reads it.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use laser_index::forecast::{Forecast, Moment};
use pgrx::pg_sys;

/// The place of the number, from 0.
const PLACE: u32 = pg_sys::PGSTAT_NUM_PROGRESS_PARAM - 1;
const _: () = assert!(PLACE > pg_sys::PROGRESS_SCAN_BLOCKS_DONE);
/// More seconds than that are not told.
const MOST: f64 = 1e9;

/// The share of the table that the command has read, as it reports that itself; nothing where it does not.
fn share_read() -> Option<f64> {
    // SAFETY: this backend's own entry, if it has one, which it alone writes.
    let (done, total) = unsafe {
        let entry = pg_sys::MyBEEntry.as_ref()?;
        let number = |place: u32| entry.st_progress_param[place as usize] as f64;
        (
            number(pg_sys::PROGRESS_SCAN_BLOCKS_DONE),
            number(pg_sys::PROGRESS_SCAN_BLOCKS_TOTAL),
        )
    };
    (done > 0.0 && total >= done).then_some(done / total)
}

fn now() -> Moment {
    Moment {
        at: Instant::now(),
        read: share_read(),
    }
}

/// Tells a [`Forecast`] of a build where the build is, and others what it says.
#[derive(Debug)]
pub struct TimeLeft(Forecast);

impl TimeLeft {
    /// As [`Forecast::new`].
    pub fn new(estimate: usize, most: usize, passes: f64) -> Self {
        Self(Forecast::new(estimate, most, passes, Instant::now()))
    }

    /// As [`Forecast::embedded`].
    pub fn embedded(&mut self, texts: usize, took: Duration) {
        self.0.embedded(texts, took);
    }

    /// As [`Forecast::added`].
    pub fn added(&self, nodes: usize, adding: Duration) {
        tell(self.0.added(nodes, adding, now()));
    }

    /// As [`Forecast::refines`].
    pub fn refines(&mut self, nodes: usize) {
        self.0.refines(nodes, Instant::now());
        tell_nothing();
    }

    /// As [`Forecast::refined`].
    pub fn refined(&self, share: f64, nodes: usize) {
        tell(self.0.refined(share, nodes, now()));
    }

    /// As [`Forecast::finishes`].
    pub fn finishes(&mut self, nodes: usize) {
        self.0.finishes(nodes, Instant::now());
        tell_nothing();
    }
}

impl Drop for TimeLeft {
    /// The next index of the command is another one.
    fn drop(&mut self) {
        tell_nothing();
    }
}

/// What was told before stays where nothing new is known.
fn tell(seconds: Option<f64>) {
    if let Some(seconds) = seconds {
        report(seconds.ceil().min(MOST) as i64);
    }
}

/// Zero is nothing: it is not known, or nothing is left.
fn tell_nothing() {
    report(0);
}

fn report(seconds: i64) {
    // SAFETY: writes to this backend's entry, if it has one.
    unsafe { pg_sys::pgstat_progress_update_param(PLACE as i32, seconds) };
}
