//! A segment opened for searching: the file's bytes, mapped, and a graph over them.

use std::cell::{Cell, Ref, RefCell};
use std::time::Instant;

use laser_cpu::prefetch;
use memmap2::Advice;

use crate::arithmetic::HALF_ULP;
use crate::bytes::SegmentBytes;
use crate::encoding::Encoding;
use crate::error::{IndexError, Result};
use crate::graph::Layout;
use crate::kernels::dot_i8;
use crate::meta::{Parameters, SegmentEntry};
use crate::query::{Estimate, Probe, Query};
use crate::seeds;
use crate::segment::{SegmentHeader, SegmentMap, bitmap_len, count_dead, is_dead};
use crate::settle::Damage;
use crate::stamp;
use crate::store::PageStore;
use crate::walk::{Found, Guide, Walk};

/// A segment that can be searched.
#[derive(Debug)]
pub struct SegmentView {
    walk: Option<Walk>,
    bytes: SegmentBytes,
    /// Bytes of the segment, behind which a file may have an appendix.
    bytes_len: usize,
    head: SegmentHeader,
    encoding: Encoding,
    vectors: usize,
    map: RefCell<Option<SegmentMap>>,
    dead: RefCell<Vec<u8>>,
    dead_version: Cell<Option<u64>>,
    /// Dead entries.
    dead_placed: Cell<usize>,
    /// Candidates of a walk, of the segment and as its directory has them by now; zero where that was not measured.
    ef: Cell<u32>,
    damage: Damage,
    /// When the file was opened, or seen to.
    seen_to: Cell<Instant>,
    /// Whether the system was told that all of the file will be read.
    is_announced: Cell<bool>,
}

/// The smallest page that a system has, and bytes between two pauses where each is touched.
const PAGE: usize = 4096;
const LOADED: usize = 1 << 20;
/// How much wider a walk may become because of dead entries.
const MOST_FOR_DEAD: f64 = 4.0;
/// Candidates of a walk in a segment that does not say how many it needs.
pub const DEFAULT_EF: usize = 100;

/// A candidate of a search: what is known of its distance, and the number of the entry.
pub type Candidate = (Estimate, u32);

/// What a search of a segment has found.
#[derive(Debug, Default)]
pub struct Searched {
    /// Entries, in no order.
    pub found: Vec<Candidate>,
    /// Nodes that the walk has met.
    pub met: usize,
    /// As [`Found::is_familiar`].
    pub is_familiar: bool,
}

impl SegmentView {
    /// Opens a file after comparing its checksums and its directory entry.
    ///
    /// # Errors
    /// Damage.
    pub fn open(
        parameters: &Parameters,
        entry: &SegmentEntry,
        bytes: SegmentBytes,
    ) -> Result<Self> {
        let head = SegmentHeader::parse(parameters, entry, &bytes)?;
        let segment = bytes.get(..entry.bytes as usize).unwrap_or(&bytes);
        head.verify(segment, &|| ())?;
        Self::with(parameters, entry, head, bytes, None)
    }

    /// Opens a file that has been verified, by the guide that was made then, in no more time than its header takes.
    ///
    /// # Errors
    /// What cannot be a segment of this entry. What is wrong otherwise shows in wrong results, not in more.
    pub(crate) fn open_verified(
        parameters: &Parameters,
        entry: &SegmentEntry,
        bytes: SegmentBytes,
        guide: Guide,
    ) -> Result<Self> {
        let head = SegmentHeader::parse(parameters, entry, &bytes)?;
        Self::with(parameters, entry, head, bytes, Some(guide))
    }

