//! Which files of segments go, and when.
//!
//! - after a build or merge, and whenever a file is made: those of segments that the index no longer
//!   has, and those of relations of this database, and of databases, that are gone, of a number that is looked at;
//! - when a transaction that drops or rewrites relations commits: theirs, before the server deletes
//!   the storage itself; when a database is dropped: those of all its relations;
//! - when a session ends, even by FATAL: those of its temporary relations, and what it was writing.
//!
//! To remove one too many costs somebody the making of a new one; what was missed, a later sweep
//! finds, at last the server's start.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_int, c_void};

use laser_index::meta::SegmentEntry;
use pgrx::pg_sys;
use pgrx::pg_sys::SysCacheIdentifier::{DATABASEOID, RELOID};

use super::super::statistics;
use super::super::storage::{FOLDER, NO_BACKEND, Storage};
use crate::catalogs;

#[derive(Default)]
struct Leaving {
    /// Folders of the relations whose storage goes with this transaction.
    relation_folders: Vec<CString>,
    /// That of the database that goes with it.
    database_folder: Option<CString>,
    /// Relations that it has dropped, whose counts go with it.
    relations: Vec<pg_sys::Oid>,
}

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
        NEXT_HOOK.set(pg_sys::object_access_hook);
        pg_sys::object_access_hook = Some(object_access);
    }
}

/// Relations, and databases, of which a sweep looks whether they are gone. Somebody else may have any number of them.
const SWEPT_RELATIONS: usize = 64;
const SWEPT_DATABASES: usize = 16;

/// The name of a segment's file.
pub fn name(nonce: u64) -> String {
    format!("{nonce:016x}")
}

/// A path without zeros, for the C library.
fn c_path(path: String) -> CString {
    CString::new(path).expect("numbers, and a constant")
}

/// Shows a folder's descriptor and the names in it, if there is such a folder. It allocates nothing but what the C
/// library opens a folder with, and shows nothing where there is no memory for that: a commit that has happened must
/// not fail.
fn list(parent: c_int, folder: &CStr, mut look: impl FnMut(c_int, &CStr)) {
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
            if name != c"." && name != c".." {
                look(descriptor, name);
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

/// Removes a folder with what is in it, down to so many levels of folders. It allocates no more than [`list`].
fn remove(parent: c_int, folder: &CStr, levels: u32) {
    list(parent, folder, |descriptor, name| {
        if !unlink(descriptor, name) && levels > 0 {
            remove(descriptor, name, levels - 1);
        }
    });
    // SAFETY: the name ends with a zero.
    unsafe { libc::unlinkat(parent, folder.as_ptr(), libc::AT_REMOVEDIR) };
}

/// Removes files of this relation's segments that are not current, and those of some relations and databases that are
/// gone. In a transaction.
pub fn sweep(storage: Storage, current: &[SegmentEntry]) {
    let current: HashSet<String> = current.iter().map(|s| name(s.nonce)).collect();
    list(libc::AT_FDCWD, &c_path(storage.folder()), |folder, name| {
        if name.to_str().is_ok_and(|name| !current.contains(name)) {
            unlink(folder, name);
        }
    });

    let mut relations = Vec::new();
    let database = c_path(Storage::database_folder(storage.database));
    list(libc::AT_FDCWD, &database, |_, name| {
        let relation = name.to_str().ok();
        relations.extend(relation.and_then(|name| Storage::parse(storage.database, name)));
    });
    for relation in some(&relations, SWEPT_RELATIONS) {
        if relation.is_gone() {
            remove(libc::AT_FDCWD, &c_path(relation.folder()), 0);
        }
    }

    let mut databases = Vec::new();
    list(libc::AT_FDCWD, &c_path(FOLDER.to_owned()), |_, name| {
        let name = name.to_str().ok();
        databases.extend(name.and_then(|name| u32::from_str_radix(name, 16).ok()));
    });
    for database in some(&databases, SWEPT_DATABASES) {
        if !catalogs::is_cached(DATABASEOID, (*database).into()) {
            let folder = c_path(Storage::database_folder(*database));
            remove(libc::AT_FDCWD, &folder, 1);
        }
    }
}

/// So many of these at most, beginning anywhere.
fn some<T>(all: &[T], most: usize) -> impl Iterator<Item = &T> {
    let begin = laser_index::meta::nonce() as usize % all.len().max(1);
    let (front, back) = all.split_at(begin);
    back.iter().chain(front).take(most)
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
        remove(libc::AT_FDCWD, &c_path(storage.folder()), 0);
    }
    list(
        libc::AT_FDCWD,
        &c_path(FOLDER.to_owned()),
        |folder, name| {
            if name.to_bytes().starts_with(scratch.as_bytes()) {
                unlink(folder, name);
            }
        },
    );
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            let folders = dropped();
            LEAVING.with_borrow_mut(|leaving| {
                leaving.relation_folders = folders;
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
            for folder in &leaving.relation_folders {
                remove(libc::AT_FDCWD, folder, 0);
            }
            if let Some(folder) = &leaving.database_folder {
                remove(libc::AT_FDCWD, folder, 1);
            }
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            // As in `exit`.
            let _ = LEAVING.try_with(RefCell::take);
        }
        _ => {}
    }
}

/// Folders of the storage that this transaction's commit deletes, by DROP, TRUNCATE, REINDEX or a rewrite; not of
/// that of temporary relations.
fn dropped() -> Vec<CString> {
    let mut found = std::ptr::null_mut();
    // SAFETY: the list is allocated in the current context, and has as many elements as is said.
    unsafe {
        let count = pg_sys::smgrGetPendingDeletes(true, &mut found);
        if count <= 0 || found.is_null() {
            return Vec::new();
        }
        let all = std::slice::from_raw_parts(found, count as usize);
        let folder = |locator| c_path(Storage::at(locator, NO_BACKEND).folder());
        let folders = all.iter().map(folder).collect();
        pg_sys::pfree(found.cast());
        folders
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
    let folder = c_path(Storage::database_folder(database.to_u32()));
    LEAVING.with_borrow_mut(|leaving| leaving.database_folder = Some(folder));
}
