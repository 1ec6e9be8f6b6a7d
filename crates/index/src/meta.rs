//! The metapage: parameters of the index, directory of its segments, ends of the pending list.

use bytemuck::{Pod, Zeroable};
// The checksum of iSCSI is CRC-32C.
use crc_fast::crc32_iscsi as crc32c;

use crate::error::{IndexError, Result};
use crate::metric::Metric;
use crate::page::{
    self, FORMAT_VERSION, HEADER, OLDEST_VERSION, PAYLOAD, PENDING_ENTRY_MAX, PageHeader, PageKind,
};
use crate::quantization::Quantization;
use crate::raw::RawForm;
use crate::store::{PageStore, WriteSet};

/// Block of the metapage.
pub const META_BLOCK: u32 = 0;

/// What does not change while an index exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Components of a vector.
    pub dims: usize,
    /// What the order of results means.
    pub metric: Metric,
    /// How segments store components; `None`: as the data need it.
    pub quantization: Option<Quantization>,
    /// How vectors lie in the pending list.
    pub raw: RawForm,
    /// Kind of the indexed column, for the layer above, and [`UNDECIDED`].
    pub element: u8,
    /// Neighbours of a node in the graph; twice as many on the lowest level.
    pub m: usize,
    /// Candidates kept while a node is added.
    pub ef_construction: usize,
    /// Fingerprint of the model that embeds text; zeros when the column holds vectors.
    pub fingerprint: [u8; 32],
    /// Name of that model, at most 63 bytes.
    pub model: String,
}

/// Set in [`Parameters::element`] until the first vector has said how many dimensions there are. Until
/// then the index has rows without a vector alone, on pages of addresses, see [`crate::pending`].
pub const UNDECIDED: u8 = 0x80;

impl Parameters {
    /// Whether no vector has come yet that says how many dimensions the index has.
    pub fn is_undecided(&self) -> bool {
        self.element & UNDECIDED != 0
    }

    /// As before the first vector came. The index has none.
    pub fn forget_dimensions(&mut self) {
        self.element |= UNDECIDED;
        (self.dims, self.raw) = (1, RawForm::F32);
    }
}

/// The metapage, read.
#[derive(Debug, Clone)]
pub struct Meta {
    /// What does not change.
    pub parameters: Parameters,
    /// Version of the format in which the metapage was written. What is written from now on has the
    /// current one; segments and pending pages of the first one stay until they are merged.
    pub format: u32,
    /// Whether every row of the table is in the index, those without a vector included. The first
    /// format left them out.
    pub complete: bool,
    /// Counts changes of the directory.
    pub generation: u64,
    /// Changes whenever entries of segments have died.
    pub dead_version: u64,
    /// The pending list.
    pub pending: Pending,
    /// The directory: one entry for each segment, at most [`MAX_SEGMENTS`].
    pub segments: Vec<SegmentEntry>,
}

/// Ends of the pending list. Its pages have consecutive sequence numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Pending {
    /// Sequence number of the first page. Pages with smaller numbers belong to nobody.
    pub head_seq: u64,
    /// Sequence number of the last page.
    pub tail_seq: u64,
    /// First page, or 0 when there has never been one.
    pub head: u32,
    /// Last page.
    pub tail: u32,
}

impl Pending {
    /// Pages of the list.
    pub fn pages(&self) -> u64 {
        if self.head == 0 {
            0
        } else {
            (self.tail_seq - self.head_seq).saturating_add(1)
        }
    }
}

/// A segment in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SegmentEntry {
    /// Random identity, also on every page of the segment.
    pub nonce: u64,
    /// Length of the segment's file.
    pub bytes: u64,
    /// First map page.
    pub map: u32,
    /// Pages that hold the file.
    pub data_pages: u32,
    /// Pages that hold the bitmap.
    pub bitmap_pages: u32,
    /// Entries, dead ones included.
    pub count: u32,
    /// Dead ones among them, as of the last VACUUM.
    pub dead: u32,
    /// Candidates of a walk that finds nearly all of the nearest, see [`crate::width`]; zero where
    /// that was not measured.
    pub ef: u32,
}

