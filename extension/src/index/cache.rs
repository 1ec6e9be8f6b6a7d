//! Opened segments of this session, and their files.
//!
//! Files live in `laser/pgsql_tmp_segments/`, which base backups leave out, and outlive the server: its next searches need
//! not make them again. What is in the making, and files of temporary relations, are in
//! `base/pgsql_tmp/pgsql_tmp.laser/`, below the server's folder for temporary files: the server itself empties that at every
//! start and after a crash. What becomes of them is in [`files`]. A file is named
//! `DATABASE/TABLESPACE_RELATION_BACKEND/SEGMENT`, all hexadecimal: what one role or database has much of others need
//! not read.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use laser_index::Result;
use laser_index::assemble::BuiltSegment;
use laser_index::cache::{self, Location};
use laser_index::faults;
use laser_index::meta::{Meta, SegmentEntry};
use laser_index::view::SegmentView;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode as Code, function_name, pg_sys};

use super::pages::RelationStore;
use super::statistics::{self, Counter};
use super::storage::{NO_BACKEND, PASSING, Storage};
use crate::pg::encoding;
use crate::pg::interrupts::pause;
use opened::{Opened, SESSION};

mod files;
mod folders;
mod opened;
mod remover;
mod sessions;

/// The folder for files in the making: they go when the session ends, however it does.
pub fn folder() -> PathBuf {
    files::watch_exit();
    PathBuf::from(PASSING)
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
    PathBuf::from(storage.folder().to_string()).join(folders::segment_name(nonce).to_string())
}

/// Puts the file of a new segment where scans look for it. They can do without.
///
/// # Safety
/// `index` is open.
pub unsafe fn keep(index: pg_sys::Relation, entry: &SegmentEntry, built: BuiltSegment) {
    // SAFETY: by contract.
    let path = unsafe { path(index, entry.nonce) };
    // SAFETY: reads variables of this process.
    let go_on = || unsafe {
        pg_sys::enableFsync && (&raw const pg_sys::InterruptPending).read_volatile() == 0
    };
    if built.keep(&path, server(), &go_on).is_ok()
        // SAFETY: by contract.
        && let Some(counts) = unsafe { statistics::of(index) }
    {
        counts.add(Counter::FilesMade, 1);
    }
}

/// Removes files that a merge or build of this index has made useless, and those of relations that
/// are gone; forgets segments that are not current. To be called after files were made, in work that has begun at
/// `began`.
///
/// # Safety
/// `relation` is open and `store` its pages.
pub unsafe fn remove_obsolete(relation: pg_sys::Relation, store: &RelationStore, began: Instant) {
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
        files::sweep(storage, &meta.segments, began.elapsed());
    }
}

/// Removes the files of segments of an index that this session has open and whose checksums are not right, and forgets them,
/// so that they are made again from the index's pages; returns one of them. To be called by who has met what cannot be.
///
/// # Safety
/// `relation` is open.
pub unsafe fn remove_damaged(relation: pg_sys::Relation) -> Option<PathBuf> {
    // SAFETY: by contract.
    let storage = unsafe { Storage::of(relation) };
    let of_index = |session: &opened::Session| -> Vec<(u64, Rc<SegmentView>)> {
        let opened = session.opened.iter();
        opened
            .filter(|(_, opened)| opened.storage == storage && opened.view.is_file())
            .map(|(nonce, opened)| (*nonce, opened.view.clone()))
            .collect()
    };
    let mut damaged = None;
    for (nonce, view) in SESSION.with_borrow(of_index) {
        if view.verify(&pause).is_err() {
            // SAFETY: by contract.
            let path = unsafe { path(relation, nonce) };
            let _ = std::fs::remove_file(&path);
            SESSION.with_borrow_mut(|session| session.opened.remove(&nonce));
            sessions::wake(storage.database);
            damaged = Some(path);
        }
    }
    damaged
}

/// To be called when the library is loaded.
pub fn init() {
    files::init();
}

/// Says that files which searches have used were damaged.
///
/// # Safety
/// `relation` is open.
unsafe fn warn_of_damage(relation: pg_sys::Relation) {
    // SAFETY: by contract.
    let name = unsafe { encoding::name_of(relation) };
    ErrorReport::new(
        Code::ERRCODE_INDEX_CORRUPTED,
        format!("a file of index \"{name}\" was damaged or could not be written, and searches may have missed rows"),
        function_name!(),
    )
    .set_hint(
        "The file was removed, and is made again from the index, which is not affected. Check the disk that it was on.",
    )
    .report(PgLogLevel::WARNING);
}

fn location(path: &Path) -> Location<'_> {
    Location {
        path,
        folder: Path::new(PASSING),
        server: server(),
    }
}

/// What this run of the server is known by: the time at which it was started, which a crash of one of its processes does
/// not change.
fn server() -> u64 {
    // SAFETY: reads a variable of this process.
    unsafe { pg_sys::PgStartTime as u64 }
}

/// Segments that a session keeps open. What a scan holds stays open regardless.
const MOST_OPENED: usize = 256;

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
    let began = Instant::now();
    let (mut made, mut opened_one, mut damaged) = (false, false, false);
    let views: Result<_> = SESSION.with_borrow_mut(|session| {
        session.clock += 1;
        let clock = session.clock;
        let mut views = Vec::with_capacity(meta.segments.len());
        for entry in &meta.segments {
            if let Some(Opened { view, .. }) = session.opened.get(&entry.nonce) {
                // SAFETY: by contract.
                let path = || unsafe { path(relation, entry.nonce) };
                if view.is_damaged() {
                    session.opened.remove(&entry.nonce);
                    sessions::wake(storage.database);
                    damaged = true;
                } else if view.take_due() && !cache::renew(view, location(&path())) {
                    session.opened.remove(&entry.nonce);
                }
            }
            let view = match session.opened.get_mut(&entry.nonce) {
                Some(opened) => {
                    opened.used = clock;
                    opened.view.clone()
                }
                None => {
                    // SAFETY: by contract.
                    let path = unsafe { path(relation, entry.nonce) };
                    let is_new = path.symlink_metadata().is_err();
                    made |= is_new;
                    opened_one = true;
                    sessions::join();
                    faults::watch();
                    let view = Rc::new(cache::open(
                        store,
                        &meta.parameters,
                        entry,
                        location(&path),
                    )?);
                    // SAFETY: by contract.
                    if let Some(counts) = unsafe { statistics::of(relation) } {
                        counts.add(Counter::FilesOpened, 1);
                        counts.add(Counter::FilesMade, u64::from(is_new));
                    }
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
        if opened_one {
            session
                .opened
                .retain(|_, o| o.used == clock || !o.storage.is_gone());
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
    });
    if damaged {
        // SAFETY: by contract.
        unsafe { warn_of_damage(relation) };
    }
    let views = views?;
    if made {
        // By the directory as it is now: this one may be outdated.
        files::sweep(storage, &Meta::read(store)?.segments, began.elapsed());
    }
    Ok(views)
}
