//! Pages of an index in PostgreSQL's buffers. No other file of this crate touches buffers or WAL.
//!
//! Every change is a generic WAL record of at most four pages (`src/backend/access/transam/
//! generic_xlog.c`); it decides by itself whether the relation needs WAL. When a PostgreSQL error
//! unwinds through here, buffers stay pinned and locked: the abort of the transaction releases
//! them, as it does for C code.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::bufpage;
use super::storage::Storage;
use laser_index::page::{self, BODY, HEADER};
use laser_index::store::{PageStore, SET_PAGES, WriteSet};
use laser_index::{IndexError, Result};
use pgrx::{PgSqlErrorCode as Code, pg_sys};

use crate::pg::errors::raise_hint;

/// Bytes of PostgreSQL's own page header.
const PAGE_HEADER: usize = 24;
const _: () = assert!(std::mem::offset_of!(pg_sys::PageHeaderData, pd_linp) == PAGE_HEADER);
const _: () = assert!(pg_sys::BLCKSZ as usize == PAGE_HEADER + BODY);
const _: () = assert!(SET_PAGES == pg_sys::MAX_GENERIC_XLOG_PAGES as usize);

const MAIN: pg_sys::ForkNumber::Type = pg_sys::ForkNumber::MAIN_FORKNUM;
/// `P_NEW` and `InvalidBlockNumber`.
const NO_BLOCK: u32 = u32::MAX;

/// The main fork of an index.
pub struct RelationStore {
    relation: pg_sys::Relation,
    in_vacuum: bool,
    blocks: Cell<u32>,
    /// Whether pages were released of which the upper levels of the free space map do not know.
    unpublished: Cell<bool>,
    /// Of the scan that reads, if one does.
    #[cfg_attr(any(feature = "pg17", feature = "pg18"), allow(dead_code))]
    snapshot: pg_sys::Snapshot,
}

impl RelationStore {
    /// The pages of an open index.
    ///
    /// # Safety
    /// `relation` is open and locked for as long as the store is used.
    pub unsafe fn new(relation: pg_sys::Relation) -> Self {
        Self {
            relation,
            in_vacuum: false,
            blocks: Cell::new(0),
            unpublished: Cell::new(false),
            snapshot: std::ptr::null_mut(),
        }
    }

    /// As [`RelationStore::new`], for a scan: a page that was changed after a snapshot that is older than
    /// `old_snapshot_threshold` raises "snapshot too old", for VACUUM may have removed what the snapshot sees.
    ///
    /// # Safety
    /// As for [`RelationStore::new`]; `snapshot` lives as long, or is null.
    pub unsafe fn for_scan(relation: pg_sys::Relation, snapshot: pg_sys::Snapshot) -> Self {
        // SAFETY: by contract.
        let store = unsafe { Self::new(relation) };
        Self { snapshot, ..store }
    }

    /// As [`RelationStore::new`], for VACUUM: long operations make its pauses.
    ///
    /// # Safety
    /// As for [`RelationStore::new`].
    pub unsafe fn in_vacuum(relation: pg_sys::Relation) -> Self {
        // SAFETY: by contract.
        let store = unsafe { Self::new(relation) };
        Self {
            in_vacuum: true,
            ..store
        }
    }

    /// `TestForOldSnapshot` of `bufmgr.h`, which servers before 17 have.
    ///
    /// # Safety
    /// The page is locked.
    #[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
    unsafe fn expect_young_snapshot(&self, page: pg_sys::Page) {
        // SAFETY: the snapshot and the relation live as long as the store, the page is locked.
        unsafe {
            if pg_sys::old_snapshot_threshold < 0 {
                return;
            }
            let Some(snapshot) = self.snapshot.as_ref() else {
                return;
            };
            if snapshot.snapshot_type == pg_sys::SnapshotType::SNAPSHOT_MVCC
                && snapshot.lsn != 0
                && bufpage::lsn(page) > snapshot.lsn
            {
                pg_sys::TestForOldSnapshot_impl(self.snapshot, self.relation);
            }
        }
    }

