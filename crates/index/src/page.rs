//! Page layouts.
//!
//! ```text
//!  block 0          metapage: parameters, directory of segments, ends of the pending list
//!  other blocks     in any order:
//!    map            block numbers of one segment's data and bitmap pages, chained
//!    data           the bytes of one segment's file, in order
//!    bitmap         one bit for each entry of a segment, set when the entry is dead
//!    pending        entries that are in no segment yet, chained; inserts append to the last page
//!    free           belongs to nobody
//!    all zero       left by an extension that never finished; belongs to nobody
//! ```
//!
//! Every page begins with a [`PageHeader`] that says whose it is: `owner` is the random identity of
//! a segment, or a pending page's sequence number; `ordinal` its place within the segment. Since
//! identities are never used twice, a reader that followed an outdated reference notices, and no
//! page needs to be kept back for readers that may still hold one.
//!
//! What is here is the body of a page, behind PostgreSQL's own page header.

use bytemuck::{Pod, Zeroable};
// The checksum of iSCSI is CRC-32C.
use crc_fast::crc32_iscsi as crc32c;

use crate::error::{IndexError, Result};

/// Bytes of a page with PostgreSQL's page header.
pub const PAGE: usize = 8192;
/// Bytes of a page behind that header.
pub const BODY: usize = PAGE - 24;
/// Bytes of [`PageHeader`].
pub const HEADER: usize = size_of::<PageHeader>();
/// Bytes that a page carries.
pub const PAYLOAD: usize = BODY - HEADER;
/// Version of the format in which pages are written.
pub const FORMAT_VERSION: u32 = 2;
/// Oldest version that is still read. Beyond it an index is refused.
pub const OLDEST_VERSION: u32 = 1;
/// Version of a bitmap page with a checksum. Libraries that know none refuse it by its version.
const SUMMED_BITMAP: u16 = 3;

const MAGIC: u32 = u32::from_le_bytes(*b"LasR");

/// What a page is for; the numbers are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum PageKind {
    /// Belongs to nobody.
    Free = 1,
    /// Block 0.
    Meta = 2,
    /// Block numbers of a segment.
    Map = 3,
    /// Bytes of a segment.
    Data = 4,
    /// Dead entries of a segment.
    Bitmap = 5,
    /// Entries that are in no segment yet.
    Pending = 6,
}

/// First bytes of every page's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PageHeader {
    magic: u32,
    /// Version of the format in which the page was written.
    pub version: u16,
    kind: u16,
    /// Identity of the segment, or sequence number of a pending page.
    pub owner: u64,
    /// Place within the segment.
    pub ordinal: u32,
    /// Bytes of the payload in use; what follows is not stored.
    pub len: u16,
    /// Checksum of a bitmap page, see [`seal_bitmap`]; zero on pages that have none, or have it elsewhere.
    sum: u16,
}

const _: () = assert!(HEADER == 24 && HEADER.is_multiple_of(8) && BODY.is_multiple_of(8));

/// The first [`HEADER`] bytes of a page's body, whatever they are: [`kind`] checks them.
pub fn header(body: &[u8]) -> PageHeader {
    bytemuck::pod_read_unaligned(&body[..HEADER])
}

/// What a page is for: `None` for an all-zero page.
///
/// # Errors
/// When the page is neither zero nor one of ours.
pub fn kind(block: u32, body: &[u8]) -> Result<Option<PageKind>> {
    use PageKind::*;
    let head = header(body);
    if head == PageHeader::zeroed() {
        return Ok(None);
    }
    if head.magic != MAGIC {
        return Err(IndexError::corrupt(block, "no magic number"));
    }
    let found = u32::from(head.version);
    let summed = head.version == SUMMED_BITMAP && head.kind == Bitmap as u16;
    if !summed && !(OLDEST_VERSION..=FORMAT_VERSION).contains(&found) {
        return Err(IndexError::Version {
            found,
            supported: FORMAT_VERSION,
        });
    }
    if summed != (head.sum != 0) {
        return Err(IndexError::corrupt(
            block,
            "a checksum where none belongs, or none",
        ));
    }
    if head.len as usize > PAYLOAD {
        return Err(IndexError::corrupt(
            block,
            format!("payload of {} bytes", head.len),
        ));
    }
    [Free, Meta, Map, Data, Bitmap, Pending]
        .into_iter()
        .find(|k| *k as u16 == head.kind)
        .map(Some)
        .ok_or_else(|| IndexError::corrupt(block, format!("page type {}", head.kind)))
}

