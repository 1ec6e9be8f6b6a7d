//! Incremental mining: neighbourhoods in a table, brought up to date with their queries.
//!
//! A state table has the columns of `laser_mining_state`: a row for each source and each target
//! row, with its embedding, a hash of its content, and its nearest neighbours. An update runs both
//! queries, finds what came, went or changed since, embeds only new texts, searches only what that
//! touches, and writes only the rows whose neighbours changed. Neighbours do not depend on margin,
//! retrieval and threshold, so those are chosen when the pairs are read.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::ffi::CStr;

use laser_mining::{Growth, Neighbourhoods, Neighbours, Side, extend, remove, select};
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;

use super::functions::{k_of, margin_of, mined, retrieval_of};
use super::load::{self, Rows, SIDE_COLUMNS, content_hash, each_row, push_batch, with_values};
use super::progress::Progress;
use super::query::{Kind, Query, Snapshot, Spi, Statement, Wanted, namespace, own_type};
use super::{errors, work};
use crate::encode::describe_model;
use crate::types::{new_embedding, raise_hint};

type Hash = [u8; 16];

/// The letter of a side in a state table.
fn letter(side: Side) -> char {
    if side == Side::Source { 's' } else { 't' }
}

/// A state table.
struct Table<'a> {
    spi: &'a Spi,
    /// Qualified and quoted.
    name: String,
    namespace: Oid,
}

impl<'a> Table<'a> {
    fn open(spi: &'a Spi, oid: Oid, namespace: Oid) -> Self {
        // SAFETY: catalogue look-ups; the strings are new or constant C strings.
        let name = unsafe {
            let relation = pg_sys::get_rel_name(oid);
            let schema = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(oid));
            if relation.is_null() || schema.is_null() {
                raise_hint(
                    PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
                    format!("there is no table with OID {}", oid.to_u32()),
                    "Name a table made like laser_mining_state.",
                );
            }
            let quoted = pg_sys::quote_qualified_identifier(schema, relation);
            CStr::from_ptr(quoted).to_string_lossy().into_owned()
        };
        Table {
            spi,
            name,
            namespace,
        }
    }

    /// Calls `take` for the rows of a side in ascending order of ids, with the given columns
    /// after the id.
    fn read(
        &self,
        side: Side,
        columns: &str,
        wanted: &[Wanted],
        take: impl FnMut(&super::query::Batch<'_>),
    ) {
        let sql = format!(
            "SELECT id, {columns} FROM {} WHERE side = '{}'",
            self.name,
            letter(side)
        );
        let query = Query::parse(self.spi, "state", sql.as_bytes(), wanted, self.namespace);
        query.run_in(Snapshot::New, 1, take);
    }

    #[cold]
    fn damaged(&self, what: &str) -> ! {
        raise_hint(
            PgSqlErrorCode::ERRCODE_DATA_CORRUPTED,
            format!("the mining state in {} is inconsistent: {what}", self.name),
            "TRUNCATE the table; the next laser_mine_update() fills it anew.",
        )
    }
}

const ID: Wanted = Wanted {
    name: "id",
    type_name: "bigint",
    kinds: &[Kind::Integer],
};
const CONTENT: Wanted = Wanted {
    name: "content",
    type_name: "bytea",
    kinds: &[Kind::Bytes],
};
const EMBEDDING: Wanted = Wanted {
    name: "embedding",
    type_name: "embedding",
    kinds: &[Kind::Embedding],
};
const NEIGHBOURS: Wanted = Wanted {
    name: "neighbours",
    type_name: "bigint[]",
    kinds: &[Kind::Integers],
};
const COSINES: Wanted = Wanted {
    name: "cosines",
    type_name: "double precision[]",
    kinds: &[Kind::Floats],
};

/// One side during an update.
struct Part {
    side: Side,
    /// Ids in the table and the hashes of their contents.
    old: Vec<(i64, Hash)>,
    /// Whether an old row is still there with the same content.
    stays: Vec<bool>,
    /// Embeddings of the rows that stay.
    kept: Rows,
    /// Rows that came or whose content changed.
    added: Vec<(i64, Hash)>,
    added_rows: Rows,
    /// Ids after the update.
    ids: Vec<i64>,
    kept_positions: Vec<u32>,
    added_positions: Vec<u32>,
}

