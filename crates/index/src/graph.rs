//! The proximity graph: usearch, fed with the graph parts of stored vectors. It is searched in its
//! serialized form, by [`crate::walk`].
//!
//! Integer codes are compared by a distance of ours, because every vector has a scale of its own
//! (see [`crate::codec`]).
#![allow(unsafe_code)]

use laser_cpu::prefetch;
use usearch::{Index, IndexOptions, MetricKind, ScalarKind, b1x8, f16};

use crate::codec::{Codec, Format};
use crate::error::{IndexError, Result};
use crate::kernels::dot_i8;
use crate::quantization::Quantization;

/// A graph in memory, to be added to and serialized.
pub struct Graph {
    index: Index,
    codec: Codec,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph")
            .field("codec", &self.codec)
            .field("len", &self.len())
            .finish()
    }
}

fn graph_error(error: impl std::fmt::Display) -> IndexError {
    let message = error.to_string();
    if message.to_ascii_lowercase().contains("memory") {
        IndexError::GraphMemory
    } else {
        IndexError::Graph(message)
    }
}

/// The first block that usearch takes from the system for vectors, and for nodes; each one after it
/// is twice as large.
const FIRST_BLOCK: usize = 8 << 20;

/// Whether there is memory to load a serialized graph of `bytes` bytes. While it loads one, usearch
/// does not look whether it got the memory that it asked for.
fn room_to_load(bytes: usize) -> bool {
    let (mut block, mut blocks) = (FIRST_BLOCK, FIRST_BLOCK);
    while blocks < bytes {
        block *= 2;
        blocks += block;
    }
    // Vectors and nodes each, and tables.
    let all = blocks.saturating_mul(2).saturating_add(bytes);
    memmap2::MmapMut::map_anon(all).is_ok()
}

/// Dimensions and scalars as usearch sees them.
fn shape(codec: &Codec) -> (usize, ScalarKind) {
    match codec.quantization {
        Quantization::F32 => (codec.width(), ScalarKind::F32),
        Quantization::F16 => (codec.width(), ScalarKind::F16),
        Quantization::Bf16 => (codec.width(), ScalarKind::BF16),
        Quantization::I8 => (codec.graph_len(), ScalarKind::I8),
        Quantization::B1 => (codec.graph_len() * 8, ScalarKind::B1),
    }
}

impl Graph {
    fn empty(codec: Codec, m: usize, ef_construction: usize) -> Result<Self> {
        let (dimensions, quantization) = shape(&codec);
        debug_assert_ne!(codec.format, Format::First, "old graphs are only read");
        let metric = match codec.quantization {
            Quantization::B1 => MetricKind::Hamming,
            _ if codec.walks_by_products() => MetricKind::IP,
            _ => MetricKind::L2sq,
        };
        let options = IndexOptions {
            dimensions,
            metric,
            quantization,
            connectivity: m,
            expansion_add: ef_construction,
            expansion_search: 1,
            multi: false,
        };
        let index = Index::new(&options).map_err(graph_error)?;
        Ok(Self { index, codec })
    }

    /// To be called once, and last: loading a graph resets its distance to usearch's own, and usearch
    /// keeps the memory of a distance that is replaced.
    fn use_own_distance(&mut self) -> Result<()> {
        if self.codec.quantization != Quantization::I8 {
            return Ok(());
        }
        let codec = self.codec;
        let (len, dot) = (codec.graph_len(), dot_i8());
        let distance = move |a: *const i8, b: *const i8| {
            // SAFETY: usearch passes vectors of the index, which have `len` bytes.
            let (a, b) = unsafe {
                (
                    std::slice::from_raw_parts(a.cast(), len),
                    std::slice::from_raw_parts(b.cast(), len),
                )
            };
            // usearch jumps from vector to vector: without this, loads wait for each other.
            prefetch(b);
            codec.scalar_distance(dot, a, b)
        };
        self.index.change_metric::<i8>(Box::new(distance));
        Ok(())
    }

    /// An empty graph to add to.
    ///
    /// # Errors
    /// When usearch refuses the parameters.
    pub fn new(codec: Codec, m: usize, ef_construction: usize) -> Result<Self> {
        let mut graph = Self::empty(codec, m, ef_construction)?;
        graph.use_own_distance()?;
        Ok(graph)
    }

