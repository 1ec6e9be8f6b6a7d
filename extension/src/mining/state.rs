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

use laser_mining::{Growth, Neighbourhoods, Neighbours, Side, extend, remove, sort_by};
use laser_protocol::model_and_language;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;

use super::call::{Call, MemoryBudget, watch};
use super::functions::k_of;
use super::lists::{self, Lists};
use super::load::{self, Rows, content_hash, each_row, push_batch};
use super::pairs::{Choice, MinedRows};
use super::progress::Progress;
use super::query::{Kind, Query, Snapshot, Spi, Statement, own_type};
use super::row::{self, Row};
use super::{errors, work};
use crate::encode::{check_privilege, describe_model, model_name};
use crate::pg::encoding;
use crate::pg::errors::raise_hint;
use crate::pg::memory::{insert, or_raise, push};
use crate::pg::trust;
use crate::types::new_embedding;

type Hash = [u8; 16];

/// Bytes for a row of the table or one that came: its id and hash, its places before and after the
/// update, and its id once more while they are merged.
const EACH: usize = size_of::<(i64, Hash)>() + size_of::<(i64, bool)>() + 8 + 3 * 4;

/// The letter of a side in a state table.
fn letter(side: Side) -> char {
    if side == Side::Source { 's' } else { 't' }
}

/// The rows of a side in a state table. Operators are the server's own, whatever is on the search
/// path; what types the columns bring along, [`trust`] looks at: the table may be another's.
fn of_side(side: Side) -> String {
    format!(
        "side OPERATOR(pg_catalog.=) '{}'::pg_catalog.\"char\"",
        letter(side)
    )
}

row::rows! {
    /// A row of a state table without its embedding and neighbours.
    struct Content { id: i64, content: Vec<u8> }

    /// A row's embedding.
    struct Stored { id: i64, embedding: Vec<f32> }

    /// What stands in a whole table.
    struct Extent { rows: i64, hash: i64 }

    /// A row's neighbours, best first.
    struct Near { id: i64, neighbours: Vec<i64>, cosines: Vec<f64> }
}

/// The columns that a state table has.
const COLUMNS: [&CStr; 6] = [
    c"side",
    c"id",
    c"content",
    c"embedding",
    c"neighbours",
    c"cosines",
];

/// A state table.
struct Table<'a> {
    spi: &'a Spi,
    /// Qualified and quoted.
    name: String,
    /// What statements about it begin with.
    mark: String,
    namespace: Oid,
    /// What is seen of it.
    snapshot: Snapshot,
}

