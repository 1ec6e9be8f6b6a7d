//! The worker of a database: merges pending lists that are longer than their limit, waits a little for
//! more, and leaves.
//!
//! To the server it is as autovacuum's workers are (`PROC_IS_AUTOVACUUM`): whoever waits for one of its locks
//! has its merge cancelled after `deadlock_timeout`, and DROP DATABASE, ALTER DATABASE … SET TABLESPACE and
//! CREATE DATABASE … TEMPLATE send it away. It has the rights of nobody in particular, and runs no code of
//! users: a merge reads and writes pages of the index alone.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use laser_index::IndexError;
use laser_index::maintain::{Plan, Progress};
use laser_index::meta::Meta;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::{PgLogLevel, PgSqlErrorCode as Code, PgTryBuilder, ereport, pg_guard};

use super::super::info::Opened;
use super::super::pages::MergeLock;
use super::super::rights::{AsOwner, Use};
use super::super::{merge, options};
use super::backlog::pages_of;
use super::state::{self, DeferredMerge, Starts, State, Work};
use crate::pg::interrupts::pause;
use crate::pg::{catalogs, encoding};

/// How long a worker waits for more work before it leaves.
const LINGER: Duration = Duration::from_secs(5);
/// How often it looks for work meanwhile, also if nobody wakes it.
const LOOK: Duration = Duration::from_secs(1);
/// How much longer than a look at all indexes took it does not look again.
const LOOK_FACTOR: u32 = 10;
/// How often it tells how far it is.
const REPORT: Duration = Duration::from_millis(250);
/// How long an index is left alone that others have, or whose merge was cancelled.
const REST: Duration = Duration::from_secs(2);
/// The first time that a merge is put off after a failure, the longest, in microseconds, and how much longer
/// than its attempt took.
const SHORTEST: i64 = 2_000_000;
const LONGEST: i64 = 600_000_000;
const FACTOR: i64 = 10;

unsafe extern "C-unwind" {
    // Signal handlers of the server, as function pointers.
    fn die(signal: c_int);
    fn SignalHandlerForConfigReload(signal: c_int);
}

/// Entry point of the worker process; its argument is the database.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn laser_maintenance_worker(argument: Datum) {
    let database = argument.value() as u32;
    handle_signals();
    match state::lock_worker(database) {
        Ok(Some(lock)) => lock.until_exit(),
        // Another one was faster.
        Ok(None) => return,
        Err(error) => {
            log(format!(
                "laser: could not lock the place of the maintenance worker: {error}"
            ));
            return;
        }
    }
    // Of those that began at the same time, and have not seen each other, these stay. Its start is noted as one in vain.
    let before = state::other_active_databases(database).filter(|&other| other < database);
    if before.count() >= options::maintenance_workers() {
        return;
    }
    // SAFETY: the place of this process in shared memory, before others look at it: connecting copies the flag
    // to where they do.
    unsafe {
        (*pg_sys::MyProc).statusFlags |= pg_sys::PROC_IS_AUTOVACUUM as u8;
        pg_sys::BackgroundWorkerInitializeConnectionByOid(
            Oid::from(database),
            pg_sys::InvalidOid,
            0,
        );
    }
    set_options();
    Worker::new(database).run();
}

