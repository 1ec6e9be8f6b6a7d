//! Searching an index: the pending list exactly, every segment through its graph, and on with a
//! wider search when more rows are wanted.
//!
//! Rows come in the order of their lower bounds ([`Estimate::lower`]). Who knows the vectors
//! themselves compares true distances, and holds a row back until the bound of the next one has
//! passed it: what comes out is in the true order (`IndexNextWithReorder` in PostgreSQL's
//! `nodeIndexscan.c`).
//!
//! A search is approximate: a wider one may find a row that is nearer than rows given before. Such
//! latecomers are not lost. In relaxed order they come at once, in strict order when everything else
//! has been given: a query whose filter has not found enough rows by then wants them even so.
//!
//! Who wants no row beyond some distance says so ([`Settings::cutoff`]): the first search that is sure of all
//! rows up to there is followed by wider ones, until one finds no more of them.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::rc::Rc;

use foldhash::fast::RandomState;

use crate::page::{NULL, address};
use crate::query::{Estimate, Probe, Query};
use crate::view::{Searched, SegmentView};
use crate::walk::NEAREST;
use crate::width;

/// What to do when the rows of the first search are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Iterate {
    /// The scan ends.
    Off,
    /// Search wider; what comes then may be nearer than what came before.
    Relaxed,
    /// Search wider, and keep what is nearer than what came before for the end.
    Strict,
}

/// A walk is not cheaper than an exhaustive search, which misses nothing, when it keeps more than one in this many
/// vectors: measured one in 13 of 50,000 rows, one in 40 of a million.
const EXHAUSTIVE_DIVISOR: usize = 32;
/// Most candidates of a walk, which cannot be interrupted, and takes a second for a few hundred thousand.
const WIDEST_WALK: usize = 1 << 16;
/// Candidates for which every segment is searched exhaustively.
pub const EXHAUSTIVE_EF: usize = WIDEST_WALK;
/// Least and most rows that an exhaustive search keeps, and its share of a segment at first: to keep one costs twice as much as
/// to look at it. For those behind them it is repeated.
const EXHAUSTIVE_BUFFER: (usize, usize) = (1 << 10, 1 << 20);
const EXHAUSTIVE_SHARE: usize = 16;
/// How much wider each search is than the one before, at least.
pub const WIDEN: usize = 4;
/// Most rows that a wider search is made for, as a multiple of those that it would take if rows went on to pass as they did so
/// far. Estimates of several filters are often far too low.
const TRUSTED_ESTIMATE: usize = 8;
/// How much wider the first search of a segment is made again where it has found that the query is unlike the rows, for which its
/// width was measured: of 13,000 sentences .947 of the ten nearest to words were found, with this .998 (docs/recall.md).
const FOR_UNFAMILIAR: usize = 3;
/// For each of this number of candidates that are asked for by hand one more is kept: with as many as pgvector keeps, uniform rows × 384
/// had .558 of the ten nearest at 40 where pgvector's graph has .565 (docs/recall.md). Who sets a width may rely on what others find with it.
const ASKED_DIVISOR: usize = 16;
/// As many times as many candidates are kept where inner products are searched for by distances among rows whose lengths differ: of
/// 10,000 rows × 128 with log-normal lengths, .953 of the ten nearest were found at 100 where pgvector's graph of inner products has .983.
const WHERE_LENGTHS_DIFFER: usize = 2;
/// The nearest of a walk's candidates are returned, one in this many; for more there is a wider walk. The farthest
/// candidates are what was met on the way, and not what is nearest there: behind a group of rows
/// that a filter excludes, most of the next ones are missing.
pub const TRUSTED_DIVISOR: usize = 2;

/// How a width grows with the rank of the last row that it is to find, as a power of that, and by how much at most. Walks miss more
/// of what lies farther down the order: fitted to sentences (docs/recall.md), whose widths are large; where one is small, that
/// of as many rows ([`width_for`]) is more.
const RANK_POWER: f64 = 0.3;
const MOST_FOR_RANK: f64 = 4.0;

/// What a search knows of a row's distance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distance {
    /// A bound and a likely value.
    Known(Estimate),
    /// The operator gives NaN: one of the two vectors has no direction.
    Undirected,
    /// The row's value is NULL.
    Null,
}

