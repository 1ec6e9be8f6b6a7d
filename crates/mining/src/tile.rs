//! Candidates of a stripe of rows, and the filter that finds them in a tile of approximate cosines.
//!
//! Invariant: a row's `threshold` never exceeds its k-th best exact cosine over all candidates minus the
//! error bound of the kernel. So every true neighbour has an approximate cosine at or above the
//! threshold and is never dropped, and what is kept is decided by exact cosines.
use laser_cpu::simd;

use crate::Neighbours;
use crate::cosine::cosine;
use crate::kernel::stripe::{SOURCE_STRIPE, TARGET_STRIPE};

/// One of the two blocks of rows that are being compared, as exact cosines need it.
#[derive(Clone, Copy)]
pub(crate) struct Exact<'a> {
    /// Row-major values.
    pub values: &'a [f32],
    /// Inverse norms.
    pub inverse: &'a [f64],
    /// Positions that the results carry; `first + i` where there are none.
    pub labels: Option<&'a [u32]>,
    /// Position of the first row.
    pub first: u32,
    pub dimensions: usize,
}

impl Exact<'_> {
    fn row(&self, at: usize) -> &[f32] {
        &self.values[at * self.dimensions..][..self.dimensions]
    }

    fn label(&self, at: usize) -> u32 {
        self.labels
            .map_or(self.first + at as u32, |labels| labels[at])
    }

    fn cosine(&self, at: usize, other: &Exact<'_>, other_at: usize) -> f64 {
        cosine(
            self.row(at),
            self.inverse[at],
            other.row(other_at),
            other.inverse[other_at],
        )
    }
}

/// Candidates of the rows of one stripe.
pub(crate) struct Stripe {
    /// Position of the stripe's first row in its block.
    first: usize,
    /// Exact lists so far.
    pub lists: Neighbours,
    /// Approximate cosine from which on a candidate is kept, for each row.
    thresholds: Vec<f32>,
    /// `capacity` approximate candidates (cosine, row of the other block) for each row.
    waiting: Vec<(f32, u32)>,
    counts: Vec<u32>,
    capacity: usize,
    error: f64,
}

/// Approximate candidates that are kept for each row between exact cosines.
pub(crate) fn capacity(k: usize) -> usize {
    k.saturating_mul(2).max(k.saturating_add(24))
}

impl Stripe {
    /// A stripe whose rows already have the given lists. `wanted` is false when only the other
    /// side's neighbours are sought.
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        first: usize,
        lists: Neighbours,
        error: f64,
        wanted: bool,
    ) -> laser_memory::Result<Self> {
        let capacity = capacity(lists.k());
        let rows = lists.rows();
        let threshold = |row| {
            if wanted {
                below(lists.threshold(row) - error)
            } else {
                f32::INFINITY
            }
        };
        let waiting = if wanted {
            rows.saturating_mul(capacity)
        } else {
            0
        };
        Ok(Stripe {
            first,
            thresholds: laser_memory::collect((0..rows).map(threshold))?,
            waiting: laser_memory::filled((0.0, 0), waiting)?,
            counts: laser_memory::filled(0, rows)?,
            capacity,
            error,
            lists,
        })
    }

    /// Approximate cosine from which on a candidate is kept, for each row.
    pub fn thresholds(&self) -> &[f32] {
        &self.thresholds
    }

    fn keep(&mut self, row: usize, cosine: f32, other: u32, own: &Exact<'_>, others: &Exact<'_>) {
        if self.counts[row] as usize == self.capacity {
            self.raise_threshold(row);
            if self.counts[row] as usize > self.capacity * 3 / 4 {
                self.rescore(row, own, others);
            }
            if cosine < self.thresholds[row] {
                return;
            }
        }
        self.waiting[row * self.capacity + self.counts[row] as usize] = (cosine, other);
        self.counts[row] += 1;
    }

    /// Raises the threshold to what the waiting candidates prove, and drops those below it. The k-th
    /// best of them has an exact cosine of at least its approximate one minus the error.
    fn raise_threshold(&mut self, row: usize) {
        let count = self.counts[row] as usize;
        let k = self.lists.k();
        let waiting = &mut self.waiting[row * self.capacity..][..count];
        if count >= k {
            waiting.select_nth_unstable_by(k - 1, |a, b| b.0.total_cmp(&a.0));
            let threshold = below(f64::from(waiting[k - 1].0) - 2.0 * self.error);
            self.thresholds[row] = self.thresholds[row].max(threshold);
        }
        let threshold = self.thresholds[row];
        let mut kept = 0;
        for at in 0..count {
            if waiting[at].0 >= threshold {
                waiting[kept] = waiting[at];
                kept += 1;
            }
        }
        self.counts[row] = kept as u32;
    }

    /// Decides the waiting candidates of a row by their exact cosines.
    fn rescore(&mut self, row: usize, own: &Exact<'_>, others: &Exact<'_>) {
        let count = self.counts[row] as usize;
        let waiting = &mut self.waiting[row * self.capacity..][..count];
        // Best first: the threshold rises at once and spares the rest.
        waiting.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        for &(approximate, other) in waiting.iter() {
            if approximate < self.thresholds[row] {
                break;
            }
            let cosine = own.cosine(self.first + row, others, other as usize);
            if self.lists.insert(row, others.label(other as usize), cosine) {
                let threshold = below(self.lists.threshold(row) - self.error);
                self.thresholds[row] = self.thresholds[row].max(threshold);
            }
        }
        self.counts[row] = 0;
    }

    /// Decides all that waits. The lists are then those over all tiles seen.
    pub fn finish(&mut self, own: &Exact<'_>, others: &Exact<'_>) {
        for row in 0..self.counts.len() {
            if self.counts[row] > 0 {
                self.raise_threshold(row);
                self.rescore(row, own, others);
            }
        }
    }
}

