//! Segments: immutable graphs with the addresses of their rows.
//!
//! A segment is a file, and its bytes are also in the pages of the index. The pages are the truth;
//! a file can be made from them at any time, see [`crate::cache`].
//!
//! ```text
//!  0      SegmentHeader: identity, counts, where the sections are and their checksums
//!  256    graph      usearch's serialization; key of a node = its slot
//!  …      starts     first entry of each node, and behind the last one the number of placed entries
//!  …      fine       fine parts of the placed entries
//!  …      tids       addresses of the entries' rows
//!  …      space      where vectors lie, see [`crate::space`]
//! ```
//!
//! Entries whose graph parts are equal share one node: to the graph they are one point, and a crowd
//! of equal points would fill the candidates of a walk and never let it out again. Entries lie in
//! the order of their nodes; the number of an entry is its place in that order. Behind them come the
//! entries without a place in the graph, whose addresses say why (see [`crate::page::UNPLACED`]).
//!
//! A file of the first format has no space and only placed entries.
//!
//! ARCHITECTURE.md, "Life of a segment", has who makes it, changes its bitmap and frees its pages, and under which lock.

use bytemuck::{Pod, Zeroable};
// The checksum of iSCSI is CRC-32C.
use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi as crc32c};

use crate::codec::{Codec, Format};
use crate::encoding::Encoding;
use crate::error::{IndexError, Result};
use crate::meta::{Parameters, SegmentEntry};
use crate::page::{
    self, BITMAP_ENTRIES, HEADER, MAP_BLOCKS, MAP_HEADER, MapHeader, PAYLOAD, PageKind, UNPLACED,
};
use crate::quantization::Quantization;
use crate::space::Space;
use crate::store::{PageStore, SET_PAGES, WriteSet};

/// Bytes of which a checksum is computed between two pauses: some milliseconds.
const PAUSE: usize = 8 << 20;

const MAGIC: u64 = u64::from_le_bytes(*b"LaserSeg");
const VERSION: u32 = 2;

/// A part of a segment's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Section {
    /// Where it begins.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// CRC-32C of them.
    pub crc: u32,
    reserved: u32,
}

impl Section {
    /// The bytes of this part.
    pub fn of<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        &file[self.offset as usize..][..self.len as usize]
    }

    /// The bytes of this part, to be written.
    pub fn of_mut<'a>(&self, file: &'a mut [u8]) -> &'a mut [u8] {
        &mut file[self.offset as usize..][..self.len as usize]
    }
}

/// First bytes of a segment's file.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct SegmentHeader {
    magic: u64,
    version: u32,
    crc: u32,
    /// Identity of the segment.
    pub nonce: u64,
    /// Entries, dead ones and those without a place in the graph included.
    pub count: u64,
    dims: u32,
    metric: u8,
    quantization: u8,
    /// Whether walks go by inner products, see [`Format::SecondInner`].
    inner: u16,
    /// Nodes of the graph.
    pub nodes: u64,
    /// Serialized graph.
    pub graph: Section,
    /// First entry of each node.
    pub starts: Section,
    /// Fine parts.
    pub fine: Section,
    /// Addresses of rows.
    pub tids: Section,
    /// The space of the vectors.
    pub space: Section,
    /// Entries with a place in the graph.
    pub placed: u64,
    /// Blur of eight bits, see [`Encoding::noise`]; negative where it was not measured.
    noise: f32,
    /// Candidates of a walk that finds nearly all of the nearest, see [`crate::width`]; zero where
    /// that was not measured.
    pub ef: u32,
}

const FILE_HEADER: usize = 256;
/// Bytes of the header in the first format.
const FIRST_HEADER: usize = 144;
const _: () =
    assert!(size_of::<SegmentHeader>() == 184 && size_of::<SegmentHeader>() <= FILE_HEADER);

/// How many there are of what a segment's file consists of.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    /// Entries, dead ones and those without a place in the graph included.
    pub entries: usize,
    /// Those with a place in the graph.
    pub placed: usize,
    /// Nodes of the graph.
    pub nodes: usize,
    /// Bytes of the serialized graph.
    pub graph: usize,
}

/// Bytes of the file of `entries` entries with different vectors, whose serialized graph has `graph` bytes.
pub fn file_len(codec: &Codec, entries: usize, graph: usize) -> usize {
    let counts = Counts {
        entries,
        placed: entries,
        nodes: entries,
        graph,
    };
    let space = Space::bytes_of(codec.width());
    SegmentHeader::layout(codec, 0, counts, space).file_len() as usize
}

