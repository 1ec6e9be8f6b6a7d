//! Which files of segments go, and when.
//!
//! - after a build or merge, and whenever a file is made: those of segments that the index no longer
//!   has, and those of relations of this database, and of databases, that are gone, of a number that is looked at;
//! - when a transaction that drops or rewrites relations commits, or one that has made some is rolled back, to a
//!   savepoint too: theirs, before the server deletes the storage itself; when a transaction is prepared, those of both,
//!   for no hook tells what becomes of it;
//! - when a database is dropped: those of all its relations;
//! - when a session ends, even by FATAL: those of its temporary relations, and what it was writing.
//!
//! To remove one too many costs somebody the making of a new one; what was missed, a later sweep
//! finds, at last the server's start.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::io::Write as _;
use std::ops::Deref;
use std::time::{Duration, Instant};

use laser_index::meta::SegmentEntry;
use pgrx::pg_sys;
use pgrx::pg_sys::SysCacheIdentifier::{DATABASEOID, RELOID};

use super::super::statistics;
use super::super::storage::{FOLDER, NO_BACKEND, Storage, database_folder};
use super::opened::forget;
use crate::catalogs;

#[derive(Default)]
struct Leaving {
    /// Storage that goes with this transaction.
    storage: Vec<Storage>,
    /// The database that goes with it.
    database: Option<u32>,
    /// Relations that it has dropped, whose counts go with it.
    relations: Vec<pg_sys::Oid>,
}

/// Paths are relative to the data directory, where every process of the server is.
const HERE: c_int = libc::AT_FDCWD;

thread_local! {
    static LEAVING: RefCell<Leaving> = RefCell::default();
    static TEMPORARY: RefCell<HashSet<Storage>> = RefCell::default();
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
    }
}

/// Relations, and databases, of which a sweep looks whether they are gone, and goes on with as many where some are, so
/// many times. Somebody else may have any number of them.
const SWEPT_RELATIONS: usize = 64;
const SWEPT_DATABASES: usize = 16;
const ROUNDS: usize = 16;
/// How long a sweep removes what others have left, and the end of a transaction what can wait for a sweep: neither can
/// be interrupted.
const PATIENCE: Duration = Duration::from_millis(50);

/// The name of a segment's file.
pub fn name(nonce: u64) -> String {
    format!("{nonce:016x}")
}

/// A path of ours for the C library, made without an allocation: a commit that has happened, and a rollback, must not
/// fail.
struct ShortPath([u8; 128]);

impl ShortPath {
    fn new(path: impl fmt::Display) -> Self {
        let mut bytes = [0; 128];
        write!(&mut bytes[..127], "{path}").expect("a constant and four numbers");
        Self(bytes)
    }
}

impl Deref for ShortPath {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).expect("the last byte is zero")
    }
}

/// Shows a folder's descriptor and the names in it, if there is such a folder. It allocates nothing but what the C
/// library opens a folder with, and shows nothing where there is no memory for that.
fn list(parent: c_int, folder: &CStr, mut look: impl FnMut(c_int, &CStr)) {
    list_while(parent, folder, |folder, name| {
        look(folder, name);
        true
    });
}

/// As [`list`], as long as it is told to go on.
fn list_while(parent: c_int, folder: &CStr, mut look: impl FnMut(c_int, &CStr) -> bool) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the folder is open until it is closed; a name ends with a zero, and is used before the next one is read.
    unsafe {
        let descriptor = libc::openat(parent, folder.as_ptr(), flags);
        if descriptor < 0 {
            return;
        }
        let folder = libc::fdopendir(descriptor);
        if folder.is_null() {
            libc::close(descriptor);
            return;
        }
        loop {
            let file = libc::readdir(folder);
            if file.is_null() {
                break;
            }
            let name = CStr::from_ptr((*file).d_name.as_ptr());
            if name != c"." && name != c".." && !look(descriptor, name) {
                break;
            }
        }
        libc::closedir(folder);
    }
}

/// Removes a file; says whether there is none of that name now.
fn unlink(folder: c_int, name: &CStr) -> bool {
    // SAFETY: the name ends with a zero.
    unsafe { libc::unlinkat(folder, name.as_ptr(), 0) == 0 }
}

/// Removes a folder with what is in it, down to so many levels of folders, until a moment. It allocates no more than
/// [`list`].
fn remove(parent: c_int, folder: &CStr, levels: u32, until: Option<Instant>) {
    let is_time = || until.is_none_or(|until| Instant::now() < until);
    list_while(parent, folder, |descriptor, name| {
        if !unlink(descriptor, name) && levels > 0 {
            remove(descriptor, name, levels - 1, until);
        }
        is_time()
    });
    // SAFETY: the name ends with a zero. What is not empty stays.
    unsafe { libc::unlinkat(parent, folder.as_ptr(), libc::AT_REMOVEDIR) };
}

