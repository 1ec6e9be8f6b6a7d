//! The pending list: entries that are in no segment yet.
//!
//! Inserts append to the last page, under that page's lock alone; only when it is full do they lock
//! the metapage, to link a new one. Scans read the whole list, front to back. Merging takes pages
//! from the front.

use crate::codec::Codec;
use crate::error::{IndexError, Result};
use crate::meta::{META_BLOCK, Meta, Pending};
use crate::page::{self, DEAD, HEADER, PAYLOAD, PENDING_HEADER, PageKind, PendingHeader, TID};
use crate::store::{PageStore, WriteSet};

/// Bytes of an entry.
fn stride(codec: &Codec) -> usize {
    (TID + codec.len()).next_multiple_of(8)
}

/// Entries that fit on a page.
pub fn entries_per_page(codec: &Codec) -> usize {
    ((PAYLOAD - PENDING_HEADER) / stride(codec)).max(1)
}

fn len(codec: &Codec, count: usize) -> usize {
    // The last entry is not padded, see PENDING_ENTRY_MAX.
    PENDING_HEADER + count.saturating_sub(1) * stride(codec) + count.min(1) * (TID + codec.len())
}

fn list_header(block: u32, payload: &[u8], codec: &Codec) -> Result<PendingHeader> {
    if payload.len() < PENDING_HEADER {
        return Err(IndexError::corrupt(block, "pending page is too short"));
    }
    let head: PendingHeader = bytemuck::pod_read_unaligned(&payload[..PENDING_HEADER]);
    let count = head.count as usize;
    if count > entries_per_page(codec) || payload.len() != len(codec, count) {
        return Err(IndexError::corrupt(
            block,
            "pending page does not fit its count",
        ));
    }
    Ok(head)
}

fn write_header(body: &mut [u8], head: PendingHeader) {
    body[HEADER..HEADER + PENDING_HEADER].copy_from_slice(bytemuck::bytes_of(&head));
}

/// Appends an entry: the address of its row and its stored form. Returns the pages of the list when
/// a page was added, which is the moment to think of merging.
///
/// # Errors
/// Damage, or an index that cannot grow.
pub fn append(
    store: &impl PageStore,
    codec: &Codec,
    tid: u64,
    stored: &[u8],
) -> Result<Option<u64>> {
    assert_eq!(stored.len(), codec.len());
    let pending = store.read(META_BLOCK, Meta::parse)?.pending;
    if pending.head != 0 && append_to(store, codec, pending, tid, stored)? {
        return Ok(None);
    }
    // The page was full, or somebody has added one meanwhile: look again with the metapage locked,
    // which keeps the end of the list where it is.
    let mut set = store.begin();
    set.lock(META_BLOCK)?;
    let mut meta = Meta::parse(set.page(META_BLOCK))?;
    let old = meta.pending;
    if old.head != 0 {
        set.lock(old.tail)?;
        if put(
            set.page(old.tail),
            old.tail,
            old.tail_seq,
            codec,
            tid,
            stored,
        )? {
            set.commit();
            return Ok(None);
        }
    }
    let block = set.allocate()?;
    let seq = old.tail_seq + 1;
    meta.pending = if old.head == 0 {
        Pending {
            head_seq: seq,
            tail_seq: seq,
            head: block,
            tail: block,
        }
    } else {
        Pending {
            tail_seq: seq,
            tail: block,
            ..old
        }
    };
    if old.head != 0 {
        let body = set.page(old.tail);
        let payload = page::expect(old.tail, body, PageKind::Pending, old.tail_seq, 0)?;
        let count = list_header(old.tail, payload, codec)?.count;
        write_header(body, PendingHeader::new(block, count));
    }
    let body = set.page(block);
    write_header(body, PendingHeader::new(0, 0));
    page::init(body, PageKind::Pending, seq, 0, len(codec, 0));
    put(body, block, seq, codec, tid, stored)?;
    meta.write(set.page(META_BLOCK))?;
    set.commit();
    Ok(Some(meta.pending.pages()))
}

