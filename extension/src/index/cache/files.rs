//! Which files of segments go, and when.
//!
//! - after a build or merge, and whenever a file is made: those of segments that the index no longer
//!   has, and those of relations of this database, and of databases, that are gone, as far as it comes in about the time
//!   that this took. So what has been left by others (all that is dropped or rebuilt, on a standby; databases that
//!   sessions without laser drop) does not grow beyond what is made during one look at all there is;
//! - when a transaction that drops or rewrites relations commits, or one that has made some is rolled back, to a
//!   savepoint too: theirs, before the server deletes the storage itself; when a transaction is prepared, those of both,
//!   for no hook tells what becomes of it;
//! - when a database is dropped: those of all its relations;
//! - at the end of a transaction after one that may have deleted storage of the session's temporary relations: theirs;
//! - when a session ends, even by FATAL: those of its temporary relations, and what it was writing.
//!
//! The end of a transaction removes for a moment, and leaves the rest to a thread ([`super::remover`]): it holds locks for
//! which others wait, and cannot be cancelled.
//!
//! To remove one too many costs somebody the making of a new one; what was missed, a later sweep
//! finds, or the next start of a server that loads the library then. What a crash leaves of a transaction that made an
//! index stays, as the relation's own file does (`src/backend/catalog/storage.c`).
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use laser_index::meta::SegmentEntry;
use pgrx::pg_sys;
use pgrx::pg_sys::SysCacheIdentifier::{DATABASEOID, RELOID};

use super::super::statistics;
use super::super::storage::{LASTING, NO_BACKEND, PASSING, Storage, database_folder};
use super::folders::{HERE, Removal, ShortPath, list, remove, segment_name, unlink};
use super::remover::{self, Gone};
use super::{opened, sessions};
use crate::pg::catalogs;

#[derive(Default)]
struct Leaving {
    /// Storage, and databases, that go with this transaction.
    gone: Vec<Gone>,
    /// Relations that it has dropped, whose counts go with it.
    relations: Vec<pg_sys::Oid>,
}

/// Whether storage of temporary relations goes, which the server deletes when the end of a transaction has been told to
/// us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Goes {
    Not,
    /// Some may go with this transaction.
    WithThis,
    /// Some may have gone with the last one.
    WithLast,
}

thread_local! {
    static LEAVING: RefCell<Leaving> = RefCell::default();
    static TEMPORARY: RefCell<HashSet<Storage>> = RefCell::default();
    static TEMPORARY_GOES: Cell<Goes> = const { Cell::new(Goes::Not) };
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static NEXT_HOOK: Cell<pg_sys::object_access_hook_type> = const { Cell::new(None) };
}

/// To be called when the library is loaded.
pub fn init() {
    // SAFETY: the library is loaded on the main thread; hooks of others are called as well.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction), std::ptr::null_mut());
        NEXT_HOOK.set(pg_sys::object_access_hook);
        pg_sys::object_access_hook = Some(object_access);
        if pg_sys::process_shared_preload_libraries_in_progress {
            sweep_at_start();
        }
    }
}

/// How long the end of a transaction removes files itself: it cannot be interrupted.
const INLINE_TIMEOUT: Duration = Duration::from_millis(50);
/// How long the end of a session waits for the thread that does the rest.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it removes files of its temporary relations. What is left is for others' sweeps: a shutdown waits for the session.
const TEMPORARY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a sweep takes at least, if there is as much to be examined, and at most: it cannot be interrupted either.
const SHORTEST_SWEEP: Duration = Duration::from_millis(10);
const LONGEST_SWEEP: Duration = Duration::from_secs(1);

/// Removes files of this relation's segments that are not current, and those of relations and databases that are
/// gone, for about as long as was worked on what has been made. In a transaction.
pub fn sweep(storage: Storage, current: &[SegmentEntry], worked: Duration) {
    let current: HashSet<String> = current
        .iter()
        .map(|s| segment_name(s.nonce).to_string())
        .collect();
    let until = Instant::now() + worked.clamp(SHORTEST_SWEEP, LONGEST_SWEEP);
    let mut removed = false;
    list(HERE, &ShortPath::new(storage.folder()), |folder, name| {
        if name.to_str().is_ok_and(|name| !current.contains(name)) {
            removed |= unlink(folder, name);
        }
    });

    look_at(&relations(storage.database), until, |relation| {
        if relation.is_gone() {
            let removal = Gone::Relation(*relation).remove(Some(until));
            removed |= removal != Removal::Missing;
        }
    });
    if removed {
        sessions::wake(storage.database);
    }

    look_at(&databases(), until, |database| {
        if !catalogs::is_cached(DATABASEOID, (*database).into()) {
            Gone::Database(*database).remove(Some(until));
        }
    });
}