impl SegmentHeader {
    /// Lays out a file.
    pub fn new(encoding: &Encoding, nonce: u64, counts: Counts) -> Self {
        let mut head = Self::layout(&encoding.codec, nonce, counts, encoding.space.bytes());
        head.noise = encoding.noise.unwrap_or(-1.0);
        head
    }

    fn layout(codec: &Codec, nonce: u64, counts: Counts, space: usize) -> Self {
        let section = |from: u64, len: usize| Section {
            offset: from.next_multiple_of(64),
            len: len as u64,
            crc: 0,
            reserved: 0,
        };
        let end = |section: &Section| section.offset + section.len;
        let graph = section(FILE_HEADER as u64, counts.graph);
        let starts = section(end(&graph), 4 * (counts.nodes + 1));
        let fine = section(end(&starts), codec.fine_len() * counts.placed);
        let tids = section(end(&fine), 8 * counts.entries);
        let (version, space, placed) = match codec.format {
            Format::First => (1, Section::zeroed(), 0),
            _ => (VERSION, section(end(&tids), space), counts.placed),
        };
        Self {
            magic: MAGIC,
            version,
            crc: 0,
            nonce,
            count: counts.entries as u64,
            dims: codec.dims as u32,
            metric: codec.metric as u8,
            quantization: codec.quantization as u8,
            inner: u16::from(codec.format == Format::SecondInner),
            nodes: counts.nodes as u64,
            graph,
            starts,
            fine,
            tids,
            space,
            placed: placed as u64,
            noise: 0.0,
            ef: 0,
        }
    }

    /// Bytes of the whole file.
    pub fn file_len(&self) -> u64 {
        let last = if self.version == 1 {
            &self.tids
        } else {
            &self.space
        };
        last.offset + last.len
    }

    /// What the checksum of the header is of.
    fn checked_bytes(&self) -> &[u8] {
        let len = if self.version == 1 {
            FIRST_HEADER
        } else {
            size_of::<Self>()
        };
        &bytemuck::bytes_of(self)[..len]
    }

    /// Computes the checksums and writes the header into the file.
    pub fn seal(&mut self, file: &mut [u8]) {
        for section in self.sections_mut() {
            section.crc = crc32c(section.of(file));
        }
        self.crc = 0;
        self.crc = crc32c(self.checked_bytes());
        file[..FILE_HEADER].fill(0);
        file[..size_of::<Self>()].copy_from_slice(bytemuck::bytes_of(self));
    }

    fn sections_mut(&mut self) -> [&mut Section; 5] {
        [
            &mut self.graph,
            &mut self.starts,
            &mut self.fine,
            &mut self.tids,
            &mut self.space,
        ]
    }

    /// Reads the header of a file whose directory entry is known.
    ///
    /// # Errors
    /// When they do not belong together, or on damage.
    pub fn parse(parameters: &Parameters, entry: &SegmentEntry, start: &[u8]) -> Result<Self> {
        let bad = |what: &str| IndexError::segment(entry.nonce, what);
        let Some(bytes) = start.get(..size_of::<Self>()) else {
            return Err(bad("file is too short"));
        };
        let mut head: Self = bytemuck::pod_read_unaligned(bytes);
        if head.magic != MAGIC {
            return Err(bad("no magic number"));
        }
        if !(1..=VERSION).contains(&head.version) {
            return Err(IndexError::Version {
                found: head.version,
                supported: VERSION,
            });
        }
        if head.version == 1 {
            (head.space, head.placed) = (Section::zeroed(), 0);
            (head.noise, head.ef) = (0.0, 0);
        }
        let crc = std::mem::take(&mut head.crc);
        if crc != crc32c(head.checked_bytes()) {
            return Err(bad("checksum of the header"));
        }
        head.crc = crc;
        let quantization =
            Quantization::from_u8(head.quantization).ok_or_else(|| bad("unknown quantization"))?;
        if head.version == 1 && parameters.quantization != Some(quantization) {
            return Err(bad("header and metapage disagree"));
        }
        let codec = head.codec_of(parameters, quantization);
        let counts = Counts {
            entries: entry.count as usize,
            placed: head.placed().min(u64::from(entry.count)) as usize,
            // Of the first format's header nothing but the entries is compared with the directory before.
            nodes: head.nodes.min(u64::from(entry.count)) as usize,
            graph: head.graph.len.min(1 << 48) as usize,
        };
        let space = head.space.len.min(1 << 24) as usize;
        let layout = Self::layout(&codec, entry.nonce, counts, space);
        let place = |s: &Section| (s.offset, s.len);
        let same = head.nonce == layout.nonce
            && head.count == layout.count
            && head.placed == layout.placed
            && (head.dims, head.metric) == (layout.dims, layout.metric)
            && head.graph.len < 1 << 48
            && place(&head.graph) == place(&layout.graph)
            && head.nodes == layout.nodes
            && place(&head.starts) == place(&layout.starts)
            && place(&head.fine) == place(&layout.fine)
            && place(&head.tids) == place(&layout.tids)
            && place(&head.space) == place(&layout.space)
            && head.file_len() == entry.bytes;
        if !same {
            return Err(bad("header and directory disagree"));
        }
        Ok(head)
    }