    /// A shared pin and the body of a page.
    fn buffer(&self, block: u32) -> Result<pg_sys::Buffer> {
        // The length is asked for again only when the known one does not reach.
        if block >= self.blocks.get() && block >= self.blocks() {
            return Err(IndexError::Corrupt {
                block,
                what: "does not exist".into(),
            });
        }
        // SAFETY: the relation is open, the block exists.
        Ok(unsafe {
            pg_sys::ReadBufferExtended(
                self.relation,
                MAIN,
                block,
                pg_sys::ReadBufferMode::RBM_NORMAL,
                std::ptr::null_mut(),
            )
        })
    }
}

/// The body of a page in a buffer or in a WAL record's image.
///
/// # Safety
/// `page` points to a page that is locked as the use of the result requires, for its lifetime.
unsafe fn body<'a>(page: pg_sys::Page) -> &'a mut [u8] {
    // SAFETY: a page has BLCKSZ bytes.
    unsafe { std::slice::from_raw_parts_mut(page.cast::<u8>().add(PAGE_HEADER), BODY) }
}

impl PageStore for RelationStore {
    type Set<'a> = RelationSet<'a>;

    fn blocks(&self) -> u32 {
        // SAFETY: the relation is open.
        let blocks = unsafe { pg_sys::RelationGetNumberOfBlocksInFork(self.relation, MAIN) };
        self.blocks.set(blocks);
        blocks
    }

    fn read<R>(&self, block: u32, look: impl FnOnce(&[u8]) -> Result<R>) -> Result<R> {
        let buffer = self.buffer(block)?;
        // SAFETY: the buffer is pinned, and locked while its page is read.
        unsafe {
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
            let page = pg_sys::BufferGetPage(buffer);
            #[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
            self.expect_young_snapshot(page);
            let result = look(body(page));
            pg_sys::UnlockReleaseBuffer(buffer);
            result
        }
    }

    fn begin(&self) -> RelationSet<'_> {
        // SAFETY: the relation is open. The state is freed by Finish or Abort.
        let state = unsafe { pg_sys::GenericXLogStart(self.relation) };
        RelationSet {
            store: self,
            state,
            pages: Vec::with_capacity(SET_PAGES),
        }
    }

    fn release(&self, block: u32) {
        // SAFETY: the relation is open.
        unsafe { pg_sys::RecordFreeIndexPage(self.relation, block) };
        self.unpublished.set(true);
    }

    /// Lets the upper levels of the free space map know of released pages: whoever takes one begins there
    /// (`ginInsertCleanup` in `src/backend/access/gin/ginfast.c` does the same).
    fn publish_released(&self) {
        if self.unpublished.replace(false) {
            // SAFETY: the relation is open.
            unsafe { pg_sys::IndexFreeSpaceMapVacuum(self.relation) };
        }
    }

    fn folder(&self) -> Option<PathBuf> {
        // SAFETY: the relation is open. The path is relative to the data folder, which is where the server
        // works.
        unsafe {
            let storage = Storage::of(self.relation);
            let path = pg_sys::GetDatabasePath(storage.database.into(), storage.tablespace.into());
            let folder = OsStr::from_bytes(CStr::from_ptr(path).to_bytes()).into();
            pg_sys::pfree(path.cast());
            Some(folder)
        }
    }

    fn released(&self) -> u32 {
        let mut count = 0;
        for block in 0..self.blocks() {
            if block % 1024 == 0 {
                self.pause();
            }
            // SAFETY: the relation is open. Free pages of an index are recorded as wholly free
            // (`RecordFreeIndexPage`), all others as full.
            count += u32::from(unsafe { pg_sys::GetRecordedFreeSpace(self.relation, block) } > 0);
        }
        count
    }

    fn pause(&self) {
        if self.in_vacuum {
            // SAFETY: no buffer is locked here.
            #[cfg(not(feature = "pg18"))]
            unsafe {
                pg_sys::vacuum_delay_point()
            };
            // SAFETY: no buffer is locked here.
            #[cfg(feature = "pg18")]
            unsafe {
                pg_sys::vacuum_delay_point(false)
            };
        } else {
            pgrx::check_for_interrupts!();
        }
    }
}

