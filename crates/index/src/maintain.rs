//! Changes of the directory: new segments, dead entries, and merges.
//!
//! One session at a time does any of this; the caller holds a lock that says so. Inserts and scans
//! go on meanwhile. A crash at any point leaves either the old directory or the new one, and pages
//! that nobody refers to.

mod groups;
mod output;
mod progress;
mod sample;

use std::collections::HashSet;
use std::rc::Rc;

use crate::assemble::BuiltSegment;
use crate::background;
use crate::budget::capacity;
use crate::builder::{BuildOptions, SegmentBuilder};
use crate::bytes::SegmentBytes;
use crate::choice::{self, Existing};
use crate::codec::{Codec, Format};
use crate::disk_space;
use crate::encoding::Encoding;
use crate::error::Result;
use crate::growing;
use crate::meta::{Meta, Parameters, Pending, SegmentEntry};
use crate::metric::Metric;
use crate::page::{UNPLACED, address};
use crate::pending;
use crate::quantization::Quantization;
use crate::segment::{SegmentMap, is_dead};
use crate::space::Space;
use crate::store::PageStore;
use crate::sweep::{free, free_list};
use crate::view::SegmentView;
use crate::width;
use groups::{fits, groups, is_worn, weights};
use output::{Output, push_list};
use sample::sample;

pub use groups::Plan;
pub use progress::{Phase, Progress};

/// What [`delete`] has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Deleted {
    /// Entries marked dead.
    pub removed: u64,
    /// Live entries that remain.
    pub live: u64,
}

/// Replaces segments, and the pending pages before `consumed`, by new segments.
///
/// # Errors
/// A full directory; then nothing is changed.
pub fn replace(
    store: &impl PageStore,
    old: &[u64],
    new: &[SegmentEntry],
    consumed: Option<(u64, u32)>,
) -> Result<Meta> {
    Meta::update(store, |meta| {
        meta.segments.retain(|s| !old.contains(&s.nonce));
        meta.segments.extend_from_slice(new);
        if let Some((seq, block)) = consumed {
            meta.pending.head_seq = seq;
            meta.pending.head = block;
        }
        meta.generation = meta.generation.wrapping_add(1);
        Ok(())
    })
}

/// Asks `dead` about every live entry and marks those for which it says yes. When this returns, no
/// scan that starts afterwards sees them.
///
/// # Errors
/// [`IndexError::Corrupt`] or [`IndexError::Segment`] when the index is damaged.
pub fn delete(store: &impl PageStore, mut dead: impl FnMut(u64) -> bool) -> Result<Deleted> {
    let meta = Meta::read(store)?;
    let parameters = &meta.parameters;
    let mut done = Deleted::default();
    let mut counts = Vec::new();
    let mut any = false;
    for entry in &meta.segments {
        let map = SegmentMap::read(store, entry)?;
        let head = map.header(store, parameters)?;
        let bits = map.bitmap(store)?;
        let mut tids = laser_memory::filled(0, 8 * entry.count as usize)?;
        map.read_bytes(store, head.tids.offset, &mut tids)?;
        let mut slots = Vec::new();
        let mut already = 0;
        for (slot, tid) in tids.chunks_exact(8).enumerate() {
            if slot % 4096 == 0 {
                store.pause();
            }
            let tid = address(u64::from_le_bytes(tid.try_into().expect("eight bytes")));
            if is_dead(&bits, slot) {
                already += 1;
            } else if dead(tid) {
                laser_memory::push(&mut slots, slot as u32)?;
            }
        }
        map.mark(store, &slots)?;
        let all = already + slots.len() as u32;
        // Bits may be ahead of the directory when an earlier run was interrupted.
        any |= !slots.is_empty() || all != entry.dead;
        done.removed += slots.len() as u64;
        done.live += u64::from(entry.count - all);
        counts.push((entry.nonce, all));
    }
    let (marked, live) = pending::mark(store, parameters, &meta.pending, dead)?;
    done.removed += marked;
    done.live += live;
    if any {
        Meta::update(store, |meta| {
            for (nonce, dead) in counts {
                if let Some(entry) = meta.segments.iter_mut().find(|s| s.nonce == nonce) {
                    entry.dead = dead;
                }
            }
            // Whoever remembers another one reads again, wherever a damaged page began to count.
            meta.dead_version = meta.dead_version.wrapping_add(1);
            Ok(())
        })?;
    }
    Ok(done)
}

/// Segments are measured again after merges that are one in this many of their entries.
const LEAST_SHARE: u64 = 256;
/// A short list costs scans little; VACUUM leaves it alone.
const SHORT_LIST: usize = 64;
/// Rows of a segment for which the choice of a graph for inner products is worth its time.
const ASK_AGAIN: usize = 10_000;