/// A row found: its distance and its address.
pub type Hit = (Distance, u64);

/// How a scan goes about.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Candidates of the first search in each segment, of which [`Settings::width_of`] are kept; zero for as many as the segment needs.
    pub ef: usize,
    /// How it goes on.
    pub iterate: Iterate,
    /// Rows that are given at most, without those that prove dead ([`Scan::was_dead`]), but at least as many as the first
    /// search would keep in a segment whatever the rank ([`AtOnce::rank`]); without iteration the first search decides.
    /// `usize::MAX` for all there are.
    pub max_tuples: usize,
    /// Whether rows come in the order of their lower bounds, for who compares true distances, or of
    /// their likely distances, for who does not.
    pub recheck: bool,
    /// What rows are ordered by is at most this; those that are farther, and those that are NULL, are not
    /// wanted, but some may be given. Infinity: all rows are wanted.
    pub cutoff: f64,
    /// With a cutoff, whether rows whose distance is NaN are wanted.
    pub undirected: bool,
    /// What is wanted at once, as far as is known.
    pub at_once: Option<AtOnce>,
}

/// Rows that are wanted at once.
#[derive(Debug, Clone, Copy)]
pub struct AtOnce {
    /// The first search is wide enough for these.
    pub rows: usize,
    /// How far down the order of all rows the last of them is likely to be: a width that was measured for the nearest ones grows
    /// with it.
    pub rank: usize,
    /// Those that are asked whether they pass, as far as is known of what filters refuse: a search of all vectors keeps these.
    pub asked: usize,
    /// Whether a look at all vectors follows, unless nothing was used yet ([`Scan::start_over`]): who takes the rows goes wrong
    /// where one comes late.
    pub then_all: bool,
}

impl Settings {
    /// Candidates of the first search in a segment, as far as it depends on that alone.
    fn width_of(&self, view: &SegmentView) -> usize {
        match self.ef {
            0 => view.ef(),
            ef if view.lengths_differ() => width_asked(ef).saturating_mul(WHERE_LENGTHS_DIFFER),
            ef => width_asked(ef),
        }
    }

    /// Candidates of the first search in one of `segments`, which takes `ef`: without what the rank adds.
    fn least_width(&self, ef: usize, segments: usize) -> usize {
        let rows = self.at_once.map_or(0, |wanted| wanted.confirmed());
        ef.max(width_for(rows, segments))
    }

    /// Candidates of the first search in one of `segments`, which has `live` entries and takes `ef`.
    fn first_width(&self, ef: usize, live: usize, segments: usize) -> usize {
        match self.at_once {
            Some(wanted) if self.ef == 0 => wanted.width(ef, live, segments),
            _ => self.least_width(ef, segments),
        }
    }
}

impl AtOnce {
    /// Candidates of the first search in one of `segments`, which has `live` entries and takes `ef` for the nearest.
    pub fn width(&self, ef: usize, live: usize, segments: usize) -> usize {
        let deep = width_at_rank(ef, share(self.rank, segments), live);
        deep.max(width_for(self.confirmed(), segments))
    }

    /// Rows that are searched for so that the last one can be given: when the bound of the next has passed its distance.
    fn confirmed(&self) -> usize {
        match self.rows {
            0 => 0,
            rows => rows.saturating_add(rows / 8 + 2),
        }
    }
}

/// How many of the first `rows` are to be had from one of `segments`: its share, and half as many more. What it has beyond that a
/// wider search finds.
fn share(rows: usize, segments: usize) -> usize {
    match segments {
        0 | 1 => rows,
        _ => (rows.div_ceil(segments)).saturating_mul(3) / 2,
    }
}

/// Candidates of a first search in each segment where `ef` are asked for by hand, unless lengths differ there.
pub fn width_asked(ef: usize) -> usize {
    ef.saturating_add(ef.div_ceil(ASKED_DIVISOR))
}

/// Candidates of a search of one in `segments` that is to give its share of `rows`.
fn width_for(rows: usize, segments: usize) -> usize {
    (share(rows, segments).saturating_mul(TRUSTED_DIVISOR)).min(EXHAUSTIVE_EF)
}