    /// A copy of a serialized graph to add to.
    ///
    /// # Errors
    /// Damage.
    pub fn load(codec: Codec, m: usize, ef_construction: usize, bytes: &[u8]) -> Result<Self> {
        if !room_to_load(bytes.len()) {
            return Err(IndexError::GraphMemory);
        }
        // usearch follows whatever edges it finds; a checksum says nothing of who computed it.
        Layout::parse(&codec, bytes)?.verify(&|| ())?;
        let mut graph = Self::empty(codec, m, ef_construction)?;
        // What there was room for a moment ago may be gone.
        laser_memory::unchecked(|| graph.index.load_from_buffer(bytes)).map_err(graph_error)?;
        graph.check_shape()?;
        graph.index.change_expansion_add(ef_construction);
        graph.use_own_distance()?;
        Ok(graph)
    }

    fn check_shape(&self) -> Result<()> {
        let (dimensions, kind) = shape(&self.codec);
        if self.index.dimensions() != dimensions || self.index.scalar_kind() != kind {
            return Err(IndexError::Graph(
                "the graph holds vectors of another kind".into(),
            ));
        }
        Ok(())
    }

    /// Makes room for `capacity` vectors in all, added by at most `threads` threads at once. Nobody
    /// else uses the graph meanwhile.
    ///
    /// # Errors
    /// No memory.
    pub fn reserve(&self, capacity: usize, threads: usize) -> Result<()> {
        self.index
            .reserve_capacity_and_threads(capacity, threads)
            .map_err(graph_error)
    }

    /// Vectors in the graph.
    pub fn len(&self) -> usize {
        self.index.size()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of vectors and edges, without the part of usearch's arenas that is mapped but not
    /// touched yet, and without its tables.
    pub fn memory(&self) -> usize {
        let stats = self.index.memory_stats();
        let graph = stats.graph_allocated.saturating_sub(stats.graph_reserved);
        graph
            + stats
                .vectors_allocated
                .saturating_sub(stats.vectors_reserved)
    }

    /// Adds the graph part of a vector. Several threads may do so at once.
    ///
    /// # Errors
    /// No room, or a key that is there already.
    pub fn add(&self, key: u64, graph: &[u8], scratch: &mut Vec<f32>) -> Result<()> {
        match self.codec.quantization {
            Quantization::F32 | Quantization::Bf16 => {
                self.codec.components(graph, scratch);
                self.index.add(key, scratch)
            }
            Quantization::F16 => self.index.add(key, &halves(graph)),
            Quantization::I8 => self.index.add::<i8>(key, bytemuck::cast_slice(graph)),
            Quantization::B1 => self.index.add(key, b1x8::from_u8s(graph)),
        }
        .map_err(graph_error)
    }

    /// Bytes of the serialized graph.
    pub fn serialized_len(&self) -> usize {
        self.index.serialized_length()
    }

    /// Serializes the graph into exactly that many bytes. No thread adds to it any more.
    ///
    /// # Errors
    /// When usearch fails.
    pub fn save(&self, out: &mut [u8]) -> Result<()> {
        self.index.save_to_buffer(out).map_err(graph_error)
    }
}

fn halves(bytes: &[u8]) -> Vec<f16> {
    let raw: Vec<i16> = bytes
        .chunks_exact(2)
        .map(|b| i16::from_le_bytes([b[0], b[1]]))
        .collect();
    f16::from_i16s(&raw).to_vec()
}

/// Bytes that a graph needs for one vector: the vector, its place in the tables of usearch and in
/// the builder's table of equal vectors, and its
/// edges (`2m` on the lowest level, `m` on each of `1 / (m - 1)` further levels on average).
pub fn bytes_per_vector(codec: &Codec, m: usize) -> usize {
    let edges = 4 + 8 * m + (4 + 4 * m).div_ceil(m.max(2) - 1);
    codec.graph_len().next_multiple_of(8) + NODE_HEAD + edges + 16 + 40 + 48
}

/// Bytes of a serialized graph of `vectors` nodes, with as many levels as usearch makes on average.
pub fn serialized_len(codec: &Codec, m: usize, vectors: usize) -> usize {
    let upper = (4 + 4 * m) as f64 / (m.max(2) - 1) as f64;
    let node = codec.graph_len() + 2 + NODE_HEAD + 4 + 8 * m;
    8 + DENSE_HEAD + GRAPH_HEAD + vectors * node + (vectors as f64 * upper) as usize
}

/// Key and level in front of a serialized node's edges.
pub(crate) const NODE_HEAD: usize = 10;
/// usearch's own header between the vectors and the graph.
pub(crate) const DENSE_HEAD: usize = 64;
/// Where usearch's own header has the number of nodes (`index_dense.hpp`, `index_dense_head_t`): behind seven letters,
/// three numbers of two bytes and four kinds of one.
pub(crate) const COUNT_PRESENT: usize = 7 + 3 * 2 + 4;
/// Counts in front of the levels.
pub(crate) const GRAPH_HEAD: usize = 40;

/// Where things are in a serialized graph of n nodes (usearch 2.26, `index_dense.hpp` and `index.hpp`,
/// `save_to_stream`). Numbers are little-endian.
///
/// ```text
/// 0          u32 n, u32 bytes of a vector
/// 8          n vectors, one behind the other: the graph parts that [`Codec`] makes
/// …          64 bytes: "usearch", version, kinds, counts (none of which is read here)
/// …          u64 n; u64 edges of a node on levels above the lowest (m); u64 those on the lowest (2m);
///            u64 top level; u64 entry, a node of the top level
/// …          n times i16: the highest level of each node
/// …          n nodes: u64 key, i16 level, then for each level from the lowest up
///            u32 number of edges, and room for all that it may have: u32 each, a node's number
/// ```
///
/// Nodes are of different lengths, for they have as many lists as levels: [`Layout::nodes`] goes through them,
/// and [`crate::walk`] knows where one begins by the sum of the levels before it.
#[derive(Debug)]
pub struct Layout<'a> {
    bytes: &'a [u8],
    rows: usize,
    /// Bytes of a vector.
    pub(crate) columns: usize,
    /// Room for edges of a node on each level but the lowest.
    pub(crate) edges: usize,
    /// The same on the lowest level.
    pub(crate) base_edges: usize,
    /// Node from which walks begin.
    pub(crate) entry: u64,
    /// Level on which usearch begins, which must be that of `entry`.
    top: u64,
    levels: usize,
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The highest level of a node of a graph whose levels begin at `levels`; zero where it says none.
pub(crate) fn level_at(graph: &[u8], levels: usize, node: usize) -> usize {
    let at = levels + 2 * node;
    let level = graph
        .get(at..at + 2)
        .map_or(0, |b| i16::from_le_bytes([b[0], b[1]]));
    usize::try_from(level).unwrap_or(0)
}

impl<'a> Layout<'a> {
    /// Finds its way in the bytes of a graph.
    ///
    /// # Errors
    /// When they are no graph of this codec.
    pub fn parse(codec: &Codec, bytes: &'a [u8]) -> Result<Self> {
        Self::find(codec, bytes)
            .ok_or_else(|| IndexError::Graph("the serialized graph is damaged".into()))
    }

