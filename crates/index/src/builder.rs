//! Builds segments: several threads collect vectors, or add them to one graph, within a memory budget. Beyond that what there is
//! is serialized, and another part of it begun ([`crate::join`]).

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use laser_memory::heap;
use laser_memory::threads::{self, Gate, Thread};

use crate::assemble::{BuiltSegment, Grown, Part, Pushed, assemble, spill_len};
use crate::background;
use crate::budget::{self, BATCH, Budget, capacity};
use crate::choice::{self, Existing, SAMPLE};
use crate::encoding::Encoding;
use crate::error::{IndexError, Result};
use crate::graph::Graph;
use crate::growing::{Growing, by_leaves, widths};
use crate::meta::Parameters;
use crate::page::UNPLACED;
use crate::refine::{Passes, leaves};
use crate::scratch::Scratch;
use crate::segment::bitmap_len;
use crate::space;
use crate::view::SegmentView;

/// How to build.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Metric, dimensions and the graph's parameters, as on the metapage.
    pub parameters: Parameters,
    /// Threads that add to the graph.
    pub threads: usize,
    /// Bytes of memory to stay within.
    pub memory: usize,
    /// Bytes of files that the system keeps in memory besides. A graph that fits into these is made in parts where it does not
    /// fit into `memory`.
    pub cache: usize,
    /// How many vectors are expected; a better guess saves a pause.
    pub expected: usize,
    /// Folder of the segment's file and of temporary ones; it is made where there is none.
    pub folder: PathBuf,
}

impl BuildOptions {
    /// What a build may take.
    pub fn budget(&self) -> Budget {
        Budget {
            memory: self.memory,
            cache: self.cache,
            threads: self.threads,
        }
    }

    /// Vectors by which a segment's encoding is decided, within the memory that a build may take.
    pub fn sample_size(&self) -> usize {
        (self.memory / 8 / (4 * self.parameters.dims.max(1))).clamp(64, SAMPLE)
    }

    /// How to store vectors like these, where nothing is stored yet.
    pub fn choose(&self, sample: &[Vec<f32>], pause: &dyn Fn()) -> Encoding {
        let p = &self.parameters;
        choice::choose(
            p.metric,
            p.dims,
            p.quantization,
            sample,
            self.expected,
            Existing::default(),
            pause,
        )
    }
}

/// How long threads that are no longer wanted are waited for. One that has stopped because it is out of
/// memory never ends; it owns all that it touches.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for threads that have done all their work, and only need a processor to end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(60);

enum Vectors {
    /// Prepared vectors and bounds of their errors.
    Prepared(Vec<f32>, Vec<f64>),
    /// In the stored form of the segment.
    Stored(Vec<u8>),
}

struct Batch {
    first: u64,
    tids: Vec<u64>,
    vectors: Vectors,
}

struct Shared {
    encoding: Encoding,
    /// The part of the graph that grows. Adding shares it, making room needs it alone.
    graph: RwLock<Growing>,
    /// Parts that have grown before.
    parts: Mutex<Vec<Part>>,
    /// Keys of the graph's nodes by the fingerprints of their vectors.
    nodes: Mutex<HashMap<u128, u32>>,
    /// Address, node and fine part of every entry, in the order in which they were pushed.
    spill: Scratch,
    /// Nodes that were there from the beginning.
    refined: usize,
    passes: Arc<Passes>,
    stop: AtomicBool,
    added: AtomicUsize,
    /// Nanoseconds that the threads have been busy with that, together.
    busy: AtomicU64,
    error: Mutex<Option<IndexError>>,
}

impl Shared {
    fn fail(&self, error: IndexError) {
        self.stop.store(true, Ordering::Relaxed);
        let mut slot = self.error.lock().unwrap_or_else(|e| e.into_inner());
        slot.get_or_insert(error);
    }