/// Live entries of a segment, as a walk has to do with them: [`Part::is_small`] for a width.
fn walked(view: &SegmentView) -> usize {
    (view.live() as f64 / view.share()) as usize
}

/// Candidates of a walk that is to find the rows up to a rank, among `live` entries of which `ef` are enough for the nearest
/// ([`width::NEAREST`]). It stays a walk if that is one, and grows with the rank.
fn width_at_rank(ef: usize, rank: usize, live: usize) -> usize {
    let deeper = (rank as f64 / width::NEAREST as f64).powf(RANK_POWER);
    let wider = (ef as f64 * deeper.clamp(1.0, MOST_FOR_RANK)) as usize;
    let widest_walk = (live / EXHAUSTIVE_DIVISOR).saturating_sub(1);
    wider.min(widest_walk.max(ef))
}

struct Part {
    view: Rc<SegmentView>,
    probe: Probe,
    /// Candidates of its next search.
    ef: usize,
    /// Every live entry that may be given has been found.
    complete: bool,
}

impl Part {
    /// Makes the width what a query unlike the rows takes, or `most`; says whether it is wider now. A walk in a large segment stays
    /// one.
    fn widen_for_unfamiliar(&mut self, most: usize) -> bool {
        let before = self.ef;
        let widest_walk = ((WIDEST_WALK - 1) as f64 / self.view.share()) as usize;
        let wider = before.saturating_mul(FOR_UNFAMILIAR);
        self.ef = wider.min(widest_walk).min(most).max(before);
        self.ef > before
    }

    /// Whether a limit has made the width as large as a query unlike the rows takes.
    fn is_wide_by_limit(&self) -> bool {
        self.ef as f64 >= MOST_FOR_RANK * self.view.ef() as f64 + 1.0
    }

    /// Whether an exhaustive search costs no more than the walk.
    fn is_small(&self) -> bool {
        // It passes over the dead, and over those without a place; a walk does not.
        let width = (self.ef as f64 * self.view.share()).ceil() as usize;
        is_exhaustive_cheaper(self.view.live(), width)
    }
}

/// The distance of the one of a rank, from 1, among what was found; an infinite one where there are fewer.
fn reach(searched: &Searched, rank: usize) -> f64 {
    let found = searched.found.iter();
    let mut distances: Vec<f64> = found.map(|(estimate, _)| estimate.estimate).collect();
    if rank == 0 || distances.len() < rank {
        return f64::INFINITY;
    }
    let (_, last, _) = distances.select_nth_unstable_by(rank - 1, f64::total_cmp);
    *last
}

/// Whether a search that keeps `ef` candidates computes the distances of all `live` entries that have a place,
/// because a walk would cost as much.
pub fn is_exhaustive_cheaper(live: usize, ef: usize) -> bool {
    ef >= WIDEST_WALK || ef.saturating_mul(EXHAUSTIVE_DIVISOR) >= live
}

/// Rows that are to be asked for `wanted` that pass, where that many are `estimated`, and `passed` of the first `asked` did.
pub fn likely(wanted: usize, estimated: usize, asked: usize, passed: usize) -> usize {
    let as_so_far = wanted.saturating_mul(asked) / (passed + 1);
    estimated.clamp(as_so_far, as_so_far.saturating_mul(TRUSTED_ESTIMATE))
}

/// A row with the number that it is ordered by.
#[derive(Debug, Clone, Copy)]
struct Found {
    key: f64,
    estimate: Estimate,
    tid: u64,
}