impl<'a> Table<'a> {
    fn open(spi: &'a Spi, oid: Oid, namespace: Oid, snapshot: Snapshot) -> Self {
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
            let name = encoding::to_utf8(CStr::from_ptr(quoted).to_bytes()).into_owned();
            if COLUMNS
                .iter()
                .any(|column| pg_sys::get_attnum(oid, column.as_ptr()) <= 0)
            {
                raise_hint(
                    PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                    format!("{} is not a mining state table", encoding::to_server(&name)),
                    "Make one with CREATE TABLE ... (LIKE laser_mining_state INCLUDING ALL).",
                );
            }
            name
        };
        Table {
            spi,
            name,
            mark: trust::mark(oid),
            namespace,
            snapshot,
        }
    }

    /// Calls `take` for the rows of a side in ascending order of ids.
    fn read<T: Row>(&self, side: Side, take: impl FnMut(T)) {
        let columns: Vec<&str> = T::COLUMNS.iter().map(|column| column.name).collect();
        let sql = format!(
            "SELECT {} FROM {} WHERE {}",
            columns.join(", "),
            self.name,
            of_side(side)
        );
        self.each(&sql, self.snapshot, take);
    }

    /// Calls `take` for the rows of a query of the table, sorted by the first column.
    fn each<T: Row>(&self, sql: &str, snapshot: Snapshot, mut take: impl FnMut(T)) {
        let sql = encoding::statement(&format!("{}{sql}", self.mark));
        let query = Query::parse(
            self.spi,
            "state",
            sql.as_bytes(),
            T::COLUMNS,
            self.namespace,
        );
        row::each(&query, snapshot, 1, |row| match row {
            Ok(row) => take(row),
            Err(column) => self.damaged(&format!("a value of {column} is null, or a part of it")),
        });
    }

    /// Raises an error if the table has changed since the transaction's snapshot was taken: a transaction that sees
    /// the same all the while (REPEATABLE READ) may have been begun before another update, whose rows it would neither
    /// see nor compare with, nor would anybody later. Nothing changes any more once the table is locked.
    fn check_snapshot(&self) {
        // SAFETY: reads a variable of the session.
        if unsafe { pg_sys::XactIsoLevel } < pg_sys::XACT_REPEATABLE_READ as i32 {
            return;
        }
        let sql = format!(
            "SELECT pg_catalog.count(*) AS rows, COALESCE(pg_catalog.bit_xor(pg_catalog.hashtextextended(
                 ROW(side, id, content, neighbours, cosines)::pg_catalog.text, 0)), 0) AS hash FROM {}",
            self.name
        );
        let [seen, latest] = [self.snapshot, Snapshot::Latest].map(|snapshot| {
            let mut extent = None;
            self.each(&sql, snapshot, |row: Extent| {
                extent = Some((row.rows, row.hash));
            });
            extent
        });
        if seen != latest {
            raise_hint(
                PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
                format!(
                    "could not serialize access to {} due to a concurrent update",
                    encoding::to_server(&self.name)
                ),
                "The transaction began before another laser_mine_update() ended: run it again.",
            );
        }
    }

    /// The neighbours of the rows of a side.
    fn lists(&self, side: Side) -> Lists {
        let mut lists = Lists::default();
        self.read(side, |row: Near| {
            if row.neighbours.len() != row.cosines.len() {
                self.damaged("a list of neighbours has another length than its cosines");
            }
            if !row.cosines.iter().all(|cosine| cosine.is_finite()) {
                self.damaged("a cosine is not a finite number");
            }
            let list = row.neighbours.into_iter().zip(row.cosines);
            lists.push(&encoding::to_server(&self.name), row.id, list);
        });
        lists
    }

    #[cold]
    fn damaged(&self, what: &str) -> ! {
        raise_hint(
            PgSqlErrorCode::ERRCODE_DATA_CORRUPTED,
            format!(
                "the mining state in {} is inconsistent: {what}",
                encoding::to_server(&self.name)
            ),
            "TRUNCATE the table; the next laser_mine_update() fills it again.",
        )
    }
}

