//! The SQL functions, all but those of incremental mining.

use std::collections::HashMap;
use std::str::FromStr;

use laser_mining::{
    Bucc, Candidate, Margin, Neighbourhoods, Neighbours, Pair, Retrieval, Side, best, bucc,
    bucc_at, knn, select,
};
use pgrx::pg_sys::{self, Oid};
use pgrx::prelude::*;

use super::load::{self, Loaded};
use super::progress::Progress;
use super::query::{Kind, Query, Spi, Wanted, namespace};
use super::{errors, index, work};
use crate::types::{raise, raise_hint};

/// Parses the name of a margin.
pub fn margin_of(name: &str) -> Margin {
    Margin::from_str(name)
        .unwrap_or_else(|_| errors::bad_name("margin", name, &Margin::ALL.map(Margin::name)))
}

/// Parses the name of a retrieval mode.
pub fn retrieval_of(name: &str) -> Retrieval {
    Retrieval::from_str(name).unwrap_or_else(|_| {
        errors::bad_name("retrieval", name, &Retrieval::ALL.map(Retrieval::name))
    })
}

/// Checks k.
pub fn k_of(k: i32) -> usize {
    if k < 1 {
        errors::bad_k(k);
    }
    k as usize
}

/// Searches the neighbours of two loaded sides in both directions.
fn both(source: &Loaded, target: &Loaded, k: usize, progress: &mut Progress) -> Neighbourhoods {
    let dimensions = load::common_dimensions(source.dimensions(), target.dimensions());
    let (x, y) = (source.rows.as_rows(), target.rows.as_rows());
    let memory = load::memory_left([&source.rows, &target.rows]);
    let found = work::search(progress, memory, |options| {
        knn::both_rows(x, y, dimensions, k, options)
    });
    match found {
        Ok((forward, backward)) => Neighbourhoods { forward, backward },
        Err(error) => errors::search_of_failed(error, source, target),
    }
}

/// A mined pair: ids, score, means of the two neighbourhoods.
pub type Mined = (i64, i64, f64, f64, f64);

/// The rows of `laser_mine` for selected pairs.
pub fn mined(
    pairs: Vec<Pair>,
    found: &Neighbourhoods,
    source_ids: &[i64],
    target_ids: &[i64],
) -> Vec<Mined> {
    let row = |pair: Pair| {
        let (source, target) = (pair.source as usize, pair.target as usize);
        let (forward, backward) = (found.forward.mean(source), found.backward.mean(target));
        (
            source_ids[source],
            target_ids[target],
            pair.score,
            forward,
            backward,
        )
    };
    pairs.into_iter().map(row).collect()
}

type MinedRows = TableIterator<
    'static,
    (
        name!(source_id, i64),
        name!(target_id, i64),
        name!(score, f64),
        name!(forward_mean, f64),
        name!(backward_mean, f64),
    ),
>;

#[pg_extern(sql = "")]
#[allow(clippy::too_many_arguments, reason = "the SQL signature")]
fn laser_mine(
    source: &[u8],
    target: &[u8],
    k: i32,
    margin: &str,
    retrieval: &str,
    threshold: f64,
    method: &str,
    unify: bool,
    fcinfo: pg_sys::FunctionCallInfo,
) -> MinedRows {
    let (k, margin, retrieval) = (k_of(k), margin_of(margin), retrieval_of(retrieval));
    let namespace = namespace(fcinfo);
    let spi = Spi::connect();
    let mut progress = Progress::start();
    let rows = match method {
        "exact" => {
            let source = load::load(&spi, Side::Source, source, unify, namespace, &mut progress);
            let target = load::load(&spi, Side::Target, target, unify, namespace, &mut progress);
            let found = both(&source, &target, k, &mut progress);
            progress.phase("selecting");
            let pairs = select(
                &found.forward,
                &found.backward,
                margin,
                retrieval,
                threshold,
            );
            mined(pairs, &found, &source.ids, &target.ids)
        }
        "index" => index::mine(
            &spi,
            [source, target],
            k,
            (margin, retrieval, threshold),
            unify,
            namespace,
            &mut progress,
        ),
        _ => errors::bad_name("method", method, &["exact", "index"]),
    };
    spi.close();
    TableIterator::new(rows)
}

/// A neighbour: ids, rank from 1, cosine.
type NeighbourRow = (i64, i64, i32, f64);
type NeighbourRows = TableIterator<
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
    let namespace = namespace(fcinfo);
    let spi = Spi::connect();
    let mut progress = Progress::start();
    let source = load::load(&spi, Side::Source, source, false, namespace, &mut progress);
    let target = load::load(&spi, Side::Target, target, false, namespace, &mut progress);
    let dimensions = load::common_dimensions(source.dimensions(), target.dimensions());
    let (x, y) = (source.rows.as_rows(), target.rows.as_rows());
    let memory = load::memory_left([&source.rows, &target.rows]);
    let found = work::search(&mut progress, memory, |options| {
        knn::forward(x, y, dimensions, k, options)
    });
    let lists = match found {
        Ok(lists) => lists,
        Err(error) => errors::search_of_failed(error, &source, &target),
    };
    spi.close();
    let ids = (source.ids, target.ids);
    TableIterator::new((0..lists.rows()).flat_map(move |row| {
        let list = lists.positions(row).iter().zip(lists.cosines(row)).zip(1..);
        let rows: Vec<NeighbourRow> = list
            .map(|((&position, &cosine), rank)| {
                (ids.0[row], ids.1[position as usize], rank, cosine)
            })
            .collect();
        rows
    }))
}