impl Part {
    /// Reads what the table has, runs the query, and tells the differences. Texts that came are
    /// embedded.
    fn read(
        table: &Table<'_>,
        side: Side,
        sql: &[u8],
        unify: bool,
        progress: &mut Progress,
    ) -> Self {
        progress.phase(match side {
            Side::Source => "reading source",
            Side::Target => "reading target",
        });
        let mut old: Vec<(i64, Hash)> = Vec::new();
        table.read(side, "content", &[ID, CONTENT], |batch| {
            for row in 0..batch.rows() {
                let content = batch.bytes(row, 1).and_then(|bytes| bytes.try_into().ok());
                match (batch.integer(row, 0), content) {
                    (Some(id), Some(content)) => old.push((id, content)),
                    _ => table.damaged("a content is missing"),
                }
            }
        });

        let name = side.to_string();
        let query = Query::parse(table.spi, &name, sql, &SIDE_COLUMNS, table.namespace);
        let kind = query.kind(1);
        // Another model makes other embeddings of the same text, which are new content.
        let seed = match kind {
            Kind::Text => describe_model(None).fingerprint.to_vec(),
            _ => Vec::new(),
        };
        let mut stays = vec![false; old.len()];
        let (mut added, mut added_rows) = (Vec::new(), Rows::default());
        let mut seen = HashSet::new();
        let limit = load::memory_of_side() / 2;
        each_row(&query, side, progress, |batch, rows| {
            let mut chosen = Vec::new();
            for &(id, row) in rows {
                let hash = match kind {
                    Kind::Text => content_hash(&seed, batch.bytes(row, 1).unwrap_or_default()),
                    _ => {
                        let mut hash = Hash::default();
                        with_values(kind, batch, (row, 1), |values| {
                            let bytes: Vec<u8> = values
                                .iter()
                                .flat_map(|value| value.to_le_bytes())
                                .collect();
                            hash = content_hash(&seed, &bytes);
                        });
                        hash
                    }
                };
                if unify && kind == Kind::Text && !seen.insert(hash) {
                    continue;
                }
                match old.binary_search_by_key(&id, |old| old.0) {
                    Ok(at) if old[at].1 == hash => stays[at] = true,
                    _ => {
                        added.push((id, hash));
                        chosen.push((id, row));
                    }
                }
            }
            push_batch(&mut added_rows, side, kind, batch, &chosen, limit);
        });

        let mut kept = Rows::default();
        let mut at = 0;
        table.read(side, "embedding", &[ID, EMBEDDING], |batch| {
            for row in 0..batch.rows() {
                if stays.get(at) == Some(&true) {
                    let id = old[at].0;
                    with_values(Kind::Embedding, batch, (row, 1), |values| {
                        kept.push(side, id, values, limit);
                    });
                }
                at += 1;
            }
        });
        let mut part = Part {
            side,
            old,
            stays,
            kept,
            added,
            added_rows,
            ids: Vec::new(),
            kept_positions: Vec::new(),
            added_positions: Vec::new(),
        };
        if part.kept.len() != part.kept_old().len() {
            table.damaged("an embedding is missing");
        }
        part.unite();
        part
    }

    /// Positions, among the old rows, of those that stay.
    fn kept_old(&self) -> Vec<u32> {
        (0..)
            .zip(&self.stays)
            .filter(|&(_, &stays)| stays)
            .map(|(at, _)| at)
            .collect()
    }

    /// Merges the ids that stay and those that came.
    fn unite(&mut self) {
        let kept = self
            .old
            .iter()
            .zip(&self.stays)
            .filter(|(_, stays)| **stays);
        let kept = kept.map(|(&(id, _), _)| (id, false));
        let mut all: Vec<(i64, bool)> = kept
            .chain(self.added.iter().map(|&(id, _)| (id, true)))
            .collect();
        all.sort_unstable();
        for (position, (id, added)) in (0..).zip(all) {
            self.ids.push(id);
            if added {
                self.added_positions.push(position);
            } else {
                self.kept_positions.push(position);
            }
        }
    }

    fn removed(&self) -> usize {
        self.stays.iter().filter(|stays| !**stays).count()
    }

