//! Which segments a merge makes into one.

use std::collections::{HashMap, HashSet};

use crate::builder::BuildOptions;
use crate::codec::Codec;
use crate::disk_space;
use crate::error::{IndexError, Result};
use crate::meta::{MAX_SEGMENTS, Meta, Parameters, SegmentEntry};
use crate::segment::{SegmentMap, count_dead};
use crate::store::PageStore;

/// What to merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// After an insert that has filled the pending list: the list, and segments of its own size, so
    /// that no insert waits for much more than the list itself takes.
    Insert,
    /// VACUUM: the list unless it is short, small segments, and those with many dead entries.
    Vacuum,
    /// Everything that fits into memory together.
    All,
}

/// Fraction of dead entries above which a segment is rebuilt without them.
const MAX_DEAD_FRACTION: f64 = 0.2;

/// Whether more than [`MAX_DEAD_FRACTION`] of the entries are dead, of all or of those that walks meet.
pub(super) fn is_worn(
    store: &impl PageStore,
    parameters: &Parameters,
    entry: &SegmentEntry,
) -> Result<bool> {
    let are_many = |dead: u32, all: u64| f64::from(dead) > MAX_DEAD_FRACTION * all as f64;
    if entry.dead == 0 || are_many(entry.dead, entry.count.into()) {
        return Ok(entry.dead > 0);
    }
    let map = SegmentMap::read(store, entry)?;
    let placed = map.header(store, parameters)?.placed();
    // The bitmap is read only where it can make a difference.
    Ok(are_many(entry.dead, placed) && {
        let dead = count_dead(&map.bitmap(store)?, placed as usize);
        are_many(dead as u32, placed)
    })
}

/// What the live entries of each segment, by its nonce, count as for memory where they are built again: as
/// [`is_full`](crate::builder::SegmentBuilder::is_full) counts them, so that segments that are full are not merged again and again
/// into as many.
pub(super) fn weights(
    store: &impl PageStore,
    meta: &Meta,
    codec: &Codec,
    options: &BuildOptions,
) -> Result<HashMap<u64, usize>> {
    let room = options.budget().most(codec, meta.parameters.m);
    let weight = |entry: &SegmentEntry| -> Result<(u64, usize)> {
        // Most are, and their pages need not be read.
        if disk_space::is_of_vectors(codec, meta.parameters.m, entry) {
            return Ok((entry.nonce, entry.live() as usize));
        }
        let header = SegmentMap::read(store, entry)?.header(store, &meta.parameters)?;
        let count = u64::from(entry.count).max(1);
        let live = |entries: u64| (entries * u64::from(entry.live())).div_ceil(count) as usize;
        let placed = header.placed().min(count);
        let weight = (options.budget()).weight(room, live(placed), live(count - placed));
        Ok((entry.nonce, weight))
    };
    meta.segments.iter().map(weight).collect()
}

/// Merges of the directory as it is now: groups of segments, each to become one segment. The
/// first group takes the pending list as well, if `list` entries of it are to be merged. `worn` are the
/// nonces of the segments that are built again whatever their size, `weights` are those of [`weights`].
pub(super) fn groups(
    meta: &Meta,
    codec: &Codec,
    plan: Plan,
    list: usize,
    (worn, weights): (&HashSet<u64>, &HashMap<u64, usize>),
    options: &BuildOptions,
) -> Vec<Vec<SegmentEntry>> {
    let room = options.budget().most(codec, meta.parameters.m);
    let mut by_size = meta.segments.clone();
    by_size.sort_by_key(SegmentEntry::live);
    let crowded = by_size.len() > 64;
    let mut group = Vec::new();
    // By rows it is decided what is worth it, and by entries what there is memory for.
    let (mut sum, mut entries) = (list, list);
    let mut rest = Vec::new();
    for entry in by_size {
        let live = entry.live() as usize;
        let own = weights[&entry.nonce];
        let alike = match plan {
            Plan::Insert if !crowded => live <= 2 * sum && sum + live <= 8 * list,
            Plan::Insert | Plan::Vacuum => live <= 2 * sum || (group.is_empty() && list == 0),
            Plan::All => true,
        };
        if alike && rest.is_empty() && (entries + own <= room || (group.is_empty() && list == 0)) {
            (sum, entries) = (sum + live, entries + own);
            group.push(entry);
        } else {
            rest.push(entry);
        }
    }
    let purge = |s: &SegmentEntry| plan != Plan::Insert && worn.contains(&s.nonce);
    let mut groups = Vec::new();
    if list > 0 || group.len() > 1 || group.iter().any(purge) {
        groups.push(group);
    }
    groups.extend(rest.into_iter().filter(purge).map(|s| vec![s]));
    groups
}

/// Whether the directory has places for what becomes of entries of a weight ([`weights`]), once the
/// segments of their group have left it.
pub(super) fn fits(
    meta: &Meta,
    codec: &Codec,
    group: usize,
    weight: usize,
    options: &BuildOptions,
) -> Result<()> {
    let room = options.budget().most(codec, meta.parameters.m);
    let new = weight.div_ceil(room);
    if meta.segments.len() - group.min(meta.segments.len()) + new > MAX_SEGMENTS {
        return Err(IndexError::TooManySegments(MAX_SEGMENTS));
    }
    Ok(())
}