const PAIR_COLUMNS: [Wanted; 2] = [
    Wanted {
        name: "source_id",
        type_name: "bigint",
        kinds: &[Kind::Integer],
    },
    Wanted {
        name: "target_id",
        type_name: "bigint",
        kinds: &[Kind::Integer],
    },
];

/// The pairs of ids that a query returns, in its order.
fn read_pairs(spi: &Spi, name: &str, sql: &[u8], namespace: Oid) -> Vec<(i64, i64)> {
    let query = Query::parse(spi, name, sql, &PAIR_COLUMNS, namespace);
    let mut pairs = Vec::new();
    query.run(0, |batch| {
        for row in 0..batch.rows() {
            match (batch.integer(row, 0), batch.integer(row, 1)) {
                (Some(source), Some(target)) => pairs.push((source, target)),
                _ => null_value(name, "id"),
            }
        }
    });
    pairs
}

#[cold]
fn null_value(name: &str, what: &str) -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
        format!("the {name} query returned a null {what}"),
    )
}

#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_margin_scores(
    pairs: &[u8],
    source: &[u8],
    target: &[u8],
    margin: &str,
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
    let namespace = namespace(fcinfo);
    let spi = Spi::connect();
    let mut progress = Progress::start();
    let pairs = read_pairs(&spi, "pairs", pairs, namespace);
    let source = load::load(&spi, Side::Source, source, false, namespace, &mut progress);
    let target = load::load(&spi, Side::Target, target, false, namespace, &mut progress);
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
    let positions: Vec<(usize, usize)> = pairs
        .iter()
        .map(|&(s, t)| (position(&source, s), position(&target, t)))
        .collect();
    let found = both(&source, &target, k, &mut progress);
    let row = |side: &Loaded, at: usize| match side.rows.row(at) {
        Ok(row) => row.into_owned(),
        Err(error) => errors::search_of_failed(error, &source, &target),
    };
    let rows: Vec<_> = positions
        .into_iter()
        .map(|(s, t)| {
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
        })
        .collect();
    spi.close();
    TableIterator::new(rows)
}

#[pg_extern(sql = "")]
fn laser_similarity_error(
    source: &[u8],
    target: &[u8],
    margin: &str,
    k: i32,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Option<f64> {
    let (k, margin) = (k_of(k), margin_of(margin));
    let namespace = namespace(fcinfo);
    let spi = Spi::connect();
    let mut progress = Progress::start();
    let source = load::load(&spi, Side::Source, source, false, namespace, &mut progress);
    let target = load::load(&spi, Side::Target, target, false, namespace, &mut progress);
    for &id in &source.ids {
        if target.position(id).is_none() {
            raise_hint(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                format!("source id {id} has no target row"),
                "The right target row of a source row is the one with the same id.",
            );
        }
    }
    let found = both(&source, &target, k, &mut progress);
    let best = best(&found.forward, &found.backward.means(), margin);
    let wrong = (best.iter().zip(&source.ids))
        .filter(|&(best, &id)| best.is_none_or(|(position, _)| target.ids[position as usize] != id))
        .count();
    spi.close();
    (!best.is_empty()).then(|| wrong as f64 / best.len() as f64)
}

#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_bucc_score(
    candidates: &[u8],
    gold: &[u8],
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
    const COLUMNS: [Wanted; 3] = [
        Wanted {
            name: "source_id",
            type_name: "bigint",
            kinds: &[Kind::Integer],
        },
        Wanted {
            name: "target_id",
            type_name: "bigint",
            kinds: &[Kind::Integer],
        },
        Wanted {
            name: "score",
            type_name: "double precision",
            kinds: &[Kind::Float],
        },
    ];
    let namespace = namespace(fcinfo);
    let spi = Spi::connect();
    let mut list = Vec::new();
    Query::parse(&spi, "candidates", candidates, &COLUMNS, namespace).run(0, |batch| {
        for row in 0..batch.rows() {
            let ids = (batch.integer(row, 0), batch.integer(row, 1));
            let ((Some(source), Some(target)), Some(score)) = (ids, batch.float(row, 2)) else {
                null_value("candidates", "value")
            };
            list.push(Candidate {
                source,
                target,
                score,
            });
        }
    });
    let gold = read_pairs(&spi, "gold", gold, namespace);
    spi.close();
    let Bucc {
        precision,
        recall,
        f1,
        threshold,
        extracted,
        correct,
        gold,
    } = match threshold {
        Some(threshold) => bucc_at(&list, &gold, threshold),
        None => bucc(&list, &gold),
    };
    let count = |number: usize| number as i64;
    TableIterator::once((
        precision,
        recall,
        f1,
        threshold,
        count(extracted),
        count(correct),
        count(gold),
    ))
}