    /// Serializes the part of the graph that has grown, and forgets its vectors.
    fn end_part(&self, graph: &Growing, folder: &Path) -> Result<Part> {
        let mut nodes = self.nodes.lock().unwrap_or_else(|e| e.into_inner());
        check_nodes(graph, nodes.len())?;
        *nodes = HashMap::new();
        Part::of(graph, folder)
    }

    fn work(&self, batches: &Receiver<Batch>) {
        let mut scratch = Vec::new();
        let mut spilled = Vec::new();
        let mut buffer = vec![0; self.encoding.codec.len()];
        for batch in batches {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let begin = Instant::now();
            if let Err(error) = self.add(&batch, &mut buffer, &mut spilled, &mut scratch) {
                return self.fail(error);
            }
            let busy = begin.elapsed().as_nanos() as u64;
            self.busy.fetch_add(busy, Ordering::Relaxed);
        }
    }

    fn add(
        &self,
        batch: &Batch,
        buffer: &mut [u8],
        spilled: &mut Vec<u8>,
        scratch: &mut Vec<f32>,
    ) -> Result<()> {
        let Encoding { codec, space, .. } = &self.encoding;
        let mut place = Vec::new();
        let graph = self.graph.read().unwrap_or_else(|e| e.into_inner());
        spilled.clear();
        for (i, tid) in batch.tids.iter().enumerate() {
            let stored: &[u8] = match &batch.vectors {
                Vectors::Prepared(x, errors) => {
                    let x = &x[i * codec.dims..][..codec.dims];
                    let error = space.enter(x, errors[i], &mut place);
                    codec.encode(&place, error, buffer);
                    buffer
                }
                Vectors::Stored(bytes) => &bytes[i * codec.len()..][..codec.len()],
            };
            let (graph_part, fine) = stored.split_at(codec.graph_len());
            // Who comes first with a graph part adds it; the others share the node.
            let key = (batch.first + i as u64) as u32;
            let node = {
                let mut nodes = self.nodes.lock().unwrap_or_else(|e| e.into_inner());
                *nodes.entry(fingerprint(graph_part)).or_insert(key)
            };
            if node == key {
                graph.add(key, graph_part, scratch)?;
            }
            spilled.extend_from_slice(&tid.to_le_bytes());
            spilled.extend_from_slice(&node.to_le_bytes());
            spilled.extend_from_slice(fine);
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        self.spill
            .file()
            .write_all_at(spilled, batch.first * spill_len(codec) as u64)
            .map_err(|e| IndexError::io("write", self.spill.path(), e))?;
        self.added.fetch_add(batch.tids.len(), Ordering::Release);
        Ok(())
    }
}

/// Equal for equal graph parts, and for no others that anybody will ever see.
fn fingerprint(graph_part: &[u8]) -> u128 {
    let hash = blake3::hash(graph_part);
    u128::from_le_bytes(*hash.as_bytes().first_chunk().expect("32 bytes"))
}

/// A segment in the making. Dropped before it is finished, it stops its threads and leaves nothing
/// behind.
pub struct SegmentBuilder {
    shared: Arc<Shared>,
    options: BuildOptions,
    sender: Option<Sender<Batch>>,
    workers: Vec<Thread<()>>,
    batch: Batch,
    pushed: usize,
    /// Entries before the part of the graph that grows, and those for which it has room.
    before: usize,
    reserved: usize,
    /// Entries of a part, and of the segment.
    limit: usize,
    most: usize,
    /// Whether nodes are linked by leaves when all are there, and not as they come.
    by_leaves: bool,
    dead: Vec<u8>,
    /// Addresses of entries without a place in the graph.
    unplaced: Vec<u64>,
}

impl std::fmt::Debug for SegmentBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentBuilder")
            .field("pushed", &self.pushed)
            .field("limit", &self.limit)
            .finish()
    }
}

