//! Changes of the directory: new segments, dead entries, and merges.
//!
//! One session at a time does any of this; the caller holds a lock that says so. Inserts and scans
//! go on meanwhile. A crash at any point leaves either the old directory or the new one, and pages
//! that nobody refers to.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use crate::assemble::BuiltSegment;
use crate::background;
use crate::builder::{BuildOptions, SegmentBuilder, most};
use crate::choice::{self, Existing, LONGEST, SAMPLE};
use crate::codec::{Codec, Format};
use crate::disk_space;
use crate::encoding::Encoding;
use crate::error::{IndexError, Result};
use crate::meta::{MAX_SEGMENTS, Meta, Parameters, Pending, SegmentEntry};
use crate::metric::Metric;
use crate::page::{UNDIRECTED, UNPLACED, address};
use crate::pending;
use crate::quantization::Quantization;
use crate::sampling::stratified;
use crate::segment::{SegmentMap, count_dead, is_dead, write_pages};
use crate::space::{self, Space};
use crate::store::PageStore;
use crate::sweep::{free, free_list};
use crate::view::{SegmentBytes, SegmentView};
use laser_vector::kernels::norm;

/// Fraction of dead entries above which a segment is rebuilt without them.
const MAX_DEAD_FRACTION: f64 = 0.2;

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

/// A short list costs scans little; VACUUM leaves it alone.
const SHORT_LIST: usize = 64;
/// Rows of a segment for which the choice of a graph for inner products is worth its time.
const ASK_AGAIN: usize = 10_000;

/// How to merge.
#[derive(Debug)]
pub struct Merge<'a> {
    /// The parts of the index that become one segment.
    pub plan: Plan,
    /// Threads, memory and the folder for files.
    pub options: &'a BuildOptions,
}

/// What a merge is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It reads entries to decide how they are stored.
    Sampling,
    /// It adds entries to the graph.
    Loading,
    /// It looks for the neighbours of new nodes once more.
    Refining,
    /// It writes the pages of a segment.
    Writing,
}

impl Phase {
    /// As progress reports call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sampling => "sampling vectors",
            Self::Loading => "loading vectors",
            Self::Refining => "refining graph",
            Self::Writing => "writing segment",
        }
    }
}

/// How far a merge is with the segments that it makes into one.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// What it is at.
    pub phase: Phase,
    /// Entries that this phase has done.
    pub done: usize,
    /// Entries of the new segment.
    pub total: usize,
}

