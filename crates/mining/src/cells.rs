//! Cells of rows: the means of k-means on the sphere (Dhillon & Modha, "Concept Decompositions for Large Sparse Text Data Using
//! Clustering", 2001), and which rows are nearest to each.

use std::ops::Range;
use std::sync::atomic::Ordering;

use laser_sampling::stratified;

use crate::cosine;
use crate::knn::{self, Control, Input, Options};
use crate::{Error, Neighbours, Rows};

/// Rounds of k-means at most.
const ROUNDS: usize = 10;
/// Rows of the sample for each mean, as far as there are and memory allows.
const ROWS_EACH: usize = 32;
/// A mean of fewer says little.
const LEAST_EACH: usize = 8;

/// How many cells a set falls into, and by a sample of how many rows they are found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub cells: usize,
    pub sample: usize,
}

impl Plan {
    /// Many cells cost time to sort rows by, few to compare with. 342 and 1,026 cells of 117,449 rows took about as long, one and three times
    /// the square root; this is between them, and grows faster. Within `memory` bytes for the sample.
    pub fn of(rows: usize, dimensions: usize, memory: Option<usize>) -> Self {
        let room = memory.map_or(usize::MAX, |memory| {
            memory / (size_of::<f32>() * dimensions)
        });
        let cells = (rows as f64).powf(2.0 / 3.0) / 4.0;
        let cells = (cells.round() as usize).min(room / LEAST_EACH).max(1);
        let sample = rows.min(room).min(cells.saturating_mul(ROWS_EACH)).max(1);
        Self { cells, sample }
    }

    /// Pairs of rows and means that are compared to find the means, at most.
    pub fn pairs(&self) -> u64 {
        ROUNDS as u64 * self.sample as u64 * self.cells as u64
    }
}

/// Positions of a stratified sample of rows.
pub(crate) fn sample_of(rows: usize, wanted: usize) -> impl ExactSizeIterator<Item = u32> {
    stratified(rows, wanted).map(|position| position as u32)
}

/// The values of the given rows, one after the other; `check` is asked whether to go on.
pub(crate) fn gather(
    rows: Rows<'_>,
    positions: impl ExactSizeIterator<Item = u32>,
    dimensions: usize,
    check: impl Fn() -> Result<(), Error>,
) -> Result<Vec<f32>, Error> {
    let mut values = laser_memory::with_capacity(positions.len().saturating_mul(dimensions))?;
    for position in positions {
        check()?;
        let at = position as usize;
        values.extend_from_slice(&rows.read(at..at + 1, dimensions, || Ok(()))?);
    }
    Ok(values)
}

/// Directions that rows are sorted by: row-major, [cells, dimensions], of length 1.
pub(crate) struct Means {
    values: Vec<f32>,
    dimensions: usize,
}

impl Means {
    /// The means of the rows, none of which is zero, by a sample of them. Pairs of the plan that are not compared are taken from the
    /// control's total.
    pub fn find(
        rows: Rows<'_>,
        count: usize,
        dimensions: usize,
        plan: Plan,
        options: &Options<'_>,
    ) -> Result<Self, Error> {
        let unwatched = Control::default();
        let control = options.control.unwrap_or(&unwatched);
        let check = || control.check();
        let mut sample = gather(rows, sample_of(count, plan.sample), dimensions, check)?;
        for row in sample.chunks_exact_mut(dimensions) {
            normalize(row);
        }
        let first = sample_of(plan.sample, plan.cells);
        let mut means = Self {
            values: gather(Rows::Slice(&sample), first, dimensions, check)?,
            dimensions,
        };
        let mut last = Vec::new();
        for round in 1..=ROUNDS {
            let nearest = means.nearest(Rows::Slice(&sample), 1, options)?;
            if nearest.positions == last {
                let spared = plan.pairs() / ROUNDS as u64 * (ROUNDS - round) as u64;
                control.total.fetch_sub(spared, Ordering::Relaxed);
                break;
            }
            means.update(&sample, &nearest, check)?;
            last = nearest.positions;
        }
        Ok(means)
    }

