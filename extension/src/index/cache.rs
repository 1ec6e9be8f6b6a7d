//! Opened segments of this session, and their files.
//!
//! Files live in `base/pgsql_tmp/pgsql_tmp.laser/`, below the server's folder for temporary files:
//! the server itself empties that at every start and after a crash, and base backups leave it out.
//! What becomes of them is in [`files`]. A file's name begins with the identity of the relation and ends with that of the segment:
//! `database_tablespace_relation_backend_segment`, all hexadecimal.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use laser_index::Result;
use laser_index::cache;
use laser_index::meta::Meta;
use laser_index::view::SegmentView;
use pgrx::pg_sys;

use super::pages::RelationStore;

mod files;

/// Folder for files of segments, relative to the data directory.
pub const FOLDER: &str = "base/pgsql_tmp/pgsql_tmp.laser";

/// The folder, for who will create files there: they go when the session ends, however it does.
pub fn folder() -> PathBuf {
    files::watch_exit();
    PathBuf::from(FOLDER)
}

/// Identity of a relation's storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Storage {
    database: u32,
    tablespace: u32,
    relation: u32,
    backend: i32,
}

impl Storage {
    /// # Safety
    /// `relation` is open.
    unsafe fn of(relation: pg_sys::Relation) -> Self {
        // SAFETY: by contract.
        unsafe {
            let relation = &*relation;
            #[cfg(any(feature = "pg14", feature = "pg15"))]
            let (database, tablespace, number) = (
                relation.rd_node.dbNode,
                relation.rd_node.spcNode,
                relation.rd_node.relNode,
            );
            #[cfg(not(any(feature = "pg14", feature = "pg15")))]
            let (database, tablespace, number) = (
                relation.rd_locator.dbOid,
                relation.rd_locator.spcOid,
                relation.rd_locator.relNumber,
            );
            Self {
                database: database.to_u32(),
                tablespace: tablespace.to_u32(),
                relation: number.to_u32(),
                backend: relation.rd_backend,
            }
        }
    }

    fn prefix(&self) -> String {
        let Self {
            database,
            tablespace,
            relation,
            backend,
        } = self;
        format!("{database:x}_{tablespace:x}_{relation:x}_{backend:x}_")
    }

    /// Reads the front of a file's name.
    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('_').map(|part| u32::from_str_radix(part, 16));
        let mut part = || parts.next()?.ok();
        let (database, tablespace, relation, backend) = (part()?, part()?, part()?, part()?);
        Some(Self {
            database,
            tablespace,
            relation,
            backend: backend as i32,
        })
    }

    /// Whether the relation's own file is gone, or empty, as the file of a dropped relation is
    /// until the next checkpoint.
    fn is_gone(&self) -> bool {
        // SAFETY: a pure function of its arguments.
        let path = unsafe {
            pg_sys::GetRelationPath(
                self.database.into(),
                self.tablespace.into(),
                self.relation.into(),
                self.backend,
                pg_sys::ForkNumber::MAIN_FORKNUM,
            )
        };
        // PostgreSQL 18 returns an array, others memory of the current context.
        #[cfg(feature = "pg18")]
        // SAFETY: the array ends with a zero.
        let path = unsafe { CStr::from_ptr(path.str_.as_ptr()) }.to_string_lossy();
        #[cfg(not(feature = "pg18"))]
        // SAFETY: a string of PostgreSQL's own, not used behind its end.
        let path = unsafe {
            let text = CStr::from_ptr(path).to_string_lossy().into_owned();
            pg_sys::pfree(path.cast());
            text
        };
        std::fs::metadata(&*path).map_or(true, |m| m.len() == 0)
    }
}

/// Where the file of a segment is.
///
/// # Safety
/// `relation` is open.
pub unsafe fn path(relation: pg_sys::Relation, nonce: u64) -> PathBuf {
    // SAFETY: by contract.
    let storage = unsafe { Storage::of(relation) };
    files::watch_exit();
    if storage.backend != NO_BACKEND {
        files::temporary(storage);
    }
    Path::new(FOLDER).join(format!("{}{nonce:016x}", storage.prefix()))
}

/// Removes files that a merge or build of this index has made useless, and those of relations that
/// are gone; forgets segments that are not current. To be called after files were made.
///
/// # Safety
/// `relation` is open and `store` its pages.
pub unsafe fn tidy(relation: pg_sys::Relation, store: &RelationStore) {
    // SAFETY: by contract.
    let storage = unsafe { Storage::of(relation) };
    // What cannot be read others will report.
    if let Ok(meta) = Meta::read(store) {
        let current: HashSet<u64> = meta.segments.iter().map(|s| s.nonce).collect();
        SESSION.with_borrow_mut(|session| {
            session
                .opened
                .retain(|nonce, o| o.storage != storage || current.contains(nonce));
        });
        files::sweep(storage, &meta.segments);
    }
}

/// As [`MergeLock`](super::pages::MergeLock) has it: no temporary relation's.
const NO_BACKEND: i32 = -1;

/// To be called when the library is loaded.
pub fn init() {
    files::init();
}

struct Opened {
    storage: Storage,
    view: Rc<SegmentView>,
    used: u64,
}

#[derive(Default)]
struct Session {
    opened: HashMap<u64, Opened>,
    clock: u64,
}

/// Segments that a session keeps open. What a scan holds stays open regardless.
const MOST_OPENED: usize = 256;

thread_local! {
    static SESSION: RefCell<Session> = RefCell::default();
}

/// The segments of an index as its metapage lists them, with current bitmaps. Segments of the same
/// index that are not on the list are forgotten.
///
/// # Errors
/// `IndexError::Moved` when the metapage is outdated: read it again.
///
/// # Safety
/// `relation` is open and `store` its pages.
pub unsafe fn views(
    relation: pg_sys::Relation,
    store: &RelationStore,
    meta: &Meta,
) -> Result<Vec<Rc<SegmentView>>> {
    // SAFETY: by contract.
    let storage = unsafe { Storage::of(relation) };
    SESSION.with_borrow_mut(|session| {
        session.clock += 1;
        let clock = session.clock;
        let mut views = Vec::with_capacity(meta.segments.len());
        let mut made = false;
        for entry in &meta.segments {
            let view = match session.opened.get_mut(&entry.nonce) {
                Some(opened) => {
                    opened.used = clock;
                    opened.view.clone()
                }
                None => {
                    // SAFETY: by contract.
                    let path = unsafe { path(relation, entry.nonce) };
                    made |= path.symlink_metadata().is_err();
                    let view = Rc::new(cache::open(store, &meta.parameters, entry, &path)?);
                    let opened = Opened {
                        storage,
                        view: view.clone(),
                        used: clock,
                    };
                    session.opened.insert(entry.nonce, opened);
                    view
                }
            };
            view.refresh(store, entry, meta.dead_version)?;
            views.push(view);
        }
        session
            .opened
            .retain(|_, o| o.storage != storage || o.used == clock);
        if made {
            session
                .opened
                .retain(|_, o| o.used == clock || !o.storage.is_gone());
            // By the directory as it is now: this one may be outdated.
            files::sweep(storage, &Meta::read(store)?.segments);
        }
        while session.opened.len() > MOST_OPENED.max(views.len()) {
            let oldest = session
                .opened
                .iter()
                .min_by_key(|(_, o)| o.used)
                .map(|(nonce, _)| *nonce);
            let Some(nonce) = oldest else { break };
            session.opened.remove(&nonce);
        }
        Ok(views)
    })
}
