//! Which files of segments go, and when.
//!
//! - after a build or merge, and whenever a file is made: those of segments that the index no longer
//!   has, and those of relations that are gone;
//! - when a transaction that drops or rewrites relations commits: theirs, before the server deletes
//!   the storage itself; when a database is dropped: those of all its relations;
//! - when a session ends, even by FATAL: those of its temporary relations, and what it was writing.
//!
//! To remove one too many costs somebody the making of a new one; what was missed, the next sweep
//! finds, at last the server's start.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_int, c_void};

use laser_index::meta::SegmentEntry;
use pgrx::pg_sys;
use pgrx::pg_sys::SysCacheIdentifier::RELOID;

use super::super::statistics;
use super::super::storage::{FOLDER_NAME, NO_BACKEND, Storage};
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

/// Shows the names of all files, and removes those for which `useless` says so. It allocates nothing but what the C
/// library opens a folder with, and removes nothing where there is no memory for that: a commit that has happened must
/// not fail.
fn remove(mut useless: impl FnMut(&str) -> bool) {
    // SAFETY: the folder is open until it is closed; a name ends with a zero, and is read before the next call.
    unsafe {
        let folder = libc::opendir(FOLDER_NAME.as_ptr());
        if folder.is_null() {
            return;
        }
        loop {
            let file = libc::readdir(folder);
            if file.is_null() {
                break;
            }
            let name = CStr::from_ptr((*file).d_name.as_ptr());
            if name.to_str().is_ok_and(&mut useless) {
                libc::unlinkat(libc::dirfd(folder), name.as_ptr(), 0);
            }
        }
        libc::closedir(folder);
    }
}

/// Removes files of relations that are gone, and of this relation's segments that are not current.
pub fn sweep(storage: Storage, current: &[SegmentEntry]) {
    let prefix = storage.prefix();
    let current: HashSet<String> = current
        .iter()
        .map(|s| format!("{prefix}{:016x}", s.nonce))
        .collect();
    let mut gone = HashMap::new();
    remove(|name| match Storage::parse(name) {
        Some(owner) if owner == storage => !current.contains(name),
        Some(owner) => *gone.entry(owner).or_insert_with(|| owner.is_gone()),
        None => false,
    });
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
    remove(|name| {
        name.starts_with(&scratch) || Storage::parse(name).is_some_and(|s| temporary.contains(&s))
    });
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction(event: pg_sys::XactEvent::Type, _argument: *mut c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT => {
            let storage = dropped();
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
            if leaving.storage.is_empty() && leaving.database.is_none() {
                return;
            }
            remove(|name| {
                Storage::parse(name).is_some_and(|s| {
                    leaving.storage.contains(&s) || leaving.database == Some(s.database)
                })
            });
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            // As in `exit`.
            let _ = LEAVING.try_with(RefCell::take);
        }
        _ => {}
    }
}

/// Storage that this transaction's commit deletes, by DROP, TRUNCATE, REINDEX or a rewrite; not that
/// of temporary relations.
fn dropped() -> Vec<Storage> {
    let mut found = std::ptr::null_mut();
    // SAFETY: the list is allocated in the current context, and has as many elements as is said.
    unsafe {
        let count = pg_sys::smgrGetPendingDeletes(true, &mut found);
        if count <= 0 || found.is_null() {
            return Vec::new();
        }
        let all = std::slice::from_raw_parts(found, count as usize);
        let at = |locator| Storage::at(locator, NO_BACKEND);
        let storage = all.iter().map(at).collect();
        pg_sys::pfree(found.cast());
        storage
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
