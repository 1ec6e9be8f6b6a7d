//! Approximate nearest neighbours by cosine of two sets of embeddings, in both directions at once: an inverted file of
//! cells (Jégou, Douze & Schmid, "Product Quantization for Nearest Neighbor Search", TPAMI 2011, section IV, without quantization).
//!
//! The rows of the larger side are put into cells. Each row of the other side is compared with the rows of the cells that
//! are nearest to it, its probes, exactly as [`knn`] compares all; a pair that is compared enters the lists of both of its rows. How many probes that takes is
//! measured on the data: how far down in the order of a row's cells its true neighbours lie, for a sample of the rows of either side.
//! Where they lie too far down, or the rows are few, nothing is searched: comparing all pairs takes no longer.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use laser_sampling::stratified;

use crate::block::Set;
use crate::cells::{Means, Plan, Sorted, gather, sample_of};
use crate::engine::Engine;
use crate::knn::{self, Control, Input, Options};
use crate::run::Run;
use crate::{Error, Neighbourhoods, Neighbours, Rows, Side};

/// Rows of each side whose true neighbours are sought to measure how many probes it takes.
const SAMPLE: usize = 512;
/// Pairs of neighbours of these whose cells are sought, at most, for each side.
const PAIRS: usize = 1 << 12;
/// Comparing all pairs has to take this many times the work of preparing, and of comparing probes, or nothing is searched.
const SPARED: u64 = 3;
/// Pairs that could be compared while a row is read and packed, of some hundred dimensions.
const READ_COST: u64 = 64;
/// Least rows that are worth a search of their own.
const LEAST_PIECE: usize = 64;

/// What was found, and how.
#[derive(Clone, Debug)]
pub struct Approximate {
    /// The neighbours. Their cosines are exact; one is missing where the cell that it is in was not probed.
    pub found: Neighbourhoods,
    /// Cells that the larger side fell into.
    pub cells: usize,
    /// Cells that each row of the other side was compared with.
    pub probes: usize,
    /// Share of the true neighbours of a sample that are in these cells, in the direction where it is less.
    pub recall: f64,
}

/// As [`knn::both_rows`], but finds the share `recall` of the neighbours in either direction, as far as a sample tells; nothing where that
/// spares too little, so that all pairs should be compared. A device is not used.
///
/// # Errors
/// As [`knn::both_rows`].
pub fn both_rows(
    source: Rows<'_>,
    target: Rows<'_>,
    dimensions: usize,
    k: usize,
    recall: f64,
    options: &Options<'_>,
) -> Result<Option<Approximate>, Error> {
    if k == 0 {
        return Err(Error::ZeroK);
    }
    if dimensions == 0 {
        return Err(Error::ZeroDimensions);
    }
    let counts = [
        source.count(dimensions, Side::Source)?,
        target.count(dimensions, Side::Target)?,
    ];
    let is_swapped = counts[0] > counts[1];
    let [rows, others] = match is_swapped {
        true => [(target, counts[1]), (source, counts[0])],
        false => [(source, counts[0]), (target, counts[1])],
    };
    let unwatched = Control::default();
    let control = options.control.unwrap_or(&unwatched);
    let search = Search {
        rows,
        others,
        dimensions,
        k,
        options: &Options {
            device: None,
            control: Some(control),
            ..options.clone()
        },
        control,
    };
    let plan = Plan::of(
        others.1,
        dimensions,
        options.memory.map(|memory| memory / 8),
    );
    let ordered = 2 * PAIRS.min(SAMPLE * k.min(others.1));
    let overhead = plan.pairs()
        + (plan.cells + SAMPLE) as u64 * (counts[0] + counts[1]) as u64
        + (plan.cells * ordered) as u64;
    let all = counts[0] as u64 * counts[1] as u64;
    let spares = |share: f64, probes| {
        let work = (all as f64 * share) as u64 + overhead + search.reading(probes);
        work.saturating_mul(SPARED) <= all
    };
    if recall >= 1.0 || recall.is_nan() || !spares(0.0, 1) {
        return Ok(None);
    }
    // Errors are of the sides as they were given, in the order in which a search of all pairs finds them.
    Set::new(Input::whole(source), Side::Source, dimensions, control)?;
    Set::new(Input::whole(target), Side::Target, dimensions, control)?;
    let plan_for = |pairs| control.total.fetch_add(pairs, Ordering::Relaxed);
    plan_for(overhead + all);
    control.is_unmeasured.store(true, Ordering::Relaxed);
    let means = Means::find(others.0, others.1, dimensions, plan, search.options)?;
    let cell_of = means.nearest(others.0, 1, search.options)?;
    let cells = Sorted::new(means.count(), |row| cell_of.positions(row), others.1)?;
    let measured = search.measure(&means, (&cells, &cell_of), recall)?;
    control.total.fetch_sub(all, Ordering::Relaxed);
    control.is_unmeasured.store(false, Ordering::Relaxed);
    let Some(probing) = measured.filter(|probing| spares(probing.share, probing.probes)) else {
        return Ok(None);
    };
    plan_for((all as f64 * probing.share) as u64);
    drop(cell_of);
    let [forward, backward] = search.probe(&means, &cells, probing.probes)?;
    let found = match is_swapped {
        true => Neighbourhoods {
            forward: backward,
            backward: forward,
        },
        false => Neighbourhoods { forward, backward },
    };
    Ok(Some(Approximate {
        found,
        cells: means.count(),
        probes: probing.probes,
        recall: probing.recall,
    }))
}