/// Removes files of this relation's segments that are not current, and those of some relations and databases that are
/// gone. In a transaction.
pub fn sweep(storage: Storage, current: &[SegmentEntry]) {
    let current: HashSet<String> = current.iter().map(|s| name(s.nonce)).collect();
    let until = Some(Instant::now() + PATIENCE);
    list(HERE, &ShortPath::new(storage.folder()), |folder, name| {
        if name.to_str().is_ok_and(|name| !current.contains(name)) {
            unlink(folder, name);
        }
    });

    TEMPORARY.with_borrow_mut(|all| {
        all.retain(|other| *other == storage || !remove_if(*other, other.is_gone(), until));
    });

    let mut relations = Vec::new();
    let database = ShortPath::new(database_folder(storage.database));
    list(HERE, &database, |_, name| {
        let relation = name.to_str().ok();
        relations.extend(relation.and_then(|name| Storage::parse(storage.database, name)));
    });
    look_at(&relations, SWEPT_RELATIONS, until, |relation| {
        remove_if(*relation, relation.is_gone(), until)
    });

    let mut databases = Vec::new();
    list(HERE, &ShortPath::new(FOLDER), |_, name| {
        let name = name.to_str().ok();
        databases.extend(name.and_then(|name| u32::from_str_radix(name, 16).ok()));
    });
    look_at(&databases, SWEPT_DATABASES, until, |database| {
        let is_gone = !catalogs::is_cached(DATABASEOID, (*database).into());
        if is_gone {
            remove(HERE, &ShortPath::new(database_folder(*database)), 1, until);
        }
        is_gone
    });
}

/// Removes a relation's folder if so, until a moment; says whether the relation is gone.
fn remove_if(storage: Storage, is_gone: bool, until: Option<Instant>) -> bool {
    if is_gone {
        remove(HERE, &ShortPath::new(storage.folder()), 0, until);
    }
    is_gone
}

/// Gives up what this session has of storage that goes, and its files; the folders of that, which some file systems are
/// slow to remove, until a moment. Sweeps find the others.
fn leave(until: Instant) -> impl FnMut(Storage) {
    move |storage| {
        forget(storage);
        let folder = ShortPath::new(storage.folder());
        list(HERE, &folder, |descriptor, name| {
            _ = unlink(descriptor, name)
        });
        if Instant::now() < until {
            // SAFETY: the name ends with a zero.
            unsafe { libc::unlinkat(HERE, folder.as_ptr(), libc::AT_REMOVEDIR) };
        }
    }
}

/// Looks at so many of these, beginning anywhere, and goes on while some are gone, until a moment.
fn look_at<T>(all: &[T], most: usize, until: Option<Instant>, mut is_gone: impl FnMut(&T) -> bool) {
    let begin = laser_index::meta::nonce() as usize % all.len().max(1);
    let (front, back) = all.split_at(begin);
    let mut rest = back.iter().chain(front);
    for _ in 0..ROUNDS {
        let gone = rest.by_ref().take(most).filter(|one| is_gone(one)).count();
        if gone == 0 || until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
    }
}

/// Notes that a relation goes with this session.
pub fn temporary(storage: Storage) {
    TEMPORARY.with_borrow_mut(|all| all.insert(storage));
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
    let scratch = laser_index::cache::scratch_prefix();
    // Where the server has called exit(), thread-locals may be gone before this is called.
    let temporary = TEMPORARY.try_with(RefCell::take).unwrap_or_default();
    for storage in temporary {
        remove_if(storage, true, None);
    }
    list(HERE, &ShortPath::new(FOLDER), |folder, name| {
        if name.to_bytes().starts_with(scratch.as_bytes()) {
            unlink(folder, name);
        }
    });
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    let until = Instant::now() + PATIENCE;
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            let mut storage = Vec::new();
            pending(true, |one| storage.push(one));
            LEAVING.with_borrow_mut(|leaving| {
                leaving.storage = storage;
                // A savepoint may have brought them back.
                leaving
                    .relations
                    .retain(|relation| !catalogs::is_cached(RELOID, *relation));
            });
        }
        pg_sys::XactEvent::XACT_EVENT_COMMIT => {
            let Ok(leaving) = LEAVING.try_with(RefCell::take) else {
                return;
            };
            for relation in leaving.relations {
                statistics::release(relation);
            }
            leaving.storage.into_iter().for_each(leave(until));
            if let Some(database) = leaving.database {
                remove(
                    HERE,
                    &ShortPath::new(database_folder(database)),
                    1,
                    Some(until),
                );
            }
        }
        pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => {
            for at_commit in [true, false] {
                pending(at_commit, leave(until));
            }
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT => {
            pending(false, leave(until));
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
        pending(false, leave(Instant::now() + PATIENCE));
    }
}

/// Shows storage that the end of this transaction, or subtransaction, deletes: its commit, by DROP, TRUNCATE, REINDEX or
/// a rewrite, or its rollback, which gives up what it has made; not that of temporary relations.
fn pending(at_commit: bool, mut look: impl FnMut(Storage)) {
    let mut found = std::ptr::null_mut();
    // SAFETY: the list is allocated in the current context, and has as many elements as is said.
    unsafe {
        let count = pg_sys::smgrGetPendingDeletes(at_commit, &mut found);
        if count <= 0 || found.is_null() {
            return;
        }
        for locator in std::slice::from_raw_parts(found, count as usize) {
            look(Storage::at(locator, NO_BACKEND));
        }
        pg_sys::pfree(found.cast());
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
    if statistics::is_counted(relation) {
        LEAVING.with_borrow_mut(|leaving| leaving.relations.push(relation));
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn leave_database(database: pg_sys::Oid) {
    LEAVING.with_borrow_mut(|leaving| leaving.database = Some(database.to_u32()));
}