    fn with(
        parameters: &Parameters,
        entry: &SegmentEntry,
        head: SegmentHeader,
        bytes: SegmentBytes,
        guide: Option<Guide>,
    ) -> Result<Self> {
        let encoding = head.encoding(parameters, &bytes)?;
        let serialized = head.graph.of(&bytes);
        // Entries without a place alone have no graph.
        let (mut walk, mut vectors) = (None, 0);
        if head.nodes > 0 {
            let layout = Layout::parse(&encoding.codec, serialized)?;
            if layout.rows() as u64 != head.nodes {
                return Err(IndexError::segment(
                    entry.nonce,
                    "graph and directory disagree",
                ));
            }
            vectors = head.graph.offset as usize + layout.vector_at(0);
            walk = Some(match guide {
                Some(guide) if guide.is_for(&layout) => Walk::with(&layout, guide),
                _ => seeds::walk(&encoding, &head, &layout, &bytes)?,
            });
        }
        Ok(Self {
            walk,
            ef: Cell::new(head.ef.max(entry.ef)),
            head,
            encoding,
            vectors,
            map: RefCell::new(None),
            dead: RefCell::new(vec![0; bitmap_len(entry.count as usize)]),
            dead_version: Cell::new(None),
            dead_placed: Cell::new(0),
            bytes,
            bytes_len: entry.bytes as usize,
            damage: Damage::default(),
            seen_to: Cell::new(Instant::now()),
            is_announced: Cell::new(false),
        })
    }

    /// What a walk needs to begin, for who opens the file later.
    pub(crate) fn guide(&self) -> Guide {
        self.walk
            .as_ref()
            .map(|walk| walk.guide().clone())
            .unwrap_or_default()
    }

    /// Tells the system that walks read here and there, so that it does not read megabytes around each node.
    pub(crate) fn expect_walks(&self) {
        self.bytes.advise(Advice::Random);
    }

    /// Tells the system once that all is read, so that it reads ahead again.
    fn announce(&self) {
        if !self.is_announced.replace(true) {
            self.bytes.advise(Advice::Normal);
        }
    }

    /// Has all of it in memory, as long as the system keeps it there.
    pub fn load(&self, pause: &dyn Fn()) {
        self.announce();
        for part in self.bytes.chunks(LOADED) {
            pause();
            let pages = part.iter().step_by(PAGE);
            std::hint::black_box(pages.fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
        }
    }

    /// Whether the bytes are those of a file, not this process's own memory.
    pub fn is_file(&self) -> bool {
        self.inode().is_some()
    }

    /// The number of that file, by which it differs from one that was made in its place; zero where it is not known.
    pub fn inode(&self) -> Option<u64> {
        self.bytes.inode()
    }

    /// Whether the file was found to be damaged since it was opened, and removed: to open it again makes it again.
    pub fn is_damaged(&self) -> bool {
        self.damage.is_found()
    }

    /// Whether [`crate::cache::renew`] has something to do: the file was opened, or this asked, as long ago as a file need not be verified.
    pub fn take_due(&self) -> bool {
        let is_due = self.seen_to.get().elapsed() >= stamp::VALID;
        if is_due {
            self.seen_to.set(Instant::now());
        }
        is_due
    }

    pub(crate) fn damage(&self) -> &Damage {
        &self.damage
    }

    /// Compares the bytes with their checksums once more: those of a file that was verified lately are not when it is
    /// opened, and may have been damaged since.
    ///
    /// # Errors
    /// Damage.
    pub fn verify(&self, pause: &dyn Fn()) -> Result<()> {
        self.head.verify(self.bytes(), pause)
    }

    /// The header of the file.
    pub fn header(&self) -> &SegmentHeader {
        &self.head
    }

    /// How vectors are stored.
    pub fn encoding(&self) -> &Encoding {
        &self.encoding
    }

    /// Candidates of a walk that finds nearly all of the nearest, see [`crate::width`].
    pub fn ef(&self) -> usize {
        match self.ef.get() {
            0 => DEFAULT_EF,
            ef => ef as usize,
        }
    }

    /// Whether walks for inner products come upon much that is shorter than what is wanted ([`Guide::lengths_differ`]).
    pub fn lengths_differ(&self) -> bool {
        self.walk
            .as_ref()
            .is_some_and(|walk| walk.guide().lengths_differ)
    }

    /// A query as this segment sees it.
    pub fn probe(&self, query: &Query) -> Probe {
        Probe::new(self.encoding.codec, &self.encoding.space, query)
    }

    /// The vector of a placed entry as [`crate::space::prepare`] prepares vectors, and a bound of its
    /// distance from the true one.
    pub fn vector(&self, entry: usize) -> (Vec<f32>, f64) {
        let (graph, fine) = self.stored(entry);
        let Encoding { codec, space, .. } = &self.encoding;
        let error = codec.error(graph, fine) / f64::from(space.gain);
        let x = space.leave(&codec.decode(graph, fine));
        let rounded = 2.0 * HALF_ULP * laser_vector::kernels::norm(&x);
        (x, error + rounded)
    }

    /// Live entries without a place in the graph.
    pub fn unplaced(&self) -> impl Iterator<Item = u64> + '_ {
        let dead = self.dead();
        (self.placed()..self.len())
            .filter(move |entry| !is_dead(&dead, *entry))
            .map(|entry| self.tid(entry))
    }

