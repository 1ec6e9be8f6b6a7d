//! How much longer a build will take.
//!
//! The server has no place for it: it is told in the last of the numbers that a command reports (`PGSTAT_NUM_PROGRESS_PARAM`
//! in `src/include/utils/backend_progress.h`), of which `CREATE INDEX` uses fewer (`PROGRESS_CREATEIDX_…` in
//! `src/include/commands/progress.h`), and the view `laser_index_progress` reads it.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

#[cfg(doc)]
use laser_index::builder::SegmentBuilder;
use laser_index::refine::Passes;
use pgrx::pg_sys;

/// The place of the number, from 0.
const PLACE: u32 = pg_sys::PGSTAT_NUM_PROGRESS_PARAM - 1;
const _: () = assert!(PLACE > pg_sys::PROGRESS_SCAN_BLOCKS_DONE);
/// More seconds than that are not told.
const MOST: f64 = 1e9;
/// How long a phase has taken when it can be told how long it will.
const AFTER: Duration = Duration::from_secs(1);

/// Work of adding nodes to a graph, up to a factor: each takes a walk, whose length grows with the logarithm of their number.
fn adding(nodes: f64) -> f64 {
    nodes * (nodes + 2.0).ln()
}

/// Work of a graph.
fn graph(nodes: f64) -> f64 {
    adding(nodes) * (1.0 + Passes::WORK)
}

/// Work of graphs that have `nodes` nodes together, each `most` at most.
fn graphs(nodes: f64, most: f64) -> f64 {
    (nodes / most).floor() * graph(most) + graph(nodes % most)
}

/// The share of the table that the command has read, as it reports that itself; nothing where it does not.
fn share_read() -> Option<f64> {
    // SAFETY: this backend's own entry, if it has one, which it alone writes.
    let (done, total) = unsafe {
        let entry = pg_sys::MyBEEntry.as_ref()?;
        let number = |place: u32| entry.st_progress_param[place as usize] as f64;
        (
            number(pg_sys::PROGRESS_SCAN_BLOCKS_DONE),
            number(pg_sys::PROGRESS_SCAN_BLOCKS_TOTAL),
        )
    };
    (done > 0.0 && total >= done).then_some(done / total)
}

/// The time that a build will still take.
#[derive(Debug)]
pub struct TimeLeft {
    /// Rows of the table, by its statistics; 0 where there are none.
    estimate: f64,
    /// Nodes of a segment at most.
    most: f64,
    /// When it began with the phase, with what work behind it.
    phase: (Instant, f64),
    /// What embedding has taken of the phase, and for how many texts.
    embedding: (Duration, usize),
    /// Nodes of the segments that are finished.
    finished: usize,
}

impl TimeLeft {
    /// A build of a table that has `estimate` rows by its statistics, 0 where there are none, in segments of `most` at most.
    pub fn new(estimate: usize, most: usize) -> Self {
        Self {
            estimate: estimate as f64,
            most: most.max(1) as f64,
            phase: (Instant::now(), 0.0),
            embedding: (Duration::ZERO, 0),
            finished: 0,
        }
    }

    /// Texts have been embedded, which is no work on a graph.
    pub fn embedded(&mut self, texts: usize, took: Duration) {
        self.embedding.0 += took;
        self.embedding.1 += texts;
    }

    /// A segment has got these nodes so far.
    pub fn added(&self, nodes: usize) {
        let all = self.nodes(nodes);
        let texts = (all - (self.finished + nodes) as f64).max(0.0);
        self.look(all, self.when_added(nodes), texts);
    }

    /// The second pass over a segment begins.
    pub fn refines(&mut self, nodes: usize) {
        self.begin(self.when_added(nodes));
    }

    /// This share of it is done ([`SegmentBuilder::refined`]). Where it is made again, its speed is so much less.
    pub fn refined(&self, share: f64, nodes: usize) {
        let behind = self.phase.1 + share * Passes::WORK * adding(nodes as f64);
        self.look(self.nodes(nodes), behind, 0.0);
    }

    /// A segment is finished.
    pub fn finishes(&mut self, nodes: usize) {
        self.finished += nodes;
        self.begin(self.when_added(0));
    }

    /// The work that is behind when the present segment has these nodes.
    fn when_added(&self, nodes: usize) -> f64 {
        graphs(self.finished as f64, self.most) + adding(nodes as f64)
    }

    /// Nodes of all segments, of which the present one has some: as the part of the table that was read has them.
    fn nodes(&self, nodes: usize) -> f64 {
        let so_far = (self.finished + nodes) as f64;
        match share_read() {
            Some(share) => so_far / share,
            None => self.estimate.max(so_far),
        }
    }

    /// Another phase begins, of which nothing is known yet.
    fn begin(&mut self, behind: f64) {
        self.phase = (Instant::now(), behind);
        self.embedding = (Duration::ZERO, 0);
        tell(0.0);
    }

    /// Tells what is left of graphs with `nodes` nodes when this work is behind, by how fast the phase has been so far, and of
    /// the texts that are still to be embedded.
    fn look(&self, nodes: f64, behind: f64, texts: f64) {
        let (began, before) = self.phase;
        let elapsed = began.elapsed();
        if elapsed < AFTER || behind <= before {
            return;
        }
        let (embedding, embedded) = self.embedding;
        let own = elapsed.saturating_sub(embedding).as_secs_f64();
        let ahead = (graphs(nodes, self.most) - behind).max(0.0);
        let for_texts = embedding.as_secs_f64() * texts / embedded.max(1) as f64;
        tell(own * ahead / (behind - before) + for_texts);
    }
}

impl Drop for TimeLeft {
    /// The next index of the command is another one.
    fn drop(&mut self) {
        tell(0.0);
    }
}

/// Zero is nothing: it is not known, or nothing is left.
fn tell(seconds: f64) {
    let seconds = seconds.ceil().min(MOST) as i64;
    // SAFETY: writes to this backend's entry, if it has one.
    unsafe { pg_sys::pgstat_progress_update_param(PLACE as i32, seconds) };
}