/// A search in progress.
pub struct Scan {
    settings: Settings,
    has_distances: bool,
    /// Distances are inner products.
    is_of_products: bool,
    /// The largest width of a first search, whatever the rank of the rows.
    first: usize,
    parts: Vec<Part>,
    started: bool,
    /// Whether widths are those of the segments, measured with rows, and nobody has searched yet.
    is_measured: bool,
    /// Found and not given yet; not in order.
    waiting: Vec<Found>,
    /// To be given next, the last one first.
    ready: Vec<Found>,
    /// Found in strict order after farther ones were given.
    late: Vec<Found>,
    /// Rows without a place in the graph, the last one first: those of the pending list, and in the end
    /// those of the segments.
    unplaced: Vec<u64>,
    unplaced_complete: bool,
    seen: HashSet<u64, RandomState>,
    last: f64,
    /// Rows that the last search has found beyond this are held back.
    sure: f64,
    /// Rows up to the cutoff that the last search was the first to find.
    within: usize,
    /// A wider search has found none.
    confirmed: bool,
    returned: usize,
    /// Rows among them that nobody can see any more.
    dead: usize,
    /// Rows among them that a filter has refused.
    refused: usize,
    /// Rows may have been left out because of `max_tuples`.
    cut: bool,
    at_the_end: bool,
    /// A row has been given after farther ones.
    out_of_order: bool,
    /// [`Scan::start_over`] was called since the last search.
    is_unused: bool,
    scratch: Vec<f32>,
    /// Searches of segments so far.
    pub searches: usize,
    /// Distances computed from stored vectors so far.
    pub ranked: usize,
    /// Stored vectors met so far: on walks, in looks at all of them, and in the pending list.
    pub visited: usize,
    /// Searches so far that were wider than the one before.
    pub widened: usize,
}

impl std::fmt::Debug for Scan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan")
            .field("first", &self.first)
            .field("returned", &self.returned)
            .finish()
    }
}

/// The rows of the pending list.
#[derive(Debug, Default)]
pub struct PendingRows {
    /// Those with a vector.
    pub placed: Vec<(Estimate, u64)>,
    /// Those without, with the flags of their addresses.
    pub unplaced: Vec<u64>,
}

impl Scan {
    /// A search over opened segments and the rows of the pending list.
    pub fn new(
        query: &Query,
        settings: Settings,
        views: Vec<Rc<SegmentView>>,
        pending: PendingRows,
    ) -> Self {
        let segments = views.len();
        let parts: Vec<Part> = views
            .into_iter()
            .map(|view| Part {
                probe: view.probe(query),
                ef: settings.first_width(settings.width_of(&view), walked(&view), segments),
                view,
                complete: false,
            })
            .collect();
        let mut scan = Self {
            settings,
            has_distances: query.has_distances(),
            is_of_products: query.is_of_products(),
            first: (parts.iter())
                .map(|part| settings.least_width(settings.width_of(&part.view), segments))
                .max()
                .unwrap_or(1),
            parts,
            started: false,
            is_measured: settings.ef == 0 && query.has_distances(),
            waiting: Vec::new(),
            ready: Vec::new(),
            late: Vec::new(),
            unplaced: pending.unplaced,
            unplaced_complete: false,
            seen: HashSet::default(),
            last: f64::NEG_INFINITY,
            sure: f64::NEG_INFINITY,
            within: 0,
            confirmed: false,
            returned: 0,
            dead: 0,
            refused: 0,
            cut: false,
            at_the_end: false,
            out_of_order: false,
            is_unused: false,
            scratch: Vec::new(),
            searches: 0,
            ranked: pending.placed.len(),
            visited: pending.placed.len(),
            widened: 0,
        };
        for (estimate, tid) in pending.placed {
            scan.waiting.push(scan.found(estimate, tid));
        }
        scan
    }

    /// Whether the scan has ended before it had given every row of the index, because of
    /// [`Settings::max_tuples`].
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// Tells that the row that was given last is dead to all transactions: it does not count as given.
    pub fn was_dead(&mut self) {
        self.dead += 1;
    }

    /// Tells that the row that was given last did not pass a filter: how wide the next search is depends on how many do.
    pub fn was_refused(&mut self) {
        self.refused += 1;
    }

    /// Whether a row has been given after farther ones, because the search had missed it.
    pub fn is_out_of_order(&self) -> bool {
        self.out_of_order
    }

    /// Whether any rows without a distance are wanted.
    pub fn wants_unplaced(&self) -> bool {
        self.wants_all() || self.settings.undirected
    }

    fn wants_all(&self) -> bool {
        self.settings.cutoff == f64::INFINITY
    }

    fn found(&self, estimate: Estimate, tid: u64) -> Found {
        let key = if self.settings.recheck {
            estimate.lower
        } else {
            estimate.estimate
        };
        // A NaN cannot be compared: it comes first, so that the row is checked.
        let key = if key.is_nan() { f64::NEG_INFINITY } else { key };
        Found { key, estimate, tid }
    }

