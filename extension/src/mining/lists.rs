//! Neighbours as ids, as tables and queries hold them.

use laser_mining::{Neighbourhoods, Neighbours, Side};
use pgrx::PgSqlErrorCode;

use super::guc;
use crate::pg::errors::raise_hint;
use crate::pg::interrupts::pause;
use crate::pg::memory::{or_raise, push};

/// Bytes that a neighbour takes, as an id and as a position.
const EACH: usize = size_of::<(i64, f64)>() + size_of::<u32>() + size_of::<f64>();

/// Neighbours that are resolved between two looks for interrupts.
const STEP: usize = 1 << 16;

/// Raises a SQL error unless `neighbours` more neighbours fit into what a function may use for lists.
pub fn check_room(name: &str, neighbours: usize) {
    if neighbours.saturating_mul(EACH) > guc::memory() {
        raise_hint(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            format!("the lists of neighbours in {name} take more than laser.mining_memory"),
            guc::MORE_MEMORY,
        );
    }
}

/// The neighbours of one side.
#[derive(Default)]
pub struct Lists {
    /// The ids of the rows, ascending.
    pub ids: Vec<i64>,
    /// Where the list of each of them ends.
    ends: Vec<usize>,
    /// The ids of the neighbours of all rows, one list after the other.
    neighbours: Vec<i64>,
    /// Cosine of the row and the neighbour, for each of `neighbours`.
    cosines: Vec<f64>,
}

impl Lists {
    /// Appends the neighbours of a row; its id is greater than those before it. `name` is what
    /// messages call the place that they come from.
    pub fn push(&mut self, name: &str, id: i64, list: impl Iterator<Item = (i64, f64)>) {
        for (neighbour, cosine) in list {
            push(&mut self.neighbours, neighbour);
            push(&mut self.cosines, cosine);
        }
        check_room(name, self.neighbours.len());
        push(&mut self.ids, id);
        push(&mut self.ends, self.neighbours.len());
    }

    /// The length of each list.
    pub fn lengths(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        (0..self.ends.len()).map(|row| self.ends[row] - self.start(row))
    }

    fn start(&self, row: usize) -> usize {
        if row == 0 { 0 } else { self.ends[row - 1] }
    }

    /// As positions among the given ids, which ascend.
    ///
    /// # Errors
    /// The id of a neighbour that is not among them.
    pub fn resolve(&self, others: &[i64]) -> Result<Neighbours, i64> {
        let mut found = or_raise(Neighbours::ragged(self.lengths()));
        for row in 0..self.ids.len() {
            for at in self.start(row)..self.ends[row] {
                if at % STEP == 0 {
                    pause();
                }
                let id = self.neighbours[at];
                let position = others.binary_search(&id).map_err(|_| id)?;
                found.insert(row, position as u32, self.cosines[at]);
            }
        }
        Ok(found)
    }
}

/// The lists of both sides as positions of each other.
///
/// # Errors
/// The id of a neighbour in the lists of a side that has no list in those of the other one.
pub fn resolve(forward: &Lists, backward: &Lists) -> Result<Neighbourhoods, (Side, i64)> {
    let resolve =
        |side, lists: &Lists, others: &Lists| lists.resolve(&others.ids).map_err(|id| (side, id));
    Ok(Neighbourhoods {
        forward: resolve(Side::Source, forward, backward)?,
        backward: resolve(Side::Target, backward, forward)?,
    })
}