/// Whether a page was given back. One of zeros, which a crash may leave, is not for whoever wants a page: a
/// sweep that goes on meanwhile takes it for nobody's.
pub fn is_free(body: &[u8]) -> bool {
    matches!(kind(0, body), Ok(Some(PageKind::Free)))
}

/// Writes the header of a page whose payload is already there, or will be.
pub fn init(body: &mut [u8], kind: PageKind, owner: u64, ordinal: u32, len: usize) {
    assert!(len <= PAYLOAD);
    let head = PageHeader {
        magic: MAGIC,
        version: FORMAT_VERSION as u16,
        kind: kind as u16,
        owner,
        ordinal,
        len: len as u16,
        sum: 0,
    };
    body[..HEADER].copy_from_slice(bytemuck::bytes_of(&head));
}

/// Checksum of a bitmap page: the lower half of the CRC-32C of header and payload, and never zero. A bitmap fills its
/// pages, so that no more than the half of a header's field is free.
fn bitmap_sum(head: &PageHeader, payload: &[u8]) -> u16 {
    let own = PageHeader { sum: 0, ..*head };
    let both = [crc32c(bytemuck::bytes_of(&own)), crc32c(payload)];
    (crc32c(bytemuck::bytes_of(&both)) as u16).max(1)
}

/// Writes the checksum of a bitmap page whose payload is complete.
pub fn seal_bitmap(body: &mut [u8]) {
    let mut head = header(body);
    head.version = SUMMED_BITMAP;
    head.sum = bitmap_sum(&head, &body[HEADER..HEADER + head.len as usize]);
    body[..HEADER].copy_from_slice(bytemuck::bytes_of(&head));
}

/// The payload of a bitmap page that must have this identity. Pages of earlier libraries have no checksum.
///
/// # Errors
/// See [`expect`]; damage where the checksum differs.
pub fn expect_bitmap(block: u32, body: &[u8], owner: u64, ordinal: u32) -> Result<&[u8]> {
    let payload = expect(block, body, PageKind::Bitmap, owner, ordinal)?;
    let head = header(body);
    if head.sum != 0 && head.sum != bitmap_sum(&head, payload) {
        return Err(IndexError::corrupt(block, "checksum of a bitmap page"));
    }
    Ok(payload)
}

/// The payload of a page that must have this identity.
///
/// # Errors
/// [`IndexError::Moved`] when the page is somebody else's now, [`IndexError::Corrupt`] when it is no
/// page of ours.
pub fn expect(
    block: u32,
    body: &[u8],
    wanted: PageKind,
    owner: u64,
    ordinal: u32,
) -> Result<&[u8]> {
    let found = kind(block, body)?;
    let head = header(body);
    if found != Some(wanted) || head.owner != owner || head.ordinal != ordinal {
        return Err(IndexError::Moved { block, owner });
    }
    Ok(&body[HEADER..HEADER + head.len as usize])
}

/// First bytes of a pending page's payload; entries of equal size follow.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct PendingHeader {
    /// Block of the next pending page, or 0.
    pub next: u32,
    /// Entries on this page.
    pub count: u32,
    /// One for a page of addresses alone, else zero.
    pub bare: u32,
    /// Checksum of the page, see [`PendingHeader::sum`]; zero on pages that have none.
    pub sum: u32,
}

/// Bytes of [`PendingHeader`].
pub const PENDING_HEADER: usize = size_of::<PendingHeader>();
const _: () = assert!(PENDING_HEADER == 16);

impl PendingHeader {
    /// A page with `count` entries, followed by `next`.
    pub fn new(next: u32, count: u32, bare: bool) -> Self {
        Self {
            next,
            count,
            bare: u32::from(bare),
            sum: 0,
        }
    }

    /// The checksum of a page with this header and these bytes of entries: that of the header and of the
    /// checksums of four quarters, multiples of eight bytes, and the rest.
    pub fn sum(&self, entries: &[u8]) -> u32 {
        let quarter = entries.len() / 32 * 8;
        let (a, rest) = entries.split_at(quarter);
        let (b, rest) = rest.split_at(quarter);
        let (c, rest) = rest.split_at(quarter);
        let (d, rest) = rest.split_at(quarter);
        let four = [a, b, c, d].map(crc32c);
        let own = [self.next, self.count, self.bare, crc32c(rest)];
        crc32c(bytemuck::bytes_of(&[own, four])).max(1)
    }
}

