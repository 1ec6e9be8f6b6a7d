//! The SQL functions that search: pairs, neighbours, scores of given pairs, similarity error.

use laser_mining::knn::Options;
use laser_mining::{Error, Neighbourhoods, Rows, best, knn};
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{Call, watch};
use super::load::{self, Loaded};
use super::measures::read_pairs;
use super::pairs::{Choice, MinedRows, margin_of};
use super::progress::Progress;
use super::remote::{self, Found};
use super::{errors, guc, index, work};
use crate::pg::encoding::name;
use crate::pg::errors::raise_hint;
use crate::pg::interrupts::pause;
use crate::pg::memory::or_raise;

/// Checks k.
pub fn k_of(k: i32) -> usize {
    if k < 1 {
        errors::bad_k(k);
    }
    k as usize
}

/// Searches the rows of two loaded sides in threads of the session.
fn in_session<T: Send>(
    source: &Loaded,
    target: &Loaded,
    progress: &mut Progress,
    job: impl FnOnce(Rows<'_>, Rows<'_>, &Options<'_>) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let (x, y) = (source.rows.as_rows(), target.rows.as_rows());
    let memory = load::memory_left([&source.rows, &target.rows]);
    work::search(progress, memory, |options| job(x, y, options))
}

/// Searches the `k` nearest target rows of each source row and, if wanted, the `k` nearest source
/// rows of each target row.
fn search(source: &Loaded, target: &Loaded, k: usize, backward: bool, call: &mut Call) -> Found {
    let dimensions = load::common_dimensions(source.dimensions(), target.dimensions());
    load::check_lists(source.ids.len(), target.ids.len(), k);
    let progress = &mut call.progress;
    remote::search(source, target, dimensions, k, backward, progress)
        .unwrap_or_else(|| {
            in_session(source, target, progress, |x, y, options| {
                if backward {
                    let (forward, backward) = knn::both_rows(x, y, dimensions, k, options)?;
                    Ok(Found {
                        forward,
                        backward: Some(backward),
                    })
                } else {
                    Ok(Found {
                        forward: knn::forward(x, y, dimensions, k, options)?,
                        backward: None,
                    })
                }
            })
        })
        .unwrap_or_else(|error| load::search_of_failed(error, source, target))
}

/// Searches the neighbours of two loaded sides in both directions.
fn both(source: &Loaded, target: &Loaded, k: usize, call: &mut Call) -> Neighbourhoods {
    let found = search(source, target, k, true, call);
    Neighbourhoods {
        forward: found.forward,
        backward: found.backward.expect("was wanted"),
    }
}

/// Neighbours of two loaded sides in both directions, of which some may be missed.
fn approximate(source: &Loaded, target: &Loaded, k: usize, call: &mut Call) -> Neighbourhoods {
    let dimensions = load::common_dimensions(source.dimensions(), target.dimensions());
    load::check_lists(source.ids.len(), target.ids.len(), k);
    let recall = guc::recall();
    let found = in_session(source, target, &mut call.progress, |x, y, options| {
        laser_mining::approximate::both_rows(x, y, dimensions, k, recall, options)
    })
    .unwrap_or_else(|error| load::search_of_failed(error, source, target));
    match found {
        Some(by_cells) => {
            pgrx::debug1!(
                "compared rows with those of {} of {} cells, where {:.4} of the neighbours of a sample are",
                by_cells.probes,
                by_cells.cells,
                by_cells.recall
            );
            by_cells.found
        }
        None => {
            pgrx::debug1!("comparing all pairs of rows: cells would spare too little");
            both(source, target, k, call)
        }
    }
}

#[pg_extern(sql = "")]
#[allow(clippy::too_many_arguments, reason = "the SQL signature")]
fn laser_mine(
    source: &[u8],
    target: &[u8],
    k: i32,
    margin: &[u8],
    retrieval: &[u8],
    threshold: f64,
    method: &[u8],
    unify: bool,
    fcinfo: pg_sys::FunctionCallInfo,
) -> MinedRows {
    let (k, choice) = (k_of(k), Choice::parse(margin, retrieval, threshold));
    let method = name(method);
    let mut call = Call::begin(fcinfo);
    let (found, source, target) = match &*method {
        "exact" => {
            call.progress.forecast.has_other_method = true;
            let (source, target) = load::load([source, target], unify, &mut call);
            (both(&source, &target, k, &mut call), source, target)
        }
        "approximate" => {
            let (source, target) = load::load([source, target], unify, &mut call);
            (approximate(&source, &target, k, &mut call), source, target)
        }
        "index" => index::neighbours([source, target], k, unify, &mut call),
        _ => errors::bad_name("method", &method, "exact, approximate, index"),
    };
    call.progress.phase("selecting");
    let rows = choice.pairs(&found, &source.ids, &target.ids);
    call.end(TableIterator::new(rows))
}

/// A neighbour: ids, rank from 1, cosine.
pub type NeighbourRow = (i64, i64, i32, f64);
/// Neighbours, each row's together, best first.
pub type NeighbourRows = TableIterator<
    'static,
    (
        name!(source_id, i64),
        name!(target_id, i64),
        name!(rank, i32),
        name!(cosine, f64),
    ),
>;

#[pg_extern(sql = "")]
fn laser_knn_join(
    source: &[u8],
    target: &[u8],
    k: i32,
    fcinfo: pg_sys::FunctionCallInfo,
) -> NeighbourRows {
    let k = k_of(k);
    let mut call = Call::begin(fcinfo);
    let (source, target) = load::load([source, target], false, &mut call);
    let lists = search(&source, &target, k, false, &mut call).forward;
    let ids = (source.ids, target.ids);
    let rows = (0..lists.rows()).flat_map(move |row| {
        let list = lists.positions(row).iter().zip(lists.cosines(row)).zip(1..);
        let rows: Vec<NeighbourRow> = list
            .map(|((&position, &cosine), rank)| {
                (ids.0[row], ids.1[position as usize], rank, cosine)
            })
            .collect();
        rows
    });
    call.end(TableIterator::new(rows))
}

#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_margin_scores(
    pairs: &[u8],
    source: &[u8],
    target: &[u8],
    margin: &[u8],
    k: i32,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(source_id, i64),
        name!(target_id, i64),
        name!(score, f64),
        name!(cosine, f64),
        name!(forward_mean, f64),
        name!(backward_mean, f64),
    ),