    fn codec_of(&self, parameters: &Parameters, quantization: Quantization) -> Codec {
        match self.version {
            1 => Codec::first(parameters.dims, parameters.metric, quantization),
            _ => {
                let codec = Codec::new(parameters.dims, parameters.metric, quantization);
                match self.inner {
                    0 => codec,
                    _ => Codec {
                        format: Format::SecondInner,
                        ..codec
                    },
                }
            }
        }
    }

    /// Entries with a place in the graph.
    pub fn placed(&self) -> u64 {
        if self.version == 1 {
            self.count
        } else {
            self.placed
        }
    }

    /// How the segment stores its vectors. The header was parsed with the same parameters.
    pub fn codec(&self, parameters: &Parameters) -> Codec {
        let quantization = Quantization::from_u8(self.quantization).expect("parsed");
        self.codec_of(parameters, quantization)
    }

    /// The same with the space, from a file that has been verified.
    ///
    /// # Errors
    /// Damage.
    pub fn encoding(&self, parameters: &Parameters, file: &[u8]) -> Result<Encoding> {
        let (metric, dims) = (parameters.metric, parameters.dims);
        Ok(Encoding {
            codec: self.codec(parameters),
            space: match self.version {
                1 => Space::plain(metric, dims),
                _ => Space::read(metric, dims, self.space.of(file))?,
            },
            noise: self.noise(),
            longest: f64::INFINITY,
            queries: Vec::new(),
        })
    }

    /// Blur of eight bits where it was measured, see [`Encoding::noise`].
    pub fn noise(&self) -> Option<f32> {
        (self.version > 1 && self.noise >= 0.0).then_some(self.noise)
    }

    /// Compares the checksums of a whole file.
    ///
    /// # Errors
    /// When one differs, or entries and nodes do not fit together.
    pub fn verify(&self, file: &[u8], pause: &dyn Fn()) -> Result<()> {
        if file.len() as u64 != self.file_len() {
            return Err(IndexError::segment(self.nonce, "length of the file"));
        }
        let sections = [
            ("graph", self.graph),
            ("nodes", self.starts),
            ("fine part", self.fine),
            ("addresses", self.tids),
            ("space", self.space),
        ];
        for (name, section) in sections {
            let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
            for part in section.of(file).chunks(PAUSE) {
                pause();
                crc.update(part);
            }
            if crc.finalize() as u32 != section.crc {
                return Err(IndexError::segment(
                    self.nonce,
                    format!("checksum of the {name}"),
                ));
            }
        }
        let starts = self.starts.of(file).chunks_exact(4);
        let starts = starts.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let ends = (starts.clone().next(), starts.clone().next_back());
        if !starts.is_sorted() || ends != (Some(0), Some(self.placed() as u32)) {
            return Err(IndexError::segment(
                self.nonce,
                "entries and nodes do not fit together",
            ));
        }
        let tids = self.tids.of(file).chunks_exact(8);
        let mut flags = tids
            .skip(self.placed() as usize)
            .map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")) & UNPLACED);
        if flags.any(|flags| flags == 0) {
            return Err(IndexError::segment(
                self.nonce,
                "an entry without a place does not say why it has none",
            ));
        }
        Ok(())
    }

    /// Numbers of the entries that share a node; `file` is the whole segment.
    pub fn entries(&self, file: &[u8], node: usize) -> std::ops::Range<usize> {
        let at = &self.starts.of(file)[4 * node..4 * node + 8];
        let start = u32::from_le_bytes([at[0], at[1], at[2], at[3]]);
        let end = u32::from_le_bytes([at[4], at[5], at[6], at[7]]);
        start as usize..end as usize
    }
}

