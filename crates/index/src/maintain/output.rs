//! What becomes of the entries of a merge.

use laser_vector::kernels::norm;

use super::progress::{Phase, Progress};
use crate::assemble::BuiltSegment;
use crate::builder::{BuildOptions, SegmentBuilder};
use crate::error::Result;
use crate::forecast::Steady;
use crate::meta::{Parameters, Pending, SegmentEntry};
use crate::metric::Metric;
use crate::page::{UNDIRECTED, UNPLACED};
use crate::pending;
use crate::segment::write_pages;
use crate::space;
use crate::store::PageStore;
use crate::view::SegmentView;

pub(super) type Written = (SegmentEntry, BuiltSegment);

/// What becomes of the entries of a merge: a segment, or several where one is full, and others for vectors that
/// are too long for it.
pub(super) struct Output<'a, S> {
    store: &'a S,
    options: BuildOptions,
    builder: SegmentBuilder,
    new: Vec<Written>,
    /// Vectors that [`Encoding::takes`](crate::encoding::Encoding::takes) does not take, with their addresses and errors.
    long: Vec<(u64, Vec<f32>, f64)>,
    pause: &'a dyn Fn(),
    report: &'a dyn Fn(Progress),
    /// Entries that are in the graphs or on their way, of those that are expected.
    pushed: usize,
    expected: usize,
}

impl<'a, S: PageStore> Output<'a, S> {
    /// What `builder` has goes on; `expected` entries in all.
    pub(super) fn new(
        store: &'a S,
        builder: SegmentBuilder,
        (options, expected): (BuildOptions, usize),
        pause: &'a dyn Fn(),
        report: &'a dyn Fn(Progress),
    ) -> Self {
        Self {
            store,
            options,
            pushed: builder.added(),
            builder,
            new: Vec::new(),
            long: Vec::new(),
            pause,
            report,
            expected,
        }
    }

    fn count(&mut self) {
        self.pushed += 1;
        if self.pushed.is_multiple_of(64) {
            (self.report)(Progress {
                phase: Phase::Loading,
                done: self.pushed.min(self.expected),
                total: self.expected,
            });
        }
    }

    fn push_stored(&mut self, tid: u64, graph: &[u8], fine: &[u8]) -> Result<()> {
        self.count();
        self.builder.push_stored(tid, graph, fine, self.pause)?;
        self.next_if_full()
    }

    fn push(&mut self, tid: u64, x: Vec<f32>, error: f64) -> Result<()> {
        self.count();
        if self.builder.encoding().takes(&x) {
            self.builder.push_prepared(tid, &x, error, self.pause)?;
            return self.next_if_full();
        }
        self.long.push((tid, x, error));
        if self.long.len() >= self.options.sample_size() {
            self.write_long()?;
        }
        Ok(())
    }

    fn push_unplaced(&mut self, tid: u64) -> Result<()> {
        self.builder.push_unplaced(tid);
        self.next_if_full()
    }

    /// Adds the live entries of a segment.
    pub(super) fn push_segment(&mut self, view: &SegmentView) -> Result<()> {
        let same = view.encoding().stores_like(self.builder.encoding());
        view.for_each_spread(|slot, graph, fine| {
            let tid = view.tid(slot);
            if same {
                self.push_stored(tid, graph, fine)
            } else {
                let (x, error) = view.vector(slot);
                self.push(tid, x, error)
            }
        })?;
        view.unplaced().try_for_each(|tid| self.push_unplaced(tid))
    }

    fn next_if_full(&mut self) -> Result<()> {
        if self.builder.is_full() {
            let encoding = self.builder.encoding().clone();
            let next = SegmentBuilder::new(self.options.clone(), encoding, None)?;
            let full = std::mem::replace(&mut self.builder, next);
            self.new
                .push(write(self.store, full, self.pause, self.report)?);
        }
        Ok(())
    }

    /// Makes segments of the long vectors that there are. Some may be too long for the others.
    fn write_long(&mut self) -> Result<()> {
        while !self.long.is_empty() {
            let long = std::mem::take(&mut self.long);
            let sample: Vec<Vec<f32>> = long.iter().map(|(_, x, _)| x.clone()).collect();
            let options = BuildOptions {
                expected: long.len(),
                ..self.options.clone()
            };
            let encoding = options.choose(&sample, self.pause);
            let mut builder = SegmentBuilder::new(options, encoding, None)?;
            for (tid, x, error) in long {
                if builder.encoding().takes(&x) {
                    builder.push_prepared(tid, &x, error, self.pause)?;
                } else {
                    self.long.push((tid, x, error));
                }
            }
            self.new
                .push(write(self.store, builder, self.pause, self.report)?);
        }
        Ok(())
    }

    /// The new segments, whose pages are written.
    pub(super) fn finish(mut self) -> Result<Vec<Written>> {
        self.write_long()?;
        if !self.builder.is_empty() {
            self.new
                .push(write(self.store, self.builder, self.pause, self.report)?);
        }
        Ok(self.new)
    }
}

/// Adds the live entries of a sealed list to what a merge makes.
pub(super) fn push_list<S: PageStore>(
    store: &S,
    parameters: &Parameters,
    list: &Pending,
    output: &mut Output<'_, S>,
) -> Result<(u64, u32)> {
    let mut at = *list;
    loop {
        // One page at a time: handing vectors to the threads may wait, reading must not.
        let mut entries = Vec::new();
        let one = Pending {
            tail_seq: at.head_seq,
            ..at
        };
        let (seq, block) = pending::read(store, parameters, &one, false, |entry| {
            if entry.is_live() {
                let mut x = Vec::new();
                let error = if entry.tid & UNPLACED == 0 {
                    entry.decode(parameters, &mut x)
                } else {
                    0.0
                };
                entries.push((entry.tid, x, error));
            }
        })?;
        for (tid, x, error) in entries {
            if tid & UNPLACED != 0 {
                output.push_unplaced(tid)?;
                continue;
            }
            match space::prepare(parameters.metric, parameters.dims, &x)? {
                Some(unit) => {
                    // Two vectors of length r that are e apart have directions at most 2 e / r apart.
                    let error = match parameters.metric {
                        Metric::Cosine => {
                            2.0 * error / norm(&x) + space::direction_error(parameters.metric, &x)
                        }
                        _ => error,
                    };
                    output.push(tid, unit, error)?;
                }
                None => output.push_unplaced(tid | UNDIRECTED)?,
            }
        }
        at = Pending {
            head_seq: seq,
            head: block,
            ..at
        };
        if seq > list.tail_seq {
            return Ok((seq, block));
        }
    }
}

/// Finishes a segment and writes its pages.
fn write(
    store: &impl PageStore,
    builder: SegmentBuilder,
    pause: &dyn Fn(),
    report: &dyn Fn(Progress),
) -> Result<Written> {
    let (total, refined) = (builder.len(), builder.refined());
    let steady = Steady::default();
    let refining = || {
        pause();
        report(Progress {
            phase: Phase::Refining,
            done: (steady.show(refined.share()) * total as f64) as usize,
            total,
        });
    };
    let built = builder.finish(&refining)?;
    report(Progress {
        phase: Phase::Writing,
        done: 0,
        total,
    });
    let entry = write_pages(store, &built.header, &built.bytes, &built.dead, |_| {})?;
    Ok((entry, built))
}