fn append_to(
    store: &impl PageStore,
    codec: &Codec,
    pending: Pending,
    tid: u64,
    stored: &[u8],
) -> Result<bool> {
    let mut set = store.begin();
    set.lock(pending.tail)?;
    match put(
        set.page(pending.tail),
        pending.tail,
        pending.tail_seq,
        codec,
        tid,
        stored,
    ) {
        Ok(true) => {
            set.commit();
            Ok(true)
        }
        Ok(false) | Err(IndexError::Moved { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts an entry on a page, unless the page is full or not the last one any more.
fn put(
    body: &mut [u8],
    block: u32,
    seq: u64,
    codec: &Codec,
    tid: u64,
    stored: &[u8],
) -> Result<bool> {
    let payload = page::expect(block, body, PageKind::Pending, seq, 0)?;
    let head = list_header(block, payload, codec)?;
    let count = head.count as usize;
    if head.next != 0 || count >= entries_per_page(codec) {
        return Ok(false);
    }
    let at = HEADER + PENDING_HEADER + count * stride(codec);
    body[at..at + TID].copy_from_slice(&tid.to_le_bytes());
    body[at + TID..at + TID + stored.len()].copy_from_slice(stored);
    write_header(body, PendingHeader::new(0, head.count + 1));
    page::init(body, PageKind::Pending, seq, 0, len(codec, count + 1));
    Ok(true)
}

/// Closes the list's last page, so that the pages up to it no longer change except for entries that
/// die, and gives what was the list before. Does nothing when the list is empty.
///
/// # Errors
/// Damage, or an index that cannot grow.
pub fn seal(store: &impl PageStore, codec: &Codec) -> Result<Option<Pending>> {
    let mut set = store.begin();
    set.lock(META_BLOCK)?;
    let mut meta = Meta::parse(set.page(META_BLOCK))?;
    let old = meta.pending;
    if old.head == 0 {
        return Ok(None);
    }
    set.lock(old.tail)?;
    let payload = page::expect(
        old.tail,
        set.page(old.tail),
        PageKind::Pending,
        old.tail_seq,
        0,
    )?;
    let head = list_header(old.tail, payload, codec)?;
    if old.head == old.tail && head.count == 0 {
        return Ok(None);
    }
    let block = set.allocate()?;
    write_header(set.page(old.tail), PendingHeader::new(block, head.count));
    let body = set.page(block);
    write_header(body, PendingHeader::new(0, 0));
    page::init(body, PageKind::Pending, old.tail_seq + 1, 0, len(codec, 0));
    meta.pending = Pending {
        tail_seq: old.tail_seq + 1,
        tail: block,
        ..old
    };
    meta.write(set.page(META_BLOCK))?;
    set.commit();
    Ok(Some(old))
}

/// Shows every entry of the list to `look`: address (with [`DEAD`] set in dead ones) and stored
/// form. Runs from the first page of `pending` to its last, or to the end when `whole`. Returns the
/// first page behind what it showed.
///
/// `look` runs under a page's lock and does not touch the store.
///
/// # Errors
/// [`IndexError::Moved`] when the list has been merged meanwhile; start again from the metapage.
pub fn read(
    store: &impl PageStore,
    codec: &Codec,
    pending: &Pending,
    whole: bool,
    mut look: impl FnMut(u64, &[u8]),
) -> Result<(u64, u32)> {
    let (mut block, mut seq) = (pending.head, pending.head_seq);
    while block != 0 && (whole || seq <= pending.tail_seq) {
        store.pause();
        let next = store.read(block, |body| {
            let payload = page::expect(block, body, PageKind::Pending, seq, 0)?;
            let head = list_header(block, payload, codec)?;
            for entry in payload[PENDING_HEADER..].chunks(stride(codec)) {
                let tid = u64::from_le_bytes(entry[..TID].try_into().expect("eight bytes"));
                look(tid, &entry[TID..TID + codec.len()]);
            }
            Ok(head.next)
        })?;
        block = next;
        seq += 1;
    }
    Ok((seq, block))
}

/// Marks entries dead whose address `dead` says so, and shows it every live one. Returns how many
/// were marked. The caller keeps merges away.
///
/// # Errors
/// Damage.
pub fn mark(
    store: &impl PageStore,
    codec: &Codec,
    pending: &Pending,
    mut dead: impl FnMut(u64) -> bool,
) -> Result<(u64, u64)> {
    let (mut block, mut seq) = (pending.head, pending.head_seq);
    let (mut marked, mut live) = (0, 0);
    while block != 0 {
        store.pause();
        let mut tids = Vec::new();
        let next = store.read(block, |body| {
            let payload = page::expect(block, body, PageKind::Pending, seq, 0)?;
            let head = list_header(block, payload, codec)?;
            for (i, entry) in payload[PENDING_HEADER..].chunks(stride(codec)).enumerate() {
                let tid = u64::from_le_bytes(entry[..TID].try_into().expect("eight bytes"));
                if tid & DEAD == 0 {
                    tids.push((i, tid));
                }
            }
            Ok(head.next)
        })?;
        let before = tids.len();
        // The verdict may take its time, so it is asked for without a lock. Entries that are added
        // meanwhile belong to rows that are too young to die in this VACUUM.
        tids.retain(|&(_, tid)| dead(tid));
        live += (before - tids.len()) as u64;
        if !tids.is_empty() {
            let mut set = store.begin();
            set.lock(block)?;
            let body = set.page(block);
            page::expect(block, body, PageKind::Pending, seq, 0)?;
            for (i, tid) in &tids {
                let at = HEADER + PENDING_HEADER + i * stride(codec);
                body[at..at + TID].copy_from_slice(&(tid | DEAD).to_le_bytes());
            }
            set.commit();
            marked += tids.len() as u64;
        }
        block = next;
        seq += 1;
    }
    Ok((marked, live))
}
