//! Rows that wait for their turn: a scan gives lower bounds of distances, in their order; whoever knows a row's
//! distance holds it back here until no row that is still to come can be nearer.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use laser_memory::OutOfMemory;

/// A row's place in an order by distances, as the server sorts: numbers, then NaN, then NULL.
#[derive(Debug, Clone, Copy)]
pub struct Rank(Option<f64>);

impl Rank {
    /// That of a distance; `None` is NULL.
    pub fn of(distance: Option<f64>) -> Self {
        // One zero and one NaN, so that the order is that of the server's comparisons.
        Self(distance.map(|d| if d.is_nan() { f64::NAN } else { d + 0.0 }))
    }

    /// The distance; `None` is NULL.
    pub fn distance(self) -> Option<f64> {
        self.0
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.0, other.0) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(a), Some(b)) => a.total_cmp(&b),
        }
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Rank {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Rank {}

/// Rows whose distance is known, and how far the scan has come.
#[derive(Debug, Default)]
pub struct Reorder {
    /// The nearest first: the heap's order is the reverse.
    held: BinaryHeap<std::cmp::Reverse<(Rank, u64)>>,
    /// No row that is still to come is before this; `None` before the first one.
    bound: Option<Rank>,
    /// No row is still to come.
    ended: bool,
    /// So many rows are to be due before the first is given; zero: none, or it was given.
    wanted: usize,
    /// Those that are, in their order.
    due: VecDeque<(Rank, u64)>,
}

impl Reorder {
    /// Rows of which none is given before `wanted` are due, or no row is to come any more.
    pub fn collecting(wanted: usize) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// Whether none was given yet for that reason.
    pub fn is_collecting(&self) -> bool {
        self.wanted > 0
    }

    /// Takes back that the rows so far came in their order: others may be before any of them.
    ///
    /// # Panics
    /// When it does not collect any more.
    pub fn start_over(&mut self) {
        assert!(self.is_collecting(), "nothing has been given");
        self.bound = None;
        let due = std::mem::take(&mut self.due);
        self.held.extend(due.into_iter().map(std::cmp::Reverse));
    }

    /// Holds back a row with its true rank. `bound` is what the scan said of it: no row that comes later is
    /// before that.
    ///
    /// # Errors
    /// No memory; the row is not held.
    pub fn hold(&mut self, bound: Rank, rank: Rank, row: u64) -> Result<(), OutOfMemory> {
        self.bound = self.bound.max(Some(bound));
        // Whatever is held has room among those that are due, and the other way round.
        let rows = self.held.len() + self.due.len() + 1;
        let bytes = rows.saturating_mul(size_of::<(Rank, u64)>());
        laser_memory::reserve(bytes, || {
            let held = self.held.len();
            self.held.try_reserve(rows - held)?;
            let due = if self.wanted > 0 {
                rows - self.due.len()
            } else {
                0
            };
            self.due.try_reserve(due)
        })?;
        self.held.push(std::cmp::Reverse((rank, row)));
        Ok(())
    }

    /// Whether no row waits.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.due.is_empty()
    }

    /// No row is to come any more.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Whether [`Reorder::end`] was called.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The nearest row that is held, if it is its turn.
    pub fn pop_due(&mut self) -> Option<(Rank, u64)> {
        if self.wanted > 0 {
            while let Some(row) = self.pop_held() {
                self.due.push_back(row);
            }
            if !self.ended && self.due.len() < self.wanted {
                return None;
            }
            self.wanted = 0;
        }
        self.due.pop_front().or_else(|| self.pop_held())
    }

    fn pop_held(&mut self) -> Option<(Rank, u64)> {
        let std::cmp::Reverse((rank, _)) = self.held.peek()?;
        let is_due = self.ended || self.bound.is_some_and(|bound| *rank <= bound);
        if !is_due {
            return None;
        }
        self.held.pop().map(|std::cmp::Reverse(held)| held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn number(distance: f64) -> Rank {
        Rank::of(Some(distance))
    }

    #[test]
    fn places_are_ordered_as_the_server_sorts() {
        let sorted = [
            number(f64::NEG_INFINITY),
            number(-1.0),
            number(0.0),
            number(1e-300),
            number(f64::INFINITY),
            number(-f64::NAN),
            Rank::of(None),
        ];
        assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(number(-0.0), number(0.0));
        assert_eq!(number(f64::NAN), number(-f64::NAN));
    }

    #[test]
    fn a_row_waits_for_what_may_be_nearer() {
        let mut rows = Reorder::default();
        assert_eq!(rows.pop_due(), None);
        rows.hold(number(0.1), number(0.5), 1).unwrap();
        assert_eq!(rows.pop_due(), None);
        rows.hold(number(0.3), number(0.3), 2).unwrap();
        assert_eq!(rows.pop_due(), Some((number(0.3), 2)));
        assert_eq!(rows.pop_due(), None);
        // What a search had missed comes at once, and holds nothing up.
        rows.hold(number(0.2), number(0.25), 3).unwrap();
        assert_eq!(rows.pop_due(), Some((number(0.25), 3)));
        rows.hold(number(f64::NAN), number(f64::NAN), 4).unwrap();
        assert_eq!(rows.pop_due(), Some((number(0.5), 1)));
        rows.hold(Rank::of(None), Rank::of(None), 5).unwrap();
        rows.end();
        assert_eq!(rows.pop_due().unwrap().1, 4);
        assert_eq!(rows.pop_due().unwrap().1, 5);
        assert_eq!(rows.pop_due(), None);
    }

    #[test]
    fn rows_are_collected_before_the_first_is_given() {
        let mut rows = Reorder::collecting(2);
        rows.hold(number(0.1), number(0.1), 1).unwrap();
        rows.hold(number(0.2), number(0.4), 2).unwrap();
        assert_eq!(rows.pop_due(), None);
        // A wider search finds one before those.
        rows.start_over();
        rows.hold(number(0.05), number(0.07), 3).unwrap();
        assert_eq!(rows.pop_due(), None);
        rows.hold(number(0.3), number(0.3), 4).unwrap();
        assert_eq!(rows.pop_due().unwrap().1, 3);
        assert_eq!(rows.pop_due().unwrap().1, 1);
        assert_eq!(rows.pop_due().unwrap().1, 4);
        assert_eq!(rows.pop_due(), None);

        let mut rows = Reorder::collecting(2);
        rows.hold(number(0.1), number(0.1), 1).unwrap();
        assert_eq!(rows.pop_due(), None);
        rows.hold(number(0.2), number(0.2), 2).unwrap();
        assert_eq!(rows.pop_due().unwrap().1, 1);
        assert!(!rows.is_collecting());
        let mut rows = Reorder::collecting(2);
        rows.hold(number(0.1), number(0.1), 1).unwrap();
        rows.end();
        assert_eq!(rows.pop_due().unwrap().1, 1);
    }

    proptest! {
        #[test]
        fn every_row_comes_once_and_in_order(
            bounds in prop::collection::vec((-4i32..4, 0u8..4), 0..60),
            wanted in 0usize..80,
        ) {
            let mut bounds = bounds;
            bounds.sort_unstable();
            let (mut rows, mut given) = (Reorder::collecting(wanted), Vec::new());
            for (row, (bound, above)) in bounds.iter().enumerate() {
                let bound = f64::from(*bound);
                rows.hold(number(bound), number(bound + f64::from(*above)), row as u64).unwrap();
                while let Some(row) = rows.pop_due() {
                    given.push(row);
                }
            }
            rows.end();
            while let Some(row) = rows.pop_due() {
                given.push(row);
            }
            prop_assert!(given.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            let mut each: Vec<u64> = given.iter().map(|row| row.1).collect();
            each.sort_unstable();
            prop_assert_eq!(each, (0..bounds.len() as u64).collect::<Vec<_>>());
        }
    }
}
