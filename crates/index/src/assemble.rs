//! Makes the file of a segment of what the threads of a build have left: their graph, and entries in the order in
//! which they came.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use laser_memory::heap;
use memmap2::Mmap;

use crate::cache;
use crate::codec::Codec;
use crate::encoding::Encoding;
use crate::error::{IndexError, Result};
use crate::graph::Layout;
use crate::growing::Growing;
use crate::join::Join;
use crate::meta::nonce;
use crate::missed::Look;
use crate::order;
use crate::reach;
use crate::refine::{Form, Passes, Widths, are_few, leaves, refine};
use crate::scratch::Scratch;
use crate::seeds;
use crate::segment::{Counts, SegmentHeader, bitmap_len, is_dead};
use crate::settle::Damage;
use crate::table::{Place, Table};
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

    /// Gives the file the name under which the cache of a server will look for it, and writes it to the disk while `go_on` says so:
    /// to do without only costs the next server the time to verify it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn keep(self, path: &Path, server: u64, go_on: &dyn Fn() -> bool) -> Result<()> {
        drop(self.bytes);
        let segment = (&self.header, &self.guide);
        let damage = Damage::default();
        cache::keep(self.file, path, server, segment, &damage, go_on)
    }
}

/// Address, key of the node, fine part.
pub(crate) fn spill_len(codec: &Codec) -> usize {
    SPILL_HEAD + codec.fine_len()
}

const SPILL_HEAD: usize = 12;

/// The graph that a builder leaves.
pub(crate) enum Grown {
    /// In memory.
    Whole(Growing),
    /// One part after the other, serialized.
    Parts(Vec<Part>),
}

/// A part of a graph that is too large for the memory that there is: serialized, in a file without a name.
pub(crate) struct Part(Mmap);

impl Part {
    /// Serializes a graph.
    ///
    /// # Errors
    /// No room on the disk.
    pub(crate) fn of(graph: &Growing, folder: &Path) -> Result<Self> {
        Self::write(folder, graph.serialized_len(), |bytes| graph.save(bytes))
    }

    /// Copies a graph that is serialized already.
    ///
    /// # Errors
    /// No room on the disk.
    pub(crate) fn copied(graph: &[u8], folder: &Path) -> Result<Self> {
        Self::write(folder, graph.len(), |bytes| {
            bytes.copy_from_slice(graph);
            Ok(())
        })
    }

    fn write(
        folder: &Path,
        len: usize,
        write: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        let file = Scratch::new(folder)?;
        let mut bytes = file.map(len as u64)?;
        write(&mut bytes)?;
        let bytes = bytes.make_read_only();
        Ok(Self(
            bytes.map_err(|e| IndexError::io("map", file.path(), e))?,
        ))
    }
}

/// What a builder leaves.
pub(crate) struct Pushed {
    pub encoding: Encoding,
    pub graph: Grown,
    /// Address, node and fine part of every entry, in the order in which they were pushed ([`spill_len`]).
    pub spill: Scratch,
    /// Nodes that were there from the beginning.
    pub refined: usize,
    /// Where none of them has an edge yet, how many threads link them by leaves.
    pub by_leaves: Option<usize>,
    /// How far the second pass has come.
    pub passes: Arc<Passes>,
    /// Entries with a place in the graph.
    pub count: usize,
    /// Addresses of the others.
    pub unplaced: Vec<u64>,
    /// Bitmap of the dead among the first ones.
    pub dead: Vec<u8>,
}