/// What a sample says.
struct Probing {
    probes: usize,
    recall: f64,
    /// The share of all pairs that are compared.
    share: f64,
}

struct Search<'a> {
    /// The side whose rows probe cells, and how many they are.
    rows: (Rows<'a>, usize),
    /// The side that is in cells.
    others: (Rows<'a>, usize),
    dimensions: usize,
    k: usize,
    options: &'a Options<'a>,
    control: &'a Control,
}

impl Search<'_> {
    fn check(&self) -> Result<(), Error> {
        self.control.check()
    }

    /// A quarter of the memory: one is for rows, one for what they probe, and one for the pieces of all threads, as they are and packed.
    fn quarter(&self) -> usize {
        self.options.memory.map_or(usize::MAX, |memory| memory / 4)
    }

    /// Bytes of a row as it is.
    fn row_bytes(&self) -> usize {
        size_of::<f32>() * self.dimensions
    }

    /// Rows that probe at a time.
    fn rows_each(&self, probes: usize) -> usize {
        // Twice: in the list of a row, and by cells.
        let probe = 2 * size_of::<(u32, f64)>();
        let rows = self.quarter() / self.row_bytes().max(probe.saturating_mul(probes));
        rows.max(LEAST_PIECE)
    }

    /// What it takes to read the rows of all cells for each part of the rows that probe, as pairs that could be compared.
    fn reading(&self, probes: usize) -> u64 {
        let parts = self.rows.1.div_ceil(self.rows_each(probes)) as u64;
        READ_COST
            .saturating_mul(parts)
            .saturating_mul(self.others.1 as u64)
    }

    /// The true neighbours among `to` of a sample of `from`, thinned: the position of the row and of the neighbour.
    fn neighbours(
        &self,
        (from, count): (Rows<'_>, usize),
        to: Rows<'_>,
    ) -> Result<Vec<(u32, u32)>, Error> {
        let sample = laser_memory::collect(sample_of(count, SAMPLE))?;
        let check = || self.check();
        let values = gather(from, sample.iter().copied(), self.dimensions, check)?;
        let rows = Input::whole(Rows::Slice(&values));
        let to = Input::whole(to);
        let lists = knn::nearest(rows, to, self.dimensions, self.k, self.options)?;
        let all: usize = (0..lists.rows()).map(|at| lists.positions(at).len()).sum();
        let mut chosen = stratified(all, PAIRS).peekable();
        let (mut pairs, mut number) = (Vec::new(), 0);
        for (at, &row) in sample.iter().enumerate() {
            for &neighbour in lists.positions(at) {
                if chosen.next_if_eq(&number).is_some() {
                    laser_memory::push(&mut pairs, (row, neighbour))?;
                }
                number += 1;
            }
        }
        Ok(pairs)
    }

    /// How many probes find `recall` of the neighbours of a sample in either direction; nothing where that is most of the cells.
    fn measure(
        &self,
        means: &Means,
        (cells, cell_of): (&Sorted, &Neighbours),
        recall: f64,
    ) -> Result<Option<Probing>, Error> {
        let most = means.count() / SPARED as usize;
        if most == 0 {
            return Ok(None);
        }
        // Rows that probe, and those whose cells they are to find.
        let own = self.neighbours(self.rows, self.others.0)?;
        let mut theirs = self.neighbours(self.others, self.rows.0)?;
        theirs.iter_mut().for_each(|pair| *pair = (pair.1, pair.0));

        // Rows in the first cells of those of the sample's own.
        let mut compared = laser_memory::filled(0u64, most)?;
        let mut places = |pairs: &[(u32, u32)], is_own: bool| {
            // How many cells each would have to probe.
            let mut places = laser_memory::with_capacity(pairs.len())?;
            for pairs in pairs.chunks(SAMPLE) {
                let rows = pairs.iter().map(|(row, _)| *row);
                let values = gather(self.rows.0, rows, self.dimensions, || self.check())?;
                let order = means.nearest(Rows::Slice(&values), most, self.options)?;
                for (row, &(_, other)) in pairs.iter().enumerate() {
                    let order = order.positions(row);
                    let cell = cell_of.positions(other as usize)[0];
                    let place = order.iter().position(|&probe| probe == cell);
                    places.push(place.map_or(usize::MAX, |place| place + 1));
                    let mut sum = 0;
                    for (compared, &probe) in compared.iter_mut().zip(order).filter(|_| is_own) {
                        sum += cells.of(probe as usize).len() as u64;
                        *compared += sum;
                    }
                }
            }
            places.sort_unstable();
            Ok::<Vec<usize>, Error>(places)
        };
        let directions = [places(&own, true)?, places(&theirs, false)?];

        let probes = directions.iter().map(|places| {
            // By how much the share in a sample of as many rows is off: the neighbours of one row go together.
            let rows = SAMPLE.min(places.len()) as f64;
            let wanted = (recall + (recall * (1.0 - recall) / rows).sqrt()).min(1.0);
            let enough = (wanted * places.len() as f64).ceil() as usize;
            places[enough.clamp(1, places.len()) - 1]
        });
        let probes = probes.max().unwrap_or(usize::MAX);
        if probes > most {
            return Ok(None);
        }
        let found = directions.iter().map(|places| {
            places.partition_point(|&place| place <= probes) as f64 / places.len() as f64
        });
        Ok(Some(Probing {
            probes,
            recall: found.fold(1.0, f64::min),
            share: compared[probes - 1] as f64 / own.len() as f64 / self.others.1 as f64,
        }))
    }

    /// Compares each row with those of the cells that are nearest to it; the lists of both sides.
    fn probe(
        &self,
        means: &Means,
        cells: &Sorted,
        probes: usize,
    ) -> Result<[Neighbours; 2], Error> {
        let lists = |count, others: usize| Neighbours::empty(count, self.k.min(others));
        let forward = Mutex::new(lists(self.rows.1, self.others.1)?);
        let backward = Mutex::new(lists(self.others.1, self.rows.1)?);
        let threads = self.options.threads.max(1);
        let rows_each = self.rows_each(probes);
        // As it is, packed, and with the lists of its rows, on both sides.
        let row = 4 * self.row_bytes() + 40 * self.k;
        let piece = (self.quarter() / threads / row).max(LEAST_PIECE);
        let run = Run {
            engine: Engine::new(self.options.kernel, None, self.dimensions, None),
            threads,
            control: self.control,
        };
        for first in (0..self.rows.1).step_by(rows_each) {
            let range = first..(first + rows_each).min(self.rows.1);
            let check = || self.check();
            let values = self.rows.0.read(range.clone(), self.dimensions, check)?;
            let order = means.nearest(Rows::Slice(&values), probes, self.options)?;
            let probing = Sorted::new(means.count(), |row| order.positions(row), range.len())?;
            drop(order);
            let part = Part {
                search: self,
                first: first as u32,
                values: &values,
                lists: [&forward, &backward],
            };
            run.each(threads, means.count(), |_, cell| {
                let probing = probing.of(cell);
                let own = |others: &&[u32]| !others.is_empty() && !probing.is_empty();
                for others in cells.of(cell).chunks(piece).filter(own) {
                    let positions = others.iter().copied();
                    let values = gather(self.others.0, positions, self.dimensions, check)?;
                    for rows in probing.chunks(piece) {
                        part.compare(rows, (others, &values))?;
                    }
                }
                Ok(())
            })?;
        }
        let into = |lists: Mutex<Neighbours>| lists.into_inner().expect("not poisoned");
        Ok([into(forward), into(backward)])
    }
}

/// Rows that probe at a time.
struct Part<'a> {
    search: &'a Search<'a>,
    first: u32,
    values: &'a [f32],
    lists: [&'a Mutex<Neighbours>; 2],
}

impl Part<'_> {
    /// Compares some of the rows with some rows of a cell that they probe. Of each cell, and so of each row of it, one thread has
    /// charge; a row that probes may be in work by several.
    fn compare(&self, rows: &[u32], (others, other_values): (&[u32], &[f32])) -> Result<(), Error> {
        let search = self.search;
        let positions = rows.iter().copied();
        let from = Rows::Slice(self.values);
        let values = gather(from, positions, search.dimensions, || search.check())?;
        let labels = laser_memory::collect(rows.iter().map(|row| self.first + row))?;
        let lists = |at: usize| self.lists[at].lock().expect("not poisoned");
        let mut forward = Some(lists(0).gather(&labels)?);
        let mut backward = Some(lists(1).gather(others)?);
        knn::add(
            Input::labelled(Rows::Slice(&values), &labels),
            Input::labelled(Rows::Slice(other_values), others),
            search.dimensions,
            search.k,
            [&mut forward, &mut backward],
            [true, true],
            &Options {
                threads: 1,
                memory: None,
                ..search.options.clone()
            },
        )?;
        let (forward, backward) = (forward.expect("given"), backward.expect("given"));
        let mut found = Vec::new();
        for (at, &row) in labels.iter().enumerate() {
            for (&position, &cosine) in forward.positions(at).iter().zip(forward.cosines(at)) {
                // What was in the list before is there still, or has given way to what others have found meanwhile.
                if others.binary_search(&position).is_ok() {
                    laser_memory::push(&mut found, (row, position, cosine))?;
                }
            }
        }
        let mut all = lists(0);
        for (row, position, cosine) in found {
            all.insert(row as usize, position, cosine);
        }
        drop(all);
        let mut all = lists(1);
        for (at, &other) in others.iter().enumerate() {
            all.copy(other as usize, &backward, at);
        }
        Ok(())
    }
}
