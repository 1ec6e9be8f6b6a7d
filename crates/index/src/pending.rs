//! The pending list: entries that are in no segment yet.
//!
//! Inserts append to the last page, under that page's lock alone; only when it is full do they lock
//! the metapage, to link a new one. Scans read the whole list, front to back. Merging takes pages
//! from the front.
//!
//! While nobody knows how many dimensions there are, rows without a vector go to pages that have room
//! for addresses alone. A page says itself which kind it is: the first vector closes the last of
//! these pages and begins the next.

use crate::error::{IndexError, Result};
use crate::meta::{META_BLOCK, Meta, Parameters, Pending};
use crate::page::{
    self, DEAD, HEADER, PAYLOAD, PENDING_HEADER, PageKind, PendingHeader, TID, UNPLACED,
};
use crate::raw::RawForm;
use crate::store::{PageStore, WriteSet};

/// How entries lie on a page.
#[derive(Debug, Clone, Copy)]
struct Form {
    raw: RawForm,
    /// Bytes of a vector.
    vector: usize,
    /// There are addresses alone.
    bare: bool,
}

impl Form {
    fn new(raw: RawForm, dims: usize) -> Self {
        Self {
            raw,
            vector: raw.len(dims),
            bare: false,
        }
    }

    /// On pages that are begun now.
    fn current(parameters: &Parameters) -> Self {
        if parameters.is_undecided() {
            Self::bare(parameters)
        } else {
            Self::new(parameters.raw, parameters.dims)
        }
    }

    fn bare(parameters: &Parameters) -> Self {
        Self {
            raw: parameters.raw,
            vector: 0,
            bare: true,
        }
    }

    /// On the page with this body and payload. The first format kept entries as its segments did.
    fn of(block: u32, body: &[u8], payload: &[u8], parameters: &Parameters) -> Result<Self> {
        let head = header(block, payload)?;
        match (page::header(body).version, head.bare) {
            (1, _) => match parameters.quantization {
                Some(stored) => Ok(Self::new(RawForm::Stored(stored), parameters.dims)),
                None => Err(IndexError::corrupt(block, "pending page of another index")),
            },
            (_, 1) => Ok(Self::bare(parameters)),
            // The first vector has come since the metapage was read.
            (_, 0) if parameters.is_undecided() => Err(IndexError::Moved {
                block,
                owner: page::header(body).owner,
            }),
            (_, 0) => Ok(Self::new(parameters.raw, parameters.dims)),
            _ => Err(IndexError::corrupt(block, "unknown form of a pending page")),
        }
    }

    /// Bytes from entry to entry.
    fn stride(&self) -> usize {
        (TID + self.vector).next_multiple_of(8)
    }

    fn per_page(&self) -> usize {
        ((PAYLOAD - PENDING_HEADER) / self.stride()).max(1)
    }

    /// Bytes of the payload of a page with `count` entries.
    fn len(&self, count: usize) -> usize {
        // The last entry is not padded, see PENDING_ENTRY_MAX.
        PENDING_HEADER
            + count.saturating_sub(1) * self.stride()
            + count.min(1) * (TID + self.vector)
    }
}

/// An entry of the list.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// Address of the row, with the flags of [`crate::page`].
    pub tid: u64,
    raw: RawForm,
    stored: &'a [u8],
}

impl Entry<'_> {
    /// Whether the row is alive.
    pub fn is_live(&self) -> bool {
        self.tid & DEAD == 0
    }

    /// Reads the vector of an entry that has one; returns a bound of its distance from the one that
    /// was inserted, see [`RawForm::decode`].
    pub fn decode(&self, parameters: &Parameters, out: &mut Vec<f32>) -> f64 {
        self.raw
            .decode(parameters.metric, parameters.dims, self.stored, out)
    }
}

/// Entries that fit on a page that is begun now.
pub fn entries_per_page(parameters: &Parameters) -> usize {
    Form::current(parameters).per_page()
}