/// The segments of an index as its metapage lists them, opened.
pub type Views<'a> = &'a dyn Fn(&Meta) -> Result<Vec<Rc<SegmentView>>>;

/// How to merge.
pub struct Merge<'a> {
    /// The parts of the index that become one segment.
    plan: Plan,
    /// Threads, memory and the folder for files.
    options: &'a BuildOptions,
    views: Option<Views<'a>>,
}

impl<'a> Merge<'a> {
    /// Merges the parts that `plan` says, with the threads and the memory of `options`.
    pub fn new(plan: Plan, options: &'a BuildOptions) -> Self {
        Self {
            plan,
            options,
            views: None,
        }
    }

    /// Opens segments by these, where those that are not merged matter as well: for inner products, queries like their rows
    /// are searched for when a new segment is measured ([`crate::width`]), and queries like its rows in them. Without, or where
    /// they cannot be opened, these are not.
    #[must_use]
    pub fn with_views(self, views: Views<'a>) -> Self {
        Self {
            views: Some(views),
            ..self
        }
    }

    /// The segments that are not of a group, where they matter.
    fn others(
        &self,
        store: &impl PageStore,
        group: &[SegmentEntry],
    ) -> Result<Vec<(SegmentEntry, Rc<SegmentView>)>> {
        let meta = Meta::read(store)?;
        let is_other = |entry: &SegmentEntry| group.iter().all(|own| own.nonce != entry.nonce);
        let opens =
            meta.parameters.metric == Metric::InnerProduct && meta.segments.iter().any(is_other);
        let views = self.views.filter(|_| opens).map(|views| views(&meta));
        // What would be missing is a part of a measure, and no reason for there to be no merge.
        let Some(Ok(views)) = views else {
            return Ok(Vec::new());
        };
        let pairs = meta.segments.iter().copied().zip(views);
        Ok(pairs.filter(|(entry, _)| is_other(entry)).collect())
    }