    /// Whether the next row comes from another search than those so far, if there is one.
    pub fn is_about_to_widen(&self) -> bool {
        if self.at_the_end || !self.started {
            return false;
        }
        if self.is_beyond_cutoff() {
            return !self.has_confirmed();
        }
        self.ready.is_empty()
            && self.settings.iterate != Iterate::Off
            && self.returned < self.limit()
            && self.parts.iter().any(|part| !part.complete)
    }

    /// Takes back that the rows so far came in their order, before a wider search: whoever took them has them still, and puts
    /// those in their place that come later.
    pub fn start_over(&mut self) {
        self.is_unused = true;
        self.last = f64::NEG_INFINITY;
        self.waiting.append(&mut self.late);
    }

    /// The next row. `pause` is called now and then, and may unwind.
    pub fn next(&mut self, pause: &dyn Fn()) -> Option<Hit> {
        loop {
            if !self.at_the_end && self.is_beyond_cutoff() {
                if self.has_confirmed() {
                    self.end_at_cutoff();
                } else {
                    // What is beyond the cutoff waits for those that a wider search finds before it.
                    self.waiting.append(&mut self.ready);
                    self.widen();
                    self.search(true, pause);
                    self.confirmed = self.within == 0;
                    self.release();
                    continue;
                }
            }
            if self.returned >= self.limit() && !self.ready.is_empty() && !self.at_the_end {
                self.end_early();
            }
            if let Some(found) = self.ready.pop() {
                self.returned += 1;
                self.out_of_order |= self.has_distances && found.key < self.last;
                self.last = self.last.max(found.key);
                let distance = if self.has_distances {
                    Distance::Known(found.estimate)
                } else {
                    Distance::Undirected
                };
                return Some((distance, found.tid));
            }
            if self.at_the_end {
                return self.next_unplaced();
            }
            if !self.started {
                self.started = true;
                self.search(false, pause);
            } else if self.settings.iterate == Iterate::Off {
                self.parts.iter_mut().for_each(|part| part.complete = true);
            } else if self.parts.iter().any(|part| !part.complete) {
                if self.returned >= self.limit() {
                    self.end_early();
                    continue;
                }
                let widest = self.limit().saturating_mul(TRUSTED_DIVISOR);
                let open = |part: &&mut Part| !part.complete;
                if self
                    .parts
                    .iter_mut()
                    .filter(open)
                    .all(|part| part.ef >= widest && !part.is_small())
                {
                    // The widest walk has been made; what it has found is given.
                    self.cut = true;
                    self.parts.iter_mut().for_each(|part| part.complete = true);
                } else {
                    self.widen();
                    self.search(false, pause);
                }
            }
            self.release();
        }
    }

    /// Whether all that is wanted has been found, and given but for what is late.
    fn is_beyond_cutoff(&self) -> bool {
        let cutoff = self.settings.cutoff;
        if self.wants_all() {
            return false;
        }
        if !self.has_distances {
            // All distances are NaN.
            return !self.settings.undirected;
        }
        let next = self.ready.last();
        next.map_or(self.sure > cutoff, |next| next.key > cutoff)
    }

    /// Whether a search that was wider than the one before, and began all over the graph, has found nothing more up to the
    /// cutoff. Whoever sets one wants all rows before it; a walk is sure of its own candidates alone, of which it may lack
    /// whole groups, and a wider one that begins where it did may be caught in the same place.
    fn has_confirmed(&self) -> bool {
        self.confirmed
            || !self.has_distances
            || self.settings.cutoff == f64::NEG_INFINITY
            || self.settings.iterate == Iterate::Off
            || self.parts.iter().all(|part| part.complete)
            || self.returned >= self.limit()
    }

    /// Rows that are to be asked whether they pass, by what who wants them has estimated, as far as that agrees with those that
    /// were asked; zero where no filter has refused any.
    fn likely(&self) -> usize {
        let Some(wanted) = self.settings.at_once else {
            return 0;
        };
        if self.refused == 0 || wanted.then_all || !self.wants_all() {
            return 0;
        }
        let asked = self.returned.saturating_sub(self.dead);
        let passed = asked.saturating_sub(self.refused);
        likely(wanted.rows, wanted.asked, asked, passed)
    }