/// Writes a file and a bitmap into pages that belong to nobody else, and returns the entry for the
/// directory. Until that entry is on the metapage the pages are garbage, which a later sweep finds.
///
/// # Errors
/// When the index cannot grow.
pub fn write_pages(
    store: &impl PageStore,
    head: &SegmentHeader,
    file: &[u8],
    dead: &[u8],
    mut progress: impl FnMut(usize),
) -> Result<SegmentEntry> {
    let nonce = head.nonce;
    let mut blocks = Vec::with_capacity(file.len().div_ceil(PAYLOAD) + 1);
    let data = file
        .chunks(PAYLOAD)
        .enumerate()
        .map(|(i, c)| (PageKind::Data, i, c));
    let data_pages = data.len();
    let bits = dead
        .chunks(PAYLOAD)
        .enumerate()
        .map(|(i, c)| (PageKind::Bitmap, i, c));
    let bitmap_pages = bits.len();
    let mut pages = data.chain(bits).peekable();
    while pages.peek().is_some() {
        store.pause();
        let mut set = store.begin();
        for (kind, ordinal, bytes) in pages.by_ref().take(SET_PAGES) {
            let block = set.allocate()?;
            let body = set.page(block);
            body[HEADER..HEADER + bytes.len()].copy_from_slice(bytes);
            page::init(body, kind, nonce, ordinal as u32, bytes.len());
            if kind == PageKind::Bitmap {
                page::seal_bitmap(body);
            }
            blocks.push(block);
        }
        set.commit();
        progress(blocks.len());
    }
    // The chain of map pages is written from its end.
    let mut next = 0;
    for (ordinal, part) in blocks.chunks(MAP_BLOCKS).enumerate().rev() {
        let mut set = store.begin();
        let block = set.allocate()?;
        let body = set.page(block);
        let header = MapHeader {
            next,
            count: part.len() as u32,
        };
        body[HEADER..HEADER + MAP_HEADER].copy_from_slice(bytemuck::bytes_of(&header));
        let bytes: &[u8] = bytemuck::cast_slice(part);
        body[HEADER + MAP_HEADER..][..bytes.len()].copy_from_slice(bytes);
        page::init(
            body,
            PageKind::Map,
            nonce,
            ordinal as u32,
            MAP_HEADER + bytes.len(),
        );
        set.commit();
        next = block;
    }
    let count_dead: u32 = dead.iter().map(|b| b.count_ones()).sum();
    let mut entry = SegmentEntry::new(
        nonce,
        file.len() as u64,
        next,
        data_pages as u32,
        bitmap_pages as u32,
        head.count as u32,
        count_dead,
    );
    entry.ef = head.ef;
    Ok(entry)
}

/// Bytes of a bitmap for `count` entries.
pub fn bitmap_len(count: usize) -> usize {
    count.div_ceil(8)
}

/// Whether bit `slot` is set.
pub fn is_dead(dead: &[u8], slot: usize) -> bool {
    dead.get(slot / 8)
        .is_some_and(|byte| byte >> (slot % 8) & 1 == 1)
}

/// How many of the first `entries` bits are set.
pub fn count_dead(dead: &[u8], entries: usize) -> usize {
    let whole = &dead[..dead.len().min(entries / 8)];
    let rest = whole.len() * 8..entries.min(8 * dead.len());
    let ones: u32 = whole.iter().map(|byte| byte.count_ones()).sum();
    ones as usize + rest.filter(|slot| is_dead(dead, *slot)).count()
}

/// Where a segment's pages are.
#[derive(Debug, Clone)]
pub struct SegmentMap {
    entry: SegmentEntry,
    blocks: Vec<u32>,
    /// The map pages themselves.
    pub own: Vec<u32>,
}

impl SegmentMap {
    /// Reads the map pages.
    ///
    /// # Errors
    /// [`IndexError::Moved`] when the segment is gone, or damage.
    pub fn read(store: &impl PageStore, entry: &SegmentEntry) -> Result<Self> {
        let wanted = entry.data_pages as usize + entry.bitmap_pages as usize;
        let disagree = || IndexError::segment(entry.nonce, "map and directory disagree");
        // Nothing that a page says sizes an allocation before it was compared with the relation.
        if wanted > store.blocks() as usize {
            return Err(disagree());
        }
        let (mut blocks, mut own) = (Vec::with_capacity(wanted), Vec::new());
        let mut block = entry.map;
        while block != 0 {
            let ordinal = own.len() as u32;
            own.push(block);
            block = store.read(block, |body| {
                let payload = page::expect(block, body, PageKind::Map, entry.nonce, ordinal)?;
                let head: MapHeader = payload
                    .get(..MAP_HEADER)
                    .map(bytemuck::pod_read_unaligned)
                    .ok_or_else(|| IndexError::corrupt(block, "map page is too short"))?;
                let list = &payload[MAP_HEADER..];
                if list.len() != 4 * head.count as usize {
                    return Err(IndexError::corrupt(
                        block,
                        "map page does not fit its count",
                    ));
                }
                if blocks.len() + list.len() / 4 > wanted {
                    return Err(disagree());
                }
                blocks.extend(
                    list.chunks_exact(4)
                        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                );
                Ok(head.next)
            })?;
        }
        let bits = (entry.count as usize).div_ceil(BITMAP_ENTRIES);
        let fits = blocks.len() == wanted
            && entry.bytes.div_ceil(PAYLOAD as u64) == u64::from(entry.data_pages)
            && bits == entry.bitmap_pages as usize;
        if !fits {
            return Err(disagree());
        }
        Ok(Self {
            entry: *entry,
            blocks,
            own,
        })
    }