    /// Moves each to the mean of the rows that are nearest to it; those without a row to one of the rows that are farthest from theirs.
    fn update(
        &mut self,
        sample: &[f32],
        nearest: &Neighbours,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let dimensions = self.dimensions;
        let mut sums = laser_memory::filled(0.0f64, self.values.len())?;
        let mut counts = laser_memory::filled(0u32, self.count())?;
        for (row, values) in sample.chunks_exact(dimensions).enumerate() {
            check()?;
            let cell = nearest.positions(row)[0] as usize;
            counts[cell] += 1;
            for (sum, value) in sums[cell * dimensions..].iter_mut().zip(values) {
                *sum += f64::from(*value);
            }
        }
        let mut outliers = laser_memory::collect(0..nearest.rows() as u32)?;
        let far = |row: &u32| nearest.cosines(*row as usize)[0];
        outliers.sort_unstable_by(|a, b| far(a).total_cmp(&far(b)).then(a.cmp(b)));
        let mut outliers = outliers.into_iter();
        for (cell, mean) in self.values.chunks_exact_mut(dimensions).enumerate() {
            let sum = &sums[cell * dimensions..(cell + 1) * dimensions];
            let square: f64 = sum.iter().map(|value| value * value).sum();
            if counts[cell] > 0 && square > 0.0 {
                let inverse = 1.0 / square.sqrt();
                for (value, sum) in mean.iter_mut().zip(sum) {
                    *value = (sum * inverse) as f32;
                }
            } else if let Some(row) = outliers.next() {
                let row = row as usize;
                mean.copy_from_slice(&sample[row * dimensions..(row + 1) * dimensions]);
            }
        }
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.values.len() / self.dimensions
    }

    /// The `k` means nearest to each row.
    pub fn nearest(
        &self,
        rows: Rows<'_>,
        k: usize,
        options: &Options<'_>,
    ) -> Result<Neighbours, Error> {
        let means = Input::whole(Rows::Slice(&self.values));
        knn::nearest(Input::whole(rows), means, self.dimensions, k, options)
    }
}

fn normalize(row: &mut [f32]) {
    let inverse = 1.0 / cosine::square(row).sqrt();
    for value in row {
        *value = (f64::from(*value) * inverse) as f32;
    }
}

/// Items by the cell that they are in: those of a cell one after the other, ascending.
pub(crate) struct Sorted {
    items: Vec<u32>,
    starts: Vec<usize>,
}

impl Sorted {
    /// The items 0, 1, … by the cells that each is in.
    pub fn new<'a>(
        cells: usize,
        of: impl Fn(usize) -> &'a [u32],
        items: usize,
    ) -> Result<Self, Error> {
        let mut starts = laser_memory::filled(0usize, cells + 1)?;
        for item in 0..items {
            for &cell in of(item) {
                starts[cell as usize + 1] += 1;
            }
        }
        for cell in 0..cells {
            starts[cell + 1] += starts[cell];
        }
        let mut next = laser_memory::copied(&starts)?;
        let mut sorted = laser_memory::filled(0u32, starts[cells])?;
        for item in 0..items {
            for &cell in of(item) {
                let at = &mut next[cell as usize];
                sorted[*at] = item as u32;
                *at += 1;
            }
        }
        Ok(Self {
            items: sorted,
            starts,
        })
    }

    /// The items of a cell.
    pub fn of(&self, cell: usize) -> &[u32] {
        let range: Range<usize> = self.starts[cell]..self.starts[cell + 1];
        &self.items[range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_sorted_by_cells() {
        let of = [vec![2, 0], vec![], vec![0], vec![0, 2]];
        let sorted = Sorted::new(3, |item| &of[item], of.len()).unwrap();
        assert_eq!(sorted.of(0), [0, 2, 3]);
        assert!(sorted.of(1).is_empty());
        assert_eq!(sorted.of(2), [0, 3]);
    }

    #[test]
    fn means_stand_for_groups() {
        // Four directions, of which the first has nearly all rows: some of the first means are alike.
        let mut values = Vec::new();
        for row in 0..1000 {
            let axis = if row % 50 < 47 { 0 } else { row % 50 - 46 };
            let mut x = [0.0f32; 4];
            x[axis] = 1.0 + row as f32;
            x[(axis + 1) % 4] = 0.01 * (row % 7) as f32 * x[axis];
            values.extend(x);
        }
        let plan = Plan {
            cells: 8,
            sample: 500,
        };
        let options = Options::default();
        let means = Means::find(Rows::Slice(&values), 1000, 4, plan, &options).unwrap();
        let nearest = means.nearest(Rows::Slice(&values), 1, &options).unwrap();
        for row in 0..nearest.rows() {
            assert!(nearest.cosines(row)[0] > 0.99, "{row}");
        }
    }

    #[test]
    fn plans_fit_into_memory() {
        let plan = Plan::of(1_000_000, 384, None);
        assert_eq!((plan.cells, plan.sample), (2500, 80_000));
        let plan = Plan::of(1_000_000, 1024, Some(4 << 20));
        assert_eq!((plan.cells, plan.sample), (128, 1024));
        assert_eq!(Plan::of(1, 100_000, Some(1)).cells, 1);
    }
}
