//! Makes the file of a segment of what the threads of a build have left: their graph, and entries in the order in
//! which they came.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use memmap2::Mmap;

use crate::cache::Scratch;
use crate::codec::Codec;
use crate::encoding::Encoding;
use crate::error::{IndexError, Result};
use crate::graph::{Graph, Layout};
use crate::meta::nonce;
use crate::reach;
use crate::refine::refine;
use crate::seeds;
use crate::segment::{Counts, SegmentHeader, bitmap_len, is_dead};
use crate::walk::Guide;
use crate::width;

/// A finished segment: a file under a temporary name, to be written into pages.
#[derive(Debug)]
pub struct BuiltSegment {
    /// What [`BuiltSegment::bytes`] begins with.
    pub header: SegmentHeader,
    /// Bytes of the finished file, mapped.
    pub bytes: Mmap,
    /// A bit for each entry, set for dead ones.
    pub dead: Vec<u8>,
    guide: Guide,
    file: Scratch,
}

impl BuiltSegment {
    /// The bytes alone, for who needs no name for the file.
    pub fn into_bytes(self) -> Mmap {
        self.bytes
    }

    /// Gives the file the name under which the cache will look for it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn keep(self, path: &Path) -> Result<()> {
        drop(self.bytes);
        let segment = (self.header.nonce, self.header.file_len());
        self.file.keep_verified(path, segment, &self.guide)
    }
}

/// Address, key of the node, fine part.
pub(crate) fn spill_len(codec: &Codec) -> usize {
    SPILL_HEAD + codec.fine_len()
}

const SPILL_HEAD: usize = 12;

/// What a builder leaves.
pub(crate) struct Pushed {
    pub encoding: Encoding,
    pub graph: Graph,
    /// Nodes that the graph must have.
    pub nodes: usize,
    /// Address, node and fine part of every entry, in the order in which they were pushed ([`spill_len`]).
    pub spill: Scratch,
    /// Nodes that were there from the beginning.
    pub refined: usize,
    /// Grows by two for every node while the second pass runs.
    pub done: Arc<AtomicUsize>,
    /// Entries with a place in the graph.
    pub count: usize,
    /// Addresses of the others.
    pub unplaced: Vec<u64>,
    /// Bitmap of the dead among the first ones.
    pub dead: Vec<u8>,
}

/// Makes the file of a segment whose threads have stopped. The second pass over its graph walks with
/// `width` on `threads` threads.
pub(crate) fn assemble(
    pushed: Pushed,
    folder: &Path,
    (width, threads): (usize, usize),
    pause: &dyn Fn(),
) -> Result<BuiltSegment> {
    let Pushed {
        encoding,
        graph,
        nodes: expected,
        spill: entries,
        refined,
        done,
        count,
        unplaced,
        dead: already_dead,
    } = pushed;
    let codec = encoding.codec;
    let nodes = graph.len();
    if nodes != expected {
        let message = format!("the graph has {nodes} nodes instead of {expected}");
        return Err(IndexError::Graph(message));
    }
    // Entries without a place alone need no graph.
    let serialized = if nodes == 0 {
        0
    } else {
        graph.serialized_len()
    };
    let counts = Counts {
        entries: count + unplaced.len(),
        placed: count,
        nodes,
        graph: serialized,
    };
    let mut header = SegmentHeader::new(&encoding, nonce(), counts);
    let file = Scratch::new(folder)?;
    let mut bytes = file.map(header.file_len())?;
    if nodes > 0 {
        graph.save(header.graph.of_mut(&mut bytes))?;
    }
    // Its memory is what the second pass has.
    drop(graph);
    pause();
    if nodes > 0 {
        let graph = header.graph.of_mut(&mut bytes);
        let form = (&codec, Some(&encoding.space));
        refine(form, graph, refined, width, threads, &done, pause)?;
        reach::link(&codec, graph, pause)?;
    }

    // Threads add in any order, so that slots and keys differ. Slots become the keys: then
    // nothing needs to translate between them.
    // SAFETY: only this process knows the file, and its threads have stopped. An empty file is mapped
    // as an empty slice.
    let spill = unsafe { Mmap::map(entries.file()) }
        .map_err(|e| IndexError::io("map", entries.path(), e))?;
    let each = spill_len(&codec);
    if spill.len() < count * each {
        return Err(IndexError::Graph("entries are missing".into()));
    }
    let mut slots = vec![u32::MAX; count];
    let keys = match nodes {
        0 => Vec::new(),
        _ => Layout::parse(&codec, header.graph.of(&bytes))?.keys()?,
    };
    for (slot, (at, key)) in keys.into_iter().enumerate() {
        slots[key as usize] = slot as u32;
        let key = (slot as u64).to_le_bytes();
        header.graph.of_mut(&mut bytes)[at..at + 8].copy_from_slice(&key);
    }
    let node = |entry: usize| {
        let at = entry * each + 8;
        let key = u32::from_le_bytes(spill[at..at + 4].try_into().expect("four bytes"));
        slots[key as usize] as usize
    };
    // Entries in the order of their nodes: count, sum up, place.
    let mut starts = vec![0u32; nodes + 1];
    for entry in 0..count {
        starts[node(entry) + 1] += 1;
    }
    for node in 0..nodes {
        starts[node + 1] += starts[node];
    }
    header
        .starts
        .of_mut(&mut bytes)
        .copy_from_slice(bytemuck::cast_slice(&starts));
    encoding.space.write(header.space.of_mut(&mut bytes));
    let mut dead = vec![0u8; bitmap_len(counts.entries)];
    for entry in 0..count {
        if entry % 4096 == 0 {
            pause();
        }
        let next = &mut starts[node(entry)];
        let place = *next as usize;
        *next += 1;
        let from = &spill[entry * each..(entry + 1) * each];
        header.tids.of_mut(&mut bytes)[8 * place..8 * place + 8].copy_from_slice(&from[..8]);
        let len = codec.fine_len();
        header.fine.of_mut(&mut bytes)[place * len..(place + 1) * len]
            .copy_from_slice(&from[SPILL_HEAD..]);
        if is_dead(&already_dead, entry) {
            dead[place / 8] |= 1 << (place % 8);
        }
    }
    let tail = &mut header.tids.of_mut(&mut bytes)[8 * count..];
    for (out, tid) in tail.chunks_exact_mut(8).zip(&unplaced) {
        out.copy_from_slice(&tid.to_le_bytes());
    }
    if nodes > 0 {
        header.ef = width::measure(&codec, &encoding.space, header.graph.of(&bytes), pause)? as u32;
    }
    header.seal(&mut bytes);
    pause();
    let guide = if nodes > 0 {
        let layout = Layout::parse(&codec, header.graph.of(&bytes))?;
        let walk = seeds::walk(&encoding, &header, &layout, &bytes)?;
        walk.guide().clone()
    } else {
        Guide::default()
    };
    let bytes = bytes
        .make_read_only()
        .map_err(|e| IndexError::io("map", file.path(), e))?;
    Ok(BuiltSegment {
        header,
        bytes,
        dead,
        guide,
        file,
    })
}