    /// The segment's bytes as its pages hold them; a cached file has more behind them, for those who open it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.bytes_len]
    }

    /// Entries, dead ones included.
    pub fn len(&self) -> usize {
        self.head.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Live entries that have a place in the graph.
    pub fn live(&self) -> usize {
        self.placed().saturating_sub(self.dead_placed.get())
    }

    /// Entries that have a place in the graph, dead ones included.
    fn placed(&self) -> usize {
        self.head.placed() as usize
    }

    /// How many candidates of a walk one that is live takes, since dead ones take places among them.
    pub fn share(&self) -> f64 {
        (self.placed() as f64 / self.live().max(1) as f64).min(MOST_FOR_DEAD)
    }

    /// Nodes of the graph; entries with equal graph parts share one.
    pub fn nodes(&self) -> usize {
        self.head.nodes as usize
    }

    /// Numbers of the entries that share a node.
    pub fn entries(&self, node: usize) -> std::ops::Range<usize> {
        self.head.entries(&self.bytes, node)
    }

    /// The node of an entry that has a place in the graph; O(log nodes).
    pub fn node(&self, entry: usize) -> usize {
        let (mut low, mut high) = (0, self.nodes());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.entries(middle).start <= entry {
                low = middle
            } else {
                high = middle
            }
        }
        low
    }

    /// What walks read of a node: [`Codec::graph_len`](crate::codec::Codec::graph_len) bytes.
    pub fn graph_part(&self, node: usize) -> &[u8] {
        let len = self.encoding.codec.graph_len();
        &self.bytes[self.vectors + node * len..][..len]
    }

    /// What re-ranking reads of an entry besides: [`Codec::fine_len`](crate::codec::Codec::fine_len) bytes.
    pub fn fine_part(&self, entry: usize) -> &[u8] {
        let len = self.encoding.codec.fine_len();
        &self.head.fine.of(&self.bytes)[entry * len..][..len]
    }

    /// Graph part and fine part of an entry.
    pub fn stored(&self, entry: usize) -> (&[u8], &[u8]) {
        (self.graph_part(self.node(entry)), self.fine_part(entry))
    }

    /// Shows every live entry that has a place, with its graph part and its fine part.
    pub fn for_each<E>(
        &self,
        mut look: impl FnMut(usize, &[u8], &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.announce();
        (0..self.nodes()).try_for_each(|node| self.for_each_of(node, &mut look))
    }

    /// The same with nodes in turn from all over the graph, for who makes another of them: neighbours lie together in this one
    /// ([`crate::order`]), and a graph that grows from neighbour to neighbour links each to those just before it.
    pub fn for_each_spread<E>(
        &self,
        mut look: impl FnMut(usize, &[u8], &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.announce();
        laser_sampling::spread(self.nodes()).try_for_each(|node| self.for_each_of(node, &mut look))
    }

    fn for_each_of<E>(
        &self,
        node: usize,
        look: &mut impl FnMut(usize, &[u8], &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for entry in self.entries(node) {
            if !is_dead(&self.dead.borrow(), entry) {
                look(entry, self.graph_part(node), self.fine_part(entry))?;
            }
        }
        Ok(())
    }

    /// Address of an entry's row.
    pub fn tid(&self, slot: usize) -> u64 {
        let bytes = &self.head.tids.of(&self.bytes)[8 * slot..8 * slot + 8];
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Takes what the directory says of the segment by now, and reads the bitmap again if entries have died since this was
    /// last done.
    ///
    /// # Errors
    /// [`IndexError::Moved`] when the segment is gone, or damage.
    pub fn refresh(
        &self,
        store: &impl PageStore,
        entry: &SegmentEntry,
        dead_version: u64,
    ) -> Result<()> {
        self.ef.set(self.head.ef.max(entry.ef));
        if self.dead_version.get() == Some(dead_version) {
            return Ok(());
        }
        // No bits are counted: the pages, dozens for a new session, need not be read. Bits of a VACUUM that was interrupted may be
        // set; the server uses none of those rows' addresses again before another one has counted them.
        if entry.dead == 0 {
            self.dead_version.set(Some(dead_version));
            return Ok(());
        }
        let mut map = self.map.borrow_mut();
        if map.is_none() {
            *map = Some(SegmentMap::read(store, entry)?);
        }
        let dead = map.as_ref().expect("just read").bitmap(store)?;
        self.dead_placed.set(count_dead(&dead, self.placed()));
        *self.dead.borrow_mut() = dead;
        self.dead_version.set(Some(dead_version));
        Ok(())
    }

    /// The bitmap of dead entries.
    pub fn dead(&self) -> Ref<'_, Vec<u8>> {
        self.dead.borrow()
    }

    /// Live entries near a query: those among the `wanted` nearest by the graph's distance that a walk finds, `all_over` the graph
    /// or not ([`Walk::look`]).
    pub fn search(
        &self,
        probe: &Probe,
        wanted: usize,
        all_over: bool,
        scratch: &mut Vec<f32>,
    ) -> Searched {
        let (codec, graph) = (&self.encoding.codec, self.head.graph.of(&self.bytes));
        let wanted = (wanted as f64 * self.share()).ceil() as usize * codec.overfetch();
        let dot = dot_i8();
        let Some(walk) = &self.walk else {
            return Searched::default();
        };
        let mut met = 0;
        let distance = |stored: &[u8]| {
            met += 1;
            probe.graph_distance(codec, stored, dot, scratch)
        };
        let Found { nodes, is_familiar } = walk.look(graph, wanted, all_over, distance);
        let dead = self.dead();
        let mut found = Vec::with_capacity(nodes.len());
        for node in nodes {
            for entry in self.entries(node as usize) {
                if !is_dead(&dead, entry) {
                    prefetch(self.fine_part(entry));
                    found.push((node, entry as u32));
                }
            }
        }
        let measured = found.into_iter().map(|(node, entry)| {
            let (graph, fine) = (
                self.graph_part(node as usize),
                self.fine_part(entry as usize),
            );
            (probe.measure(codec, graph, fine, scratch), entry)
        });
        Searched {
            found: measured.collect(),
            met,
            is_familiar,
        }
    }

    /// All live entries that have a place, shown to `look`; `pause` is called now and then.
    pub fn scan(
        &self,
        probe: &Probe,
        scratch: &mut Vec<f32>,
        pause: &dyn Fn(),
        mut look: impl FnMut(Candidate),
    ) {
        let mut seen = 0usize;
        let codec = &self.encoding.codec;
        let _ = self.for_each(|entry, graph, fine| {
            if seen.is_multiple_of(4096) {
                pause();
            }
            seen += 1;
            look((probe.measure(codec, graph, fine, scratch), entry as u32));
            Ok::<(), std::convert::Infallible>(())
        });
    }
}
