//! Checksums of mutated segments, so that what lies behind them is reached: whoever writes the data
//! directory can compute them too.

use std::panic::catch_unwind;

use laser_index::bytes::SegmentBytes;
use laser_index::memory::MemoryStore;
use laser_index::meta::{META_BLOCK, Meta, Parameters, SegmentEntry};
use laser_index::page::{HEADER, PAYLOAD};
use laser_index::segment::{SegmentHeader, SegmentMap};
use laser_index::store::PageStore;
use laser_index::view::SegmentView;
use memmap2::MmapMut;

/// Longest segment that is sealed.
const LONGEST: u64 = 1 << 20;

/// Recomputes the checksums of a segment's file; leaves it alone when sections lie outside.
pub fn seal(file: &mut Vec<u8>) -> Option<SegmentHeader> {
    let head = file.get(..size_of::<SegmentHeader>())?;
    let mut head: SegmentHeader = bytemuck::pod_read_unaligned(head);
    let mut copy = file.clone();
    let sealed = catch_unwind(move || {
        head.seal(&mut copy);
        (head, copy)
    });
    let (head, copy) = sealed.ok()?;
    *file = copy;
    Some(head)
}

/// The directory entry that belongs to a header and a file, with the pages of another one.
pub fn entry_of(head: &SegmentHeader, file: &[u8], pages: &SegmentEntry) -> SegmentEntry {
    let mut entry = *pages;
    entry.nonce = head.nonce;
    entry.bytes = file.len() as u64;
    entry.count = head.count as u32;
    entry
}

/// Recomputes the checksums of all segments of an index, in their pages, and takes the metapage's away.
pub fn seal_store(store: &MemoryStore) {
    store.damage(META_BLOCK, Meta::unseal);
    let Ok(meta) = Meta::read(store) else { return };
    for entry in meta.segments.iter().filter(|entry| entry.bytes <= LONGEST) {
        let _ = seal_pages(store, entry);
    }
}

fn seal_pages(store: &MemoryStore, entry: &SegmentEntry) -> laser_index::Result<()> {
    let map = SegmentMap::read(store, entry)?;
    let mut file = vec![0; entry.bytes as usize];
    map.read_bytes(store, 0, &mut file)?;
    if seal(&mut file).is_some() {
        // Checksums of the sections are in the header, which is on the first page.
        let first = map.pages().nth(map.own.len());
        let len = file.len().min(PAYLOAD);
        if let Some(block) = first.filter(|&block| block < store.blocks()) {
            store.damage(block, |body| {
                body[HEADER..HEADER + len].copy_from_slice(&file[..len])
            });
        }
    }
    Ok(())
}

/// Opens a segment's file in memory.
pub fn open(parameters: &Parameters, entry: &SegmentEntry, file: &[u8]) -> Option<SegmentView> {
    let mut bytes = MmapMut::map_anon(file.len().max(1)).ok()?;
    bytes[..file.len()].copy_from_slice(file);
    SegmentView::open(parameters, entry, SegmentBytes::Memory(bytes)).ok()
}