fn header(block: u32, payload: &[u8]) -> Result<PendingHeader> {
    payload
        .get(..PENDING_HEADER)
        .map(bytemuck::pod_read_unaligned)
        .ok_or_else(|| IndexError::corrupt(block, "pending page is too short"))
}

fn list_header(block: u32, payload: &[u8], form: &Form) -> Result<PendingHeader> {
    let head = header(block, payload)?;
    let count = head.count as usize;
    if count > form.per_page() || payload.len() != form.len(count) {
        return Err(IndexError::corrupt(
            block,
            "pending page does not fit its count",
        ));
    }
    Ok(head)
}

/// Pages of the first format, and of earlier libraries, have no checksum.
fn verify(block: u32, head: &PendingHeader, payload: &[u8]) -> Result<()> {
    if head.sum != 0 && head.sum != head.sum(&payload[PENDING_HEADER..]) {
        return Err(IndexError::corrupt(block, "checksum of a pending page"));
    }
    Ok(())
}

/// The header and the entries of a pending page.
fn parse<'a>(
    block: u32,
    body: &'a [u8],
    seq: u64,
    parameters: &Parameters,
) -> Result<(
    PendingHeader,
    Form,
    impl Iterator<Item = Entry<'a>> + use<'a>,
)> {
    let payload = page::expect(block, body, PageKind::Pending, seq, 0)?;
    let form = Form::of(block, body, payload, parameters)?;
    let head = list_header(block, payload, &form)?;
    verify(block, &head, payload)?;
    let entries = payload[PENDING_HEADER..]
        .chunks(form.stride())
        .map(move |entry| Entry {
            tid: u64::from_le_bytes(entry[..TID].try_into().expect("eight bytes")),
            raw: form.raw,
            stored: &entry[TID..TID + form.vector],
        });
    if form.bare && entries.clone().any(|entry| entry.tid & UNPLACED == 0) {
        let what = "an address without a vector that does not say why";
        return Err(IndexError::corrupt(block, what));
    }
    Ok((head, form, entries))
}

fn write_header(body: &mut [u8], head: PendingHeader) {
    body[HEADER..HEADER + PENDING_HEADER].copy_from_slice(bytemuck::bytes_of(&head));
}

/// Writes the checksum of a page that has been changed. Pages of the first format have none.
fn seal_page(body: &mut [u8]) {
    let page = page::header(body);
    if page.version == 1 {
        return;
    }
    let (head, entries) = body[HEADER..HEADER + page.len as usize].split_at(PENDING_HEADER);
    let mut head: PendingHeader = bytemuck::pod_read_unaligned(head);
    head.sum = head.sum(entries);
    write_header(body, head);
}

/// Appends an entry: the address of its row and its vector, which has a direction where the metric
/// asks for one, or a flag of [`crate::page::UNPLACED`] in the address. Returns the pages of the
/// list when a page was added, which is the moment to think of merging.
///
/// # Errors
/// A vector that cannot be indexed, damage, an index that cannot grow, or [`IndexError::Moved`] when it
/// has other dimensions by now.
pub fn append(
    store: &impl PageStore,
    parameters: &Parameters,
    tid: u64,
    x: Option<&[f32]>,
) -> Result<Option<u64>> {
    let mut stored = Vec::new();
    if let Some(x) = x {
        stored.resize(parameters.raw.len(parameters.dims), 0);
        parameters.raw.encode(parameters.metric, x, &mut stored)?;
    }
    // Another session may have decided the number of dimensions meanwhile, or VACUUM have forgotten it.
    let fits = |meta: &Meta| {
        let other = meta.parameters.dims != parameters.dims || meta.parameters.is_undecided();
        match x {
            Some(_) if other => Err(IndexError::Moved {
                block: META_BLOCK,
                owner: 0,
            }),
            _ => Ok(()),
        }
    };
    let meta = store.read(META_BLOCK, Meta::parse)?;
    fits(&meta)?;
    if meta.pending.head != 0 && append_to(store, &meta, tid, &stored)? {
        return Ok(None);
    }
    // The page was full, or somebody has added one meanwhile: look again with the metapage locked,
    // which keeps the end of the list where it is.
    let mut set = store.begin();
    set.lock(META_BLOCK)?;
    let mut meta = Meta::parse(set.page(META_BLOCK))?;
    fits(&meta)?;
    let old = meta.pending;
    let (block, seq) = (old.tail, old.tail_seq);
    if old.head != 0 {
        set.lock(block)?;
        if put(set.page(block), block, seq, &meta.parameters, tid, &stored)? {
            set.commit();
            return Ok(None);
        }
    }
    let form = Form::current(&meta.parameters);
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
        link(body, old.tail, old.tail_seq, &meta.parameters, block)?;
    }
    begin(set.page(block), seq, &form);
    put(set.page(block), block, seq, &meta.parameters, tid, &stored)?;
    meta.write(set.page(META_BLOCK))?;
    set.commit();
    Ok(Some(meta.pending.pages()))
}