/// Takes the candidates out of a tile of approximate cosines, for its rows and its columns.
pub(crate) fn filter_candidates(
    tile: &[f32],
    rows: &mut Stripe,
    columns: &mut Stripe,
    source: &Exact<'_>,
    target: &Exact<'_>,
) {
    let mut thresholds = [f32::INFINITY; TARGET_STRIPE];
    let width = columns.thresholds.len();
    thresholds[..width].copy_from_slice(&columns.thresholds);
    assert!(rows.thresholds.len() <= SOURCE_STRIPE && tile.len() == SOURCE_STRIPE * TARGET_STRIPE);
    for row in 0..rows.thresholds.len() {
        let values = &tile[row * TARGET_STRIPE..][..TARGET_STRIPE];
        let mut chunk = 0;
        while let Some(found) = next_chunk(values, &thresholds, rows.thresholds[row], chunk, width)
        {
            for column in found..(found + CHUNK).min(width) {
                let cosine = values[column];
                if cosine >= rows.thresholds[row] {
                    rows.keep(row, cosine, (columns.first + column) as u32, source, target);
                }
                if cosine >= thresholds[column] {
                    columns.keep(column, cosine, (rows.first + row) as u32, target, source);
                    thresholds[column] = columns.thresholds[column];
                }
            }
            chunk = found + CHUNK;
        }
    }
}

/// A candidate: row and column of a tile, and their approximate cosine.
pub(crate) type Hit = (u32, u32, f32);

/// Takes what are candidates among some approximate cosines of a tile, for its rows and its columns.
pub(crate) fn keep(
    hits: &[Hit],
    rows: &mut Stripe,
    columns: &mut Stripe,
    source: &Exact<'_>,
    target: &Exact<'_>,
) {
    for &(row, column, cosine) in hits {
        let (row, column) = (row as usize, column as usize);
        if cosine >= rows.thresholds[row] {
            rows.keep(row, cosine, (columns.first + column) as u32, source, target);
        }
        if cosine >= columns.thresholds[column] {
            columns.keep(column, cosine, (rows.first + row) as u32, target, source);
        }
    }
}

/// Values that are compared at once.
const CHUNK: usize = 16;

simd! {
    /// The first chunk at or after `from` that has a value at or above its row's or its column's threshold. Written
    /// so that the compiler turns the inner loop into vector comparisons.
    fn next_chunk(
        values: &[f32],
        thresholds: &[f32],
        threshold: f32,
        from: usize,
        width: usize,
    ) -> Option<usize> {
        let mut at = from;
        while at < width {
            let values: &[f32; CHUNK] = values[at..at + CHUNK].try_into().expect("a whole chunk");
            let thresholds: &[f32; CHUNK] = thresholds[at..at + CHUNK].try_into().expect("a whole chunk");
            let mut hits = 0u32;
            for lane in 0..CHUNK {
                hits |= u32::from(values[lane] >= threshold) | u32::from(values[lane] >= thresholds[lane]);
            }
            if hits != 0 {
                return Some(at);
            }
            at += CHUNK;
        }
        None
    }
}

/// The greatest `f32` below `value`, so that rounding never raises a threshold.
fn below(value: f64) -> f32 {
    (value as f32).next_down()
}
