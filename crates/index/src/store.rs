//! Where pages live: PostgreSQL's buffers, or memory in tests. The code above this trait does not
//! know which.

use std::path::PathBuf;

use crate::error::Result;

/// Pages of one index.
///
/// Locking rules: a reader holds one page at a time, for the duration of a closure. A writer locks
/// pages through a [`WriteSet`], the metapage first, pending pages in the order of the list, new
/// pages last; nobody reads through the store while holding a set.
pub trait PageStore {
    /// An atomic change of a few pages.
    type Set<'a>: WriteSet
    where
        Self: 'a;

    /// Blocks of the relation, the metapage included; all block numbers are below it.
    fn blocks(&self) -> u32;

    /// Shows the body of a page ([`crate::page::BODY`] bytes) under a shared lock. `look` does not
    /// touch the store.
    ///
    /// # Errors
    /// What `look` returns, or a block that does not exist.
    fn read<R>(&self, block: u32, look: impl FnOnce(&[u8]) -> Result<R>) -> Result<R>;

    /// Starts an atomic change.
    fn begin(&self) -> Self::Set<'_>;

    /// Notes that a page belongs to nobody. A hint: it may be lost, and it may be outdated, see
    /// [`WriteSet::allocate`].
    fn release(&self, block: u32);

    /// Has pages that were released taken from now on; before, that is left to chance.
    fn publish_released(&self);

    /// The folder of the file system that new pages are taken from, where there is one.
    fn folder(&self) -> Option<PathBuf>;

    /// Pages that were [released](PageStore::release) and not taken since, roughly: none has to be taken
    /// from the file system in their place.
    fn released(&self) -> u32;

    /// A place where a long operation may be cancelled or slowed down; may unwind.
    fn pause(&self);
}

/// A change of at most four pages that happens completely or not at all, whatever crashes. Dropped
/// without a commit, it changes nothing.
pub trait WriteSet {
    /// Locks a page for writing and makes it part of the set.
    ///
    /// # Errors
    /// A block that does not exist, or that is in the set already: two places of a damaged index
    /// lead to it, and to wait for a lock of one's own is to wait forever.
    fn lock(&mut self, block: u32) -> Result<()>;

    /// The body of a page in the set, as it will be. Bytes behind the payload that its header
    /// declares are not kept.
    ///
    /// Panics when the page is not in the set.
    fn page(&mut self, block: u32) -> &mut [u8];

    /// Adds a page that belongs to nobody, with a zeroed body: one that was released and, read
    /// under its lock, [is free](crate::page::is_free), else a new one at the end.
    ///
    /// # Errors
    /// When the index cannot grow.
    fn allocate(&mut self) -> Result<u32>;

    /// Makes the change.
    fn commit(self);
}

/// Pages that fit into a [`WriteSet`].
pub const SET_PAGES: usize = 4;