    /// Block numbers of the segment: map pages, then those of the file and of the bitmap.
    pub fn pages(&self) -> impl Iterator<Item = u32> {
        self.own.iter().chain(&self.blocks).copied()
    }

    /// Reads bytes of the segment's file, beginning at `offset`, until `out` is full.
    ///
    /// # Errors
    /// [`IndexError::Moved`] when the segment is gone, or damage.
    pub fn read_bytes(&self, store: &impl PageStore, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            let at = offset as usize + done;
            let (ordinal, from) = (at / PAYLOAD, at % PAYLOAD);
            if ordinal % 64 == 0 {
                store.pause();
            }
            let len = (PAYLOAD - from).min(out.len() - done);
            let target = &mut out[done..done + len];
            let block = self.block(ordinal)?;
            store.read(block, |body| {
                let nonce = self.entry.nonce;
                let payload = page::expect(block, body, PageKind::Data, nonce, ordinal as u32)?;
                let bytes = payload
                    .get(from..from + len)
                    .ok_or_else(|| IndexError::corrupt(block, "data page is too short"))?;
                target.copy_from_slice(bytes);
                Ok(())
            })?;
            done += len;
        }
        Ok(())
    }

    /// The block of a page of the segment: its data, and behind them its bitmap.
    fn block(&self, page: usize) -> Result<u32> {
        let missing = || IndexError::segment(self.entry.nonce, "a page that is not on the map");
        self.blocks.get(page).copied().ok_or_else(missing)
    }

    /// Reads the header of the segment's file.
    ///
    /// # Errors
    /// See [`SegmentHeader::parse`] and [`SegmentMap::read_bytes`].
    pub fn header(&self, store: &impl PageStore, parameters: &Parameters) -> Result<SegmentHeader> {
        let mut start = [0; size_of::<SegmentHeader>()];
        if self.entry.bytes < start.len() as u64 {
            return Err(IndexError::segment(self.entry.nonce, "file is too short"));
        }
        self.read_bytes(store, 0, &mut start)?;
        SegmentHeader::parse(parameters, &self.entry, &start)
    }

    /// Reads the bitmap.
    ///
    /// # Errors
    /// [`IndexError::Moved`] when the segment is gone, or damage.
    pub fn bitmap(&self, store: &impl PageStore) -> Result<Vec<u8>> {
        let mut bits = Vec::with_capacity(bitmap_len(self.entry.count as usize));
        for ordinal in 0..self.entry.bitmap_pages as usize {
            let block = self.block(self.entry.data_pages as usize + ordinal)?;
            store.read(block, |body| {
                let nonce = self.entry.nonce;
                bits.extend_from_slice(page::expect_bitmap(block, body, nonce, ordinal as u32)?);
                Ok(())
            })?;
        }
        if bits.len() != bitmap_len(self.entry.count as usize) {
            return Err(IndexError::segment(
                self.entry.nonce,
                "length of the bitmap",
            ));
        }
        Ok(bits)
    }

    /// Sets bits of the bitmap; `slots` ascend. The caller keeps merges away.
    ///
    /// # Errors
    /// Damage.
    pub fn mark(&self, store: &impl PageStore, slots: &[u32]) -> Result<()> {
        for part in
            slots.chunk_by(|a, b| *a as usize / BITMAP_ENTRIES == *b as usize / BITMAP_ENTRIES)
        {
            store.pause();
            let ordinal = part[0] as usize / BITMAP_ENTRIES;
            let block = self.block(self.entry.data_pages as usize + ordinal)?;
            let mut set = store.begin();
            set.lock(block)?;
            let body = set.page(block);
            page::expect_bitmap(block, body, self.entry.nonce, ordinal as u32)?;
            for slot in part {
                let bit = *slot as usize % BITMAP_ENTRIES;
                body[HEADER + bit / 8] |= 1 << (bit % 8);
            }
            page::seal_bitmap(body);
            set.commit();
        }
        Ok(())
    }
}
