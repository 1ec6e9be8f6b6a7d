//! What an insert does that has made a pending list longer than its limit: it has the database's worker
//! merge, which it starts if there is none.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::pg_sys;

use super::super::options;
use super::backlog;
use super::state::{self, Starts, State};
use crate::pg::interrupts;
use crate::pg::waits::{Wait, event};

/// As `pg_stat_activity` calls workers.
const NAME: &str = "laser maintenance";
/// How old what a session knows of the worker may be.
const FRESH: Duration = Duration::from_millis(100);
/// How long a worker may take from its start to its lock, in microseconds.
const WORKER_STARTUP_TIMEOUT: i64 = 3_000_000;
/// How long an index waits for a worker that is at another one, or cannot come to it.
const BUSY: Duration = Duration::from_secs(2);
/// How long no worker is started after one that came to nothing; doubled with each of them.
const FIRST_DELAY: i64 = 5_000_000;
const LONGEST_DELAY: i64 = 600_000_000;
/// Pauses are added up until they are worth a system call.
const SHORTEST_SLEEP: Duration = Duration::from_millis(2);
const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// Who merges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeOwner {
    /// The database's worker, which has been woken or started.
    Worker,
    /// Nobody for now: the last merge has failed, of which this is to be said, once a session.
    Later(Option<String>),
    /// The session itself, if it gets the merge lock.
    Session,
}

/// What a session knows of its database's worker.
struct WorkerStatus {
    at: Instant,
    worker: Option<i32>,
    state: State,
}

