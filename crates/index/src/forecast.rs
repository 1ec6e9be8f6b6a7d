//! How much longer a build will take, by how fast it has been so far.
//!
//! A phase is the adding of nodes to a segment, or what makes their graph. What is ahead is told by what it has taken to do what
//! is behind of the phase, and by what each costs relative to the other ([`SegmentBuilder::work`]).

use std::cell::Cell;
use std::time::{Duration, Instant};

#[cfg(doc)]
use crate::builder::SegmentBuilder;

/// How long a phase has taken when it can be told how long it will.
const AFTER: Duration = Duration::from_secs(1);

/// Work of adding nodes to a graph, up to a factor: each takes a walk, whose length grows with the logarithm of their number.
fn adding(nodes: f64) -> f64 {
    nodes * (nodes + 2.0).ln()
}

/// When something is told, and how much of the table was read by then.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// The time.
    pub at: Instant,
    /// The share of the table that was read, from 0 (exclusive) to 1, where it is known.
    pub read: Option<f64>,
}

/// The time that a build will still take.
#[derive(Debug)]
pub struct Forecast {
    /// Rows of the table, by its statistics; 0 where there are none.
    estimate: f64,
    /// Nodes of a segment at most.
    most: f64,
    /// Work of the second pass, as a multiple of that of adding.
    passes: f64,
    /// When it began with the phase, with what work behind it.
    phase: (Instant, f64),
    /// What embedding has taken of the phase, and for how many texts.
    embedding: (Duration, usize),
    /// Nodes of the segments that are finished.
    finished: usize,
}

impl Forecast {
    /// A build that begins `now`, of a table that has `estimate` rows by its statistics, 0 where there are none, in segments of
    /// `most` at most, whose second passes are `passes` times the work of adding the nodes ([`SegmentBuilder::work`]).
    pub fn new(estimate: usize, most: usize, passes: f64, now: Instant) -> Self {
        Self {
            estimate: estimate as f64,
            most: most.max(1) as f64,
            passes,
            phase: (now, 0.0),
            embedding: (Duration::ZERO, 0),
            finished: 0,
        }
    }

    /// Texts have been embedded, which is no work on a graph.
    pub fn embedded(&mut self, texts: usize, took: Duration) {
        self.embedding.0 += took;
        self.embedding.1 += texts;
    }

    /// Seconds that are left when the present segment has got these nodes; nothing while too little is known. `adding` of the time
    /// was spent on the graph ([`SegmentBuilder::adding`]), which tells how long its second pass will take; the rest went by while rows
    /// were read.
    pub fn added(&self, nodes: usize, adding: Duration, now: Moment) -> Option<f64> {
        let (began, before) = self.phase;
        let elapsed = now.at.saturating_duration_since(began);
        let done = self.when_added(nodes) - before;
        if elapsed < AFTER || done <= 0.0 {
            return None;
        }
        let all = self.nodes(nodes, now.read);
        let rows = (all - (self.finished + nodes) as f64).max(0.0);
        let ahead = (self.adding(all) - self.adding(self.finished as f64)).max(done);
        let passes = self.passes * adding.as_secs_f64() * ahead / done;
        let (embedding, texts) = self.embedding;
        let own = elapsed.saturating_sub(embedding);
        let reading = own.saturating_sub(adding).as_secs_f64() * rows / nodes.max(1) as f64;
        let embedding = embedding.as_secs_f64() * rows / texts.max(1) as f64;
        let adding = own.min(adding).as_secs_f64() * (ahead - done) / done;
        Some(reading + embedding + adding + passes)
    }

    /// The second pass over a segment begins.
    pub fn refines(&mut self, nodes: usize, now: Instant) {
        self.begin(self.when_added(nodes), now);
    }

    /// As [`Forecast::added`] when this share of the pass is done ([`SegmentBuilder::refined`]). Where it is made again, its speed
    /// is so much less.
    pub fn refined(&self, share: f64, nodes: usize, now: Moment) -> Option<f64> {
        let behind = self.phase.1 + share * self.passes * adding(nodes as f64);
        let (began, before) = self.phase;
        let elapsed = now.at.saturating_duration_since(began);
        if elapsed < AFTER || behind <= before {
            return None;
        }
        let all = self.adding(self.nodes(nodes, now.read)) * (1.0 + self.passes);
        Some(elapsed.as_secs_f64() * (all - behind).max(0.0) / (behind - before))
    }