    fn find(codec: &Codec, bytes: &'a [u8]) -> Option<Self> {
        let rows = u32_at(bytes, 0)? as usize;
        let columns = u32_at(bytes, 4)? as usize;
        let dense = 8 + rows.checked_mul(columns)?;
        let head = dense.checked_add(DENSE_HEAD)?;
        let size = u64_at(bytes, head)?;
        let limit = 1 << 16;
        let edges = u64_at(bytes, head + 8).filter(|&n| n < limit)? as usize;
        let base_edges = u64_at(bytes, head + 16).filter(|&n| n < limit)? as usize;
        let top = u64_at(bytes, head + 24)?;
        let entry = u64_at(bytes, head + 32)?;
        let levels = head + GRAPH_HEAD;
        if columns != codec.graph_len()
            || size != rows as u64
            || bytes.get(dense..dense + 7)? != b"usearch"
            || bytes.len() < levels + 2 * rows
        {
            return None;
        }
        Some(Self {
            bytes,
            rows,
            columns,
            edges,
            base_edges,
            entry,
            top,
            levels,
        })
    }

    /// Vectors in the graph.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Where vector `slot` begins.
    pub fn vector_at(&self, slot: usize) -> usize {
        8 + slot * self.columns
    }

    /// Where the levels of the nodes are.
    pub(crate) fn levels(&self) -> usize {
        self.levels
    }

    /// The highest level of a node.
    pub(crate) fn level(&self, slot: usize) -> usize {
        level_at(self.bytes, self.levels, slot)
    }

    /// Where the first node begins; the others follow.
    pub(crate) fn first_node(&self) -> usize {
        self.levels + 2 * self.rows
    }

    /// Bytes of a node of this level.
    pub(crate) fn node_len(&self, level: usize) -> usize {
        NODE_HEAD + 4 + 4 * self.base_edges + level * (4 + 4 * self.edges)
    }

    /// Where the number of the node is that walks begin at.
    pub(crate) fn entry_at(&self) -> usize {
        self.levels - 8
    }

