//! The pending list: entries that are in no segment yet.
//!
//! Inserts append to the last page, under that page's lock alone; only when it is full do they lock
//! the metapage, to link a new one. Scans read the whole list, front to back. Merging takes pages
//! from the front.

use crate::error::{IndexError, Result};
use crate::meta::{META_BLOCK, Meta, Parameters, Pending};
use crate::page::{self, DEAD, HEADER, PAYLOAD, PENDING_HEADER, PageKind, PendingHeader, TID};
use crate::raw::RawForm;
use crate::store::{PageStore, WriteSet};

/// How entries lie on a page.
#[derive(Debug, Clone, Copy)]
struct Form {
    raw: RawForm,
    /// Bytes of a vector.
    vector: usize,
}

impl Form {
    /// On pages that are written now.
    fn current(parameters: &Parameters) -> Self {
        let raw = parameters.raw;
        let vector = raw.len(parameters.dims);
        Self { raw, vector }
    }

    /// On a page of this version: the first format kept entries as its segments did.
    fn of(block: u32, version: u16, parameters: &Parameters) -> Result<Self> {
        if version != 1 {
            return Ok(Self::current(parameters));
        }
        let Some(quantization) = parameters.quantization else {
            return Err(IndexError::corrupt(block, "pending page of another index"));
        };
        let raw = RawForm::Stored(quantization);
        let vector = raw.len(parameters.dims);
        Ok(Self { raw, vector })
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

/// Entries that fit on a page.
pub fn entries_per_page(parameters: &Parameters) -> usize {
    Form::current(parameters).per_page()
}

fn list_header(block: u32, payload: &[u8], form: &Form) -> Result<PendingHeader> {
    if payload.len() < PENDING_HEADER {
        return Err(IndexError::corrupt(block, "pending page is too short"));
    }
    let head: PendingHeader = bytemuck::pod_read_unaligned(&payload[..PENDING_HEADER]);
    let count = head.count as usize;
    if count > form.per_page() || payload.len() != form.len(count) {
        return Err(IndexError::corrupt(
            block,
            "pending page does not fit its count",
        ));
    }
    Ok(head)
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
    let form = Form::of(block, page::header(body).version, parameters)?;
    let head = list_header(block, payload, &form)?;
    let entries = payload[PENDING_HEADER..]
        .chunks(form.stride())
        .map(move |entry| Entry {
            tid: u64::from_le_bytes(entry[..TID].try_into().expect("eight bytes")),
            raw: form.raw,
            stored: &entry[TID..TID + form.vector],
        });
    Ok((head, form, entries))
}

fn write_header(body: &mut [u8], head: PendingHeader) {
    body[HEADER..HEADER + PENDING_HEADER].copy_from_slice(bytemuck::bytes_of(&head));
}

/// Appends an entry: the address of its row and its vector, which has a direction where the metric
/// asks for one, or a flag of [`crate::page::UNPLACED`] in the address. Returns the pages of the
/// list when a page was added, which is the moment to think of merging.
///
/// # Errors
/// A vector that cannot be indexed, damage, or an index that cannot grow.
pub fn append(
    store: &impl PageStore,
    parameters: &Parameters,
    tid: u64,
    x: Option<&[f32]>,
) -> Result<Option<u64>> {
    let mut stored = vec![0; parameters.raw.len(parameters.dims)];
    if let Some(x) = x {
        parameters.raw.encode(parameters.metric, x, &mut stored)?;
    }
    let form = Form::current(parameters);
    let pending = store.read(META_BLOCK, Meta::parse)?.pending;
    if pending.head != 0 && append_to(store, &form, pending, tid, &stored)? {
        return Ok(None);
    }
    // The page was full, or somebody has added one meanwhile: look again with the metapage locked,
    // which keeps the end of the list where it is.
    let mut set = store.begin();
    set.lock(META_BLOCK)?;
    let mut meta = Meta::parse(set.page(META_BLOCK))?;
    let old = meta.pending;
    if old.head != 0 {
        set.lock(old.tail)?;
        if put(
            set.page(old.tail),
            old.tail,
            old.tail_seq,
            &form,
            tid,
            &stored,
        )? {
            set.commit();
            return Ok(None);
        }
    }
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
        link(
            set.page(old.tail),
            old.tail,
            old.tail_seq,
            parameters,
            block,
        )?;
    }
    let body = set.page(block);
    write_header(body, PendingHeader::new(0, 0));
    page::init(body, PageKind::Pending, seq, 0, form.len(0));
    put(body, block, seq, &form, tid, &stored)?;
    meta.write(set.page(META_BLOCK))?;
    set.commit();
    Ok(Some(meta.pending.pages()))
}

/// Closes a page: `next` follows it. Its entries stay as they are, also in the first format.
fn link(body: &mut [u8], block: u32, seq: u64, parameters: &Parameters, next: u32) -> Result<()> {
    let count = parse(block, body, seq, parameters)?.0.count;
    write_header(body, PendingHeader::new(next, count));
    Ok(())
}

fn append_to(
    store: &impl PageStore,
    form: &Form,
    pending: Pending,
    tid: u64,
    stored: &[u8],
) -> Result<bool> {
    let mut set = store.begin();
    set.lock(pending.tail)?;
    let (block, seq) = (pending.tail, pending.tail_seq);
    match put(set.page(block), block, seq, form, tid, stored) {
        Ok(true) => {
            set.commit();
            Ok(true)
        }
        Ok(false) | Err(IndexError::Moved { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Puts an entry on a page, unless the page is full, of the first format, or not the last one any
/// more.
fn put(
    body: &mut [u8],
    block: u32,
    seq: u64,
    form: &Form,
    tid: u64,
    stored: &[u8],
) -> Result<bool> {
    let payload = page::expect(block, body, PageKind::Pending, seq, 0)?;
    if page::header(body).version == 1 {
        return Ok(false);
    }
    let head = list_header(block, payload, form)?;
    let count = head.count as usize;
    if head.next != 0 || count >= form.per_page() {
        return Ok(false);
    }
    let at = HEADER + PENDING_HEADER + count * form.stride();
    body[at..at + TID].copy_from_slice(&tid.to_le_bytes());
    body[at + TID..at + TID + stored.len()].copy_from_slice(stored);
    write_header(body, PendingHeader::new(0, head.count + 1));
    page::init(body, PageKind::Pending, seq, 0, form.len(count + 1));
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
    write_header(set.page(old.tail), PendingHeader::new(block, head.count));
    let form = Form::current(&meta.parameters);
    let body = set.page(block);
    write_header(body, PendingHeader::new(0, 0));
    page::init(body, PageKind::Pending, old.tail_seq + 1, 0, form.len(0));
    meta.pending = Pending {
        tail_seq: old.tail_seq + 1,
        tail: block,
        ..old
    };
    meta.write(set.page(META_BLOCK))?;
    set.commit();
    Ok(Some(old))
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
/// Damage.
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
            set.commit();
            marked += tids.len() as u64;
        }
        block = next;
        seq += 1;
    }
    Ok((marked, live))
}