/// Makes the file of a segment whose threads have stopped. The second pass over its graph walks with
/// `widths` on `threads` threads.
pub(crate) fn assemble(
    pushed: Pushed,
    folder: &Path,
    (widths, threads): (Widths, usize),
    pause: &dyn Fn(),
) -> Result<BuiltSegment> {
    let Pushed {
        encoding,
        graph,
        spill: entries,
        refined,
        by_leaves,
        passes,
        count,
        unplaced,
        dead: already_dead,
    } = pushed;
    let codec = encoding.codec;
    // Beyond the memory that there is for a graph there is none for tables either.
    let joined = matches!(graph, Grown::Parts(_)).then_some(folder);
    let place = joined.map_or(Place::Memory, Place::Folder);
    let graphs: Vec<&[u8]> = match &graph {
        Grown::Whole(_) => Vec::new(),
        Grown::Parts(parts) => parts.iter().map(|part| &part.0[..]).collect(),
    };
    let join = Join::of(&codec, &graphs, place, pause)?;
    // Entries without a place alone need no graph.
    let (nodes, serialized) = match &graph {
        Grown::Whole(graph) if graph.is_empty() => (0, 0),
        Grown::Whole(graph) => (graph.len(), graph.serialized_len()),
        Grown::Parts(_) => (join.count(), join.len()),
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
    // Threads add in any order, so that the numbers of nodes differ from the keys that entries know.
    let mut slots = Table::<u32>::zeroed(count, place)?;
    slots.fill(u32::MAX);
    if nodes > 0 {
        let out = header.graph.of_mut(&mut bytes);
        match &graph {
            Grown::Whole(graph) => graph.save(out)?,
            Grown::Parts(_) => {
                join.by_key(|key, node| match slots.get_mut(key as usize) {
                    Some(slot) => {
                        *slot = node;
                        Ok(())
                    }
                    None => Err(IndexError::Graph("a node is of no entry".into())),
                })?;
                join.write(out, pause)?;
            }
        }
    }
    drop(join);
    // Its memory is what the second pass has.
    drop(graph);
    heap::trim();
    pause();
    if nodes > 0 {
        let graph = header.graph.of_mut(&mut bytes);
        let form = Form {
            codec: &codec,
            space: Some(&encoding.space),
            folder: joined,
            is_joined: joined.is_some() && by_leaves.is_none(),
        };
        // The second pass is faster where neighbours lie together already. Of a graph that is continued it leaves the nodes that
        // were there as they are, which are the first ones, and parts that usearch has made have no edges from one to another before it.
        let is_new = by_leaves.is_some() || joined.is_none() && refined == 0;
        if let Some(threads) = by_leaves {
            leaves::link(form, graph, threads, &passes, pause)?;
        }
        if is_new {
            order::renumber(&codec, graph, place, pause)?;
        }
        refine(form, graph, refined, widths, threads, &passes, pause)?;
        let few = are_few(nodes.saturating_sub(refined), nodes);
        if !is_new && !few {
            order::renumber(&codec, graph, place, pause)?;
        }
        // Of a graph that is continued some edges are others now, also of the nodes that were there.
        let sought = if few { refined..nodes } else { 0..nodes };
        let look = Look {
            nodes: sought,
            place,
            threads,
            passes: &passes,
        };
        reach::link_all(&codec, graph, Some(&look), pause)?;
        passes.has_looked();
    }

    // SAFETY: only this process knows the file, and its threads have stopped. An empty file is mapped
    // as an empty slice.
    let spill = unsafe { Mmap::map(entries.file()) }
        .map_err(|e| IndexError::io("map", entries.path(), e))?;
    let each = spill_len(&codec);
    if spill.len() < count * each {
        return Err(IndexError::Graph("entries are missing".into()));
    }
    // Numbers become the keys: then nothing needs to translate between them.
    if nodes > 0 {
        let graph = header.graph.of_mut(&mut bytes);
        if joined.is_none() {
            order::number_keys(&codec, graph, |key, node| slots[key as usize] = node)?;
        } else {
            // These were numbers before the nodes were put in order.
            let mut numbers = Table::<u32>::zeroed(nodes, place)?;
            order::number_keys(&codec, graph, |key, node| numbers[key as usize] = node)?;
            for slot in slots.iter_mut().filter(|slot| **slot != u32::MAX) {
                *slot = numbers[*slot as usize];
            }
        }
        pause();
    }
    let node = |entry: usize| {
        let at = entry * each + 8;
        let key = u32::from_le_bytes(spill[at..at + 4].try_into().expect("four bytes"));
        slots[key as usize] as usize
    };
    // Entries in the order of their nodes: count, sum up, place.
    let mut starts = Table::<u32>::zeroed(nodes + 1, place)?;
    for entry in 0..count {
        starts[node(entry) + 1] += 1;
    }
    for node in 0..nodes {
        starts[node + 1] += starts[node];
    }
    header
        .starts
        .of_mut(&mut bytes)
        .copy_from_slice(bytemuck::cast_slice(&starts[..]));
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
        let measured = |share| passes.measured(share);
        let graph = header.graph.of(&bytes);
        header.ef = width::measure(&encoding, graph, threads, &measured, pause)? as u32;
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