struct SetPage {
    block: u32,
    buffer: pg_sys::Buffer,
    image: pg_sys::Page,
}

/// Up to four pages and the generic WAL record that will change them.
pub struct RelationSet<'a> {
    store: &'a RelationStore,
    state: *mut pg_sys::GenericXLogState,
    pages: Vec<SetPage>,
}

impl RelationSet<'_> {
    /// Adds a pinned and exclusively locked buffer.
    fn register(&mut self, block: u32, buffer: pg_sys::Buffer, fresh: bool) {
        let flags = if fresh {
            pg_sys::GENERIC_XLOG_FULL_IMAGE as c_int
        } else {
            0
        };
        // SAFETY: the buffer is locked, and stays so until the set ends.
        let image = unsafe { pg_sys::GenericXLogRegisterBuffer(self.state, buffer, flags) };
        if fresh {
            // SAFETY: the image is a private copy of the page.
            unsafe { pg_sys::PageInit(image, pg_sys::BLCKSZ as usize, 0) };
        }
        self.pages.push(SetPage {
            block,
            buffer,
            image,
        });
    }

    /// A page of which the free space map says that it is free, if that is true.
    fn recycle(&mut self) -> Option<(u32, pg_sys::Buffer)> {
        loop {
            // SAFETY: the relation is open.
            let block = unsafe { pg_sys::GetFreeIndexPage(self.store.relation) };
            if block == NO_BLOCK {
                return None;
            }
            // The map is not WAL-logged: after a crash it may name pages that are in use, or that
            // no longer exist. A page that somebody has locked is being taken by him.
            if self.pages.iter().any(|p| p.block == block) {
                continue;
            }
            let Ok(buffer) = self.store.buffer(block) else {
                continue;
            };
            // SAFETY: the buffer is pinned; its page is read under the lock.
            unsafe {
                if pg_sys::ConditionalLockBuffer(buffer) {
                    if page::is_free(body(pg_sys::BufferGetPage(buffer))) {
                        return Some((block, buffer));
                    }
                    pg_sys::UnlockReleaseBuffer(buffer);
                } else {
                    pg_sys::ReleaseBuffer(buffer);
                }
            }
        }
    }
}

impl WriteSet for RelationSet<'_> {
    fn lock(&mut self, block: u32) -> Result<()> {
        if self.pages.iter().any(|p| p.block == block) {
            return Err(IndexError::named_twice(block));
        }
        let buffer = self.store.buffer(block)?;
        // SAFETY: the buffer is pinned.
        let new = unsafe {
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as c_int);
            bufpage::is_new(pg_sys::BufferGetPage(buffer))
        };
        // A page left by an unfinished extension has no header to compute a difference to.
        self.register(block, buffer, new);
        Ok(())
    }

    fn page(&mut self, block: u32) -> &mut [u8] {
        let page = self
            .pages
            .iter()
            .find(|p| p.block == block)
            .expect("page is in the set");
        // SAFETY: the image belongs to this set alone and is borrowed through it.
        unsafe { body(page.image) }
    }

    fn allocate(&mut self) -> Result<u32> {
        let (block, buffer) = match self.recycle() {
            Some(found) => found,
            // SAFETY: the relation is open. The new page is locked before anybody can see it.
            None => unsafe {
                let relation = self.store.relation;
                // A relation made in this transaction (InvalidSubTransactionId is 0) is nobody else's.
                let shared =
                    (*relation).rd_backend == NO_BACKEND && (*relation).rd_createSubid == 0;
                if shared {
                    let mode = pg_sys::ExclusiveLock as c_int;
                    pg_sys::LockRelationForExtension(relation, mode);
                }
                let buffer = pg_sys::ReadBufferExtended(
                    relation,
                    MAIN,
                    NO_BLOCK,
                    pg_sys::ReadBufferMode::RBM_ZERO_AND_LOCK,
                    std::ptr::null_mut(),
                );
                if shared {
                    let mode = pg_sys::ExclusiveLock as c_int;
                    pg_sys::UnlockRelationForExtension(relation, mode);
                }
                (pg_sys::BufferGetBlockNumber(buffer), buffer)
            },
        };
        self.register(block, buffer, true);
        Ok(block)
    }

    fn commit(mut self) {
        for page in &self.pages {
            // SAFETY: the image belongs to this set. What lies between pd_lower and pd_upper is
            // not logged and reads as zeros afterwards.
            unsafe {
                let end = HEADER + page::header(body(page.image)).len as usize;
                (*page.image.cast::<pg_sys::PageHeaderData>()).pd_lower =
                    (PAGE_HEADER + end) as u16;
            }
        }
        // SAFETY: the state is ours, the buffers are locked.
        unsafe { pg_sys::GenericXLogFinish(self.state) };
        self.state = std::ptr::null_mut();
        self.unlock();
    }
}