    /// A segment is finished.
    pub fn finishes(&mut self, nodes: usize, now: Instant) {
        self.finished += nodes;
        self.begin(self.when_added(0), now);
    }

    /// Work of adding nodes to graphs that have `nodes` of them together.
    fn adding(&self, nodes: f64) -> f64 {
        (nodes / self.most).floor() * adding(self.most) + adding(nodes % self.most)
    }

    /// The work that is behind when the present segment has these nodes.
    fn when_added(&self, nodes: usize) -> f64 {
        self.adding(self.finished as f64) * (1.0 + self.passes) + adding(nodes as f64)
    }

    /// Nodes of all segments, of which the present one has some: as the part of the table that was read has them.
    fn nodes(&self, nodes: usize, read: Option<f64>) -> f64 {
        let so_far = (self.finished + nodes) as f64;
        match read {
            Some(share) => so_far / share,
            None => self.estimate.max(so_far),
        }
    }

    /// Another phase begins, of which nothing is known yet.
    fn begin(&mut self, behind: f64, now: Instant) {
        self.phase = (now, behind);
        self.embedding = (Duration::ZERO, 0);
    }
}

/// A share of work that never goes back. Where what there is to do turns out to be more ([`crate::refine::Passes::share`]), what is
/// left of the way is divided again.
#[derive(Debug, Default)]
pub struct Steady {
    /// A share, and as what it was shown, from which on the way is as it is now.
    from: Cell<(f64, f64)>,
    last: Cell<(f64, f64)>,
}

