//! Whether there is disk space for what a merge writes, before it begins: one that fails on a full disk fails
//! what others write there meanwhile, and leaves pages to nobody until VACUUM finds them.
//!
//! A merge writes vectors, addresses and edges twice: to a file, where the graph is made and from which it is
//! searched afterwards, and to pages of the index. A graph that is made in parts is in other files before.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::budget::{cached_bytes, capacity};
use crate::builder::BuildOptions;
use crate::cache::free_space;
use crate::codec::Codec;
use crate::error::{IndexError, Result};
use crate::meta::SegmentEntry;
use crate::page::BODY;
use crate::store::PageStore;

/// Bytes of an entry beside its vector and edges, roughly.
const OVERHEAD: usize = 32;
/// Bytes of an edge of the lowest level, where a node has twice as many as above (HNSW, 4.1).
const EDGE: usize = 8;

/// Bytes of an entry with a vector, roughly.
fn placed_bytes(codec: &Codec, m: usize) -> usize {
    codec.len() + EDGE * m
}

/// Bytes of a segment's live entries, if these take what the others do.
fn live_bytes(segment: &SegmentEntry) -> f64 {
    segment.bytes as f64 * f64::from(segment.live()) / f64::from(segment.count.max(1))
}

/// Whether a segment is as large as one of entries that all have a vector of their own.
pub fn is_of_vectors(codec: &Codec, m: usize, segment: &SegmentEntry) -> bool {
    segment.bytes >= (placed_bytes(codec, m) * segment.count as usize) as u64
}

/// Bytes of the segment into which segments and entries of a list are merged, estimated. Of segments it is known
/// what their entries take: many have no vector, or share one.
pub fn segment_bytes(
    codec: &Codec,
    m: usize,
    segments: &[SegmentEntry],
    (placed, unplaced): (usize, usize),
) -> u64 {
    let each = placed_bytes(codec, m) + OVERHEAD;
    let list = placed * each + unplaced * OVERHEAD;
    segments.iter().map(live_bytes).sum::<f64>() as u64 + list as u64
}

/// Bytes of the parts and the tables of the largest graph that is made of `vectors`, if it is made in parts, estimated.
pub fn joining_bytes(codec: &Codec, vectors: usize, options: &BuildOptions) -> u64 {
    let m = options.parameters.m;
    let whole = capacity(codec, m, options.memory);
    let joined = vectors.min(options.budget().most(codec, m));
    if joined <= whole {
        return 0;
    }
    (joined * (cached_bytes(codec, m) + codec.fine_len())) as u64
}

/// Bytes of a merge's pages beside its segment, more than enough: where it lies, which rows are dead, the list's
/// new end.
const PAGES_BESIDE: u64 = 16 * BODY as u64;

/// Refuses a merge that has no disk space for the few pages that any one takes.
///
/// # Errors
/// [`IndexError::Io`] with `ENOSPC`.
pub fn ensure_pages(store: &impl PageStore, files: &Path) -> Result<()> {
    ensure(store, files, (PAGES_BESIDE, PAGES_BESIDE))
}

/// Refuses a merge that has no disk space for a segment of `needed` bytes, as a file and as pages, and for files of
/// `tables` bytes meanwhile.
///
/// # Errors
/// [`IndexError::Io`] with `ENOSPC`.
pub fn ensure_merge(
    store: &impl PageStore,
    needed: u64,
    tables: u64,
    options: &BuildOptions,
) -> Result<()> {
    let files = options.folder.as_path();
    let filed = needed + tables;
    if free_space(files).is_some_and(|free| free < filed) {
        return Err(full(files));
    }
    ensure(store, files, (filed, needed + PAGES_BESIDE))
}

/// Refuses where the index cannot grow by `paged` bytes, pages that were released included, beside `filed` bytes of
/// files if both lie in one file system.
fn ensure(store: &impl PageStore, files: &Path, (filed, paged): (u64, u64)) -> Result<()> {
    let Some(pages) = store.folder() else {
        return Ok(());
    };
    let shared = same_system(files, &pages);
    let needed = paged + if shared { filed } else { 0 };
    let free = free_space(&pages).unwrap_or(u64::MAX);
    // Looked for only where it matters: that takes a while.
    let released = || u64::from(store.released()) * BODY as u64;
    if free < needed && free.saturating_add(released()) < needed {
        return Err(full(&pages));
    }
    Ok(())
}

fn full(folder: &Path) -> IndexError {
    let full = io::Error::from_raw_os_error(libc::ENOSPC);
    IndexError::io("merge within", folder, full)
}

fn same_system(one: &Path, other: &Path) -> bool {
    let device = |folder: &Path| folder.metadata().ok().map(|found| found.dev());
    device(one).is_some() && device(one) == device(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Parameters;
    use crate::metric::Metric;
    use crate::quantization::Quantization;
    use crate::raw::RawForm;

    #[test]
    fn files_of_parts_are_those_of_graphs_that_are_made_in_parts() {
        let codec = Codec::new(64, Metric::L2, Quantization::F16);
        let options = |cache| BuildOptions {
            parameters: Parameters {
                dims: 64,
                metric: Metric::L2,
                quantization: Some(Quantization::F16),
                raw: RawForm::F32,
                element: 0,
                m: 16,
                ef_construction: 64,
                fingerprint: [0; 32],
                model: String::new(),
            },
            threads: 1,
            memory: 8 << 20,
            cache,
            expected: 0,
            folder: "unused".into(),
        };
        let (whole, cached) = (capacity(&codec, 16, 8 << 20), cached_bytes(&codec, 16));
        let bytes = |vectors, cache| joining_bytes(&codec, vectors, &options(cache)) as usize;
        assert_eq!(bytes(whole, usize::MAX), 0);
        let filed = cached + codec.fine_len();
        assert_eq!(bytes(whole + 1, usize::MAX), (whole + 1) * filed);
        // Without room for such files there are several graphs, and with some of it no larger ones.
        assert_eq!(bytes(9 * whole, 0), 0);
        assert_eq!(bytes(9 * whole, 2 * whole * cached), 2 * whole * filed);
    }
}