    /// Shows every node in the order of slots: where it begins, and its level.
    pub(crate) fn nodes(
        &self,
        mut look: impl FnMut(usize, usize, usize) -> Result<()>,
    ) -> Result<()> {
        let damaged = || IndexError::Graph("the serialized graph is damaged".into());
        let mut at = self.first_node();
        for slot in 0..self.rows {
            let level = &self.bytes[self.levels + 2 * slot..][..2];
            let level = i16::from_le_bytes([level[0], level[1]]);
            let level = usize::try_from(level).map_err(|_| damaged())?;
            let len = self.node_len(level);
            if at + len > self.bytes.len() {
                return Err(damaged());
            }
            look(slot, at, level)?;
            at += len;
        }
        if at != self.bytes.len() {
            return Err(damaged());
        }
        Ok(())
    }

    /// Where the key of each node is, in the order of slots, and that key.
    ///
    /// # Errors
    /// Damage.
    pub fn keys(&self) -> Result<Vec<(usize, u64)>> {
        let mut keys = Vec::with_capacity(self.rows);
        self.nodes(|_, at, _| {
            keys.push((at, u64_at(self.bytes, at).expect("within the node")));
            Ok(())
        })?;
        Ok(keys)
    }

    /// Where each node begins, and its level, in the order of slots.
    fn starts(&self) -> Result<Vec<(usize, usize)>> {
        let mut starts = Vec::with_capacity(self.rows);
        self.nodes(|_, at, level| {
            starts.push((at, level));
            Ok(())
        })?;
        if self.rows > 0 && self.entry >= self.rows as u64 {
            return Err(IndexError::Graph(
                "the walk begins outside of the graph".into(),
            ));
        }
        Ok(starts)
    }

    fn neighbours(
        &self,
        starts: &[(usize, usize)],
        slot: usize,
        level: usize,
    ) -> Result<Vec<usize>> {
        let (at, _) = starts[slot];
        let (from, most) = match level {
            0 => (at + NODE_HEAD, self.base_edges),
            _ => {
                let upper = at + NODE_HEAD + 4 + 4 * self.base_edges;
                (upper + (level - 1) * (4 + 4 * self.edges), self.edges)
            }
        };
        let count = u32_at(self.bytes, from).expect("within the node") as usize;
        if count > most {
            return Err(IndexError::Graph(format!(
                "node {slot} has {count} edges on level {level}"
            )));
        }
        (0..count)
            .map(|i| {
                let to = u32_at(self.bytes, from + 4 + 4 * i).expect("within the node") as usize;
                match starts.get(to) {
                    Some(&(_, to_level)) if to_level >= level => Ok(to),
                    _ => Err(IndexError::Graph(format!(
                        "an edge of node {slot} on level {level} leads to node {to}, which is not there"
                    ))),
                }
            })
            .collect()
    }

    /// Checks that keys are slots, that every edge leads to a node of its level, and that the walk
    /// begins at the highest one. `pause` is called now and then, and may unwind.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verify(&self, pause: &dyn Fn()) -> Result<()> {
        for (slot, (_, key)) in self.keys()?.into_iter().enumerate() {
            if key != slot as u64 {
                return Err(IndexError::Graph(format!(
                    "node {slot} has the key of another one"
                )));
            }
        }
        let starts = self.starts()?;
        if let Some(&(_, top)) = starts.get(self.entry as usize)
            && self.top != top as u64
        {
            return Err(IndexError::Graph(format!(
                "the walk begins on level {} at a node of level {top}",
                self.top
            )));
        }
        for (slot, &(_, level)) in starts.iter().enumerate() {
            if slot % 4096 == 0 {
                pause();
            }
            for level in 0..=level {
                self.neighbours(&starts, slot, level)?;
            }
        }
        Ok(())
    }
}

/// The graph of some points, as usearch leaves it.
#[cfg(test)]
pub(crate) fn raw(codec: Codec, m: usize, points: &[impl AsRef<[f32]>]) -> Vec<u8> {
    let graph = Graph::new(codec, m, 16).unwrap();
    graph.reserve(points.len(), 1).unwrap();
    let (mut stored, mut scratch) = (vec![0; codec.len()], Vec::new());
    for (key, x) in points.iter().enumerate() {
        codec.encode(x.as_ref(), 0.0, &mut stored);
        let part = &stored[..codec.graph_len()];
        graph.add(key as u64, part, &mut scratch).unwrap();
    }
    let mut bytes = vec![0; graph.serialized_len()];
    graph.save(&mut bytes).unwrap();
    bytes
}