impl SegmentEntry {
    /// An entry for a segment whose pages are written.
    pub fn new(
        nonce: u64,
        bytes: u64,
        map: u32,
        data: u32,
        bitmap: u32,
        count: u32,
        dead: u32,
    ) -> Self {
        let (data_pages, bitmap_pages) = (data, bitmap);
        Self {
            nonce,
            bytes,
            map,
            data_pages,
            bitmap_pages,
            count,
            dead,
            ef: 0,
        }
    }

    /// Entries that were not dead at the last VACUUM.
    pub fn live(&self) -> u32 {
        self.count - self.dead.min(self.count)
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Head {
    format: u32,
    dims: u32,
    metric: u8,
    element: u8,
    quantization: u8,
    model_len: u8,
    m: u16,
    ef_construction: u16,
    generation: u64,
    dead_version: u64,
    pending: Pending,
    segments: u32,
    raw: u32,
    complete: u32,
    /// Checksum of the page, see [`Head::sum`]; zero where an earlier library wrote it last.
    sum: u32,
    reserved: [u32; 4],
    fingerprint: [u8; 32],
    model: [u8; 64],
}

impl Head {
    /// The checksum of a metapage with this header and these directory entries.
    fn sum(&self, header: PageHeader, entries: &[u8]) -> u32 {
        let own = Self { sum: 0, ..*self };
        let parts = [
            bytemuck::bytes_of(&header),
            bytemuck::bytes_of(&own),
            entries,
        ]
        .map(crc32c);
        crc32c(bytemuck::bytes_of(&parts)).max(1)
    }
}

/// Number of the quantization that is left to the data.
const AUTO: u8 = 255;

const HEAD: usize = size_of::<Head>();
const ENTRY: usize = size_of::<SegmentEntry>();
const _: () = assert!(HEAD == 184 && ENTRY == 40);

/// Segments that fit into the directory.
pub const MAX_SEGMENTS: usize = (PAYLOAD - HEAD) / ENTRY;

impl Meta {
    /// The metapage of an empty index.
    pub fn new(parameters: Parameters) -> Self {
        Self {
            parameters,
            format: FORMAT_VERSION,
            complete: true,
            generation: 1,
            dead_version: 0,
            pending: Pending::zeroed(),
            segments: Vec::new(),
        }
    }

    /// Reads the body of block 0.
    ///
    /// # Errors
    /// Another format, or damage.
    pub fn parse(body: &[u8]) -> Result<Self> {
        let bad = |what: &str| IndexError::corrupt(META_BLOCK, what);
        match page::kind(META_BLOCK, body) {
            Ok(Some(PageKind::Meta)) => {}
            Err(error @ IndexError::Version { .. }) => return Err(error),
            _ => return Err(IndexError::NotAnIndex),
        }
        let len = page::header(body).len as usize;
        let payload = &body[HEADER..HEADER + len];
        if len < HEAD {
            return Err(bad("metapage is too short"));
        }
        let head: Head = bytemuck::pod_read_unaligned(&payload[..HEAD]);
        if !(OLDEST_VERSION..=FORMAT_VERSION).contains(&head.format) {
            return Err(IndexError::Version {
                found: head.format,
                supported: FORMAT_VERSION,
            });
        }
        if head.sum != 0 && head.sum != head.sum(page::header(body), &payload[HEAD..]) {
            return Err(bad("checksum of the metapage"));
        }
        let metric = Metric::from_u8(head.metric).ok_or_else(|| bad("unknown metric"))?;
        let quantization = match head.quantization {
            AUTO if head.format > 1 => None,
            value => Some(Quantization::from_u8(value).ok_or_else(|| bad("unknown quantization"))?),
        };
        let dims = head.dims as usize;
        let best = RawForm::choose(dims, false, quantization)
            .or_else(|_| RawForm::choose(dims, true, quantization))
            .map_err(|_| bad("impossible number of dimensions"))?;
        let raw = match head.format {
            1 => best,
            _ => u8::try_from(head.raw)
                .ok()
                .and_then(RawForm::from_u8)
                .filter(|raw| raw.len(dims) <= PENDING_ENTRY_MAX)
                .ok_or_else(|| bad("unknown form of pending entries"))?,
        };
        let name = head
            .model
            .get(..usize::from(head.model_len))
            .ok_or_else(|| bad("model name"))?;
        let model = std::str::from_utf8(name)
            .map_err(|_| bad("model name"))?
            .to_owned();
        let count = head.segments as usize;
        if count > MAX_SEGMENTS || len != HEAD + count * ENTRY {
            return Err(bad("directory does not fit its count"));
        }
        let segments = payload[HEAD..]
            .chunks_exact(ENTRY)
            .map(bytemuck::pod_read_unaligned)
            .collect();
        if !(1..=1024).contains(&head.m) || head.ef_construction > 10_000 {
            return Err(bad("impossible parameters of the graph"));
        }
        if head.pending.head != 0 && head.pending.head_seq > head.pending.tail_seq {
            return Err(bad("pending list ends before it begins"));
        }
        if head.pending.tail_seq == u64::MAX {
            return Err(bad("the numbers of pending pages are used up"));
        }
        Ok(Self {
            parameters: Parameters {
                dims,
                metric,
                quantization,
                raw,
                element: head.element,
                m: usize::from(head.m),
                ef_construction: usize::from(head.ef_construction),
                fingerprint: head.fingerprint,
                model,
            },
            format: head.format,
            complete: head.format > 1 && head.complete != 0,
            generation: head.generation,
            dead_version: head.dead_version,
            pending: head.pending,
            segments,
        })
    }

    /// Writes the body of block 0.
    ///
    /// # Errors
    /// When the directory is full.
    pub fn write(&self, body: &mut [u8]) -> Result<()> {
        if self.segments.len() > MAX_SEGMENTS {
            return Err(IndexError::TooManySegments(MAX_SEGMENTS));
        }
        let p = &self.parameters;
        let mut model = [0; 64];
        model[..p.model.len()].copy_from_slice(p.model.as_bytes());
        let mut head = Head {
            format: FORMAT_VERSION,
            dims: p.dims as u32,
            metric: p.metric as u8,
            element: p.element,
            quantization: p.quantization.map_or(AUTO, |q| q as u8),
            model_len: p.model.len() as u8,
            m: p.m as u16,
            ef_construction: p.ef_construction as u16,
            generation: self.generation,
            dead_version: self.dead_version,
            pending: self.pending,
            segments: self.segments.len() as u32,
            raw: u32::from(p.raw.to_u8()),
            complete: u32::from(self.complete),
            sum: 0,
            reserved: [0; 4],
            fingerprint: p.fingerprint,
            model,
        };
        let entries: &[u8] = bytemuck::cast_slice(&self.segments);
        let len = HEAD + entries.len();
        page::init(body, PageKind::Meta, 0, 0, len);
        head.sum = head.sum(page::header(body), entries);
        body[HEADER..HEADER + HEAD].copy_from_slice(bytemuck::bytes_of(&head));
        body[HEADER + HEAD..HEADER + len].copy_from_slice(entries);
        Ok(())
    }

    /// Takes the checksum from the body of block 0, as one that an earlier library has written has none: what is
    /// changed by hand behind it, for tests, is not noticed for that alone.
    pub fn unseal(body: &mut [u8]) {
        let at = HEADER + std::mem::offset_of!(Head, sum);
        body[at..at + size_of::<u32>()].fill(0);
    }

    /// Reads the metapage.
    ///
    /// # Errors
    /// See [`Meta::parse`].
    pub fn read(store: &impl PageStore) -> Result<Self> {
        if store.blocks() == 0 {
            return Err(IndexError::NotAnIndex);
        }
        store.read(META_BLOCK, Self::parse)
    }

    /// Writes the metapage of a new index, which has no pages yet.
    ///
    /// # Errors
    /// When the store cannot grow.
    pub fn create(store: &impl PageStore, parameters: Parameters) -> Result<()> {
        let mut set = store.begin();
        let block = set.allocate()?;
        if block != META_BLOCK {
            return Err(IndexError::corrupt(block, "a new index is not empty"));
        }
        Self::new(parameters).write(set.page(block))?;
        set.commit();
        Ok(())
    }

    /// Changes the metapage alone.
    ///
    /// # Errors
    /// What `change` returns; then nothing is changed.
    pub fn update(
        store: &impl PageStore,
        change: impl FnOnce(&mut Meta) -> Result<()>,
    ) -> Result<Self> {
        let mut set = store.begin();
        set.lock(META_BLOCK)?;
        let mut meta = Self::parse(set.page(META_BLOCK))?;
        change(&mut meta)?;
        meta.write(set.page(META_BLOCK))?;
        set.commit();
        Ok(meta)
    }
}

/// A random identity for a segment.
///
/// # Panics
/// Where the system has no random numbers, as whoever makes a hash table does.
pub fn nonce() -> u64 {
    getrandom::u64()
        .expect("the system has random numbers")
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;
    use crate::page::BODY;
    use proptest::prelude::*;

    pub fn parameters() -> Parameters {
        Parameters {
            dims: 8,
            metric: Metric::Cosine,
            quantization: None,
            raw: RawForm::F32,
            element: 2,
            m: 16,
            ef_construction: 64,
            fingerprint: [7; 32],
            model: "a model".into(),
        }
    }

    #[test]
    fn survives_a_round_trip() {
        let store = MemoryStore::new();
        assert!(matches!(Meta::read(&store), Err(IndexError::NotAnIndex)));
        Meta::create(&store, parameters()).unwrap();
        Meta::update(&store, |m| {
            m.segments.push(SegmentEntry::new(5, 6, 7, 8, 9, 10, 3));
            m.generation += 1;
            Ok(())
        })
        .unwrap();
        let meta = Meta::read(&store).unwrap();
        assert_eq!(meta.parameters, parameters());
        assert_eq!(meta.generation, 2);
        assert_eq!(meta.segments, [SegmentEntry::new(5, 6, 7, 8, 9, 10, 3)]);
    }

    #[test]
    fn refuses_other_versions_and_too_many_segments() {
        let store = MemoryStore::new();
        Meta::create(&store, parameters()).unwrap();
        let full = Meta::update(&store, |m| {
            m.segments = vec![SegmentEntry::zeroed(); MAX_SEGMENTS + 1];
            Ok(())
        });
        assert!(matches!(full, Err(IndexError::TooManySegments(_))));
        store.damage(0, |body| body[4] = 3);
        assert!(matches!(
            Meta::read(&store),
            Err(IndexError::Version { found: 3, .. })
        ));
    }

    /// Each bit of what is written, but for those of the checksum itself, which an earlier library leaves at zero.
    #[test]
    fn no_flipped_bit_passes() {
        let mut meta = Meta::new(parameters());
        meta.segments = vec![SegmentEntry::new(5, 6, 7, 8, 9, 10, 3); 3];
        (meta.pending.head, meta.pending.tail) = (1, 1);
        let mut body = vec![0; BODY];
        meta.write(&mut body).unwrap();
        Meta::parse(&body).unwrap();
        for bit in 0..8 * (HEADER + HEAD + 3 * ENTRY) {
            body[bit / 8] ^= 1 << (bit % 8);
            assert!(Meta::parse(&body).is_err(), "bit {bit}");
            body[bit / 8] ^= 1 << (bit % 8);
        }
        Meta::unseal(&mut body);
        assert_eq!(Meta::parse(&body).unwrap().segments.len(), 3);
    }

    proptest! {
        #[test]
        fn damage_gives_an_error_or_a_metapage_but_no_panic(
            changes in proptest::collection::vec((0usize..600, any::<u8>()), 1..20)
        ) {
            let mut body = vec![0; BODY];
            let mut meta = Meta::new(parameters());
            meta.segments = vec![SegmentEntry::zeroed(); 5];
            meta.write(&mut body).unwrap();
            Meta::unseal(&mut body);
            for (at, value) in changes {
                body[at] = value;
            }
            if let Ok(meta) = Meta::parse(&body) {
                prop_assert!(meta.segments.len() <= MAX_SEGMENTS);
            }
        }
    }
}
