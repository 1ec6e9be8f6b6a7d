//! Candidates of a stripe of rows, and the sieve that finds them in a tile of approximate cosines.
//!
//! Invariant: a row's `bar` never exceeds its k-th best exact cosine over all candidates minus the
//! error bound of the kernel. So every true neighbour has an approximate cosine at or above the
//! bar and is never dropped, and what is kept is decided by exact cosines.
use laser_cpu::simd;

use crate::Neighbours;
use crate::kernel::{SOURCE_STRIPE, TARGET_STRIPE};

/// Cosines are multiples of this, far above the noise of `f64` sums (near 1e-15) and far below any
/// difference that matters: so equal rows have a cosine of exactly 1, equal cosines are recognised
/// as such, and sums of cosines are exact in any order.
pub(crate) const GRAIN: f64 = 1.0 / (1u64 << 40) as f64;

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

/// Cosine of two rows with the given inverse norms, computed in `f64` and rounded to a multiple of
/// [`GRAIN`]. Symmetric to the last bit.
pub(crate) fn cosine(a: &[f32], a_inverse: f64, b: &[f32], b_inverse: f64) -> f64 {
    let cosine = dot(a, b) * (a_inverse * b_inverse);
    (cosine / GRAIN).round_ties_even() * GRAIN
}

/// Candidates of the rows of one stripe.
pub(crate) struct Stripe {
    /// Position of the stripe's first row in its block.
    first: usize,
    /// Exact lists so far.
    pub lists: Neighbours,
    /// Approximate cosine from which on a candidate is kept, for each row.
    bars: Vec<f32>,
    /// `room` approximate candidates (cosine, row of the other block) for each row.
    waiting: Vec<(f32, u32)>,
    counts: Vec<u32>,
    room: usize,
    error: f64,
}

/// Approximate candidates that are kept for each row between exact cosines.
pub(crate) fn room(k: usize) -> usize {
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
        let room = room(lists.k());
        let rows = lists.rows();
        let bar = |row| {
            if wanted {
                below(lists.bar(row) - error)
            } else {
                f32::INFINITY
            }
        };
        let waiting = if wanted { rows.saturating_mul(room) } else { 0 };
        Ok(Stripe {
            first,
            bars: laser_memory::collect((0..rows).map(bar))?,
            waiting: laser_memory::filled((0.0, 0), waiting)?,
            counts: laser_memory::filled(0, rows)?,
            room,
            error,
            lists,
        })
    }

    /// Approximate cosine from which on a candidate is kept, for each row.
    pub fn bars(&self) -> &[f32] {
        &self.bars
    }

    fn keep(&mut self, row: usize, cosine: f32, other: u32, own: &Exact<'_>, others: &Exact<'_>) {
        if self.counts[row] as usize == self.room {
            self.tighten(row);
            if self.counts[row] as usize > self.room * 3 / 4 {
                self.settle(row, own, others);
            }
            if cosine < self.bars[row] {
                return;
            }
        }
        self.waiting[row * self.room + self.counts[row] as usize] = (cosine, other);
        self.counts[row] += 1;
    }

    /// Raises the bar to what the waiting candidates prove, and drops those below it. The k-th
    /// best of them has an exact cosine of at least its approximate one minus the error.
    fn tighten(&mut self, row: usize) {
        let count = self.counts[row] as usize;
        let k = self.lists.k();
        let waiting = &mut self.waiting[row * self.room..][..count];
        if count >= k {
            waiting.select_nth_unstable_by(k - 1, |a, b| b.0.total_cmp(&a.0));
            let bar = below(f64::from(waiting[k - 1].0) - 2.0 * self.error);
            self.bars[row] = self.bars[row].max(bar);
        }
        let bar = self.bars[row];
        let mut kept = 0;
        for at in 0..count {
            if waiting[at].0 >= bar {
                waiting[kept] = waiting[at];
                kept += 1;
            }
        }
        self.counts[row] = kept as u32;
    }

    /// Decides the waiting candidates of a row by their exact cosines.
    fn settle(&mut self, row: usize, own: &Exact<'_>, others: &Exact<'_>) {
        let count = self.counts[row] as usize;
        let waiting = &mut self.waiting[row * self.room..][..count];
        // Best first: the bar rises at once and spares the rest.
        waiting.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        for &(approximate, other) in waiting.iter() {
            if approximate < self.bars[row] {
                break;
            }
            let cosine = own.cosine(self.first + row, others, other as usize);
            if self.lists.insert(row, others.label(other as usize), cosine) {
                let bar = below(self.lists.bar(row) - self.error);
                self.bars[row] = self.bars[row].max(bar);
            }
        }
        self.counts[row] = 0;
    }

    /// Decides all that waits. The lists are then those over all tiles seen.
    pub fn finish(&mut self, own: &Exact<'_>, others: &Exact<'_>) {
        for row in 0..self.counts.len() {
            if self.counts[row] > 0 {
                self.tighten(row);
                self.settle(row, own, others);
            }
        }
    }
}

