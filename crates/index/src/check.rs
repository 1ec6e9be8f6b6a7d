//! Verifying an index: what is wrong with it, in words.

use std::path::Path;

use crate::cache;
use crate::codec::Format;
use crate::error::{IndexError, Result};
use crate::graph::Layout;
use crate::meta::Meta;
use crate::page::{self, DEAD, UNPLACED, address, row_name};
use crate::pending;
use crate::reach::reach;
use crate::segment::{SegmentHeader, SegmentMap, bitmap_len, is_dead};
use crate::store::PageStore;

/// Everything that is wrong with an index, in words, and what it consists of.
#[derive(Debug, Default)]
pub struct Report {
    /// What is wrong.
    pub problems: Vec<String>,
    /// Segments, live entries in them, dead ones, live pending entries, dead ones.
    pub counts: [u64; 5],
    /// Nodes that no walk from a graph's entry reaches on its lowest level.
    pub unreachable: u64,
    /// Addresses of the live entries' rows, ascending.
    pub rows: Vec<u64>,
}

/// Whether a merge has changed the directory since it was read.
fn outdated(store: &impl PageStore, meta: &Meta) -> Result<bool> {
    Ok(Meta::read(store)?.generation != meta.generation)
}

/// Verifies pages, checksums, counts and graphs, and that no row is in the index twice. Reports and
/// goes on where it can. Segments are put together in `folder`, one at a time.
///
/// # Errors
/// A metapage that cannot be read, or a merge in the middle of the check.
pub fn check(store: &impl PageStore, folder: &Path) -> Result<Report> {
    let meta = Meta::read(store)?;
    let parameters = &meta.parameters;
    let mut report = Report::default();
    // Before the bitmaps: on a standby recovery may meanwhile replay a VACUUM, and an insert that uses a row's address
    // again. Then the address is in the list after it is dead in its segment.
    let (mut tids, mut x) = (Vec::new(), Vec::new());
    let list = pending::read(store, parameters, &meta.pending, true, |entry| {
        x.clear();
        if entry.tid & UNPLACED == 0 {
            entry.decode(parameters, &mut x);
        }
        tids.push((entry.tid, x.iter().all(|x| x.is_finite())));
    });
    for (tid, finite) in tids {
        if tid & DEAD != 0 {
            report.counts[4] += 1;
            continue;
        }
        report.counts[3] += 1;
        if !finite {
            let name = row_name(tid);
            report
                .problems
                .push(format!("{name}: the pending vector is not finite"));
        }
        report.rows.push(address(tid));
    }
    match list {
        Ok(_) => {}
        Err(error @ IndexError::Moved { .. }) if outdated(store, &meta)? => return Err(error),
        Err(error) => report.problems.push(error.to_string()),
    }
    let mut owners = std::collections::HashMap::new();
    for entry in &meta.segments {
        let name = format!("segment {:016x}", entry.nonce);
        report.counts[0] += 1;
        let mut verify = || -> Result<()> {
            let map = SegmentMap::read(store, entry)?;
            for block in map.pages() {
                if let Some(other) = owners.insert(block, entry.nonce) {
                    let what = format!("belongs to {name} and to segment {other:016x}");
                    return Err(IndexError::corrupt(block, what));
                }
            }
            let mut bytes = cache::passing_bytes(entry.bytes, folder)?;
            map.read_bytes(store, 0, &mut bytes)?;
            let head = SegmentHeader::parse(parameters, entry, &bytes)?;
            head.verify(&bytes, &|| store.pause())?;
            store.pause();
            let codec = head.encoding(parameters, &bytes)?.codec;
            let bits = map.bitmap(store)?;
            if head.nodes > 0 {
                let layout = Layout::parse(&codec, head.graph.of(&bytes))?;
                if layout.rows() as u64 != head.nodes {
                    return Err(IndexError::segment(entry.nonce, "number of nodes"));
                }
                layout.verify(&|| store.pause())?;
                let reach = reach(&codec, head.graph.of(&bytes), &|| store.pause())?;
                let lost = (reach.nodes - reach.connected) as u64;
                report.unreachable += lost;
                if lost > 0 && codec.format != Format::First {
                    let what = format!("{lost} nodes of its graph cannot be reached");
                    report.problems.push(format!("{name}: {what}"));
                }
            }
            let dead: u32 = bits.iter().map(|b| b.count_ones()).sum();
            if dead < entry.dead
                || bits.len() != bitmap_len(entry.count as usize)
                || dead > entry.count
            {
                let what = format!("{dead} dead entries, the directory says {}", entry.dead);
                report.problems.push(format!("{name}: {what}"));
            }
            for (slot, tid) in head.tids.of(&bytes).chunks_exact(8).enumerate() {
                if slot % 65_536 == 0 {
                    store.pause();
                }
                if is_dead(&bits, slot) {
                    report.counts[2] += 1;
                } else {
                    report.counts[1] += 1;
                    let tid = u64::from_le_bytes(tid.try_into().expect("eight bytes"));
                    let placed = (slot as u64) < head.placed();
                    if placed != (tid & UNPLACED == 0) {
                        let what = "does not say rightly whether it has a vector";
                        report
                            .problems
                            .push(format!("{name}: {} {what}", row_name(tid)));
                    }
                    laser_memory::push(&mut report.rows, address(tid))?;
                }
            }
            Ok(())
        };
        match verify() {
            Ok(()) => {}
            Err(error @ IndexError::Moved { .. }) if outdated(store, &meta)? => return Err(error),
            Err(error @ IndexError::Graph(_)) => report.problems.push(format!("{name}: {error}")),
            Err(error) => report.problems.push(error.to_string()),
        }
    }
    report.rows.sort_unstable();
    if parameters.is_undecided() {
        // On a standby the list may be compacted meanwhile, see [`pending::compact`].
        report.rows.dedup();
    }
    let twice = report.rows.windows(2).filter(|w| w[0] == w[1]);
    let twice = twice.map(|w| format!("{} is in the index twice", row_name(w[0])));
    report.problems.extend(twice);
    report.rows.dedup();
    for block in 0..store.blocks() {
        if block % 64 == 0 {
            store.pause();
        }
        if let Err(error) = store.read(block, |body| page::kind(block, body)) {
            report.problems.push(error.to_string());
        }
    }
    Ok(report)
}