impl SegmentBuilder {
    /// Starts a segment. With `base`, which has the same encoding, its entries are in it from the
    /// beginning, dead ones included.
    ///
    /// # Errors
    /// No memory, no file.
    pub fn new(
        options: BuildOptions,
        encoding: Encoding,
        base: Option<&SegmentView>,
    ) -> Result<Self> {
        let p = &options.parameters;
        let codec = encoding.codec;
        let threads = options.threads.max(1);
        let spill = Scratch::new(&options.folder)?;
        let most = options
            .budget()
            .most(&codec, p.m)
            .min(u32::MAX as usize - 1);
        let limit = capacity(&codec, p.m, options.memory).min(most);
        // Of the sample by which the encoding was chosen.
        heap::trim();
        let mut dead = Vec::new();
        let mut unplaced = Vec::new();
        let mut nodes = HashMap::new();
        let by_leaves = by_leaves(&codec, base.is_some());
        let (mut graph, mut parts, mut refined) = (None, Vec::new(), 0);
        if let Some(view) = base {
            let bytes = view.header().graph.of(view.bytes());
            let placed = view.header().placed() as usize;
            refined = view.nodes();
            // In a loaded graph the keys are the slots. New entries have greater keys, because
            // there are at least as many entries as nodes.
            if placed + options.expected.saturating_sub(view.len()) > limit && limit < most {
                parts.push(Part::copied(bytes, &options.folder)?);
            } else {
                let adding = widths(p, false).adding;
                graph = Some(Growing::Linked(Graph::load(codec, p.m, adding, bytes)?));
                let keys =
                    (0..view.nodes()).map(|node| (fingerprint(view.graph_part(node)), node as u32));
                nodes.extend(keys);
            }
            spill_entries(view, &spill)?;
            dead.clone_from(&view.dead());
            dead.truncate(bitmap_len(placed));
            if let Some(last) = dead.last_mut()
                && !placed.is_multiple_of(8)
            {
                // Bits behind the placed entries are those of others.
                *last &= (1 << (placed % 8)) - 1;
            }
            unplaced.extend(view.unplaced());
        }
        let already = base.map_or(0, |view| view.header().placed() as usize);
        let before = if parts.is_empty() { 0 } else { already };
        let graph = match graph {
            Some(graph) => graph,
            None => Growing::new(codec, p, by_leaves, before)?,
        };
        let here = already - before;
        let reserved = (here + options.expected.max(16 * BATCH)).min(limit.max(here + BATCH));
        graph.reserve(reserved, threads)?;
        let shared = Arc::new(Shared {
            encoding,
            graph: RwLock::new(graph),
            parts: Mutex::new(parts),
            nodes: Mutex::new(nodes),
            spill,
            refined,
            passes: Arc::new(Passes::of(codec.metric)),
            stop: AtomicBool::new(false),
            added: AtomicUsize::new(already),
            busy: AtomicU64::new(0),
            error: Mutex::new(None),
        });
        let (sender, receiver) = bounded::<Batch>(2 * threads);
        let workers = spawn(threads, &shared, &receiver)?;
        Ok(Self {
            shared,
            options,
            sender: Some(sender),
            workers,
            batch: Batch {
                first: 0,
                tids: Vec::new(),
                vectors: Vectors::Stored(Vec::new()),
            },
            pushed: already,
            before,
            reserved,
            limit: limit.max(here + BATCH),
            most: most.max(already + BATCH),
            by_leaves,
            dead,
            unplaced,
        })
    }

