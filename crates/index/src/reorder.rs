//! Rows that wait for their turn: a scan gives lower bounds of distances, in their order; whoever knows a row's
//! distance holds it back here until no row that is still to come can be nearer.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

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
}

impl Reorder {
    /// Holds back a row with its true rank. `bound` is what the scan said of it: no row that comes later is
    /// before that.
    ///
    /// # Errors
    /// No memory; the row is not held.
    pub fn hold(&mut self, bound: Rank, rank: Rank, row: u64) -> Result<(), OutOfMemory> {
        self.bound = self.bound.max(Some(bound));
        let bytes = (self.held.len() + 1).saturating_mul(size_of::<(Rank, u64)>());
        laser_memory::reserve(bytes, || self.held.try_reserve(1))?;
        self.held.push(std::cmp::Reverse((rank, row)));
        Ok(())
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

    proptest! {
        #[test]
        fn every_row_comes_once_and_in_order(
            bounds in prop::collection::vec((-4i32..4, 0u8..4), 0..60)
        ) {
            let mut bounds = bounds;
            bounds.sort_unstable();
            let (mut rows, mut given) = (Reorder::default(), Vec::new());
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