impl RelationSet<'_> {
    fn unlock(&mut self) {
        for page in self.pages.drain(..) {
            // SAFETY: the buffer was pinned and locked by this set.
            unsafe { pg_sys::UnlockReleaseBuffer(page.buffer) };
        }
    }
}

impl Drop for RelationSet<'_> {
    fn drop(&mut self) {
        if self.state.is_null() || std::thread::panicking() {
            return;
        }
        // SAFETY: the state is ours and was not finished.
        unsafe { pg_sys::GenericXLogAbort(self.state) };
        self.unlock();
    }
}

/// Keeps everybody else from changing the directory of an index: the heavyweight lock of its
/// metapage, which inserts and scans do not take. Builds, merges and vacuums hold it. Released when
/// dropped, or by an abort.
///
/// The server grants a session a lock that it holds already, but what an expression of the index
/// calls while it is built or merged must be kept away as well: [`HELD`] has the indexes whose lock
/// this session holds.
pub struct MergeLock {
    relation: pg_sys::Relation,
    index: pg_sys::Oid,
}

thread_local! {
    static HELD: RefCell<Vec<pg_sys::Oid>> = const { RefCell::new(Vec::new()) };
}

/// `InvalidBackendId`, since PostgreSQL 17 `INVALID_PROC_NUMBER`: not a temporary relation's.
const NO_BACKEND: c_int = -1;

const MERGE_LOCK: c_int = pg_sys::ExclusiveLock as c_int;

impl MergeLock {
    /// Waits for the lock.
    ///
    /// # Safety
    /// `relation` is open for as long as the lock is held.
    pub unsafe fn wait(relation: pg_sys::Relation) -> Self {
        // SAFETY: the relation is open.
        unsafe {
            if held((*relation).rd_id) {
                raise_hint(
                    Code::ERRCODE_OBJECT_IN_USE,
                    "the index is already being built, merged or checked by this session",
                    "A function that an index expression calls must not use the same index.",
                );
            }
            pg_sys::LockPage(relation, 0, MERGE_LOCK);
        }
        Self::taken(relation)
    }

    /// Takes the lock if it is free.
    ///
    /// # Safety
    /// As for [`MergeLock::wait`].
    pub unsafe fn attempt(relation: pg_sys::Relation) -> Option<Self> {
        // SAFETY: the relation is open. The guard is made only with the lock: it gives it back.
        unsafe {
            let free =
                !held((*relation).rd_id) && pg_sys::ConditionalLockPage(relation, 0, MERGE_LOCK);
            free.then(|| Self::taken(relation))
        }
    }

    fn taken(relation: pg_sys::Relation) -> Self {
        // SAFETY: the relation is open.
        let index = unsafe { (*relation).rd_id };
        HELD.with_borrow_mut(|held| held.push(index));
        Self { relation, index }
    }
}

fn held(index: pg_sys::Oid) -> bool {
    HELD.with_borrow(|held| held.contains(&index))
}

impl Drop for MergeLock {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| held.retain(|other| *other != self.index));
        if !std::thread::panicking() {
            // SAFETY: the lock is held.
            unsafe { pg_sys::UnlockPage(self.relation, 0, MERGE_LOCK) };
        }
    }
}