impl Steady {
    /// What is shown of a share from 0 to 1.
    pub fn show(&self, share: f64) -> f64 {
        let (before, already) = self.last.get();
        if share < before {
            self.from.set((share, already));
        }
        let (from, shown) = self.from.get();
        let ahead = (1.0 - from).max(f64::MIN_POSITIVE);
        let now = shown + (1.0 - shown) * ((share - from) / ahead).clamp(0.0, 1.0);
        self.last.set((share, now.max(already)));
        now.max(already)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that works at one speed.
    struct Build {
        begin: Instant,
        forecast: Forecast,
        /// What was told, and when.
        told: Vec<(f64, f64)>,
        clock: f64,
        /// Rows of the table, if it is known how much of it was read.
        rows: Option<usize>,
        read: Option<f64>,
        /// Seconds in which a row is read.
        reading: f64,
    }

    /// Work of a second pass that is not repeated.
    const WORK: f64 = 2.1;
    /// Seconds that a unit of work takes.
    const SPEED: f64 = 2e-5;
    const ROWS: usize = 200_000;

    impl Build {
        fn new(estimate: usize, most: usize) -> Self {
            let begin = Instant::now();
            Self {
                begin,
                forecast: Forecast::new(estimate, most, WORK, begin),
                told: Vec::new(),
                clock: 0.0,
                rows: None,
                read: None,
                reading: 0.0,
            }
        }

        fn now(&self) -> Instant {
            self.begin + Duration::from_secs_f64(self.clock)
        }

        fn tell(&mut self, told: impl FnOnce(&Forecast, Moment) -> Option<f64>) {
            let moment = Moment {
                at: self.now(),
                read: self.read,
            };
            let told = told(&self.forecast, moment);
            self.told.extend(told.map(|left| (self.clock, left)));
        }

        /// A segment, whose pass takes `passes` times as long as one that is not repeated, each of whose texts takes `text`
        /// seconds to embed.
        fn segment(&mut self, nodes: usize, passes: f64, text: f64) {
            let before = self.clock;
            let steps = 20;
            for step in 1..=steps {
                let some = nodes * step / steps;
                let embedded = nodes / steps;
                self.forecast
                    .embedded(embedded, Duration::from_secs_f64(text * embedded as f64));
                let own = SPEED * adding(some as f64);
                self.clock = before + own + (text + self.reading) * some as f64;
                self.read = self.rows.map(|rows| some as f64 / rows as f64);
                let own = Duration::from_secs_f64(own);
                self.tell(|forecast, now| forecast.added(some, own, now));
            }
            let (before, now) = (self.clock, self.now());
            self.forecast.refines(nodes, now);
            for step in 1..=steps {
                let share = step as f64 / steps as f64;
                let work = passes * WORK * adding(nodes as f64);
                self.clock = before + SPEED * work * share;
                self.tell(|forecast, now| forecast.refined(share, nodes, now));
            }
            let now = self.now();
            self.forecast.finishes(nodes, now);
        }

        /// How far what was told was from the truth at most, in shares of the whole.
        fn worst(&self) -> f64 {
            let off = |(at, left): &(f64, f64)| (at + left - self.clock).abs() / self.clock;
            self.told.iter().map(off).fold(0.0, f64::max)
        }
    }

    #[test]
    fn more_work_takes_nothing_back() {
        let steady = Steady::default();
        let shares = [0.0, 0.3, 0.86, 0.42, 0.5, 0.9, 0.8, 0.95, 1.0, 1.0];
        let shown = shares.map(|share| steady.show(share));
        assert_eq!(shown[..3], shares[..3]);
        assert!(shown.is_sorted(), "{shown:?}");
        assert_eq!((shown[2], shown[9]), (shown[3], 1.0));
        // An eighth of what is left.
        assert!((shown[4] - (0.86 + 0.14 * 0.08 / 0.58)).abs() < 1e-12);
        assert_eq!(steady.show(0.0), 1.0);
    }

    #[test]
    fn an_even_speed_is_told_exactly() {
        for most in [ROWS, ROWS / 4, 30_000] {
            let mut build = Build::new(ROWS, most);
            let mut left = ROWS;
            while left > 0 {
                let nodes = left.min(most);
                build.segment(nodes, 1.0, 0.0);
                left -= nodes;
            }
            assert!(build.told.len() > 20, "{}", build.told.len());
            assert!(build.worst() < 1e-6, "{most}: {}", build.worst());
        }
    }

    #[test]
    fn texts_are_embedded_before_the_second_pass() {
        let mut build = Build::new(ROWS, ROWS);
        build.segment(ROWS, 1.0, 1e-4);
        assert!(build.worst() < 1e-6, "{}", build.worst());
    }

    /// As of a table on a slow disk, whose passes take no longer for it.
    #[test]
    fn reading_is_not_taken_for_work() {
        let mut build = Build::new(ROWS, ROWS);
        build.reading = 1e-3;
        build.segment(ROWS, 1.0, 0.0);
        assert!(build.worst() < 0.02, "{}", build.worst());
    }

    #[test]
    fn what_was_read_says_more_than_statistics() {
        for estimate in [0, ROWS / 10, ROWS * 20] {
            let mut build = Build::new(estimate, ROWS);
            build.rows = Some(ROWS);
            build.segment(ROWS, 1.0, 0.0);
            assert!(build.worst() < 1e-6, "{estimate}: {}", build.worst());
        }
    }

    #[test]
    fn a_slower_pass_is_told_by_its_own_speed() {
        let mut build = Build::new(ROWS, ROWS);
        build.segment(ROWS, 3.0, 0.0);
        let (at, left) = build.told[build.told.len() - 10];
        assert!((at + left - build.clock).abs() < 1e-6 * build.clock);
    }

    #[test]
    fn nothing_is_told_at_once() {
        let begin = Instant::now();
        let forecast = Forecast::new(ROWS, ROWS, WORK, begin);
        let after = |ms| Moment {
            at: begin + Duration::from_millis(ms),
            read: None,
        };
        assert_eq!(forecast.added(1_000, AFTER, after(999)), None);
        assert!(forecast.added(1_000, AFTER, after(1_000)).is_some());
        assert_eq!(forecast.added(0, AFTER, after(5_000)), None);
    }
}