    /// Entries so far.
    pub fn len(&self) -> usize {
        self.pushed + self.unplaced.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Vectors that a segment has room for.
    pub fn most(&self) -> usize {
        self.most
    }

    /// How vectors are stored.
    pub fn encoding(&self) -> &Encoding {
        &self.shared.encoding
    }

    /// Entries that the threads have added.
    pub fn added(&self) -> usize {
        self.shared.added.load(Ordering::Relaxed)
    }

    /// What that has taken of the time, as far as all threads share it.
    pub fn adding(&self) -> Duration {
        let busy = Duration::from_nanos(self.shared.busy.load(Ordering::Relaxed));
        busy / self.options.threads.max(1) as u32
    }

    /// What [`Self::finish`] does with the graph, as a multiple of what it takes to add the entries.
    pub fn work(&self) -> f64 {
        Passes::work(self.shared.encoding.codec.metric, self.by_leaves)
    }

    /// How far the second pass has come while [`Self::finish`] runs.
    pub fn refined(&self) -> Arc<Passes> {
        self.shared.passes.clone()
    }

    /// Bytes that the graph has allocated.
    pub fn memory(&self) -> usize {
        self.shared
            .graph
            .read()
            .unwrap_or_else(|e| e.into_inner())
            .memory()
    }

    /// Whether the budget is used up: finish this segment and start another one.
    pub fn is_full(&self) -> bool {
        let budget = self.options.budget();
        budget.weight(self.most, self.pushed, self.unplaced.len()) >= self.most
    }

    /// Adds a vector as it came; one that has no direction under the cosine metric gets no place in
    /// the graph. `pause` is called while waiting for the threads, and may unwind.
    ///
    /// # Errors
    /// A vector that cannot be indexed, or what went wrong in a thread.
    pub fn push(&mut self, tid: u64, x: &[f32], pause: &dyn Fn()) -> Result<()> {
        let codec = self.shared.encoding.codec;
        match space::prepare(codec.metric, codec.dims, x)? {
            Some(unit) => {
                let error = space::direction_error(codec.metric, x);
                self.push_prepared(tid, &unit, error, pause)
            }
            None => {
                self.push_unplaced(tid | crate::page::UNDIRECTED);
                Ok(())
            }
        }
    }

    /// Adds an entry without a place; its address says why.
    pub fn push_unplaced(&mut self, tid: u64) {
        debug_assert!(tid & UNPLACED != 0);
        self.unplaced.push(tid);
    }

    /// Adds a prepared vector ([`space::prepare`]) and a bound of its distance from the true one.
    ///
    /// # Errors
    /// What went wrong in a thread.
    pub fn push_prepared(
        &mut self,
        tid: u64,
        x: &[f32],
        error: f64,
        pause: &dyn Fn(),
    ) -> Result<()> {
        if let Vectors::Stored(_) = self.batch.vectors {
            self.flush(pause)?;
            self.batch.vectors = Vectors::Prepared(Vec::new(), Vec::new());
        }
        if let Vectors::Prepared(all, errors) = &mut self.batch.vectors {
            all.extend_from_slice(x);
            errors.push(error);
        }
        self.pushed_one(tid, pause)
    }

    /// Adds a vector in the stored form of this segment's encoding.
    ///
    /// # Errors
    /// What went wrong in a thread.
    pub fn push_stored(
        &mut self,
        tid: u64,
        graph: &[u8],
        fine: &[u8],
        pause: &dyn Fn(),
    ) -> Result<()> {
        if let Vectors::Prepared(..) = self.batch.vectors {
            self.flush(pause)?;
            self.batch.vectors = Vectors::Stored(Vec::new());
        }
        if let Vectors::Stored(all) = &mut self.batch.vectors {
            all.extend_from_slice(graph);
            all.extend_from_slice(fine);
        }
        self.pushed_one(tid, pause)
    }

    fn pushed_one(&mut self, tid: u64, pause: &dyn Fn()) -> Result<()> {
        if self.batch.tids.is_empty() {
            self.batch.first = self.pushed as u64;
        }
        self.batch.tids.push(tid);
        self.pushed += 1;
        if self.batch.tids.len() == BATCH {
            self.flush(pause)
        } else {
            Ok(())
        }
    }

    /// Hands the batch to the threads.
    fn flush(&mut self, pause: &dyn Fn()) -> Result<()> {
        if self.batch.tids.is_empty() {
            return Ok(());
        }
        // Threads that keep up let nobody wait, and so nobody pause, below.
        pause();
        if self.limit < self.most && self.pushed - self.before > self.part() {
            self.end_part(pause)?;
        }
        let here = self.pushed - self.before;
        if here > self.reserved {
            self.wait(self.pushed - self.batch.tids.len(), pause)?;
            self.reserved = (self.reserved * 2).max(here).min(self.limit.max(here));
            let (shared, room) = (self.shared.clone(), self.reserved);
            let threads = self.options.threads.max(1);
            background::run(pause, move |_| {
                let graph = shared.graph.write().unwrap_or_else(|e| e.into_inner());
                graph.reserve(room, threads)
            })?;
        }
        let codec = &self.shared.encoding.codec;
        let vectors = match self.batch.vectors {
            Vectors::Prepared(..) => Vectors::Prepared(
                Vec::with_capacity(BATCH * codec.dims),
                Vec::with_capacity(BATCH),
            ),
            Vectors::Stored(_) => Vectors::Stored(Vec::with_capacity(BATCH * codec.len())),
        };
        let empty = Batch {
            first: 0,
            tids: Vec::with_capacity(BATCH),
            vectors,
        };
        let mut batch = std::mem::replace(&mut self.batch, empty);
        loop {
            self.check()?;
            let sender = self.sender.as_ref().expect("open until finished");
            match sender.send_timeout(batch, Duration::from_millis(50)) {
                Ok(()) => return Ok(()),
                Err(error) => batch = error.into_inner(),
            }
            pause();
        }
    }

    /// Entries of a part of the graph, whose memory addresses take as well; at least half of those that there would be room for.
    fn part(&self) -> usize {
        let each = budget::bytes(&self.shared.encoding.codec, self.options.parameters.m);
        let taken = budget::address_bytes(self.unplaced.len()) / each;
        self.limit - taken.min(self.limit / 2)
    }

    /// Serializes the part of the graph that there is no room in for what comes next, and begins another one.
    fn end_part(&mut self, pause: &dyn Fn()) -> Result<()> {
        let before = self.pushed - self.batch.tids.len();
        self.wait(before, pause)?;
        self.before = before;
        self.reserved = self
            .limit
            .min(self.options.expected.saturating_sub(before))
            .max(16 * BATCH);
        let (shared, room) = (self.shared.clone(), self.reserved);
        let (p, threads) = (&self.options.parameters, self.options.threads.max(1));
        let (p, folder, by_leaves) = (p.clone(), self.options.folder.clone(), self.by_leaves);
        background::run(pause, move |_| {
            let mut graph = shared.graph.write().unwrap_or_else(|e| e.into_inner());
            let part = shared.end_part(&graph, &folder)?;
            // The memory of the one is what the other has.
            *graph = Growing::new(shared.encoding.codec, &p, by_leaves, before)?;
            heap::trim();
            shared
                .parts
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .push(part);
            graph.reserve(room, threads)
        })
    }

    fn check(&self) -> Result<()> {
        if self.shared.stop.load(Ordering::Relaxed) {
            let error = self
                .shared
                .error
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .take();
            return Err(error.unwrap_or_else(|| IndexError::Graph("a thread stopped early".into())));
        }
        if self.workers.iter().any(Thread::is_finished) && self.sender.is_some() {
            return Err(IndexError::Graph("a thread stopped early".into()));
        }
        Ok(())
    }

    /// Waits until the threads have added that many entries.
    fn wait(&self, entries: usize, pause: &dyn Fn()) -> Result<()> {
        while self.added() < entries {
            self.check()?;
            pause();
            std::thread::sleep(Duration::from_millis(2));
        }
        self.check()
    }

    /// Waits for the threads and makes the file.
    ///
    /// # Errors
    /// What went wrong in a thread, or with the file.
    pub fn finish(mut self, pause: &dyn Fn()) -> Result<BuiltSegment> {
        self.flush(pause)?;
        self.wait(self.pushed, pause)?;
        self.stop(FINISH_TIMEOUT);
        let (shared, count) = (self.shared.clone(), self.pushed);
        let threads = self.options.threads;
        let widths = widths(&self.options.parameters, self.by_leaves);
        let (dead, unplaced) = (
            std::mem::take(&mut self.dead),
            std::mem::take(&mut self.unplaced),
        );
        let codec = &self.shared.encoding.codec;
        let by_leaves =
            (self.by_leaves).then(|| leaves::threads(codec, threads, self.options.memory));
        let folder = self.options.folder.clone();
        drop(self);
        background::run(pause, move |pause| {
            // The threads have stopped, and the builder is gone.
            let shared = Arc::into_inner(shared)
                .ok_or_else(|| IndexError::Graph("a thread goes on".into()))?;
            let nodes = shared.nodes.into_inner().unwrap_or_else(|e| e.into_inner());
            let graph = shared.graph.into_inner().unwrap_or_else(|e| e.into_inner());
            let mut parts = shared.parts.into_inner().unwrap_or_else(|e| e.into_inner());
            check_nodes(&graph, nodes.len())?;
            drop(nodes);
            let graph = if parts.is_empty() {
                Grown::Whole(graph)
            } else {
                if !graph.is_empty() {
                    parts.push(Part::of(&graph, &folder)?);
                }
                Grown::Parts(parts)
            };
            let from = Pushed {
                encoding: shared.encoding,
                graph,
                spill: shared.spill,
                refined: shared.refined,
                by_leaves,
                passes: shared.passes,
                count,
                unplaced,
                dead,
            };
            assemble(from, &folder, (widths, threads), pause)
        })
    }

    fn stop(&mut self, timeout: Duration) {
        self.sender = None;
        let until = Instant::now() + timeout;
        for worker in self.workers.drain(..) {
            while !worker.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            if worker.is_finished() {
                // A panic has left its mark in `added`: what it should have added is missing.
                let _ = worker.join();
            }
        }
    }
}

impl Drop for SegmentBuilder {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.stop(STOP_TIMEOUT);
    }
}

