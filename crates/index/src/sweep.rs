//! Pages that nobody refers to: given back by those who drop them, and found again after a crash.
//!
//! As all changes of the directory, see [`crate::maintain`], by one session at a time.

use std::collections::HashSet;

use crate::error::Result;
use crate::meta::{META_BLOCK, Meta, Pending};
use crate::page::{self, HEADER, PENDING_HEADER, PageKind, PendingHeader};
use crate::segment::SegmentMap;
use crate::store::{PageStore, SET_PAGES, WriteSet};

/// What [`sweep`] has found, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Pages of the index.
    pub pages: u32,
    /// Free ones among them.
    pub free: u32,
    /// Those that a crash had left without an owner and that are free now.
    pub reclaimed: u32,
}

/// Looks for pages that belong to nobody, left by crashes and cancelled merges, and for free pages
/// that the free space map has forgotten.
///
/// # Errors
/// [`crate::IndexError::Corrupt`] or [`crate::IndexError::Segment`] when the index is damaged.
pub fn sweep(store: &impl PageStore) -> Result<SweepReport> {
    let meta = Meta::read(store)?;
    let mut used = HashSet::from([META_BLOCK]);
    for entry in &meta.segments {
        used.extend(SegmentMap::read(store, entry)?.pages());
    }
    let mut swept = SweepReport {
        pages: store.blocks(),
        ..SweepReport::default()
    };
    let mut orphans = Vec::new();
    for block in (0..swept.pages).filter(|block| !used.contains(block)) {
        if block % 64 == 0 {
            store.pause();
        }
        let found = store.read(block, |body| {
            Ok((page::kind(block, body), page::header(body).owner))
        })?;
        match found {
            (Ok(Some(PageKind::Free)), _) => {
                swept.free += 1;
                store.release(block);
            }
            // A page that an insert has just taken shows its number from the moment that it is
            // linked, and numbers before the head of the list are never used again.
            (Ok(Some(PageKind::Pending)), seq) if seq >= meta.pending.head_seq => {}
            // Damage is left as it is, for laser_index_check() to find and REINDEX to mend.
            (Err(_), _) => {}
            // A new page of an insert at work: it is locked until it has its number. Looking at it
            // under a lock of ours would have waited; so a zero page here is nobody's, or not yet
            // locked, and then its inserter will see that it is not new any more.
            _ => orphans.push(block),
        }
    }
    swept.reclaimed = orphans.len() as u32;
    swept.free += swept.reclaimed;
    // Publishes those as well that the map had forgotten.
    free(store, orphans)?;
    Ok(swept)
}

/// Gives the pages of a list that is not part of the index any more to the free space map.
pub(crate) fn free_list(store: &impl PageStore, list: &Pending) -> Result<()> {
    let (mut block, mut seq, mut blocks) = (list.head, list.head_seq, Vec::new());
    while block != 0 && seq <= list.tail_seq {
        blocks.push(block);
        let next = store.read(block, |body| {
            page::expect(block, body, PageKind::Pending, seq, 0)?;
            let head: PendingHeader =
                bytemuck::pod_read_unaligned(&body[HEADER..HEADER + PENDING_HEADER]);
            Ok(head.next)
        })?;
        block = next;
        seq += 1;
    }
    free(store, blocks)
}

/// Marks pages free and tells the free space map. Nobody refers to them.
pub(crate) fn free(store: &impl PageStore, blocks: impl IntoIterator<Item = u32>) -> Result<()> {
    let mut blocks = blocks.into_iter().peekable();
    while blocks.peek().is_some() {
        store.pause();
        let mut set = store.begin();
        let part: Vec<u32> = blocks.by_ref().take(SET_PAGES).collect();
        for &block in &part {
            set.lock(block)?;
            page::init(set.page(block), PageKind::Free, 0, 0, 0);
        }
        set.commit();
        for block in part {
            store.release(block);
        }
    }
    store.publish_released();
    Ok(())
}