/// What is wrong with a state whose lists name rows that it lacks.
const MISSING: &str = "a neighbour is missing";

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
        query: &Query<'_>,
        unify: bool,
        progress: &mut Progress,
        budget: &MemoryBudget,
    ) -> Self {
        progress.phase(load::reading(side));
        let mut old: Vec<(i64, Hash)> = Vec::new();
        table.read(side, |row: Content| match row.content.try_into() {
            Ok(content) => {
                budget.reserve("state", EACH);
                push(&mut old, (row.id, content));
            }
            Err(_) => table.damaged("a value of content is no hash"),
        });

        let name = side.to_string();
        let kind = query.kind(1);
        // Another model makes other embeddings of the same text, which are new content.
        let seed = match kind {
            Kind::Text => {
                // Before it is loaded.
                check_privilege(&model_name(None));
                let model = describe_model(None);
                // The encoders of one model for different languages have one fingerprint.
                let language = model_and_language(&model.name).1.unwrap_or_default();
                [&model.fingerprint, language.as_bytes()].concat()
            }
            _ => Vec::new(),
        };
        let mut stays = or_raise(laser_memory::filled(false, old.len()));
        let (mut added, mut added_rows) = (Vec::new(), Rows::default());
        let mut seen = HashSet::new();
        let limit = load::memory_of_side() / 2;
        each_row(query, side, progress, |batch, rows| {
            let mut chosen = Vec::new();
            for &(id, row) in rows {
                let hash = match kind {
                    Kind::Text => content_hash(&seed, batch.bytes(row, 1).unwrap_or_default()),
                    _ => batch
                        .embedding(row, 1, |values| {
                            let bytes: Vec<u8> = values
                                .iter()
                                .flat_map(|value| value.to_le_bytes())
                                .collect();
                            content_hash(&seed, &bytes)
                        })
                        .unwrap_or_default(),
                };
                if unify && kind == Kind::Text {
                    if !insert(&mut seen, hash) {
                        continue;
                    }
                    budget.reserve(&name, load::HASHED);
                }
                match old.binary_search_by_key(&id, |old| old.0) {
                    Ok(at) if old[at].1 == hash => stays[at] = true,
                    _ => {
                        budget.reserve(&name, EACH);
                        push(&mut added, (id, hash));
                        push(&mut chosen, (id, row));
                    }
                }
            }
            push_batch(&mut added_rows, side, kind, batch, &chosen, limit);
        });

        let mut kept = Rows::default();
        let mut stay = old.iter().zip(&stays);
        table.read(side, |row: Stored| {
            if stay.next().is_some_and(|(_, &stays)| stays) {
                kept.push(side, row.id, &row.embedding, limit);
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
        let kept = (0..).zip(&self.stays).filter(|&(_, &stays)| stays);
        or_raise(laser_memory::collect(kept.map(|(at, _)| at)))
    }

    /// Merges the ids that stay and those that came.
    fn unite(&mut self) {
        let kept = self
            .old
            .iter()
            .zip(&self.stays)
            .filter(|(_, stays)| **stays);
        let kept = kept.map(|(&(id, _), _)| (id, false));
        let added = self.added.iter().map(|&(id, _)| (id, true));
        let mut all = or_raise(laser_memory::collect(kept.chain(added)));
        sort_by(&mut all, Ord::cmp, &watch)
            .unwrap_or_else(|error| errors::search_failed(error, &[], &[]));
        for (position, (id, added)) in (0..).zip(all) {
            push(&mut self.ids, id);
            if added {
                push(&mut self.added_positions, position);
            } else {
                push(&mut self.kept_positions, position);
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
                "TRUNCATE the table to start over.",
            ),
        }
    }

    /// The lists in the table, with positions among the old rows of the other side.
    fn known(&self, table: &Table<'_>, other: &Part, k: usize) -> Neighbours {
        let lists = table.lists(self.side);
        if lists.ids.len() != self.old.len() {
            table.damaged("a row came or went during the update");
        }
        let others = or_raise(laser_memory::collect(other.old.iter().map(|old| old.0)));
        let known = lists
            .resolve(&others)
            .unwrap_or_else(|_| table.damaged(MISSING));
        let full = k.min(others.len());
        if lists.lengths().any(|length| length != full) {
            raise_hint(
                PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
                format!(
                    "the mining state in {} was made with another k",
                    encoding::to_server(&table.name)
                ),
                "Use the same k, or TRUNCATE the table to start over.",
            );
        }
        known
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
        let (mark, name, letter) = (&table.mark, &table.name, letter(self.side));
        let one = format!("{} AND id OPERATOR(pg_catalog.=) $1", of_side(self.side));
        let mut written = 0;
        let delete = Statement::prepare(
            table.spi,
            &format!("{mark}DELETE FROM {name} WHERE {one}"),
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
                "{mark}INSERT INTO {name} (side, id, content, embedding, neighbours, cosines) \
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
            &format!("{mark}UPDATE {name} SET neighbours = $2, cosines = $3 WHERE {one}"),
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
    let mut call = Call::begin(fcinfo);
    let table = Table::open(&call.spi, state, call.namespace, Snapshot::New);
    // One update at a time; readers go on.
    let lock = format!("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE", table.name);
    Statement::prepare(&call.spi, &lock, &[]).run(Vec::new);
    table.check_snapshot();

    let (source, target) = load::parse([source, target], &call.spi, call.namespace);
    let progress = &mut call.progress;
    let source = Part::read(&table, Side::Source, &source, unify, progress, &call.budget);
    let target = Part::read(&table, Side::Target, &target, unify, progress, &call.budget);
    let dimensions = load::common_dimensions(source.dimensions(&table), target.dimensions(&table));
    load::check_lists(source.ids.len(), target.ids.len(), k);
    let known = Neighbourhoods {
        forward: source.known(&table, &target, k),
        backward: target.known(&table, &source, k),
    };

    let (source_kept, target_kept) = (source.kept_old(), target.kept_old());
    let (source_growth, target_growth) = (source.growth(), target.growth());
    let shrinks = source.removed() + target.removed() > 0;
    let memory = load::memory_left([&source.added_rows, &target.added_rows]);
    let found = work::search(progress, memory, |options| {
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
    call.end(TableIterator::new(rows))
}

#[pg_extern(sql = "")]
fn laser_mine_stored(
    state: Oid,
    margin: &[u8],
    retrieval: &[u8],
    threshold: f64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> MinedRows {
    let choice = Choice::parse(margin, retrieval, threshold);
    let call = Call::begin(fcinfo);
    let table = Table::open(&call.spi, state, call.namespace, Snapshot::Caller);
    let (source, target) = (table.lists(Side::Source), table.lists(Side::Target));
    let found = lists::resolve(&source, &target).unwrap_or_else(|_| table.damaged(MISSING));
    let rows = choice.pairs(&found, &source.ids, &target.ids);
    call.end(TableIterator::new(rows))
}