    fn widen(&mut self) {
        self.widened += 1;
        let widest = self.limit().saturating_mul(TRUSTED_DIVISOR);
        let likely = width_for(self.likely(), self.parts.len());
        for part in &mut self.parts {
            part.ef = match self.settings.at_once {
                Some(wanted) if wanted.then_all && !self.is_unused => EXHAUSTIVE_EF,
                _ => (part.ef.saturating_mul(WIDEN).max(likely).min(widest)).max(part.ef),
            };
        }
        self.is_unused = false;
    }

    /// Ends the scan where no row that is wanted comes any more but for those that were held back.
    fn end_at_cutoff(&mut self) {
        self.waiting.clear();
        self.ready = std::mem::take(&mut self.late);
        self.ready
            .retain(|found| self.has_distances && found.key <= self.settings.cutoff);
        self.ready.sort_unstable_by(|a, b| order(b, a));
        self.at_the_end = true;
    }

    /// Ends the scan before its time: with what it has found and held back, for the query may want that.
    fn end_early(&mut self) {
        self.cut = true;
        self.ready = std::mem::take(&mut self.late);
        self.ready.sort_unstable_by(|a, b| order(b, a));
        self.at_the_end = true;
    }

    /// Rows that are given at most, but for those that were held back.
    fn limit(&self) -> usize {
        match self.settings.iterate {
            Iterate::Off => usize::MAX,
            _ => (self.settings.max_tuples.max(self.first)).saturating_add(self.dead),
        }
    }

    /// Rows without a place: they come last, and not where others were left out.
    fn next_unplaced(&mut self) -> Option<Hit> {
        if !self.wants_unplaced() || self.cut {
            return None;
        }
        if self.settings.iterate == Iterate::Off && !self.is_exhaustive() {
            return None;
        }
        if !self.unplaced_complete {
            // Few scans come so far, and there may be as many as the table has rows.
            self.unplaced_complete = true;
            for part in &self.parts {
                self.unplaced.extend(part.view.unplaced());
            }
            // NaN comes after all numbers, NULL after NaN.
            self.unplaced
                .sort_unstable_by_key(|tid| std::cmp::Reverse((tid & NULL, *tid)));
            // Of a list that is compacted meanwhile an address may have been read twice.
            self.unplaced.dedup();
        }
        let tid = self.unplaced.pop()?;
        if tid & NULL != 0 && !self.wants_all() {
            return None;
        }
        let distance = if tid & NULL != 0 {
            Distance::Null
        } else {
            Distance::Undirected
        };
        Some((distance, address(tid)))
    }

    /// Whether the next search looks at every vector.
    pub fn is_exhaustive(&self) -> bool {
        self.parts.iter().all(Part::is_small)
    }

    /// Moves what nothing nearer can come before any more from `waiting` to `ready`.
    fn release(&mut self) {
        let complete = self.parts.iter().all(|part| part.complete);
        if complete && self.waiting.is_empty() {
            self.ready = std::mem::take(&mut self.late);
            self.at_the_end = true;
        } else if complete || self.settings.iterate == Iterate::Off {
            self.ready = std::mem::take(&mut self.waiting);
        }
        self.ready.sort_unstable_by(|a, b| order(b, a));
    }

    /// What a walk finds in each part that is not complete; nothing where a look at all of its rows costs no more. Where the query
    /// turns out to be unlike the rows of all parts, the walks are made again, wider.
    fn walk(
        &mut self,
        parts: &mut [Part],
        all_over: bool,
        pause: &dyn Fn(),
    ) -> Vec<Option<Searched>> {
        let mut walked = self.walk_each(parts, all_over, pause);
        let is_measured = std::mem::take(&mut self.is_measured);
        let mut known = walked.iter().flatten().peekable();
        if !is_measured || known.peek().is_none() || known.any(|searched| searched.is_familiar) {
            return walked;
        }
        if self.is_of_products {
            self.repeat(parts, &mut walked, pause);
            return walked;
        }
        let mut is_wider = false;
        for part in parts.iter_mut().filter(|part| !part.is_small()) {
            is_wider |= !part.is_wide_by_limit() && part.widen_for_unfamiliar(usize::MAX);
        }
        if is_wider {
            self.widened += 1;
            let found = walked.iter().flatten();
            self.ranked += found.map(|searched| searched.found.len()).sum::<usize>();
            walked = self.walk_each(parts, true, pause);
        }
        walked
    }