/// Closes a page: `next` follows it. Its entries stay as they are, also in the first format.
fn link(body: &mut [u8], block: u32, seq: u64, parameters: &Parameters, next: u32) -> Result<()> {
    let (head, form, _) = parse(block, body, seq, parameters)?;
    write_header(body, PendingHeader::new(next, head.count, form.bare));
    seal_page(body);
    Ok(())
}

/// Writes the header of a page without entries.
fn begin(body: &mut [u8], seq: u64, form: &Form) {
    write_header(body, PendingHeader::new(0, 0, form.bare));
    page::init(body, PageKind::Pending, seq, 0, form.len(0));
    seal_page(body);
}

fn append_to(store: &impl PageStore, meta: &Meta, tid: u64, stored: &[u8]) -> Result<bool> {
    let mut set = store.begin();
    let (block, seq) = (meta.pending.tail, meta.pending.tail_seq);
    set.lock(block)?;
    match put(set.page(block), block, seq, &meta.parameters, tid, stored) {
        Ok(true) => {
            set.commit();
            Ok(true)
        }
        Ok(false) | Err(IndexError::Moved { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts an entry on a page, unless the page is full, of the first format, has no room for vectors, or
/// is not the last one any more.
fn put(
    body: &mut [u8],
    block: u32,
    seq: u64,
    parameters: &Parameters,
    tid: u64,
    stored: &[u8],
) -> Result<bool> {
    let payload = page::expect(block, body, PageKind::Pending, seq, 0)?;
    if page::header(body).version == 1 {
        return Ok(false);
    }
    let form = Form::of(block, body, payload, parameters)?;
    let head = list_header(block, payload, &form)?;
    verify(block, &head, payload)?;
    let count = head.count as usize;
    if head.next != 0 || count >= form.per_page() || stored.len() > form.vector {
        return Ok(false);
    }
    let at = HEADER + PENDING_HEADER + count * form.stride();
    let (vector, end) = (at + TID, at + TID + form.vector);
    body[at..vector].copy_from_slice(&tid.to_le_bytes());
    // Entries without a vector have nothing in its place.
    body[vector..end].fill(0);
    body[vector..vector + stored.len()].copy_from_slice(stored);
    write_header(body, PendingHeader::new(0, head.count + 1, form.bare));
    page::init(body, PageKind::Pending, seq, 0, form.len(count + 1));
    seal_page(body);
    Ok(true)
}

/// Closes the list's last page, so that the pages up to it no longer change except for entries that
/// die, and gives what was the list before. Does nothing when the list is empty.
///
/// # Errors
/// Damage, or an index that cannot grow.
pub fn seal(store: &impl PageStore) -> Result<Option<Pending>> {
    let mut set = store.begin();
    set.lock(META_BLOCK)?;
    let mut meta = Meta::parse(set.page(META_BLOCK))?;
    let old = meta.pending;
    if old.head == 0 {
        return Ok(None);
    }
    set.lock(old.tail)?;
    let (head, ..) = parse(old.tail, set.page(old.tail), old.tail_seq, &meta.parameters)?;
    if old.head == old.tail && head.count == 0 {
        return Ok(None);
    }
    let block = set.allocate()?;
    link(
        set.page(old.tail),
        old.tail,
        old.tail_seq,
        &meta.parameters,
        block,
    )?;
    begin(
        set.page(block),
        old.tail_seq + 1,
        &Form::current(&meta.parameters),
    );
    meta.pending = Pending {
        tail_seq: old.tail_seq + 1,
        tail: block,
        ..old
    };
    meta.write(set.page(META_BLOCK))?;
    set.commit();
    Ok(Some(old))
}

/// Whether a page was begun after the first vector has come, which `parameters` do not know of yet.
/// No reader with such parameters needs what is there: it is younger than the reader.
fn is_younger(block: u32, body: &[u8], seq: u64, parameters: &Parameters) -> Result<bool> {
    let payload = page::expect(block, body, PageKind::Pending, seq, 0)?;
    Ok(parameters.is_undecided() && header(block, payload)?.bare == 0)
}

/// Makes an index without live entries one that does not know its dimensions, as before the first
/// vector. Does nothing where there may be live ones. The caller keeps merges away.
///
/// # Errors
/// [`IndexError::Corrupt`] when a page of the list is damaged.
pub fn forget_dimensions(store: &impl PageStore) -> Result<()> {
    let mut set = store.begin();
    set.lock(META_BLOCK)?;
    let mut meta = Meta::parse(set.page(META_BLOCK))?;
    let list = meta.pending;
    if meta.parameters.is_undecided() || !meta.segments.is_empty() || list.head != list.tail {
        return Ok(());
    }
    if list.head != 0 {
        set.lock(list.tail)?;
        let body = set.page(list.tail);
        let (_, _, mut entries) = parse(list.tail, body, list.tail_seq, &meta.parameters)?;
        let live = entries.any(|entry| entry.is_live());
        drop(entries);
        if live {
            return Ok(());
        }
        begin(body, list.tail_seq, &Form::bare(&meta.parameters));
    }
    meta.parameters.forget_dimensions();
    meta.generation += 1;
    meta.write(set.page(META_BLOCK))?;
    set.commit();
    Ok(())
}

/// Brings the live addresses of a sealed list, whose pages have no room for vectors, to its last pages;
/// returns the first page that still has some, or the one behind the list. The caller keeps merges
/// away.
///
/// Addresses only move to later pages, and are on one page at every time: who reads the list meanwhile
/// finds each of them, perhaps twice.
///
/// # Errors
/// [`IndexError::Corrupt`] when a page of the list is damaged.
pub fn compact(
    store: &impl PageStore,
    parameters: &Parameters,
    sealed: &Pending,
) -> Result<(u64, u32)> {
    let mut pages = Vec::new();
    let mut at = *sealed;
    while at.head_seq <= sealed.tail_seq {
        laser_memory::push(&mut pages, (at.head_seq, at.head))?;
        let (seq, block) = (at.head_seq, at.head);
        let one = Pending {
            tail_seq: seq,
            ..at
        };
        (at.head_seq, at.head) = read(store, parameters, &one, false, |_| {})?;
        if at.head_seq <= seq || block == 0 {
            return Err(IndexError::corrupt(block, "pending list goes in a circle"));
        }
    }
    let behind = (at.head_seq, at.head);
    let live = |body: &[u8], (seq, block): (u64, u32)| -> Result<(u32, Vec<u64>)> {
        let (head, form, entries) = parse(block, body, seq, parameters)?;
        if !form.bare {
            return Err(IndexError::corrupt(block, "a page with room for vectors"));
        }
        let live = entries.map(|entry| entry.tid).filter(|tid| tid & DEAD == 0);
        Ok((head.next, live.collect()))
    };
    let form = Form::bare(parameters);
    let write = |body: &mut [u8], seq: u64, next: u32, tids: &[u64]| {
        let at = HEADER + PENDING_HEADER;
        body[at..at + TID * tids.len()].copy_from_slice(bytemuck::cast_slice(tids));
        write_header(body, PendingHeader::new(next, tids.len() as u32, true));
        page::init(body, PageKind::Pending, seq, 0, form.len(tids.len()));
        seal_page(body);
    };
    let (mut from, mut to) = (0, pages.len() - 1);
    while from < to {
        store.pause();
        let (source, target) = (pages[from], pages[to]);
        let mut set = store.begin();
        set.lock(source.1)?;
        set.lock(target.1)?;
        let (next, mut rest) = live(set.page(source.1), source)?;
        let (after, mut kept) = live(set.page(target.1), target)?;
        let room = form.per_page() - kept.len();
        kept.extend(rest.drain(rest.len() - room.min(rest.len())..));
        write(set.page(source.1), source.0, next, &rest);
        write(set.page(target.1), target.0, after, &kept);
        set.commit();
        if rest.is_empty() {
            from += 1;
        } else {
            to -= 1;
        }
    }
    // The page where both ways meet may have dead entries alone.
    let (seq, block) = pages[from];
    let left = store.read(block, |body| live(body, (seq, block)))?.1;
    Ok(if !left.is_empty() {
        (seq, block)
    } else if let Some(next) = pages.get(from + 1) {
        *next
    } else {
        behind
    })
}

/// Shows every entry of the list to `look`. Runs from the first page of `pending` to its last, or to
/// the end when `whole`. Returns the first page behind what it showed.
///
/// `look` runs under a page's lock and does not touch the store.
///
/// # Errors
/// [`IndexError::Moved`] when the list has been merged meanwhile; start again from the metapage.
pub fn read(
    store: &impl PageStore,
    parameters: &Parameters,
    pending: &Pending,
    whole: bool,
    mut look: impl FnMut(Entry<'_>),
) -> Result<(u64, u32)> {
    let (mut block, mut seq) = (pending.head, pending.head_seq);
    while block != 0 && (whole || seq <= pending.tail_seq) {
        store.pause();
        let next = store.read(block, |body| {
            if is_younger(block, body, seq, parameters)? {
                return Ok(0);
            }
            let (head, _, entries) = parse(block, body, seq, parameters)?;
            entries.for_each(&mut look);
            Ok(head.next)
        })?;
        block = next;
        seq += 1;
    }
    Ok((seq, block))
}

/// Marks entries dead whose address `dead` says so, and shows it every live one. Returns how many
/// were marked, and how many live. The caller keeps merges away.
///
/// # Errors
/// [`IndexError::Corrupt`] when a page of the list is damaged.
pub fn mark(
    store: &impl PageStore,
    parameters: &Parameters,
    pending: &Pending,
    mut dead: impl FnMut(u64) -> bool,
) -> Result<(u64, u64)> {
    let (mut block, mut seq) = (pending.head, pending.head_seq);
    let (mut marked, mut live) = (0, 0);
    while block != 0 {
        store.pause();
        let mut tids = Vec::new();
        let (next, form) = store.read(block, |body| {
            if is_younger(block, body, seq, parameters)? {
                return Ok((0, Form::bare(parameters)));
            }
            let (head, form, entries) = parse(block, body, seq, parameters)?;
            tids.extend(entries.map(|entry| entry.tid).enumerate());
            Ok((head.next, form))
        })?;
        tids.retain(|(_, tid)| tid & DEAD == 0);
        let before = tids.len();
        // The verdict may take its time, so it is asked for without a lock. Entries that are added
        // meanwhile belong to rows that are too young to die in this VACUUM.
        tids.retain(|&(_, tid)| dead(page::address(tid)));
        live += (before - tids.len()) as u64;
        if !tids.is_empty() {
            let mut set = store.begin();
            set.lock(block)?;
            let body = set.page(block);
            page::expect(block, body, PageKind::Pending, seq, 0)?;
            for (i, tid) in &tids {
                let at = HEADER + PENDING_HEADER + i * form.stride();
                body[at..at + TID].copy_from_slice(&(tid | DEAD).to_le_bytes());
            }
            seal_page(body);
            set.commit();
            marked += tids.len() as u64;
        }
        block = next;
        seq += 1;
    }
    Ok((marked, live))
}
