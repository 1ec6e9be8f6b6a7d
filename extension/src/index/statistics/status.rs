//! What `pg_stat_laser_indexes` shows, and how it is reset.

use pgrx::datum::TimestampWithTimeZone;
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

use super::super::info::Opened;
use super::super::rights::Use;
use super::queries;
use super::table::{self, COUNTED, Counter};

/// One row: counts of an index of this database, all null where the server counts nothing, or not this one: all
/// places are other indexes'.
#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_index_statistics(
    index: Oid,
) -> TableIterator<
    'static,
    (
        name!(searches, Option<i64>),
        name!(visited, Option<i64>),
        name!(reranked, Option<i64>),
        name!(widened, Option<i64>),
        name!(cut, Option<i64>),
        name!(merges, Option<i64>),
        name!(merge_time, Option<f64>),
        name!(files_opened, Option<i64>),
        name!(files_made, Option<i64>),
        name!(stats_reset, Option<TimestampWithTimeZone>),
    ),
> {
    let (counts, reset) = match table::find(index) {
        Some(place) => {
            let (counts, reset) = place.read();
            (Some(counts), TimestampWithTimeZone::try_from(reset).ok())
        }
        None => (table::may_count(index).then_some([0; COUNTED]), None),
    };
    let count = |counter| counts.map(|counts| counts[counter as usize].cast_signed());
    let milliseconds = count(Counter::MergeMicroseconds).map(|n| n as f64 / 1000.0);
    TableIterator::once((
        count(Counter::Searches),
        count(Counter::Visited),
        count(Counter::Reranked),
        count(Counter::Widened),
        count(Counter::Cut),
        count(Counter::Merges),
        milliseconds,
        count(Counter::FilesOpened),
        count(Counter::FilesMade),
        reset,
    ))
}

/// Begins at zero for an index, without queries.
#[pg_extern(sql = "")]
fn laser_index_statistics_reset(index: Oid) {
    let opened = Opened::new(index, Use::Maintain, pg_sys::AccessShareLock);
    if let Some(place) = table::find(index) {
        place.reset();
    }
    queries::forget(index);
    drop(opened);
}
