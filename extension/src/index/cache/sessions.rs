//! Sessions that may hold files of segments open, and how they hear that some were removed.
//!
//! Who maps a file keeps its room on the disk, whoever removes its name. A session gives up what is gone when it
//! searches next; one that idles does not, for weeks behind a pool of connections. So each session that opens files is
//! known by an empty file named by its process, in the folder `sDATABASE` beside those of the databases. Whoever removes
//! files of segments changes the time of the file `removed` there and sends these sessions the server's signal for those
//! that lag behind with invalidation messages (`src/backend/storage/ipc/sinval.c`): an idle session runs an empty
//! transaction then, and at the end of a transaction it looks whether that time is another one. One that idles in a
//! transaction hears it at the end of that. Who removes the folder wakes nobody: a session finds that at the end of its
//! next transaction, and makes itself known again.
//!
//! The time is given with its nanoseconds. What a file system takes itself is that of the last tick of a clock, before
//! Linux 6.13: of two removals within four milliseconds the second would not be noticed.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;

use pgrx::pg_sys;

use super::super::storage::LASTING;
use super::folders::{HERE, ShortPath, list, unlink};
use crate::pg::{file_lock, unguarded};

thread_local! {
    static IS_KNOWN: Cell<bool> = const { Cell::new(false) };
    /// When files were removed last, as this session has seen it.
    static SEEN: Cell<Option<(i64, i64)>> = const { Cell::new(None) };
}

/// The folder of a database's sessions.
pub(super) fn folder(database: u32) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{LASTING}/s{database:x}"))
}

/// Whether a folder beside those of the databases is one of sessions.
pub(super) fn is_folder(name: &CStr) -> bool {
    name.to_bytes().starts_with(b"s")
}

fn own() -> impl fmt::Display {
    // SAFETY: reads variables of this process.
    let (database, process) = unsafe { (pg_sys::MyDatabaseId.to_u32(), pg_sys::MyProcPid) };
    fmt::from_fn(move |f| write!(f, "{}/{process}", folder(database)))
}

/// The file whose time tells when files were removed last.
fn removed(database: u32) -> ShortPath {
    ShortPath::new(fmt::from_fn(|f| write!(f, "{}/removed", folder(database))))
}

/// Makes an empty file where there is none. It allocates nothing: a transaction may have been committed.
fn make(path: &CStr) -> bool {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero; what was opened is closed.
    unsafe {
        let file = libc::open(path.as_ptr(), flags, 0o600);
        file >= 0 && libc::close(file) == 0
    }
}

/// Makes this session known before it opens files, unless there is no room for that: then it is not woken. Its end has
/// to be watched.
pub(super) fn join() {
    // SAFETY: reads a variable of this process. Workers end soon.
    let is_worker = unsafe { pg_sys::ParallelWorkerNumber } >= 0;
    if !is_worker && !IS_KNOWN.replace(true) {
        write_down();
    }
}

/// Makes the file of this session, and the one whose time it will look at.
fn write_down() {
    // SAFETY: reads a variable of this process.
    let database = unsafe { pg_sys::MyDatabaseId.to_u32() };
    let (own, removed) = (ShortPath::new(own()), removed(database));
    if !make(&own) {
        for path in [
            ShortPath::new(file_lock::FOLDER),
            ShortPath::new(LASTING),
            ShortPath::new(folder(database)),
        ] {
            // SAFETY: the path ends with a zero. What cannot be made is there, or is missed below.
            unsafe { libc::mkdir(path.as_ptr(), 0o700) };
        }
        make(&own);
    }
    make(&removed);
}

/// To be called when the session ends.
pub(super) fn leave() {
    if IS_KNOWN.try_with(Cell::get) == Ok(true) {
        unlink(HERE, &ShortPath::new(own()));
    }
}

/// Whether files of segments were removed since this was asked last.
pub(super) fn files_removed() -> bool {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: reads a variable of this process; the path ends with a zero, and `found` is read only after success.
    let touched = unsafe {
        let path = removed(pg_sys::MyDatabaseId.to_u32());
        (libc::stat(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| {
            let found = found.assume_init();
            (found.st_mtime, found.st_mtime_nsec)
        })
    };
    // A file system that keeps whole seconds says nothing of two removals within one.
    let says_when = touched.is_some_and(|(_, nanoseconds)| nanoseconds != 0);
    let files_removed = SEEN.replace(touched) != touched || !says_when;
    if files_removed && IS_KNOWN.get() {
        write_down();
    }
    files_removed
}

/// Tells the sessions of a database that files were removed. It fails in nothing, for a transaction may have been
/// committed, and any thread may call it.
pub(super) fn wake(database: u32) {
    let (path, removed) = (ShortPath::new(folder(database)), removed(database));
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::UTIME_NOW,
    };
    // SAFETY: the path ends with a zero, and there are two times.
    let is_touched = unsafe {
        libc::clock_gettime(libc::CLOCK_REALTIME, &mut now);
        libc::utimensat(HERE, removed.as_ptr(), [now, now].as_ptr(), 0) == 0
    };
    // Without it, or its folder, there is nobody who has seen a time of it.
    if !is_touched {
        make(&removed);
    }
    list(HERE, &path, |folder, name| {
        let Some(process) = name.to_str().ok().and_then(|name| name.parse().ok()) else {
            return;
        };
        // SAFETY: the server looks for the process among its own, and sends no signal to another.
        unsafe {
            let reason = pg_sys::ProcSignalReason::PROCSIG_CATCHUP_INTERRUPT;
            let is_own = process == pg_sys::MyProcPid;
            if !is_own && unguarded::SendProcSignal(process, reason, -1) != 0 {
                // It has ended without a word.
                unlink(folder, name);
            }
        }
    });
}

/// Has this session run an empty transaction when it idles.
pub(super) fn wake_own() {
    // SAFETY: as in [`wake`].
    unsafe {
        let reason = pg_sys::ProcSignalReason::PROCSIG_CATCHUP_INTERRUPT;
        unguarded::SendProcSignal(pg_sys::MyProcPid, reason, -1);
    }
}
