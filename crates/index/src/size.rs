//! How large an index will be, before it is built.
//!
//! The formats are added up: segments as [`crate::segment`] lays them out, usearch's graphs as
//! [`crate::graph::Layout`] describes them, pages as [`crate::page`] does. What a build decides by the data is
//! assumed: no two vectors are equal, none is left out, the pending list is empty.

use crate::budget::{Budget, needed};
use crate::codec::Codec;
use crate::graph::serialized_len;
use crate::page::{MAP_BLOCKS, PAGE, PAYLOAD};
use crate::segment::file_len;

/// Estimated size of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Segments that a build makes.
    pub segments: usize,
    /// Bytes of the relation's main fork.
    pub relation: usize,
    /// Bytes of the segments' files, which searches map.
    pub mapped: usize,
    /// Memory with which a build makes one segment of all vectors, whose graph it has in memory as a whole.
    pub memory: usize,
}

/// The size of an index of `rows` vectors that is built within a budget.
pub fn estimate(codec: &Codec, m: usize, rows: usize, budget: Budget) -> Size {
    let mut size = Size {
        segments: 0,
        relation: PAGE,
        mapped: 0,
        memory: needed(codec, m, rows),
    };
    let most = budget.most(codec, m);
    let mut add = |rows: usize, segments: usize| {
        let file = file_len(codec, rows, serialized_len(codec, m, rows));
        let pages = file.div_ceil(PAYLOAD) + rows.div_ceil(8).div_ceil(PAYLOAD);
        size.segments += segments;
        size.mapped += segments * file;
        size.relation += segments * PAGE * (pages + pages.div_ceil(MAP_BLOCKS));
    };
    if rows >= most {
        add(most, rows / most);
    }
    if !rows.is_multiple_of(most) {
        add(rows % most, 1);
    }
    size
}