thread_local! {
    static STATUS: RefCell<Option<WorkerStatus>> = const { RefCell::new(None) };
    /// The index and the time of the failure that the session has heard of last.
    static REPORTED: Cell<(u32, i64)> = const { Cell::new((0, 0)) };
    /// The index that this session has asked for last while no worker was at it, since when, and when it last did.
    static STARVED: Cell<Option<(u32, Instant, Instant)>> = const { Cell::new(None) };
    /// Pauses that were not made yet.
    static DEBT: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn database() -> u32 {
    // SAFETY: a plain variable of this session.
    unsafe { pg_sys::MyDatabaseId.to_u32() }
}

fn now() -> i64 {
    // SAFETY: asks for the time.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// What is known of the worker, and whether it was looked up now.
fn with_status<R>(take: impl FnOnce(&WorkerStatus, bool) -> R) -> R {
    STATUS.with_borrow_mut(|known| {
        let fresh = known
            .as_ref()
            .is_some_and(|status| status.at.elapsed() < FRESH);
        if !fresh {
            *known = None;
        }
        let status = known.get_or_insert_with(|| WorkerStatus {
            at: Instant::now(),
            worker: state::worker_of(database()),
            state: State::read(database()),
        });
        take(status, !fresh)
    })
}

/// Whether a worker can work on an index: one that others see and that this session does not keep from
/// them.
///
/// # Safety
/// Both are open, `table` is the table of `index`.
unsafe fn is_shared(index: pg_sys::Relation, table: pg_sys::Relation) -> bool {
    // SAFETY: by contract.
    unsafe {
        let lock = pg_sys::AccessExclusiveLock as pg_sys::LOCKMODE;
        let own = |relation: pg_sys::Relation| {
            #[cfg(any(feature = "pg14", feature = "pg15"))]
            let rewritten = (*relation).rd_newRelfilenodeSubid != 0
                || (*relation).rd_firstRelfilenodeSubid != 0;
            #[cfg(not(any(feature = "pg14", feature = "pg15")))]
            let rewritten = (*relation).rd_newRelfilelocatorSubid != 0
                || (*relation).rd_firstRelfilelocatorSubid != 0;
            rewritten
                || (*relation).rd_createSubid != 0
                || pg_sys::CheckRelationLockedByMe(relation, lock, true)
        };
        let temporary = (*(*index).rd_rel).relpersistence as u8 == pg_sys::RELPERSISTENCE_TEMP;
        !temporary && !own(index) && !own(table)
    }
}

/// Who merges the pending list of an index, which has become too long. Starts or wakes the worker. One that has been
/// at another index for [`BUSY`] may be for hours: whoever owns that decides how long its merges take.
///
/// # Safety
/// Both are open, `table` is the table of `index`.
pub unsafe fn request_merge(index: pg_sys::Relation, table: pg_sys::Relation) -> MergeOwner {
    // SAFETY: by contract.
    if !options::background_maintenance() || !unsafe { is_shared(index, table) } {
        return MergeOwner::Session;
    }
    // SAFETY: by contract.
    let oid = unsafe { (*index).rd_id.to_u32() };
    let answer = with_status(|status, fresh| {
        if let Some(deferred) = status.state.deferred(oid, now()) {
            if deferred.failures == 0 {
                // Somebody else has it, or waits for a lock that a writer's own does not mind.
                return Some(MergeOwner::Session);
            }
            let failure = (oid, deferred.failed);
            let news = REPORTED.replace(failure) != failure;
            return Some(MergeOwner::Later(news.then(|| deferred.error.clone())));
        }
        let worker = status.worker?;
        let work = status.state.work.as_ref();
        let elsewhere = work.is_some_and(|work| {
            work.index != oid && now().saturating_sub(work.started) > BUSY.as_micros() as i64
        });
        if elsewhere || is_starved(oid, work.is_some_and(|work| work.index == oid)) {
            return Some(MergeOwner::Session);
        }
        if fresh && status.state.work.is_none() {
            wake(worker);
        }
        Some(MergeOwner::Worker)
    });
    answer.unwrap_or_else(start)
}

/// Whether a session has asked for an index for [`BUSY`], again and again, and no worker has come: it may not get
/// its locks.
fn is_starved(index: u32, at_work: bool) -> bool {
    let now = Instant::now();
    let since = match STARVED.get() {
        Some((of, since, last)) if of == index && now - last < BUSY => since,
        _ => now,
    };
    STARVED.set((!at_work).then_some((index, since, now)));
    !at_work && now - since >= BUSY
}

/// Ends a pause of a worker.
fn wake(worker: i32) {
    // SAFETY: processes of the server have their places in shared memory as long as it runs: a latch may belong to
    // another process by now, which takes no harm.
    unsafe {
        let process = pg_sys::BackendPidGetProc(worker);
        if let Some(process) = process.as_mut()
            && process.databaseId == pg_sys::MyDatabaseId
        {
            pg_sys::SetLatch(&mut process.procLatch);
        }
    }
}

/// Starts a worker, unless others have just done so, or in vain, or other databases have as many as there may be.
fn start() -> MergeOwner {
    let (database, now) = (database(), now());
    let starts = match Starts::of(database) {
        Ok(Some(starts)) => starts,
        Ok(None) => return MergeOwner::Worker,
        Err(_) => return MergeOwner::Session,
    };
    if starts.count > 0 {
        let delay = FIRST_DELAY.saturating_mul(1 << (starts.count - 1).min(16));
        // A clock that was set back delays nothing.
        match now - starts.last {
            0..WORKER_STARTUP_TIMEOUT => return MergeOwner::Worker,
            WORKER_STARTUP_TIMEOUT.. if now - starts.last < delay.min(LONGEST_DELAY) => {
                return MergeOwner::Session;
            }
            _ => {}
        }
    }
    if state::other_active_databases(database).count() >= options::maintenance_workers()
        || starts.note(starts.count + 1, now).is_err()
    {
        return MergeOwner::Session;
    }
    let registered = BackgroundWorkerBuilder::new(NAME)
        .set_type(NAME)
        .set_library("laser")
        .set_function("laser_maintenance_worker")
        .set_argument(Some(pg_sys::Datum::from(database as usize)))
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .enable_shmem_access(None)
        .enable_spi_access()
        .set_restart_time(None)
        .load_dynamic();
    STATUS.set(None);
    if registered.is_ok() {
        return MergeOwner::Worker;
    }
    // There is no place for it: nothing is wrong with the worker.
    let _ = starts.note(starts.count, starts.last);
    MergeOwner::Session
}

/// Lets a writer wait a little whose list has grown beyond what merges keep up with, while the worker
/// is at this very index. May unwind.
pub fn slow_down(index: pg_sys::Oid, pages: u64, limit: u64) {
    let pause = backlog::pause(pages, limit);
    if pause.is_zero() || !options::background_maintenance() {
        return;
    }
    let oid = index.to_u32();
    let works = with_status(|status, _| {
        let work = status.state.work.as_ref();
        status.worker.is_some() && work.is_some_and(|work| work.index == oid)
    });
    if !works {
        return;
    }
    let debt = DEBT.get() + pause;
    if debt < SHORTEST_SLEEP {
        DEBT.set(debt);
        return;
    }
    DEBT.set(Duration::ZERO);
    let until = Instant::now() + debt.min(LONGEST_SLEEP);
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return;
        }
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        // SAFETY: the latch is this session's.
        unsafe {
            let timeout = rest.as_millis().max(1) as std::ffi::c_long;
            pg_sys::WaitLatch(
                pg_sys::MyLatch,
                events as i32,
                timeout,
                event(Wait::MergeBacklog),
            );
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        interrupts::pause();
    }
}