/// The databases that have files.
fn databases() -> Vec<u32> {
    let mut found = Vec::new();
    for folder in [LASTING, PASSING] {
        list(HERE, &ShortPath::new(folder), |_, name| {
            let name = name.to_str().ok();
            found.extend(name.and_then(|name| u32::from_str_radix(name, 16).ok()));
        });
    }
    found
}

/// The relations of a database that have files.
fn relations(database: u32) -> Vec<Storage> {
    let mut found = Vec::new();
    for folder in [LASTING, PASSING] {
        let folder = ShortPath::new(database_folder(folder, database));
        list(HERE, &folder, |_, name| {
            let name = name.to_str().ok();
            found.extend(name.and_then(|name| Storage::parse(database, name)));
        });
    }
    found
}

/// Removes files of relations that were gone when the server ended, without a catalog, and what its sessions were known by: to
/// be called when it starts. Those of relations that recovery will make are removed with them, and made again.
fn sweep_at_start() {
    list(HERE, &ShortPath::new(LASTING), |folder, name| {
        if sessions::is_folder(name) {
            remove(folder, name, 0, None);
        }
    });
    for database in databases() {
        let all = relations(database);
        let (gone, there): (Vec<_>, Vec<_>) = all.into_iter().partition(Storage::is_gone);
        for relation in gone {
            Gone::Relation(relation).remove(None);
        }
        if there.is_empty() {
            Gone::Database(database).remove(None);
        }
    }
}

/// Gives up what this session has of storage that goes, and its files.
fn leave(gone: Vec<Gone>) {
    let mut database = None;
    for one in &gone {
        if let Gone::Relation(storage) = one {
            opened::forget(*storage);
            database = Some(storage.database);
        }
    }
    if remover::remove(gone, Instant::now() + INLINE_TIMEOUT)
        && let Some(database) = database
    {
        sessions::wake(database);
    }
}

/// To be called when a transaction has ended, before the server deletes storage.
fn finish_transaction() {
    opened::forget_removed();
    match TEMPORARY_GOES.replace(Goes::Not) {
        Goes::Not => {}
        Goes::WithThis => {
            // The end of the next transaction looks, and a session that idles has one.
            TEMPORARY_GOES.set(Goes::WithLast);
            sessions::wake_own();
        }
        Goes::WithLast => {
            // As in `exit`.
            let gone = TEMPORARY.try_with(|all| {
                let mut all = all.borrow_mut();
                let gone = all.extract_if(|storage| storage.is_gone());
                gone.map(Gone::Relation).collect()
            });
            leave(gone.unwrap_or_default());
        }
    }
}

/// Notes that storage of temporary relations may go with this transaction.
fn temporary_may_go() {
    let has_some = TEMPORARY.try_with(|all| all.try_borrow().is_ok_and(|all| !all.is_empty()));
    if has_some == Ok(true) {
        TEMPORARY_GOES.set(Goes::WithThis);
    }
}

/// Looks at these, beginning anywhere, until a moment.
fn look_at<T>(all: &[T], until: Instant, look: impl FnMut(&T)) {
    let begin = laser_index::meta::nonce() as usize % all.len().max(1);
    let (front, back) = all.split_at(begin);
    back.iter()
        .chain(front)
        .take_while(|_| Instant::now() < until)
        .for_each(look);
}

/// Notes that a relation goes with this session.
pub fn temporary(storage: Storage) {
    let is_new = TEMPORARY.with_borrow_mut(|all| all.insert(storage));
    if is_new {
        // It may take the place of what there was, and may be rolled back.
        temporary_may_go();
    }
}

