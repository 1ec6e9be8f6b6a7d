//! Mining from neighbours that are known: those of shards, merged.

use laser_mining::{Side, sort_by};
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{Call, watch};
use super::functions::{NeighbourRow, NeighbourRows, k_of};
use super::lists::{self, Lists};
use super::pairs::{Choice, MinedRows};
use super::{errors, row};
use crate::pg::errors::{raise, raise_hint};
use crate::pg::memory::{or_raise, push};

row::rows! {
    /// A neighbour, with the id of the row whose neighbour it is.
    struct Near { id: i64, neighbour: i64, cosine: f64 }
}

/// Calls `each` for each id in ascending order with its neighbours, best first. A neighbour that
/// occurs more than once counts once.
fn each_neighbourhood(
    call: &Call,
    name: &str,
    sql: &[u8],
    mut each: impl FnMut(i64, &[(i64, f64)]),
) {
    let place = format!("the {name} query");
    let mut finish = |id: Option<i64>, list: &mut Vec<(i64, f64)>| {
        if let Some(id) = id {
            let order = |a: &(i64, f64), b: &(i64, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
            sort_by(list, order, &watch)
                .unwrap_or_else(|error| errors::search_failed(error, &[], &[]));
            each(id, list);
        }
        list.clear();
    };
    let mut current = None;
    let mut list: Vec<(i64, f64)> = Vec::new();
    row::read(call, name, sql, 2, |row: Near| {
        if !row.cosine.is_finite() {
            raise(
                PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
                format!(
                    "the {name} query returned cosine {} of {} and {}",
                    row.cosine, row.id, row.neighbour
                ),
            );
        }
        if current != Some(row.id) {
            finish(current, &mut list);
            current = Some(row.id);
        }
        match list.last_mut() {
            Some(last) if last.0 == row.neighbour => last.1 = last.1.max(row.cosine),
            _ => {
                lists::check_room(&place, list.len());
                push(&mut list, (row.neighbour, row.cosine));
            }
        }
    });
    finish(current, &mut list);
}

#[pg_extern(sql = "")]
fn laser_knn_merge(shards: &[u8], k: i32, fcinfo: pg_sys::FunctionCallInfo) -> NeighbourRows {
    let k = k_of(k);
    let call = Call::begin(fcinfo);
    let mut rows: Vec<NeighbourRow> = Vec::new();
    each_neighbourhood(&call, "shards", shards, |id, list| {
        let best = list.iter().take(k).zip(1..);
        call.budget
            .reserve("shards", list.len().min(k) * size_of::<NeighbourRow>());
        let best = best.map(|(&(neighbour, cosine), rank)| (id, neighbour, rank, cosine));
        or_raise(laser_memory::extend(&mut rows, best));
    });
    call.end(TableIterator::new(rows))
}

#[pg_extern(sql = "")]
fn laser_mine_neighbours(
    forward: &[u8],
    backward: &[u8],
    margin: &[u8],
    retrieval: &[u8],
    threshold: f64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> MinedRows {
    let choice = Choice::parse(margin, retrieval, threshold);
    let call = Call::begin(fcinfo);
    let read = |name, sql| {
        let mut lists = Lists::default();
        let place = format!("the {name} query");
        each_neighbourhood(&call, name, sql, |id, list| {
            lists.push(&place, id, list.iter().copied());
        });
        lists
    };
    let (forward, backward) = (read("forward", forward), read("backward", backward));
    let found = lists::resolve(&forward, &backward).unwrap_or_else(|(side, id)| {
        let (name, other) = match side {
            Side::Source => ("forward", "backward"),
            Side::Target => ("backward", "forward"),
        };
        raise_hint(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!(
                "the {name} query returned neighbour {id}, which has no neighbours in the {other} \
                 query"
            ),
            "Both queries must cover all rows of both sides.",
        )
    });
    let rows = choice.pairs(&found, &forward.ids, &backward.ids);
    call.end(TableIterator::new(rows))
}
