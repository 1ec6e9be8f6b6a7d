//! Mined pairs against gold pairs.

use laser_mining::{Candidate, bucc_watched};
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{Call, MemoryBudget, watch};
use super::pairs::check_threshold;
use super::{errors, row};
use crate::pg::memory::push;

/// Bytes for a candidate: itself, its place in the order of scores, and the pair among those that
/// have been seen.
const CANDIDATE: usize = size_of::<Candidate>() + 16 + MemoryBudget::per_hash_entry::<(i64, i64)>();
/// Bytes for a gold pair: as it was read, and in a set.
const GOLD: usize = size_of::<(i64, i64)>() + MemoryBudget::per_hash_entry::<(i64, i64)>();

row::rows! {
    /// Two ids that belong together.
    struct IdPair { source_id: i64, target_id: i64 }

    /// Two ids with a score.
    struct Scored { source_id: i64, target_id: i64, score: f64 }
}

/// The pairs of ids that a query returns, in its order, of which each makes the caller keep `each`
/// bytes.
pub fn read_pairs(call: &Call, name: &str, sql: &[u8], each: usize) -> Vec<(i64, i64)> {
    let mut pairs = Vec::new();
    row::read(call, name, sql, 0, |row: IdPair| {
        call.budget.reserve(name, each);
        push(&mut pairs, (row.source_id, row.target_id));
    });
    pairs
}

#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_bucc_score(
    candidates: Option<&[u8]>,
    gold: Option<&[u8]>,
    threshold: Option<f64>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(precision, f64),
        name!(recall, f64),
        name!(f1, f64),
        name!(threshold, f64),
        name!(extracted, i64),
        name!(correct, i64),
        name!(gold, i64),
    ),
> {
    // Not a strict function for the sake of the threshold alone.
    let (Some(candidates), Some(gold)) = (candidates, gold) else {
        return TableIterator::empty();
    };
    threshold.inspect(|&threshold| check_threshold(threshold));
    let call = Call::begin(fcinfo);
    let mut list = Vec::new();
    row::read(&call, "candidates", candidates, 0, |row: Scored| {
        call.budget.reserve("candidates", CANDIDATE);
        let (source, target, score) = (row.source_id, row.target_id, row.score);
        push(
            &mut list,
            Candidate {
                source,
                target,
                score,
            },
        );
    });
    let gold = read_pairs(&call, "gold", gold, GOLD);
    let score = bucc_watched(&list, &gold, threshold, &watch)
        .unwrap_or_else(|error| errors::search_failed(error, &[], &[]));
    call.end(TableIterator::once((
        score.precision,
        score.recall,
        score.f1,
        score.threshold,
        score.extracted as i64,
        score.correct as i64,
        score.gold as i64,
    )))
}
