//! Searching an index: the pending list exactly, every segment through its graph, and on with a
//! wider search when more rows are wanted.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::rc::Rc;

use crate::codec::Query;
use crate::view::SegmentView;

/// What to do when the rows of the first search are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Iterate {
    /// Nothing.
    Off,
    /// Search wider; what comes then may be nearer than what came before.
    Relaxed,
    /// Search wider, and leave out what is nearer than what came before.
    Strict,
}

/// A walk is not cheaper than looking at every vector when it keeps more than this part of them.
pub const WALK_PART: usize = 16;
/// How much wider each search is than the one before.
const WIDEN: usize = 4;

struct Part {
    view: Rc<SegmentView>,
    /// Every live entry has been looked at.
    complete: bool,
}

/// A row found: distance and address.
pub type Hit = (f32, u64);

fn order(a: &Hit, b: &Hit) -> Ordering {
    a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
}

/// A search in progress.
pub struct Scan {
    query: Query,
    iterate: Iterate,
    ef: usize,
    most: usize,
    parts: Vec<Part>,
    pending: Vec<Hit>,
    started: bool,
    buffer: std::vec::IntoIter<Hit>,
    returned: HashSet<u64>,
    last: Option<Hit>,
    given: usize,
    scratch: Vec<f32>,
    /// Searches of segments so far.
    pub searches: usize,
    /// Distances computed from stored vectors so far.
    pub ranked: usize,
}

impl std::fmt::Debug for Scan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan")
            .field("ef", &self.ef)
            .field("given", &self.given)
            .finish()
    }
}

impl Scan {
    /// A search over opened segments and the distances of the pending entries. The first search
    /// keeps `ef` candidates in a segment; at most about `most` rows are given in all.
    pub fn new(
        query: Query,
        ef: usize,
        iterate: Iterate,
        most: usize,
        views: Vec<Rc<SegmentView>>,
        pending: Vec<Hit>,
    ) -> Self {
        let parts = views
            .into_iter()
            .map(|view| Part {
                view,
                complete: false,
            })
            .collect();
        Self {
            query,
            iterate,
            ef,
            most,
            parts,
            ranked: pending.len(),
            pending,
            started: false,
            buffer: Vec::new().into_iter(),
            returned: HashSet::new(),
            last: None,
            given: 0,
            scratch: Vec::new(),
            searches: 0,
        }
    }

    /// The next row. `pause` is called now and then, and may unwind.
    pub fn next(&mut self, pause: &dyn Fn()) -> Option<Hit> {
        loop {
            if let Some(hit) = self.buffer.next() {
                self.given += 1;
                self.last = Some(hit);
                return Some(hit);
            }
            let complete = self.parts.iter().all(|part| part.complete);
            if self.started {
                if self.iterate == Iterate::Off || complete || self.given >= self.most {
                    return None;
                }
                self.ef = self.ef.saturating_mul(WIDEN);
            }
            self.search(pause);
            self.started = true;
        }
    }

    fn search(&mut self, pause: &dyn Fn()) {
        let mut hits = Vec::new();
        // Beyond the farthest candidate of a segment there may be others that it did not deliver.
        let mut bound = f32::INFINITY;
        let left = self.most.saturating_sub(self.given).max(self.ef);
        for part in &mut self.parts {
            pause();
            self.searches += 1;
            let view = part.view.clone();
            let tid = |(distance, slot): (f32, u32)| (distance, view.tid(slot as usize));
            let before = hits.len();
            if self.ef.saturating_mul(WALK_PART) >= view.len() {
                // Twice the room, cut back now and then, keeps the nearest at little cost.
                let mut nearest = Vec::new();
                let mut cut = false;
                view.scan(&self.query, &mut self.scratch, pause, |candidate| {
                    nearest.push(candidate);
                    if nearest.len() >= 2 * (left + self.given).max(1024) {
                        keep(&mut nearest, left + self.given);
                        cut = true;
                    }
                });
                self.ranked += view.len();
                part.complete = true;
                if cut {
                    keep(&mut nearest, left + self.given);
                }
                hits.extend(nearest.into_iter().map(tid));
            } else {
                let found = view.search(&self.query, self.ef, &mut self.scratch);
                self.ranked += found.len();
                hits.extend(found.into_iter().map(tid));
                // Where the graph's distance is coarse, so is its idea of who belongs to the nearest:
                // of the many that were fetched only the best are trusted to be complete.
                let mut far: Vec<f32> = hits[before..].iter().map(|hit| hit.0).collect();
                let trusted = far.len().min(self.ef);
                if trusted > 0 {
                    let (_, nth, _) = far.select_nth_unstable_by(trusted - 1, f32::total_cmp);
                    bound = bound.min(*nth);
                }
            }
        }
        hits.extend_from_slice(&self.pending);
        match (self.iterate, self.last) {
            // Entries at the distance of the last one may not all have been found before.
            (Iterate::Strict, Some(last)) => hits.retain(|hit| match hit.0.total_cmp(&last.0) {
                Ordering::Greater => true,
                Ordering::Equal => !self.returned.contains(&hit.1),
                Ordering::Less => false,
            }),
            (Iterate::Relaxed, _) => hits.retain(|hit| !self.returned.contains(&hit.1)),
            _ => {}
        }
        if self.iterate != Iterate::Off && bound.is_finite() {
            hits.retain(|hit| hit.0 <= bound);
        }
        if self.iterate != Iterate::Off {
            self.returned.extend(hits.iter().map(|hit| hit.1));
        }
        hits.sort_unstable_by(order);
        self.buffer = hits.into_iter();
    }
}

/// Keeps the `n` nearest.
fn keep(nearest: &mut Vec<(f32, u32)>, n: usize) {
    if n < nearest.len() {
        nearest.select_nth_unstable_by(n, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        nearest.truncate(n);
    }
}
