//! What the searches of a scan have done.

use std::time::Duration;

use laser_index::scan::Scan;

use super::statistics::{Counter, Place};

/// Counts of a scan's searches.
#[derive(Debug, Clone, Copy, Default)]
// Before version 18 the server's EXPLAIN shows none of it.
#[cfg_attr(not(feature = "pg18"), allow(dead_code))]
pub struct Work {
    /// Stored vectors that were compared with what was searched for.
    pub visited: u64,
    /// Rows of the table that were fetched for filters or exact distances.
    pub reranked: u64,
    /// Searches that followed another one, wider.
    pub widened: u64,
    /// Searches that `laser.max_scan_tuples` has ended.
    pub cut: u64,
    /// How long it took to embed what was searched for.
    pub embedding: Duration,
    /// What the last search began with.
    pub extent: Extent,
}

/// What a search begins with.
#[derive(Debug, Clone, Copy, Default)]
#[cfg_attr(not(feature = "pg18"), allow(dead_code))]
pub struct Extent {
    /// Segments that it searches.
    pub segments: usize,
    /// Rows of the pending list, all of which it looks at.
    pub pending: usize,
    /// Candidates that it is to keep in a segment, as measured or set: the most of all.
    pub ef: usize,
}

impl Work {
    /// What one search has done so far; `fetched` counts rows of the table.
    pub fn of(search: &Scan, fetched: u64) -> Self {
        Self {
            visited: search.visited as u64,
            reranked: fetched,
            widened: search.widened as u64,
            cut: u64::from(search.was_cut()),
            ..Self::default()
        }
    }

    /// Adds it to what is counted of the index.
    pub fn count(&self, place: Place) {
        place.add(Counter::Visited, self.visited);
        place.add(Counter::Reranked, self.reranked);
        place.add(Counter::Widened, self.widened);
        place.add(Counter::Cut, self.cut);
    }

    /// Together with that of one more search.
    pub fn and(self, other: Self) -> Self {
        Self {
            visited: self.visited + other.visited,
            reranked: self.reranked + other.reranked,
            widened: self.widened + other.widened,
            cut: self.cut + other.cut,
            ..self
        }
    }
}
