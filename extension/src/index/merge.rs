//! Merging, as inserts, VACUUM and `laser_merge` ask for it.
//!
//! A merge that an insert or VACUUM begins is no part of what they were asked to do: where it finds
//! no room on the disk, or no place in the directory for segments of so little memory, that is a
//! warning, and the pending list grows. It is then put off, by this session, for longer every time:
//! inserts would otherwise try again with every page of the list.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use laser_index::builder::BuildOptions;
use laser_index::maintain::{self, Merge, Plan, Progress};
use laser_index::meta::Meta;
use laser_index::{IndexError, sweep};
use pgrx::pg_sys;

use super::cache;
use super::errors::hint;
use super::pages::RelationStore;
use super::resources::build_options;
use super::statistics;

/// The first time that a merge is put off, and the longest.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(600);
/// What a merge takes where less memory makes more segments than an index may have. Whoever may insert
/// chooses his own `maintenance_work_mem`, and all sessions search what he leaves unmerged.
const LEAST_MEMORY: usize = 16 << 20;
/// How much longer a merge is put off than its last attempt took.
const FACTOR: u32 = 10;

struct Failed {
    until: Instant,
    delay: Duration,
}

thread_local! {
    static FAILED: RefCell<HashMap<pg_sys::Oid, Failed>> = RefCell::default();
}

/// Whether an insert may begin a merge.
pub fn may_begin(index: pg_sys::Oid) -> bool {
    FAILED.with_borrow(|failed| failed.get(&index).is_none_or(|f| f.until <= Instant::now()))
}

/// A merge at work. Dropped before it has succeeded, by an error of the server as well, it puts the
/// next one off.
struct Attempt {
    index: pg_sys::Oid,
    start: Instant,
}

impl Attempt {
    fn succeeded(self) {
        FAILED.with_borrow_mut(|failed| failed.remove(&self.index));
        std::mem::forget(self);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let now = Instant::now();
        FAILED.with_borrow_mut(|failed| {
            // Of indexes that are gone, or were merged by others, nothing is remembered for long.
            failed.retain(|_, f| now < f.until + LONGEST);
            let before = failed.get(&self.index).map_or(SHORTEST / 2, |f| f.delay);
            let delay = (2 * before).max(FACTOR * (now - self.start)).min(LONGEST);
            let until = now + delay;
            failed.insert(self.index, Failed { until, delay });
        });
    }
}

/// Merges an index. Returns how many segments were made.
///
/// # Errors
/// Damage, no memory, no room.
///
/// # Safety
/// `index` is open, `store` its pages, and the caller holds its merge lock.
pub unsafe fn merge(
    index: pg_sys::Relation,
    store: &RelationStore,
    plan: Plan,
) -> laser_index::Result<usize> {
    // SAFETY: by contract.
    unsafe { merge_reporting(index, store, plan, &|_| ()) }
}

/// As [`merge`], where `report` hears how far it is, many times a second.
///
/// # Errors
/// As [`merge`].
///
/// # Safety
/// As for [`merge`].
pub unsafe fn merge_reporting(
    index: pg_sys::Relation,
    store: &RelationStore,
    plan: Plan,
    report: &dyn Fn(Progress),
) -> laser_index::Result<usize> {
    // SAFETY: by contract.
    let oid = unsafe { (*index).rd_id };
    let attempt = Attempt {
        index: oid,
        start: Instant::now(),
    };
    if FAILED.with_borrow(|failed| failed.contains_key(&oid)) {
        // What the last attempt has taken and left is used by this one.
        sweep::sweep(store)?;
    }
    let mut options = build_options(&Meta::read(store)?.parameters, 0);
    let attempt_with = |options: &BuildOptions| {
        // SAFETY: by contract.
        let views = |meta: &Meta| unsafe { cache::views(index, store, meta) };
        let how = Merge::new(plan, options).with_views(&views);
        // SAFETY: by contract.
        maintain::merge_reporting(store, &how, report, |entry, built| unsafe {
            cache::keep(index, entry, built)
        })
    };
    let mut made = attempt_with(&options);
    if matches!(made, Err(IndexError::TooManySegments(_))) && options.memory < LEAST_MEMORY {
        options.memory = LEAST_MEMORY;
        made = attempt_with(&options);
    }
    // What was replaced before an error came has files as well, and pages.
    // SAFETY: by contract.
    unsafe { cache::remove_obsolete(index, store, attempt.start) };
    let made = made?;
    if made > 0
        // SAFETY: by contract.
        && let Some(counts) = unsafe { statistics::of(index) }
    {
        counts.add_merge(attempt.start.elapsed());
    }
    attempt.succeeded();
    Ok(made)
}

/// As [`merge`], where a lack of room, memory or threads is a warning.
///
/// # Errors
/// [`laser_index::IndexError::Corrupt`] or [`laser_index::IndexError::Segment`] when the index is damaged.
///
/// # Safety
/// As for [`merge`].
pub unsafe fn try_merge(
    index: pg_sys::Relation,
    store: &RelationStore,
    plan: Plan,
) -> laser_index::Result<()> {
    // SAFETY: by contract.
    match unsafe { merge(index, store, plan) } {
        Ok(_) => Ok(()),
        Err(
            error @ (IndexError::Io { .. }
            | IndexError::TooManySegments(_)
            | IndexError::OutOfMemory(_)
            | IndexError::GraphMemory
            | IndexError::Thread(_)),
        ) => {
            pgrx::warning!("{}", failure(&error));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// What a warning says of a merge that has failed.
pub fn failure(error: &IndexError) -> String {
    let message = format!("could not merge the pending list of a laser index: {error}");
    match hint(error) {
        Some(hint) => format!("{message}; {hint}"),
        None => message,
    }
}