    /// Makes the walk of each part again, wider and wider, until it finds nothing nearer. Queries for inner products may be so far from
    /// all that is like the rows (around the origin, where the rows are to one side of it) that no factor is enough: of 100,000 × 48
    /// such rows 64 candidates find .41, 400 .73 and 4,000 .995. Where two steps more would come to a look at all rows, that is what follows.
    fn repeat(&mut self, parts: &mut [Part], walked: &mut [Option<Searched>], pause: &dyn Fn()) {
        let most = self.limit().saturating_mul(TRUSTED_DIVISOR);
        let rank = self.settings.at_once.map_or(0, |wanted| wanted.asked);
        let mut rounds = 0;
        for (part, walked) in parts.iter_mut().zip(walked) {
            let mut round = 0;
            while let Some(before) = walked
                && part.widen_for_unfamiliar(most)
            {
                round += 1;
                self.ranked += before.found.len();
                let rank = rank.max(NEAREST).min(before.found.len());
                let within = reach(before, rank);
                *walked = self.walk_one(part, true, pause);
                let Some(after) = walked else {
                    break;
                };
                if reach(after, rank) >= within {
                    break;
                }
                let all = part.ef.saturating_mul(FOR_UNFAMILIAR * FOR_UNFAMILIAR);
                if all <= most && is_exhaustive_cheaper(part.view.live(), all) {
                    part.ef = EXHAUSTIVE_EF;
                    self.ranked += after.found.len();
                    *walked = None;
                    round += 1;
                }
            }
            rounds = rounds.max(round);
        }
        self.widened += rounds;
    }

    fn walk_each(
        &mut self,
        parts: &[Part],
        all_over: bool,
        pause: &dyn Fn(),
    ) -> Vec<Option<Searched>> {
        let mut walk = |part: &Part| self.walk_one(part, all_over, pause);
        parts.iter().map(&mut walk).collect()
    }

    fn walk_one(&mut self, part: &Part, all_over: bool, pause: &dyn Fn()) -> Option<Searched> {
        if part.complete || part.is_small() {
            return None;
        }
        pause();
        self.searches += 1;
        let searched = (part.view).search(&part.probe, part.ef, all_over, &mut self.scratch);
        self.visited += searched.met;
        Some(searched)
    }

