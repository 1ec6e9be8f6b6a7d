//! Pairs: which are kept, and how they are returned.

use std::fmt::Display;
use std::str::FromStr;

use laser_mining::{Margin, Neighbourhoods, Retrieval, select_watched};
use pgrx::prelude::*;

use super::call::watch;
use super::errors;
use crate::pg::encoding;
use crate::pg::errors::raise_hint;
use crate::pg::memory::or_raise;

/// Parses the name of a margin, which is in the encoding of the database.
pub fn margin_of(name: &[u8]) -> Margin {
    parse("margin", name, &Margin::ALL)
}

/// Raises a SQL error for a threshold that no score can reach or miss.
pub fn check_threshold(threshold: f64) {
    if threshold.is_nan() {
        raise_hint(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            "threshold must not be NaN",
            "Give a number, or '-infinity' to accept every score.",
        );
    }
}

fn parse<T: FromStr + Display>(what: &str, name: &[u8], all: &[T]) -> T {
    let name = encoding::name(name);
    T::from_str(&name).unwrap_or_else(|_| {
        let known: Vec<String> = all.iter().map(T::to_string).collect();
        errors::bad_name(what, &name, &known.join(", "))
    })
}

/// Which pairs are kept.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    margin: Margin,
    retrieval: Retrieval,
    threshold: f64,
}

/// A mined pair: ids, score, means of the two neighbourhoods.
pub type Mined = (i64, i64, f64, f64, f64);

/// Mined pairs, best first.
pub type MinedRows = TableIterator<
    'static,
    (
        name!(source_id, i64),
        name!(target_id, i64),
        name!(score, f64),
        name!(forward_mean, f64),
        name!(backward_mean, f64),
    ),
>;

impl Choice {
    /// Parses the arguments; raises a SQL error for what none of them may be.
    pub fn parse(margin: &[u8], retrieval: &[u8], threshold: f64) -> Self {
        check_threshold(threshold);
        Choice {
            margin: margin_of(margin),
            retrieval: parse("retrieval", retrieval, &Retrieval::ALL),
            threshold,
        }
    }

    /// The pairs that are kept. The ids are those of the rows that the lists are of.
    pub fn pairs(
        &self,
        found: &Neighbourhoods,
        source_ids: &[i64],
        target_ids: &[i64],
    ) -> Vec<Mined> {
        let (forward, backward) = (&found.forward, &found.backward);
        let pairs = select_watched(
            forward,
            backward,
            self.margin,
            self.retrieval,
            self.threshold,
            &watch,
        )
        .unwrap_or_else(|error| errors::search_failed(error, source_ids, target_ids));
        or_raise(laser_memory::collect(pairs.into_iter().map(|pair| {
            let (source, target) = (pair.source as usize, pair.target as usize);
            (
                source_ids[source],
                target_ids[target],
                pair.score,
                forward.mean(source),
                backward.mean(target),
            )
        })))
    }
}