/// Whether more than [`MAX_DEAD_FRACTION`] of the entries are dead, of all or of those that walks meet.
fn is_worn(store: &impl PageStore, parameters: &Parameters, entry: &SegmentEntry) -> Result<bool> {
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

/// Merges of the directory as it is now: groups of segments, each to become one segment. The
/// first group takes the pending list as well, if `list` entries of it are to be merged. `worn` are the
/// nonces of the segments that are built again whatever their size.
fn groups(
    meta: &Meta,
    codec: &Codec,
    plan: Plan,
    list: usize,
    worn: &HashSet<u64>,
    options: &BuildOptions,
) -> Vec<Vec<SegmentEntry>> {
    let room = most(codec, meta.parameters.m, options.memory, options.cache);
    let mut by_size = meta.segments.clone();
    by_size.sort_by_key(SegmentEntry::live);
    let crowded = by_size.len() > 64;
    let mut group = Vec::new();
    // By rows it is decided what is worth it, and by entries what there is memory for.
    let (mut sum, mut entries) = (list, list);
    let mut rest = Vec::new();
    for entry in by_size {
        let live = entry.live() as usize;
        let own = disk_space::entries(codec, meta.parameters.m, &entry);
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

/// Whether the directory has places for what becomes of `entries` that count for memory ([`disk_space::entries`]), once the
/// segments of their group have left it.
fn fits(
    meta: &Meta,
    codec: &Codec,
    group: usize,
    entries: usize,
    options: &BuildOptions,
) -> Result<()> {
    let room = most(codec, meta.parameters.m, options.memory, options.cache);
    let new = entries.div_ceil(room);
    if meta.segments.len() - group.min(meta.segments.len()) + new > MAX_SEGMENTS {
        return Err(IndexError::TooManySegments(MAX_SEGMENTS));
    }
    Ok(())
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
    let scratch = crate::cache::Scratch::new(&options.folder)?;
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
/// Damage, or [`IndexError::Moved`] when the segment is gone.
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

/// The longest ones of many vectors.
#[derive(Default)]
struct Longest(Vec<(f64, Vec<f32>)>);

impl Longest {
    fn look(&mut self, x: &[f32]) {
        let length = norm(x);
        if self.0.len() == LONGEST && self.0[LONGEST - 1].0 >= length {
            return;
        }
        let at = self.0.partition_point(|(longer, _)| *longer >= length);
        self.0.insert(at, (length, x.to_vec()));
        self.0.truncate(LONGEST);
    }
}

/// Prepared vectors, from all over the live ones of segments and of a sealed list, with their number there, and for inner
/// products the longest of all, which decide how the others are stored ([`Space::reaches`]).
fn sample(
    store: &impl PageStore,
    parameters: &Parameters,
    views: &[SegmentView],
    list: Option<(&Pending, usize)>,
    memory: usize,
) -> Result<Vec<Vec<f32>>> {
    let vectors = |view: &SegmentView| view.header().placed() as usize;
    let total = views.iter().map(vectors).sum::<usize>() + list.map_or(0, |(_, len)| len);
    let fits = memory / 8 / (4 * parameters.dims);
    let mut places = stratified(total, SAMPLE.min(fits).max(16)).peekable();
    let (mut sample, mut at) = (Vec::new(), 0);
    let (mut longest, by_length) = (
        Longest::default(),
        parameters.metric == Metric::InnerProduct,
    );
    let mut chosen = || {
        at += 1;
        places.next_if_eq(&(at - 1)).is_some()
    };
    for view in views {
        let mut entry = 0;
        view.for_each(|slot, _, _| {
            if entry % 4096 == 0 {
                store.pause();
            }
            entry += 1;
            let chosen = chosen();
            if chosen || by_length {
                let (x, _) = view.vector(slot);
                if chosen {
                    sample.push(x);
                } else {
                    longest.look(&x);
                }
            }
            Ok::<(), IndexError>(())
        })?;
    }
    if let Some((list, _)) = list {
        let mut raw = Vec::new();
        let mut failed = None;
        pending::read(store, parameters, list, false, |entry| {
            if !entry.is_live() || entry.tid & UNPLACED != 0 {
                return;
            }
            let chosen = chosen();
            if chosen || by_length {
                entry.decode(parameters, &mut raw);
                match space::prepare(parameters.metric, parameters.dims, &raw) {
                    Ok(Some(x)) if chosen => sample.push(x),
                    Ok(Some(x)) => longest.look(&x),
                    Ok(None) => {}
                    Err(error) => failed = Some(error),
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
    }
    sample.extend(longest.0.into_iter().map(|(_, x)| x));
    Ok(sample)
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
    let mut groups = groups(&meta, &codec, how.plan, list, &worn, options);
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
        let of = |s: &SegmentEntry| disk_space::entries(&codec, parameters.m, s);
        let entries = group.iter().map(of).sum::<usize>() + expected - live;
        fits(&Meta::read(store)?, &codec, group.len(), entries, options)?;
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
        let encoding = choice::choose(
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
        // The largest segment is continued rather than rebuilt, unless it is mostly dead or its
        // vectors need another encoding.
        let continued = group.first().is_some_and(|first| {
            !worn.contains(&first.nonce)
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
        let mut output = Output {
            store,
            options: with_capacity,
            builder,
            new: Vec::new(),
            long: Vec::new(),
            pause: &pause,
            report,
            pushed: 0,
            expected,
        };
        output.pushed = output.builder.added();
        for view in views {
            let same = view.encoding().stores_like(&encoding);
            view.for_each(|slot, graph, fine| {
                let tid = view.tid(slot);
                if same {
                    output.push_stored(tid, graph, fine)
                } else {
                    let (x, error) = view.vector(slot);
                    output.push(tid, x, error)
                }
            })?;
            view.unplaced()
                .for_each(|tid| output.builder.push_unplaced(tid));
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

type Written = (SegmentEntry, BuiltSegment);

/// What becomes of the entries of a merge: a segment, or several where one is full, and others for vectors that
/// are too long for it.
struct Output<'a, S> {
    store: &'a S,
    options: BuildOptions,
    builder: SegmentBuilder,
    new: Vec<Written>,
    /// Vectors that [`Encoding::takes`] does not take, with their addresses and errors.
    long: Vec<(u64, Vec<f32>, f64)>,
    pause: &'a dyn Fn(),
    report: &'a dyn Fn(Progress),
    /// Entries that are in the graphs or on their way, of those that are expected.
    pushed: usize,
    expected: usize,
}

impl<S: PageStore> Output<'_, S> {
    fn count(&mut self) {
        self.pushed += 1;
        if self.pushed.is_multiple_of(64) {
            (self.report)(Progress {
                phase: Phase::Loading,
                done: self.pushed.min(self.expected),
                total: self.expected,
            });
        }
    }

    fn push_stored(&mut self, tid: u64, graph: &[u8], fine: &[u8]) -> Result<()> {
        self.count();
        self.builder.push_stored(tid, graph, fine, self.pause)?;
        self.next_if_full()
    }

    fn push(&mut self, tid: u64, x: Vec<f32>, error: f64) -> Result<()> {
        self.count();
        if self.builder.encoding().takes(&x) {
            self.builder.push_prepared(tid, &x, error, self.pause)?;
            return self.next_if_full();
        }
        self.long.push((tid, x, error));
        if self.long.len() >= self.options.sample_size() {
            self.write_long()?;
        }
        Ok(())
    }

    fn next_if_full(&mut self) -> Result<()> {
        if self.builder.is_full() {
            let encoding = self.builder.encoding().clone();
            let next = SegmentBuilder::new(self.options.clone(), encoding, None)?;
            let full = std::mem::replace(&mut self.builder, next);
            self.new
                .push(write(self.store, full, self.pause, self.report)?);
        }
        Ok(())
    }

    /// Makes segments of the long vectors that there are. Some may be too long for the others.
    fn write_long(&mut self) -> Result<()> {
        while !self.long.is_empty() {
            let long = std::mem::take(&mut self.long);
            let sample: Vec<Vec<f32>> = long.iter().map(|(_, x, _)| x.clone()).collect();
            let options = BuildOptions {
                expected: long.len(),
                ..self.options.clone()
            };
            let encoding = options.choose(&sample, self.pause);
            let mut builder = SegmentBuilder::new(options, encoding, None)?;
            for (tid, x, error) in long {
                if builder.encoding().takes(&x) {
                    builder.push_prepared(tid, &x, error, self.pause)?;
                } else {
                    self.long.push((tid, x, error));
                }
            }
            self.new
                .push(write(self.store, builder, self.pause, self.report)?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Written>> {
        self.write_long()?;
        if !self.builder.is_empty() {
            self.new
                .push(write(self.store, self.builder, self.pause, self.report)?);
        }
        Ok(self.new)
    }
}

/// Adds the live entries of a sealed list to what a merge makes.
fn push_list<S: PageStore>(
    store: &S,
    parameters: &Parameters,
    list: &Pending,
    output: &mut Output<'_, S>,
) -> Result<(u64, u32)> {
    let mut at = *list;
    loop {
        // One page at a time: handing vectors to the threads may wait, reading must not.
        let mut entries = Vec::new();
        let one = Pending {
            tail_seq: at.head_seq,
            ..at
        };
        let (seq, block) = pending::read(store, parameters, &one, false, |entry| {
            if entry.is_live() {
                let mut x = Vec::new();
                let error = if entry.tid & UNPLACED == 0 {
                    entry.decode(parameters, &mut x)
                } else {
                    0.0
                };
                entries.push((entry.tid, x, error));
            }
        })?;
        for (tid, x, error) in entries {
            if tid & UNPLACED != 0 {
                output.builder.push_unplaced(tid);
                output.next_if_full()?;
                continue;
            }
            match space::prepare(parameters.metric, parameters.dims, &x)? {
                Some(unit) => {
                    // Two vectors of length r that are e apart have directions at most 2 e / r apart.
                    let error = match parameters.metric {
                        Metric::Cosine => {
                            2.0 * error / norm(&x) + space::direction_error(parameters.metric, &x)
                        }
                        _ => error,
                    };
                    output.push(tid, unit, error)?;
                }
                None => {
                    output.builder.push_unplaced(tid | UNDIRECTED);
                    output.next_if_full()?;
                }
            }
        }
        at = Pending {
            head_seq: seq,
            head: block,
            ..at
        };
        if seq > list.tail_seq {
            return Ok((seq, block));
        }
    }
}

/// Finishes a segment and writes its pages.
fn write(
    store: &impl PageStore,
    builder: SegmentBuilder,
    pause: &dyn Fn(),
    report: &dyn Fn(Progress),
) -> Result<Written> {
    let (total, refined) = (builder.len(), builder.refined());
    let refining = || {
        pause();
        report(Progress {
            phase: Phase::Refining,
            // Each node is visited twice.
            done: refined.load(Ordering::Relaxed) / 2,
            total,
        });
    };
    let built = builder.finish(&refining)?;
    report(Progress {
        phase: Phase::Writing,
        done: 0,
        total,
    });
    let entry = write_pages(store, &built.header, &built.bytes, &built.dead, |_| {})?;
    Ok((entry, built))
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