/// Has this session's own files removed when it ends. An error unwinds, and what is dropped removes
/// its files; FATAL does not.
pub fn watch_exit() {
    if !WATCHED.replace(true) {
        // SAFETY: the function stays where it is.
        unsafe { pg_sys::on_proc_exit(Some(exit), pg_sys::Datum::from(0)) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn exit(_code: c_int, _argument: pg_sys::Datum) {
    let scratch = laser_index::scratch::scratch_prefix();
    // Where the server has called exit(), thread-locals may be gone before this is called.
    let temporary = TEMPORARY.try_with(RefCell::take).unwrap_or_default();
    let until = Instant::now() + TEMPORARY_TIMEOUT;
    for storage in temporary {
        if Instant::now() >= until {
            break;
        }
        Gone::Relation(storage).remove(Some(until));
    }
    sessions::leave();
    list(HERE, &ShortPath::new(PASSING), |folder, name| {
        if name.to_bytes().starts_with(scratch.as_bytes()) {
            unlink(folder, name);
        }
    });
    // SAFETY: reads a variable of this process.
    if unsafe { pg_sys::ProcDiePending } == 0 {
        remover::wait(EXIT_TIMEOUT);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            let storage = pending(true);
            LEAVING.with_borrow_mut(|leaving| {
                leaving.gone.extend(storage);
                // A savepoint may have brought them back.
                leaving
                    .relations
                    .retain(|relation| !catalogs::is_cached(RELOID, *relation));
                if !leaving.gone.is_empty() {
                    watch_exit();
                }
            });
        }
        pg_sys::XactEvent::XACT_EVENT_COMMIT => {
            let Ok(leaving) = LEAVING.try_with(RefCell::take) else {
                return;
            };
            for relation in leaving.relations {
                statistics::release(relation);
            }
            leave(leaving.gone);
            finish_transaction();
        }
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => {
            leave(pending(true));
            leave(pending(false));
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT => {
            leave(pending(false));
            temporary_may_go();
            finish_transaction();
            // As in `exit`.
            let _ = LEAVING.try_with(RefCell::take);
        }
        pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            // As in `exit`.
            let _ = LEAVING.try_with(RefCell::take);
        }
        _ => {}
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn subtransaction(
    event: pg_sys::SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _argument: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        leave(pending(false));
        temporary_may_go();
    }
}

/// Storage that the end of this transaction, or subtransaction, deletes: its commit, by DROP, TRUNCATE, REINDEX or
/// a rewrite, or its rollback, which gives up what it has made; not that of temporary relations. None where there is no
/// memory to tell.
fn pending(at_commit: bool) -> Vec<Gone> {
    let mut found = std::ptr::null_mut();
    // SAFETY: the list is allocated in the current context, and has as many elements as is said.
    unsafe {
        let count = pg_sys::smgrGetPendingDeletes(at_commit, &mut found);
        if count <= 0 || found.is_null() {
            return Vec::new();
        }
        let locators = std::slice::from_raw_parts(found, count as usize).iter();
        let gone = laser_memory::collect(
            locators.map(|locator| Gone::Relation(Storage::at(locator, NO_BACKEND))),
        );
        pg_sys::pfree(found.cast());
        gone.unwrap_or_default()
    }
}

/// Errors of another's hook pass over this function as over one in C; see `super::super::rewrite`.
unsafe extern "C-unwind" fn object_access(
    access: pg_sys::ObjectAccessType::Type,
    class: pg_sys::Oid,
    object: pg_sys::Oid,
    sub: c_int,
    argument: *mut c_void,
) {
    if let Some(next) = NEXT_HOOK.get() {
        // SAFETY: with the arguments that the server has passed.
        unsafe { next(access, class, object, sub, argument) };
    }
    if access == pg_sys::ObjectAccessType::OAT_TRUNCATE {
        temporary_may_go();
    }
    if access != pg_sys::ObjectAccessType::OAT_DROP {
        return;
    }
    // SAFETY: what is called has a guard.
    unsafe {
        if class == pg_sys::DatabaseRelationId {
            leave_database(object);
        } else if class == pg_sys::RelationRelationId && sub == 0 {
            leave_relation(object);
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn leave_relation(relation: pg_sys::Oid) {
    temporary_may_go();
    if statistics::are_kept(relation) {
        LEAVING.with_borrow_mut(|leaving| leaving.relations.push(relation));
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn leave_database(database: pg_sys::Oid) {
    LEAVING.with_borrow_mut(|leaving| leaving.gone.push(Gone::Database(database.to_u32())));
}