    /// Searches all parts that are not complete, with walks that begin where all do or `all_over` the graph.
    fn search(&mut self, all_over: bool, pause: &dyn Fn()) {
        // Beyond the farthest candidate of a segment there may be others that it did not deliver.
        let mut bound = f64::INFINITY;
        let left = self.limit().saturating_sub(self.returned);
        // Whoever has had many rows may want many more, but hardly all of them.
        let wanted = self.settings.at_once.map_or(0, |wanted| wanted.asked);
        let room = (self.returned.saturating_mul(WIDEN) / self.parts.len().max(1)).max(wanted);
        let mut parts = std::mem::take(&mut self.parts);
        let mut fresh = Vec::new();
        let walked = self.walk(&mut parts, all_over, pause);
        for (part, walked) in parts.iter_mut().zip(walked) {
            if part.complete {
                continue;
            }
            let view = &part.view;
            let Some(Searched { found, .. }) = walked else {
                pause();
                self.searches += 1;
                self.ranked += view.live();
                self.visited += view.live();
                let room = room.max(view.live() / EXHAUSTIVE_SHARE);
                let left = left.min(room.clamp(EXHAUSTIVE_BUFFER.0, EXHAUSTIVE_BUFFER.1));
                let (mut nearest, mut more) = (Vec::new(), false);
                let mut scratch = std::mem::take(&mut self.scratch);
                view.scan(&part.probe, &mut scratch, pause, |(estimate, entry)| {
                    let tid = view.tid(entry as usize);
                    if self.seen.contains(&tid) {
                        return;
                    }
                    nearest.push(self.found(estimate, tid));
                    // Twice the room, cut back now and then, keeps the nearest at little cost.
                    if nearest.len() / 2 >= left.max(1024) {
                        more |= keep(&mut nearest, left);
                    }
                });
                self.scratch = scratch;
                more |= keep(&mut nearest, left);
                // Where some of those prove dead, it looks again.
                part.complete = !more;
                if more {
                    let farthest = nearest.iter().map(|found| found.key).max_by(f64::total_cmp);
                    bound = bound.min(farthest.unwrap_or(f64::NEG_INFINITY));
                }
                fresh.append(&mut nearest);
                continue;
            };
            self.ranked += found.len();
            let mut keys = Vec::with_capacity(found.len());
            for (estimate, entry) in found {
                let found = self.found(estimate, view.tid(entry as usize));
                keys.push(found.key);
                fresh.push(found);
            }
            // Where the graph's distance is coarse, so is its idea of who belongs to the
            // nearest: of the many that were fetched only the best are trusted to be complete.
            bound = bound.min(match keys.len().min(part.ef).div_ceil(TRUSTED_DIVISOR) {
                // All that the walk has found is dead: who is nearest is not known yet.
                0 => f64::NEG_INFINITY,
                trusted => *keys.select_nth_unstable_by(trusted - 1, f64::total_cmp).1,
            });
        }
        self.parts = parts;
        self.within = 0;
        for found in fresh {
            if !self.seen.insert(found.tid) {
                continue;
            }
            self.within += usize::from(found.key <= self.settings.cutoff);
            if self.settings.iterate == Iterate::Strict && found.key < self.last {
                self.late.push(found);
            } else {
                self.waiting.push(found);
            }
        }
        if self.settings.iterate != Iterate::Off && bound < f64::INFINITY {
            let (ready, waiting) = std::mem::take(&mut self.waiting)
                .into_iter()
                .partition(|found| found.key <= bound);
            (self.ready, self.waiting) = (ready, waiting);
            self.sure = bound;
        }
    }
}

/// The order in which rows are given. Where bounds say nothing, likely distances do.
fn order(a: &Found, b: &Found) -> Ordering {
    let likely = a.estimate.estimate.total_cmp(&b.estimate.estimate);
    a.key.total_cmp(&b.key).then(likely).then(a.tid.cmp(&b.tid))
}

/// Keeps the `n` nearest; says whether there were more.
fn keep(nearest: &mut Vec<Found>, n: usize) -> bool {
    let more = n < nearest.len();
    if more {
        nearest.select_nth_unstable_by(n, order);
        nearest.truncate(n);
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks are wider for rows farther down the order, never less wide for more of them, and stay walks.
    #[test]
    fn widths_grow_with_ranks() {
        for (ef, live) in [
            (64, 20_000),
            (600, 50_000),
            (1800, 300_000),
            (6000, 1_000_000),
        ] {
            assert_eq!(width_at_rank(ef, 0, live), ef);
            assert_eq!(width_at_rank(ef, width::NEAREST, live), ef);
            let widths = (0..5000).map(|rank| width_at_rank(ef, rank, live));
            assert!(widths.is_sorted());
            let widest = width_at_rank(ef, usize::MAX, live);
            assert!(!is_exhaustive_cheaper(live, widest));
            assert!(widest > ef && widest <= 4 * ef, "{ef} {live}: {widest}");
        }
        // What compares every vector anyhow is left.
        assert_eq!(width_at_rank(600, 100, 5000), 600);
    }

    #[test]
    fn segments_have_a_share_of_a_rank() {
        let wanted = AtOnce {
            rows: 10,
            rank: 100,
            asked: 100,
            then_all: false,
        };
        assert_eq!(wanted.width(400, 100_000, 1), 798);
        assert_eq!(wanted.width(400, 100_000, 3), 652);
        assert_eq!(wanted.width(400, 100_000, 15), 400);
        assert_eq!(
            AtOnce {
                rows: 900,
                ..wanted
            }
            .width(400, 100_000, 1),
            2028
        );
    }
}
