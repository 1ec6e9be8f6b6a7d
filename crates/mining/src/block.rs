//! The two sides of a search, and the blocks of rows that are compared at a time.

use std::borrow::Cow;
use std::sync::Mutex;

use crate::control::Control;
use crate::cosine;
use crate::kernel::Packed;
use crate::run::Run;
use crate::tile::{self, Exact};
use crate::{Error, Rows, Side};

/// Rows with the positions that results shall carry for them; ascending, so that ties are broken
/// alike.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub rows: Rows<'a>,
    pub labels: Option<&'a [u32]>,
}

impl<'a> Input<'a> {
    /// Rows that are known by their own positions.
    pub fn whole(rows: Rows<'a>) -> Self {
        Self { rows, labels: None }
    }

    pub fn labelled(rows: Rows<'a>, labels: &'a [u32]) -> Self {
        let labels = Some(labels);
        Self { rows, labels }
    }
}

/// Rows that are read between two checks of the control.
const READ: usize = 512;

/// Rows of one side with what is known of all of them.
pub(crate) struct Set<'a> {
    input: Input<'a>,
    pub side: Side,
    pub count: usize,
    inverse: Vec<f64>,
}

impl<'a> Set<'a> {
    /// Checks the rows and computes their norms.
    pub fn new(
        input: Input<'a>,
        side: Side,
        dimensions: usize,
        control: &Control,
    ) -> Result<Self, Error> {
        let count = input.rows.count(dimensions, side)?;
        let mut inverse = laser_memory::with_capacity(count)?;
        for first in (0..count).step_by(READ) {
            control.check()?;
            let range = first..(first + READ).min(count);
            let rows = input.rows.read(range, dimensions, || Ok(()))?;
            for row in rows.chunks_exact(dimensions) {
                let square = cosine::square(row);
                if !square.is_finite() {
                    return Err(Error::NotFinite {
                        side,
                        row: inverse.len(),
                    });
                }
                if square == 0.0 {
                    return Err(Error::ZeroVector {
                        side,
                        row: inverse.len(),
                    });
                }
                inverse.push(1.0 / square.sqrt());
            }
        }
        Ok(Set {
            input,
            side,
            count,
            inverse,
        })
    }
}

/// Consecutive rows of one side, packed for the kernel.
pub(crate) struct Block<'a> {
    /// Position of the first of them.
    pub first: usize,
    values: Cow<'a, [f32]>,
    /// The rows, packed for products, one stripe after the other.
    pub stripes: Vec<Packed>,
    /// Largest rounding residual of a row.
    pub residual: f64,
}

impl<'a> Block<'a> {
    /// Reads and packs `rows` rows from `first` on, or as many as there are.
    pub fn load(
        set: &Set<'a>,
        first: usize,
        rows: usize,
        dimensions: usize,
        run: &Run<'_>,
    ) -> Result<Self, Error> {
        let rows = rows.min(set.count - first);
        let range = first..first + rows;
        let values = (set.input.rows).read(range, dimensions, || run.control.check())?;
        let stripe = run.engine.stripe(set.side);
        let slots: Vec<Mutex<Option<(Packed, f64)>>> =
            laser_memory::collect((0..rows.div_ceil(stripe)).map(|_| Mutex::new(None)))?;
        run.each(run.threads, slots.len(), |_, at| {
            let range = at * stripe..((at + 1) * stripe).min(rows);
            let packed = run.engine.pack(
                &values[range.start * dimensions..range.end * dimensions],
                &set.inverse[first + range.start..first + range.end],
                dimensions,
                set.side,
            )?;
            *slots[at].lock().expect("not poisoned") = Some(packed);
            Ok(())
        })?;
        let mut residual = 0.0f64;
        let stripes = laser_memory::collect(slots.into_iter().map(|slot| {
            let slot = slot.into_inner().expect("not poisoned");
            let (packed, worst) = slot.expect("every stripe was packed");
            residual = residual.max(worst);
            packed
        }))?;
        Ok(Block {
            first,
            values,
            stripes,
            residual,
        })
    }

    /// Rows of the block, each of `dimensions` values, which must not be 0.
    pub fn rows(&self, dimensions: usize) -> usize {
        self.values.len() / dimensions
    }

    /// The rows as exact cosines need them.
    pub fn exact<'b>(&'b self, set: &'b Set<'_>, dimensions: usize) -> Exact<'b> {
        let range = self.first..self.first + self.rows(dimensions);
        Exact {
            values: &self.values,
            inverse: &set.inverse[range.clone()],
            labels: set.input.labels.map(|labels| &labels[range]),
            first: self.first as u32,
            dimensions,
        }
    }
}

/// Rows of a source and of a target block within the memory limit.
pub(crate) fn block_rows(
    source: &Set<'_>,
    target: &Set<'_>,
    dimensions: usize,
    k: usize,
    run: &Run<'_>,
    memory: Option<usize>,
) -> (usize, usize) {
    let Some(memory) = memory else {
        return (source.count.max(1), target.count.max(1));
    };
    let bytes = |set: &Set<'_>| {
        let read = if set.input.rows.on_disk() {
            4 * dimensions
        } else {
            0
        };
        read + run.engine.value_bytes() * dimensions + 8 * tile::capacity(k) + 12 * k + 12
    };
    let (source_bytes, target_bytes) = (bytes(source), bytes(target));
    let scratch = run.threads * run.engine.scratch_bytes();
    let budget = memory.saturating_sub(scratch);
    let floor = |rows: usize, side| {
        let stripe = run.engine.stripe(side);
        (rows / stripe * stripe).max(stripe)
    };
    // A side that fits into half of the budget is loaded once. Else every source block reads the
    // whole target, so the source gets most of it.
    if target.count * target_bytes <= budget / 2 {
        let left = budget - target.count * target_bytes;
        (
            floor(left / source_bytes, Side::Source),
            target.count.max(1),
        )
    } else {
        (
            floor(budget / 4 * 3 / source_bytes, Side::Source),
            floor(budget / 4 / target_bytes, Side::Target),
        )
    }
}