/// Neighbours as rows: the id whose neighbour it is, the neighbour's id, the cosine.
const NEIGHBOUR_COLUMNS: [Wanted; 3] = [
    Wanted {
        name: "id",
        type_name: "bigint",
        kinds: &[Kind::Integer],
    },
    Wanted {
        name: "neighbour",
        type_name: "bigint",
        kinds: &[Kind::Integer],
    },
    Wanted {
        name: "cosine",
        type_name: "double precision",
        kinds: &[Kind::Float],
    },
];

/// Calls `each` for each id in ascending order with its neighbours, best first. A neighbour that
/// occurs more than once counts once.
fn each_neighbourhood(
    spi: &Spi,
    name: &str,
    sql: &[u8],
    namespace: Oid,
    mut each: impl FnMut(i64, &[(i64, f64)]),
) {
    let query = Query::parse(spi, name, sql, &NEIGHBOUR_COLUMNS, namespace);
    let mut current = None;
    let mut list: Vec<(i64, f64)> = Vec::new();
    let mut finish = |id: Option<i64>, list: &mut Vec<(i64, f64)>| {
        if let Some(id) = id {
            list.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            each(id, list);
            list.clear();
        }
    };
    query.run(2, |batch| {
        for row in 0..batch.rows() {
            let ids = (batch.integer(row, 0), batch.integer(row, 1));
            let ((Some(id), Some(neighbour)), Some(cosine)) = (ids, batch.float(row, 2)) else {
                null_value(name, "value")
            };
            if current != Some(id) {
                finish(current, &mut list);
                current = Some(id);
            }
            match list.last_mut() {
                Some(last) if last.0 == neighbour => last.1 = last.1.max(cosine),
                _ => list.push((neighbour, cosine)),
            }
        }
    });
    finish(current, &mut list);
}

#[pg_extern(sql = "")]
fn laser_knn_merge(shards: &[u8], k: i32, fcinfo: pg_sys::FunctionCallInfo) -> NeighbourRows {
    let k = k_of(k);
    let namespace = namespace(fcinfo);
    let spi = Spi::connect();
    let mut rows: Vec<NeighbourRow> = Vec::new();
    each_neighbourhood(&spi, "shards", shards, namespace, |id, list| {
        let best = list.iter().take(k).zip(1..);
        rows.extend(best.map(|(&(neighbour, cosine), rank)| (id, neighbour, rank, cosine)));
    });
    spi.close();
    TableIterator::new(rows)
}

/// Neighbours of one side, not yet as positions.
#[derive(Default)]
struct Lists {
    ids: Vec<i64>,
    lists: Vec<Vec<(i64, f64)>>,
}

impl Lists {
    fn read(spi: &Spi, name: &str, sql: &[u8], namespace: Oid) -> Self {
        let mut lists = Lists::default();
        each_neighbourhood(spi, name, sql, namespace, |id, list| {
            lists.ids.push(id);
            lists.lists.push(list.to_vec());
        });
        lists
    }

    /// As positions among the ids of the other side, all of which must have a list.
    fn resolve(&self, others: &Lists, name: &str, other_name: &str) -> Neighbours {
        let positions: HashMap<i64, u32> = others.ids.iter().copied().zip(0..).collect();
        let k = self.lists.iter().map(Vec::len).max().unwrap_or(0);
        let mut found = Neighbours::empty(self.ids.len(), k);
        for (row, list) in self.lists.iter().enumerate() {
            for &(neighbour, cosine) in list {
                let Some(&position) = positions.get(&neighbour) else {
                    raise_hint(
                        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                        format!(
                            "the {name} query returned neighbour {neighbour}, which has no \
                             neighbours in the {other_name} query"
                        ),
                        "Both queries must cover all rows of both sides.",
                    );
                };
                found.insert(row, position, cosine);
            }
        }
        found
    }
}

#[pg_extern(sql = "")]
fn laser_mine_neighbours(
    forward: &[u8],
    backward: &[u8],
    margin: &str,
    retrieval: &str,
    threshold: f64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> MinedRows {
    let (margin, retrieval) = (margin_of(margin), retrieval_of(retrieval));
    let namespace = namespace(fcinfo);
    let spi = Spi::connect();
    let forward = Lists::read(&spi, "forward", forward, namespace);
    let backward = Lists::read(&spi, "backward", backward, namespace);
    let found = Neighbourhoods {
        forward: forward.resolve(&backward, "forward", "backward"),
        backward: backward.resolve(&forward, "backward", "forward"),
    };
    let pairs = select(
        &found.forward,
        &found.backward,
        margin,
        retrieval,
        threshold,
    );
    let rows = mined(pairs, &found, &forward.ids, &backward.ids);
    spi.close();
    TableIterator::new(rows)
}