    fn growth(&self) -> Growth<'_> {
        Growth {
            kept: self.kept.as_rows(),
            kept_positions: &self.kept_positions,
            added: self.added_rows.as_rows(),
            added_positions: &self.added_positions,
        }
    }

    fn dimensions(&self, table: &Table<'_>) -> usize {
        match (self.kept.dimensions(), self.added_rows.dimensions()) {
            (0, dimensions) | (dimensions, 0) => dimensions,
            (kept, added) if kept == added => kept,
            (kept, added) => raise_hint(
                PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
                format!(
                    "new {} embeddings have {added} dimensions, those in {} have {kept}",
                    self.side, table.name
                ),
                "TRUNCATE the table to begin anew.",
            ),
        }
    }

    /// The lists in the table, with positions among the old rows of the other side.
    fn known(&self, table: &Table<'_>, other: &Part, k: usize) -> Neighbours {
        let full = k.min(other.old.len());
        let mut lists = Neighbours::empty(self.old.len(), full);
        let mut at = 0;
        let columns = [ID, NEIGHBOURS, COSINES];
        table.read(self.side, "neighbours, cosines", &columns, |batch| {
            for row in 0..batch.rows() {
                let lists_of_row = (batch.array::<i64>(row, 1), batch.array::<f64>(row, 2));
                let (Some(neighbours), Some(cosines)) = lists_of_row else {
                    table.damaged("a list of neighbours is missing");
                };
                if neighbours.len() != cosines.len() || at >= self.old.len() {
                    table.damaged("a list of neighbours has another length than its cosines");
                }
                if neighbours.len() != full {
                    raise_hint(
                        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                        format!("the mining state in {} was made with another k", table.name),
                        "Use the same k, or TRUNCATE the table to begin anew.",
                    );
                }
                for (id, cosine) in neighbours.iter().zip(cosines) {
                    match other.old.binary_search_by_key(id, |old| old.0) {
                        Ok(position) => lists.insert(at, position as u32, cosine),
                        Err(_) => table.damaged("a neighbour is missing"),
                    };
                }
                at += 1;
            }
        });
        lists
    }

    /// Writes what changed: rows that went, rows that came, and rows whose neighbours are other
    /// ones now. Returns the number of rows written.
    fn write(
        &self,
        table: &Table<'_>,
        known: &Neighbours,
        other: &Part,
        lists: &Neighbours,
    ) -> i64 {
        let (name, letter) = (&table.name, letter(self.side));
        let mut written = 0;
        let delete = Statement::prepare(
            table.spi,
            &format!("DELETE FROM {name} WHERE side = '{letter}' AND id = $1"),
            &[pg_sys::INT8OID],
        );
        for (&(id, _), _) in self
            .old
            .iter()
            .zip(&self.stays)
            .filter(|(_, stays)| !**stays)
        {
            delete.run(|| vec![Datum::from(id)]);
            written += 1;
        }

        let list = |position: usize| -> [Datum; 2] {
            let ids: Vec<i64> = lists
                .positions(position)
                .iter()
                .map(|&at| other.ids[at as usize])
                .collect();
            [
                ids.into_datum().expect("an array"),
                lists
                    .cosines(position)
                    .to_vec()
                    .into_datum()
                    .expect("an array"),
            ]
        };
        let insert = Statement::prepare(
            table.spi,
            &format!(
                "INSERT INTO {name} (side, id, content, embedding, neighbours, cosines) \
                 VALUES ('{letter}', $1, $2, $3, $4, $5)"
            ),
            &[
                pg_sys::INT8OID,
                pg_sys::BYTEAOID,
                own_type(c"embedding", table.namespace),
                pg_sys::INT8ARRAYOID,
                pg_sys::FLOAT8ARRAYOID,
            ],
        );
        for (at, &(id, hash)) in self.added.iter().enumerate() {
            let row = match self.added_rows.row(at) {
                Ok(row) => row,
                Err(error) => errors::search_failed(error, &[], &[]),
            };
            let position = self.added_positions[at] as usize;
            insert.run(|| {
                let [neighbours, cosines] = list(position);
                vec![
                    Datum::from(id),
                    hash.as_slice().into_datum().expect("bytes"),
                    new_embedding(&row),
                    neighbours,
                    cosines,
                ]
            });
        }
        written += self.added.len() as i64;

        let update = Statement::prepare(
            table.spi,
            &format!(
                "UPDATE {name} SET neighbours = $2, cosines = $3 \
                 WHERE side = '{letter}' AND id = $1"
            ),
            &[
                pg_sys::INT8OID,
                pg_sys::INT8ARRAYOID,
                pg_sys::FLOAT8ARRAYOID,
            ],
        );
        for (old, &position) in self.kept_old().into_iter().zip(&self.kept_positions) {
            let (old, position) = (old as usize, position as usize);
            let same = known.cosines(old) == lists.cosines(position)
                && known
                    .positions(old)
                    .iter()
                    .zip(lists.positions(position))
                    .all(|(&before, &now)| other.old[before as usize].0 == other.ids[now as usize]);
            if !same {
                update.run(|| {
                    let [neighbours, cosines] = list(position);
                    vec![Datum::from(self.ids[position]), neighbours, cosines]
                });
                written += 1;
            }
        }
        written
    }
}

#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_mine_update(
    state: Oid,
    source: &[u8],
    target: &[u8],
    k: i32,
    unify: bool,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(side, String),
        name!(rows, i64),
        name!(added, i64),
        name!(removed, i64),
        name!(written, i64),
        name!(compared, i64),
    ),