/// What threads have lost is an error, not a graph with fewer nodes.
fn check_nodes(graph: &Growing, expected: usize) -> Result<()> {
    match graph.len() {
        nodes if nodes == expected => Ok(()),
        nodes => {
            let message = format!("the graph has {nodes} nodes instead of {expected}");
            Err(IndexError::Graph(message))
        }
    }
}

/// Writes the placed entries of a segment to where a builder has its own.
fn spill_entries(view: &SegmentView, spill: &Scratch) -> Result<()> {
    let (mut spilled, mut at) = (Vec::new(), 0);
    for node in 0..view.nodes() {
        for entry in view.entries(node) {
            spilled.extend_from_slice(&view.tid(entry).to_le_bytes());
            spilled.extend_from_slice(&(node as u32).to_le_bytes());
            spilled.extend_from_slice(view.fine_part(entry));
        }
        if spilled.len() >= 1 << 20 || node + 1 == view.nodes() {
            let written = spill.file().write_all_at(&spilled, at);
            written.map_err(|e| IndexError::io("write", spill.path(), e))?;
            at += spilled.len() as u64;
            spilled.clear();
        }
    }
    Ok(())
}

/// Starts the threads of a build.
fn spawn(
    threads: usize,
    shared: &Arc<Shared>,
    batches: &Receiver<Batch>,
) -> Result<Vec<Thread<()>>> {
    let (mut workers, mut failure) = (Vec::new(), None);
    let gate = Gate::default();
    let _closed = gate.close();
    for _ in 0..threads {
        let (shared, batches, gate) = (shared.clone(), batches.clone(), gate.clone());
        let work = move || {
            gate.pass();
            shared.work(&batches);
        };
        match threads::spawn("laser build", work) {
            Ok(worker) => workers.push(worker),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    match failure {
        // Where the system has no more threads, those that there are do the work.
        Some(error) if workers.is_empty() => Err(IndexError::Thread(error)),
        _ => Ok(workers),
    }
}