/// Bytes of the row's address in front of a pending entry.
pub const TID: usize = 8;
/// Largest stored vector that fits on a pending page.
pub const PENDING_ENTRY_MAX: usize = PAYLOAD - PENDING_HEADER - TID;
/// Set in the row's address of a dead pending entry.
pub const DEAD: u64 = 1 << 63;
/// Set in the address of a row whose value is NULL.
pub const NULL: u64 = 1 << 62;
/// Set in the address of a row whose vector has no direction, under the cosine metric.
pub const UNDIRECTED: u64 = 1 << 61;
/// Either of them: an entry that has a row but no place in the graph. Searches give such rows when
/// all others have been given.
pub const UNPLACED: u64 = NULL | UNDIRECTED;

/// The address alone.
pub fn address(tid: u64) -> u64 {
    tid & !(DEAD | UNPLACED)
}

/// How problems call the row at an address.
pub fn row_name(tid: u64) -> String {
    let tid = address(tid);
    format!("row ({},{})", tid >> 16, tid & 0xffff)
}

/// First bytes of a map page's payload; block numbers follow.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct MapHeader {
    /// Block of the next map page, or 0.
    pub next: u32,
    /// Block numbers on this page.
    pub count: u32,
}

/// Bytes of [`MapHeader`].
pub const MAP_HEADER: usize = size_of::<MapHeader>();
/// Block numbers that fit on a map page.
pub const MAP_BLOCKS: usize = (PAYLOAD - MAP_HEADER) / 4;
const _: () = assert!(MAP_HEADER == 8 && MAP_BLOCKS == 2034);

/// Entries covered by a bitmap page.
pub const BITMAP_ENTRIES: usize = PAYLOAD * 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn foreign_bytes_never_pass(bytes in proptest::collection::vec(any::<u8>(), BODY)) {
            match kind(7, &bytes) {
                Ok(None) => prop_assert!(bytes[..HEADER].iter().all(|b| *b == 0)),
                Ok(Some(_)) => prop_assert_eq!(&bytes[..4], b"LasR"),
                Err(_) => {}
            }
            let _ = expect(7, &bytes, PageKind::Data, 1, 2);
        }

        #[test]
        fn damaged_headers_are_noticed(at in 0usize..HEADER, bit in 0u8..8) {
            let mut body = vec![0; BODY];
            init(&mut body, PageKind::Data, 0x1234_5678_9abc_def0, 77, 100);
            prop_assert!(expect(1, &body, PageKind::Data, 0x1234_5678_9abc_def0, 77).is_ok());
            body[at] ^= 1 << bit;
            let read = expect(1, &body, PageKind::Data, 0x1234_5678_9abc_def0, 77);
            // Only a shorter payload passes here; the segment's checksum and length catch it.
            prop_assert!(read.is_err() || at >= 20);
        }
    }

    /// Sixteen bits of a checksum miss one damage in 65,536.
    #[test]
    fn damaged_bitmaps_are_noticed() {
        const OWNER: u64 = 0x1234_5678_9abc_def0;
        let mut body = vec![0xa5; BODY];
        init(&mut body, PageKind::Bitmap, OWNER, 7, PAYLOAD);
        assert!(
            expect_bitmap(1, &body, OWNER, 7).is_ok(),
            "of an earlier library"
        );
        seal_bitmap(&mut body);
        assert!(expect_bitmap(1, &body, OWNER, 7).is_ok());
        let unnoticed = (0..BODY * 8).filter(|bit| {
            body[bit / 8] ^= 1 << (bit % 8);
            let noticed = expect_bitmap(1, &body, OWNER, 7).is_err();
            body[bit / 8] ^= 1 << (bit % 8);
            !noticed
        });
        assert!(unnoticed.count() <= 4);
    }

    #[test]
    fn zero_pages_are_not_given_back() {
        let body = vec![0; BODY];
        assert_eq!(kind(1, &body).unwrap(), None);
        assert!(!is_free(&body));
    }
}