/// Signals end the process and its merge at the next pause, not at once.
fn handle_signals() {
    // SAFETY: handlers of the server, of the type that it asks for.
    unsafe {
        for (signal, handler) in [
            (
                pg_sys::SIGTERM as c_int,
                die as unsafe extern "C-unwind" fn(c_int),
            ),
            (pg_sys::SIGHUP as c_int, SignalHandlerForConfigReload),
        ] {
            #[cfg(feature = "pg18")]
            pg_sys::pqsignal_be(signal, Some(handler));
            #[cfg(not(feature = "pg18"))]
            pg_sys::pqsignal(signal, Some(handler));
        }
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// What somebody has set for a database or the superuser is not meant for maintenance, as autovacuum has
/// it.
fn set_options() {
    // SAFETY: the role as which the process was started. `session_authorization` of a database is another.
    unsafe { pg_sys::SetSessionAuthorization(Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID), true) };
    let options: &[(&CStr, &CStr)] = &[
        (c"role", c"none"),
        (c"search_path", c"pg_catalog, pg_temp"),
        (c"statement_timeout", c"0"),
        (c"lock_timeout", c"0"),
        (c"idle_in_transaction_session_timeout", c"0"),
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        (c"transaction_timeout", c"0"),
        (c"zero_damaged_pages", c"false"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_read_only", c"false"),
    ];
    for (name, value) in options {
        // SAFETY: settings of the server, and values that they take.
        unsafe {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
}

fn log(message: String) {
    ereport!(
        PgLogLevel::LOG,
        Code::ERRCODE_SUCCESSFUL_COMPLETION,
        message
    );
}

fn now() -> i64 {
    // SAFETY: asks for the time.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// Why a transaction was undone.
struct Undone {
    cancelled: bool,
    message: String,
}

impl Undone {
    fn by(error: &CaughtError) -> Self {
        let (CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic {
            ereport: report, ..
        }) = error;
        Self {
            cancelled: report.sql_error_code() == Code::ERRCODE_QUERY_CANCELED,
            message: report.message().to_owned(),
        }
    }
}

/// Runs something that may raise an error.
fn caught<R>(work: impl FnOnce() -> R) -> Result<R, Undone> {
    PgTryBuilder::new(AssertUnwindSafe(|| Ok(work())))
        .catch_others(|error| Err(Undone::by(&error)))
        .catch_rust_panic(|error| Err(Undone::by(&error)))
        .execute()
}

/// Runs something in a transaction of its own.
fn in_transaction<R>(work: impl FnOnce() -> R) -> Result<R, Undone> {
    let result = caught(|| {
        // SAFETY: there is no transaction.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
        }
        let result = work();
        // SAFETY: the one begun above.
        unsafe { pg_sys::CommitTransactionCommand() };
        result
    });
    if result.is_err() {
        // SAFETY: whatever has been left.
        unsafe { pg_sys::AbortOutOfAnyTransaction() };
    }
    result
}

/// By how much the pending list of an index is longer than it may be; `None` if there is nothing to merge.
fn excess(opened: &Opened) -> Option<f64> {
    if !opened.is_ready() {
        return None;
    }
    // What is damaged laser_index_check() tells of.
    let meta = Meta::read(&opened.store()).ok()?;
    // SAFETY: the index is open.
    let limit = pages_of(unsafe { options::of(opened.raw()) }.pending_list_limit).max(1);
    let pages = meta.pending.pages();
    (pages > limit && !meta.parameters.is_undecided()).then(|| pages as f64 / limit as f64)
}

/// The name of an index that could not be opened; empty if it is gone.
fn name_of(index: u32) -> String {
    let name = in_transaction(|| {
        // SAFETY: a look-up in a system cache, and a name, or null.
        unsafe {
            let name = pg_sys::get_rel_name(Oid::from(index));
            (!name.is_null()).then(|| encoding::shown(name))
        }
    });
    name.ok().flatten().unwrap_or_default()
}

/// What has become of an index that was to be merged.
enum Outcome {
    Done,
    /// Others have a lock against it, or change it and may merge it.
    Busy,
    Failed(IndexError),
}

struct Worker {
    database: u32,
    state: RefCell<State>,
    reported: Cell<Instant>,
    /// Indexes to leave alone for a moment.
    resting: HashMap<u32, Instant>,
}

impl Worker {
    fn new(database: u32) -> Self {
        let mut state = State::read(database);
        state.work = None;
        Self {
            database,
            state: RefCell::new(state),
            reported: Cell::new(Instant::now()),
            resting: HashMap::new(),
        }
    }

    fn run(&mut self) {
        self.write();
        self.remove_files_of_others();
        let mut worked = Instant::now();
        while options::background_maintenance() {
            let before = Instant::now();
            let due = self.due();
            let took = before.elapsed();
            // It has come so far: the next one may be started at once.
            Starts::forget(self.database);
            for index in &due {
                self.merge(*index);
                worked = Instant::now();
            }
            if due.is_empty() && worked.elapsed() >= LINGER {
                break;
            }
            if due.is_empty() {
                self.wait((LOOK_FACTOR * took).max(LOOK).min(LINGER));
            }
        }
    }

    /// Tells others of it; maintenance goes on where it cannot.
    fn write(&self) {
        self.reported.set(Instant::now());
        if let Err(error) = self.state.borrow().write(self.database) {
            log(format!(
                "laser: could not write the state of the maintenance worker: {error}"
            ));
        }
    }

    fn remove_files_of_others(&self) {
        let gone = in_transaction(|| {
            let mut gone = state::databases();
            // SAFETY: a look-up in a system cache.
            gone.retain(|database| unsafe {
                pg_sys::get_database_name(Oid::from(*database)).is_null()
            });
            gone
        });
        gone.unwrap_or_default().into_iter().for_each(state::remove);
    }

    /// Waits until somebody has work, or for so long.
    fn wait(&self, timeout: Duration) {
        let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        // SAFETY: the latch is this process's.
        unsafe {
            pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_IDLE, std::ptr::null());
            pg_sys::WaitLatch(
                pg_sys::MyLatch,
                events as c_int,
                timeout.as_millis() as std::ffi::c_long,
                pg_sys::PG_WAIT_EXTENSION,
            );
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        // A cancel while nothing is done.
        let _ = caught(pause);
        // SAFETY: this is the main loop of the process, where settings may change.
        unsafe {
            if pg_sys::ConfigReloadPending != 0 {
                pg_sys::ConfigReloadPending = 0;
                pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
            }
        }
    }

    /// Indexes that are to be merged now, the most urgent one first.
    fn due(&mut self) -> Vec<u32> {
        // SAFETY: in a transaction.
        let Ok(all) = in_transaction(|| unsafe { catalogs::indexes_of(c"laser") }) else {
            return Vec::new();
        };
        let all: Vec<u32> = all.into_iter().map(Oid::to_u32).collect();
        let (at, now) = (Instant::now(), now());
        self.forget_all_but(&all, now);
        self.resting.retain(|_, until| *until > at);
        let mut due = Vec::new();
        for index in all {
            if self.resting.contains_key(&index)
                || self.state.borrow().deferred(index, now).is_some()
            {
                continue;
            }
            let look = in_transaction(|| {
                pause();
                let lock = pg_sys::AccessShareLock;
                excess(&Opened::at_once(Oid::from(index), Use::Maintain, lock)?)
            });
            if let Ok(Some(excess)) = look {
                due.push((excess, index));
            }
        }
        due.sort_by(|a, b| b.0.total_cmp(&a.0));
        due.into_iter().map(|(_, index)| index).collect()
    }

    /// Forgets what was put off of indexes that are gone, or until now because others had them.
    fn forget_all_but(&self, all: &[u32], now: i64) {
        let mut state = self.state.borrow_mut();
        let before = state.deferred.len();
        let counts = |p: &DeferredMerge| p.failures > 0 || p.until > now;
        state
            .deferred
            .retain(|p| all.contains(&p.index) && counts(p));
        let changed = state.deferred.len() != before;
        drop(state);
        if changed {
            self.write();
        }
    }

    fn merge(&mut self, index: u32) {
        let start = Instant::now();
        let result = in_transaction(|| self.try_merge(index));
        let work = self.state.borrow_mut().work.take();
        let name = work.map(|work| work.name).unwrap_or_default();
        let failure = match result {
            Ok(Outcome::Done) => {
                self.state
                    .borrow_mut()
                    .deferred
                    .retain(|p| p.index != index);
                None
            }
            Ok(Outcome::Busy) => {
                let name = if name.is_empty() {
                    name_of(index)
                } else {
                    name.clone()
                };
                self.defer(index, name, None, Duration::ZERO);
                None
            }
            Ok(Outcome::Failed(error)) => Some(merge::failure(&error)),
            Err(undone) if undone.cancelled => {
                log(format!(
                    "laser: merging the pending list of index \"{name}\" was canceled"
                ));
                self.resting.insert(index, Instant::now() + REST);
                None
            }
            Err(undone) => Some(undone.message),
        };
        if let Some(error) = failure {
            log(format!("laser: index \"{name}\": {error}"));
            self.defer(index, name, Some(error), start.elapsed());
        }
        self.write();
    }

    /// Merges an index, unless somebody else has it. It is locked as an insert locks it.
    fn try_merge(&self, index: u32) -> Outcome {
        let lock = pg_sys::RowExclusiveLock;
        let Some(opened) = Opened::at_once(Oid::from(index), Use::Maintain, lock) else {
            return Outcome::Busy;
        };
        self.state.borrow_mut().work = Some(Work {
            index,
            name: opened.name(),
            phase: "starting".to_owned(),
            started: now(),
            ..Work::default()
        });
        self.write();
        let activity = CString::new(format!("merging index {}", opened.name())).unwrap_or_default();
        // SAFETY: a text that is copied; the index is open for as long as what is made here.
        unsafe {
            pg_sys::pgstat_report_activity(pg_sys::BackendState::STATE_RUNNING, activity.as_ptr());
            let _owner = AsOwner::of(opened.raw());
            // It does not wait: other indexes may have work as well.
            let Some(_lock) = MergeLock::attempt(opened.raw()) else {
                return Outcome::Busy;
            };
            // Others may have done it meanwhile.
            if excess(&opened).is_none() {
                return Outcome::Done;
            }
            // Nothing is read by it any more, and VACUUM need not keep rows for it.
            pg_sys::InvalidateCatalogSnapshot();
            let store = opened.store();
            match merge::merge_reporting(opened.raw(), &store, Plan::Insert, &|p| self.report(p)) {
                Ok(_) => Outcome::Done,
                Err(error) => Outcome::Failed(error),
            }
        }
    }

    fn report(&self, progress: Progress) {
        {
            let mut state = self.state.borrow_mut();
            let Some(work) = &mut state.work else {
                return;
            };
            (work.done, work.total) = (progress.done as u64, progress.total as u64);
            if work.phase == progress.phase.name() && self.reported.get().elapsed() < REPORT {
                return;
            }
            progress.phase.name().clone_into(&mut work.phase);
        }
        self.write();
        // SAFETY: a variable that the server has set; a process whose postmaster has died ends.
        unsafe {
            if libc::getppid() != pg_sys::PostmasterPid {
                pg_sys::proc_exit(1);
            }
        }
    }

    /// Notes a failure, for longer with each of them, or that somebody else has the index.
    fn defer(&self, index: u32, name: String, error: Option<String>, took: Duration) {
        let mut state = self.state.borrow_mut();
        let before = state.deferred.iter().position(|p| p.index == index);
        let before = before.map(|at| state.deferred.swap_remove(at));
        let failed = now();
        let (failures, delay) = match &error {
            None => (0, REST.as_micros() as i64),
            Some(_) => {
                let failures = before.as_ref().map_or(0, |p| p.failures);
                let last = before.filter(|p| p.failures > 0);
                let last = last.map_or(SHORTEST / 2, |p| p.until - p.failed);
                let took = FACTOR * took.as_micros() as i64;
                let delay = (2 * last).max(took).clamp(SHORTEST, LONGEST);
                (failures.saturating_add(1), delay)
            }
        };
        state.deferred.push(DeferredMerge {
            index,
            name,
            failures,
            failed,
            until: failed + delay,
            error: error.unwrap_or_default(),
        });
    }
}