/// Takes the candidates out of a tile of approximate cosines, for its rows and its columns.
pub(crate) fn sieve(
    tile: &[f32],
    rows: &mut Stripe,
    columns: &mut Stripe,
    source: &Exact<'_>,
    target: &Exact<'_>,
) {
    let mut bars = [f32::INFINITY; TARGET_STRIPE];
    let width = columns.bars.len();
    bars[..width].copy_from_slice(&columns.bars);
    assert!(rows.bars.len() <= SOURCE_STRIPE && tile.len() == SOURCE_STRIPE * TARGET_STRIPE);
    for row in 0..rows.bars.len() {
        let values = &tile[row * TARGET_STRIPE..][..TARGET_STRIPE];
        let mut chunk = 0;
        while let Some(found) = next_chunk(values, &bars, rows.bars[row], chunk, width) {
            for column in found..(found + CHUNK).min(width) {
                let cosine = values[column];
                if cosine >= rows.bars[row] {
                    rows.keep(row, cosine, (columns.first + column) as u32, source, target);
                }
                if cosine >= bars[column] {
                    columns.keep(column, cosine, (rows.first + row) as u32, target, source);
                    bars[column] = columns.bars[column];
                }
            }
            chunk = found + CHUNK;
        }
    }
}

/// Takes what are candidates among some approximate cosines (row, column, cosine) of a tile, for
/// its rows and its columns.
pub(crate) fn keep(
    hits: &[(u32, u32, f32)],
    rows: &mut Stripe,
    columns: &mut Stripe,
    source: &Exact<'_>,
    target: &Exact<'_>,
) {
    for &(row, column, cosine) in hits {
        let (row, column) = (row as usize, column as usize);
        if cosine >= rows.bars[row] {
            rows.keep(row, cosine, (columns.first + column) as u32, source, target);
        }
        if cosine >= columns.bars[column] {
            columns.keep(column, cosine, (rows.first + row) as u32, target, source);
        }
    }
}

/// Values that are compared at once.
const CHUNK: usize = 16;

simd! {
    /// The first chunk at or after `from` that has a value at or above its row's or its column's bar. Written
    /// so that the compiler turns the inner loop into vector comparisons.
    fn next_chunk(
        values: &[f32],
        bars: &[f32],
        bar: f32,
        from: usize,
        width: usize,
    ) -> Option<usize> {
        let mut at = from;
        while at < width {
            let values: &[f32; CHUNK] = values[at..at + CHUNK].try_into().expect("a whole chunk");
            let bars: &[f32; CHUNK] = bars[at..at + CHUNK].try_into().expect("a whole chunk");
            let mut hits = 0u32;
            for lane in 0..CHUNK {
                hits |= u32::from(values[lane] >= bar) | u32::from(values[lane] >= bars[lane]);
            }
            if hits != 0 {
                return Some(at);
            }
            at += CHUNK;
        }
        None
    }
}

/// The greatest `f32` below `value`, so that rounding never raises a bar.
fn below(value: f64) -> f32 {
    (value as f32).next_down()
}

simd! {
    /// Dot product in `f64`; products of two `f32` are exact there. Sixteen sums side by side, for the compiler
    /// to keep in vectors; the order of additions is fixed, so equal rows give equal sums on every processor.
    pub(crate) fn dot(a: &[f32], b: &[f32]) -> f64 {
        let mut sums = [0.0f64; 16];
        let (a, a_rest) = a.as_chunks::<16>();
        let (b, b_rest) = b.as_chunks::<16>();
        for (a, b) in a.iter().zip(b) {
            for lane in 0..16 {
                sums[lane] += f64::from(a[lane]) * f64::from(b[lane]);
            }
        }
        let rest: f64 = a_rest
            .iter()
            .zip(b_rest)
            .map(|(&a, &b)| f64::from(a) * f64::from(b))
            .sum();
        sums.iter().sum::<f64>() + rest
    }
}

/// Sum of squares in `f64`, as [`dot`] of a row with itself.
pub(crate) fn square(row: &[f32]) -> f64 {
    dot(row, row)
}