/// Whether an index is unlogged and its init fork has no page.
///
/// # Safety
/// `relation` is open.
pub unsafe fn lacks_init_fork(relation: pg_sys::Relation) -> bool {
    const INIT: pg_sys::ForkNumber::Type = pg_sys::ForkNumber::INIT_FORKNUM;
    // SAFETY: the relation is open; its storage is as well, once it has been asked for its size. While it is being
    // built it has no such fork yet.
    unsafe {
        if !is_unlogged(relation) {
            return false;
        }
        pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM);
        pg_sys::smgrexists((*relation).rd_smgr, INIT)
            && pg_sys::RelationGetNumberOfBlocksInFork(relation, INIT) == 0
    }
}

/// Whether an unlogged index has no page in its main fork.
///
/// # Safety
/// `relation` is open.
pub unsafe fn lacks_pages(relation: pg_sys::Relation) -> bool {
    const MAIN: pg_sys::ForkNumber::Type = pg_sys::ForkNumber::MAIN_FORKNUM;
    // SAFETY: by contract.
    unsafe { is_unlogged(relation) && pg_sys::RelationGetNumberOfBlocksInFork(relation, MAIN) == 0 }
}

/// # Safety
/// `relation` is open.
unsafe fn is_unlogged(relation: pg_sys::Relation) -> bool {
    // SAFETY: by contract.
    unsafe { (*(*relation).rd_rel).relpersistence as u8 == pg_sys::RELPERSISTENCE_UNLOGGED }
}

/// Writes the metapage of an unlogged index that has no page, unless somebody else has meanwhile.
///
/// # Safety
/// As for [`lacks_pages`].
pub unsafe fn write_main_fork(
    relation: pg_sys::Relation,
    fill: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let mode = pg_sys::ExclusiveLock as pg_sys::LOCKMODE;
    // SAFETY: by contract; what recovery empties is not logged.
    unsafe {
        pg_sys::LockRelationForExtension(relation, mode);
        let written = match lacks_pages(relation) {
            true => write_first_page(relation, pg_sys::ForkNumber::MAIN_FORKNUM, fill, |_| ()),
            false => Ok(()),
        };
        pg_sys::UnlockRelationForExtension(relation, mode);
        written
    }
}

/// Writes the metapage of an unlogged index's init fork, which recovery copies over the main fork
/// (as `gistbuildempty` in `src/backend/access/gist/gist.c` does it).
///
/// # Safety
/// `relation` is an open unlogged index without an init fork.
pub unsafe fn write_init_fork(
    relation: pg_sys::Relation,
    fill: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<()> {
    // SAFETY: by contract; the page is locked and marked.
    unsafe {
        write_first_page(relation, pg_sys::ForkNumber::INIT_FORKNUM, fill, |buffer| {
            pg_sys::log_newpage_buffer(buffer, true);
        })
    }
}

/// Adds a page to a fork, whose content is what `fill` makes of zeros, and which `log` logs.
///
/// # Safety
/// The relation is open, and nobody else adds to that fork. `log` raises no error.
unsafe fn write_first_page(
    relation: pg_sys::Relation,
    fork: pg_sys::ForkNumber::Type,
    fill: impl FnOnce(&mut [u8]) -> Result<()>,
    log: impl FnOnce(pg_sys::Buffer),
) -> Result<()> {
    let mut content = vec![0; BODY];
    fill(&mut content)?;
    // SAFETY: by contract; the new page is locked until it is logged.
    unsafe {
        let buffer = pg_sys::ReadBufferExtended(
            relation,
            fork,
            NO_BLOCK,
            pg_sys::ReadBufferMode::RBM_ZERO_AND_LOCK,
            std::ptr::null_mut(),
        );
        let page = pg_sys::BufferGetPage(buffer);
        pg_sys::CritSectionCount += 1;
        pg_sys::PageInit(page, pg_sys::BLCKSZ as usize, 0);
        body(page).copy_from_slice(&content);
        let end = PAGE_HEADER + HEADER + page::header(&content).len as usize;
        (*page.cast::<pg_sys::PageHeaderData>()).pd_lower = end as u16;
        pg_sys::MarkBufferDirty(buffer);
        log(buffer);
        pg_sys::CritSectionCount -= 1;
        pg_sys::UnlockReleaseBuffer(buffer);
    }
    Ok(())
}