    /// Searches of other segments become as wide as queries like the rows of a new one of `expected` entries need.
    fn widen(
        store: &impl PageStore,
        others: &[(SegmentEntry, Rc<SegmentView>)],
        expected: usize,
        queries: &[Vec<f32>],
    ) -> Result<()> {
        for (entry, view) in others {
            // A look at all of a large one for each small merge costs more than these.
            if view.nodes() == 0 || u64::from(entry.count) > LEAST_SHARE * expected as u64 {
                continue;
            }
            let encoding = Encoding {
                queries: queries.to_vec(),
                ..view.encoding().clone()
            };
            let graph = view.header().graph.of(view.bytes());
            let pause = || store.pause();
            let ef = width::measure_again(&encoding, graph, view.ef(), &pause)? as u32;
            if ef > entry.ef {
                Meta::update(store, |meta| {
                    let mut segments = meta.segments.iter_mut();
                    if let Some(entry) = segments.find(|s| s.nonce == entry.nonce) {
                        entry.ef = entry.ef.max(ef);
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Merge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Merge")
            .field("plan", &self.plan)
            .field("options", &self.options)
            .finish()
    }
}

/// Opens a segment to read its entries.
fn open(
    store: &impl PageStore,
    meta: &Meta,
    entry: &SegmentEntry,
    options: &BuildOptions,
) -> Result<SegmentView> {
    let map = SegmentMap::read(store, entry)?;
    map.header(store, &meta.parameters)?;
    // Under a temporary name of its own, which is enough for one merge.
    let scratch = crate::scratch::Scratch::new(&options.folder)?;
    let mut bytes = scratch.map(entry.bytes)?;
    map.read_bytes(store, 0, &mut bytes)?;
    drop(bytes);
    let bytes = SegmentBytes::map(scratch.file(), scratch.path())?;
    let (parameters, of) = (meta.parameters.clone(), *entry);
    let view = background::run(&|| store.pause(), move |_| {
        SegmentView::open(&parameters, &of, bytes)
    })?;
    view.refresh(store, entry, meta.dead_version)?;
    Ok(view)
}

/// How a segment stores its vectors, from its pages.
///
/// # Errors
/// Damage, or [`IndexError::Moved`](crate::error::IndexError::Moved) when the segment is gone.
pub fn encoding(
    store: &impl PageStore,
    parameters: &Parameters,
    entry: &SegmentEntry,
) -> Result<Encoding> {
    let map = SegmentMap::read(store, entry)?;
    let head = map.header(store, parameters)?;
    let codec = head.codec(parameters);
    let (metric, dims) = (parameters.metric, parameters.dims);
    let space = if codec.format == Format::First {
        Space::plain(metric, dims)
    } else {
        // Headers are protected by a checksum; a space has at most one number more than a vector.
        let len = head.space.len.min(8 + 4 * (dims as u64 + 1));
        let mut bytes = vec![0; len as usize];
        map.read_bytes(store, head.space.offset, &mut bytes)?;
        Space::read(metric, dims, &bytes)?
    };
    Ok(Encoding {
        codec,
        space,
        noise: head.noise(),
        longest: f64::INFINITY,
        queries: Vec::new(),
    })
}

/// As [`merge_reporting`], without reports.
///
/// # Errors
/// Damage, no memory, no room.
pub fn merge<S: PageStore>(
    store: &S,
    how: &Merge<'_>,
    finished: impl FnMut(&SegmentEntry, BuiltSegment),
) -> Result<usize> {
    merge_reporting(store, how, &|_| (), finished)
}

/// Merges according to a plan. `finished` is given every new segment once it is in the directory,
/// `report` hears how far the merge is, many times a second.
/// Returns how many segments were made.
///
/// # Errors
/// Damage, no memory, no room.
pub fn merge_reporting<S: PageStore>(
    store: &S,
    how: &Merge<'_>,
    report: &dyn Fn(Progress),
    mut finished: impl FnMut(&SegmentEntry, BuiltSegment),
) -> Result<usize> {
    let options = how.options;
    let pause = || store.pause();
    if Meta::read(store)?.parameters.is_undecided() {
        return compact(store, how.plan).map(|()| 0);
    }
    drop_dead_pages(store)?;
    // To seal the list takes a page; an error of the server is more than the warning that this is.
    disk_space::ensure_pages(store, &options.folder)?;
    let short = how.plan == Plan::Vacuum && list_len(store)? < SHORT_LIST;
    let sealed = if short { None } else { pending::seal(store)? };
    let meta = Meta::read(store)?;
    let parameters = &meta.parameters;
    let (mut list, mut placed) = (0, 0);
    if let Some(sealed) = &sealed {
        pending::read(store, parameters, sealed, false, |entry| {
            list += usize::from(entry.is_live());
            placed += usize::from(entry.is_live() && entry.tid & UNPLACED == 0);
        })?;
    }
    // The largest segment knows best how vectors of this index are stored.
    let largest = meta.segments.iter().max_by_key(|s| s.live());
    let largest = match largest {
        Some(entry) => Some(encoding(store, parameters, entry)?),
        None => None,
    };
    let quantization = parameters.quantization.unwrap_or(Quantization::I8);
    let codec = largest.as_ref().map_or(
        Codec::new(parameters.dims, parameters.metric, quantization),
        |encoding| encoding.codec,
    );
    let mut worn = HashSet::new();
    for entry in &meta.segments {
        if (how.plan == Plan::All && entry.dead > 0) || is_worn(store, parameters, entry)? {
            worn.insert(entry.nonce);
        }
    }
    let weights = weights(store, &meta, &codec, options)?;
    let mut groups = groups(&meta, &codec, how.plan, list, (&worn, &weights), options);
    if sealed.is_some() && list == 0 {
        // Nothing but dead entries: drop the pages.
        groups.insert(0, Vec::new());
    }
    let mut sealed = sealed;
    let mut made = 0;
    for mut group in groups {
        let taken = sealed.take();
        let live = group.iter().map(|s| s.live() as usize).sum::<usize>();
        let expected = live + if taken.is_some() { list } else { 0 };
        report(Progress {
            phase: Phase::Sampling,
            done: 0,
            total: expected,
        });
        // What cannot end well is not begun.
        let own = group.iter().map(|s| weights[&s.nonce]).sum::<usize>();
        let weight = own + expected - live;
        fits(&Meta::read(store)?, &codec, group.len(), weight, options)?;
        let listed = taken.map_or((0, 0), |_| (placed, list - placed));
        let needed = disk_space::segment_bytes(&codec, parameters.m, &group, listed);
        let tables = disk_space::joining_bytes(&codec, expected, options);
        disk_space::ensure_merge(store, needed, tables, options)?;
        group.sort_by_key(|s| std::cmp::Reverse(s.live()));
        let mut views = Vec::with_capacity(group.len());
        for entry in &group {
            views.push(open(store, &meta, entry, options)?);
        }
        let vectors = sample(
            store,
            parameters,
            &views,
            taken.as_ref().map(|taken| (taken, placed)),
            options.memory,
        )?;
        let encodings: Vec<&Encoding> = views
            .iter()
            .map(SegmentView::encoding)
            .chain(&largest)
            .collect();
        let before = meta.segments.iter().map(|s| s.live() as usize).max();
        let mut encoding = choice::choose(
            parameters.metric,
            parameters.dims,
            parameters.quantization,
            &vectors,
            expected,
            Existing {
                encodings: &encodings,
                grown: expected >= ASK_AGAIN.max(2 * before.unwrap_or(0)),
            },
            &pause,
        );
        drop(vectors);
        let queries: Vec<Vec<f32>> = encoding.queries.iter().step_by(2).cloned().collect();
        let others = how.others(store, &group)?;
        encoding
            .queries
            .append(&mut sample::some_of(others.iter().map(|(_, view)| &**view)));
        // Before the new segment is in the directory: what ends the merge leaves its rows to the next one, which does this
        // again.
        Merge::widen(store, &others, expected, &queries)?;
        drop(others);
        // The largest segment is continued rather than rebuilt, unless it is mostly dead, its vectors need another encoding, or
        // to make a graph of all costs no more than to add the others to its own.
        let room = capacity(&encoding.codec, parameters.m, options.memory);
        let continued = group.first().is_some_and(|first| {
            !worn.contains(&first.nonce)
                && growing::is_worth_going_on(
                    &encoding.codec,
                    first.live() as usize,
                    expected,
                    room,
                )
                && (group.len() > 1 || taken.is_some())
                && views[0].nodes() > 0
                && views[0].encoding().stores_like(&encoding)
        });
        let base = continued.then(|| views.remove(0));
        let with_capacity = BuildOptions {
            expected: expected + 1,
            ..options.clone()
        };
        let (own, how_stored) = (with_capacity.clone(), encoding.clone());
        let builder = background::run(&pause, move |_| {
            SegmentBuilder::new(own, how_stored, base.as_ref())
        })?;
        let mut output = Output::new(store, builder, (with_capacity, expected), &pause, report);
        for view in views {
            output.push_segment(&view)?;
        }
        let mut consumed = None;
        if let Some(list) = taken {
            consumed = Some(push_list(store, parameters, &list, &mut output)?);
        }
        let new = output.finish()?;
        let entries: Vec<SegmentEntry> = new.iter().map(|(entry, _)| *entry).collect();
        let old: Vec<u64> = group.iter().map(|s| s.nonce).collect();
        let maps = group
            .iter()
            .map(|s| SegmentMap::read(store, s))
            .collect::<Result<Vec<_>>>()?;
        replace(store, &old, &entries, consumed)?;
        made += new.len();
        for (entry, built) in new {
            finished(&entry, built);
        }
        for map in maps {
            free(store, map.pages())?;
        }
        if let Some(list) = taken {
            free_list(store, &list)?;
        }
    }
    Ok(made)
}

/// What merging is to an index that has no segments, because it does not know how many dimensions
/// there are: makes its list shorter, once more than half of it is dead.
fn compact(store: &impl PageStore, plan: Plan) -> Result<()> {
    if plan == Plan::Insert {
        return Ok(());
    }
    let meta = Meta::read(store)?;
    let (mut live, mut dead) = (0u64, 0u64);
    pending::read(store, &meta.parameters, &meta.pending, true, |entry| {
        *(if entry.is_live() {
            &mut live
        } else {
            &mut dead
        }) += 1;
    })?;
    if dead == 0 || (dead <= live && plan != Plan::All) {
        return Ok(());
    }
    let Some(sealed) = pending::seal(store)? else {
        return Ok(());
    };
    // The first vector may have come since: then a merge does all this, the next time.
    if !Meta::read(store)?.parameters.is_undecided() {
        return Ok(());
    }
    let (seq, block) = pending::compact(store, &meta.parameters, &sealed)?;
    replace(store, &[], &[], Some((seq, block)))?;
    if seq > sealed.head_seq {
        let list = Pending {
            tail_seq: seq - 1,
            ..sealed
        };
        free_list(store, &list)?;
    }
    Ok(())
}

/// Drops the first pages of the pending list, as far as all their entries are dead. That takes no page, of which a
/// full disk has none: rows of inserts that have failed there make room for the merge.
fn drop_dead_pages(store: &impl PageStore) -> Result<()> {
    let meta = Meta::read(store)?;
    let list = meta.pending;
    let mut at = list;
    // To the last page others may add.
    while at.head != 0 && at.head_seq < list.tail_seq {
        let one = Pending {
            tail_seq: at.head_seq,
            ..at
        };
        let mut live = false;
        let (seq, block) = pending::read(store, &meta.parameters, &one, false, |entry| {
            live |= entry.is_live()
        })?;
        if live {
            break;
        }
        at = Pending {
            head_seq: seq,
            head: block,
            ..at
        };
    }
    if at.head_seq > list.head_seq {
        replace(store, &[], &[], Some((at.head_seq, at.head)))?;
        let dropped = Pending {
            tail_seq: at.head_seq - 1,
            ..list
        };
        free_list(store, &dropped)?;
    }
    Ok(())
}

/// Live and dead entries of the pending list.
fn list_len(store: &impl PageStore) -> Result<usize> {
    let meta = Meta::read(store)?;
    let mut count = 0;
    pending::read(store, &meta.parameters, &meta.pending, true, |_| count += 1)?;
    Ok(count)
}