> {
    let (k, margin) = (k_of(k), margin_of(margin));
    let mut call = Call::begin(fcinfo);
    // Each is kept as ids, as positions and with its scores.
    let each = 2 * size_of::<(i64, i64)>() + size_of::<(i64, i64, f64, f64, f64, f64)>();
    let pairs = read_pairs(&call, "pairs", pairs, each);
    let (source, target) = load::load([source, target], false, &mut call);
    let position = |side: &Loaded, id| {
        side.position(id).unwrap_or_else(|| {
            raise_hint(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                format!(
                    "the pairs query returned {} id {id}, which has no embedding",
                    side.side
                ),
                format!("The {} query must return a row for it.", side.side),
            )
        })
    };
    let positions = pairs
        .iter()
        .map(|&(s, t)| (position(&source, s), position(&target, t)));
    let positions = or_raise(laser_memory::collect(positions));
    let found = both(&source, &target, k, &mut call);
    let row = |side: &Loaded, at: usize| match side.rows.row(at) {
        Ok(row) => row.into_owned(),
        Err(error) => load::search_of_failed(error, &source, &target),
    };
    let rows = or_raise(laser_memory::collect(positions.into_iter().map(
        |(s, t)| {
            pause();
            let cosine = knn::cosine(&row(&source, s), &row(&target, t));
            let (forward, backward) = (found.forward.mean(s), found.backward.mean(t));
            let score = margin.score(cosine, forward, backward);
            (
                source.ids[s],
                target.ids[t],
                score,
                cosine,
                forward,
                backward,
            )
        },
    )));
    call.end(TableIterator::new(rows))
}

#[pg_extern(sql = "")]
fn laser_similarity_error(
    source: &[u8],
    target: &[u8],
    margin: &[u8],
    k: i32,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<f64> {
    let (k, margin) = (k_of(k), margin_of(margin));
    let mut call = Call::begin(fcinfo);
    let (source, target) = load::load([source, target], false, &mut call);
    for &id in &source.ids {
        if target.position(id).is_none() {
            raise_hint(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("source id {id} has no target row"),
                "The right target row of a source row is the one with the same id.",
            );
        }
    }
    let found = both(&source, &target, k, &mut call);
    let best = (found.backward.means().map_err(laser_mining::Error::from))
        .and_then(|means| best(&found.forward, &means, margin, &watch))
        .unwrap_or_else(|error| load::search_of_failed(error, &source, &target));
    let wrong = (best.iter().zip(&source.ids))
        .filter(|&(best, &id)| best.is_none_or(|(position, _)| target.ids[position as usize] != id))
        .count();
    call.end((!best.is_empty()).then(|| wrong as f64 / best.len() as f64))
}