> {
    let k = k_of(k);
    let spi = Spi::connect();
    let table = Table::open(&spi, state, namespace(fcinfo));
    // One update at a time; readers go on.
    let lock = format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", table.name);
    Statement::prepare(&spi, &lock, &[]).run(Vec::new);

    let mut progress = Progress::start();
    let source = Part::read(&table, Side::Source, source, unify, &mut progress);
    let target = Part::read(&table, Side::Target, target, unify, &mut progress);
    let dimensions = load::common_dimensions(source.dimensions(&table), target.dimensions(&table));
    let known = Neighbourhoods {
        forward: source.known(&table, &target, k),
        backward: target.known(&table, &source, k),
    };

    let (source_kept, target_kept) = (source.kept_old(), target.kept_old());
    let (source_growth, target_growth) = (source.growth(), target.growth());
    let shrinks = source.removed() + target.removed() > 0;
    let memory = load::memory_left([&source.added_rows, &target.added_rows]);
    let found = work::search(&mut progress, memory, |options| {
        let kept = if shrinks {
            let sides = (
                (source_growth.kept, &*source_kept),
                (target_growth.kept, &*target_kept),
            );
            &remove(&known, sides.0, sides.1, dimensions, k, options)?
        } else {
            &known
        };
        extend(kept, source_growth, target_growth, dimensions, k, options)
    });
    let found = match found {
        Ok(found) => found,
        Err(error) => errors::search_failed(error, &source.ids, &target.ids),
    };
    let compared = progress.compared() as i64;
    progress.phase("writing");
    let row = |part: &Part, other: &Part, known: &Neighbours, lists: &Neighbours| {
        let written = part.write(&table, known, other, lists);
        (
            part.side.to_string(),
            part.ids.len() as i64,
            part.added.len() as i64,
            part.removed() as i64,
            written,
            compared,
        )
    };
    let rows = vec![
        row(&source, &target, &known.forward, &found.forward),
        row(&target, &source, &known.backward, &found.backward),
    ];
    spi.close();
    TableIterator::new(rows)
}

/// Ids of neighbours and their cosines.
type StoredList = (Vec<i64>, Vec<f64>);

/// The ids and the lists of neighbours of one side of a table, as ids.
fn stored(table: &Table<'_>, side: Side) -> (Vec<i64>, Vec<StoredList>) {
    let (mut ids, mut lists) = (Vec::new(), Vec::new());
    table.read(
        side,
        "neighbours, cosines",
        &[ID, NEIGHBOURS, COSINES],
        |batch| {
            for row in 0..batch.rows() {
                let values = (
                    batch.integer(row, 0),
                    batch.array::<i64>(row, 1),
                    batch.array::<f64>(row, 2),
                );
                match values {
                    (Some(id), Some(neighbours), Some(cosines))
                        if neighbours.len() == cosines.len() =>
                    {
                        ids.push(id);
                        lists.push((neighbours, cosines));
                    }
                    _ => table.damaged("a list of neighbours is missing"),
                }
            }
        },
    );
    (ids, lists)
}

#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_mine_stored(
    state: Oid,
    margin: &str,
    retrieval: &str,
    threshold: f64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(source_id, i64),
        name!(target_id, i64),
        name!(score, f64),
        name!(forward_mean, f64),
        name!(backward_mean, f64),
    ),
> {
    let (margin, retrieval) = (margin_of(margin), retrieval_of(retrieval));
    let spi = Spi::connect();
    let table = Table::open(&spi, state, namespace(fcinfo));
    let (source_ids, source_lists) = stored(&table, Side::Source);
    let (target_ids, target_lists) = stored(&table, Side::Target);
    let resolve = |lists: &[(Vec<i64>, Vec<f64>)], others: &[i64]| {
        let k = lists.iter().map(|list| list.0.len()).max().unwrap_or(0);
        let mut found = Neighbours::empty(lists.len(), k);
        for (row, (ids, cosines)) in lists.iter().enumerate() {
            for (id, &cosine) in ids.iter().zip(cosines) {
                match others.binary_search(id) {
                    Ok(position) => found.insert(row, position as u32, cosine),
                    Err(_) => table.damaged("a neighbour is missing"),
                };
            }
        }
        found
    };
    let found = Neighbourhoods {
        forward: resolve(&source_lists, &target_ids),
        backward: resolve(&target_lists, &source_ids),
    };
    let pairs = select(
        &found.forward,
        &found.backward,
        margin,
        retrieval,
        threshold,
    );
    let rows = mined(pairs, &found, &source_ids, &target_ids);
    spi.close();
    TableIterator::new(rows)
}
