//! The rows of the two sides, sorted by id.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;

use laser_mining::{Error, RowStore, Side, temporary_file};
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;

use super::call::{Call, MemoryBudget};
use super::errors;
use super::guc;
use super::progress::Progress;
use super::query::{Batch, Kind, Query, Snapshot, Spi, Wanted};
use super::row::Value;
use crate::encode::{Role, embed_texts, refuse_two_models};
use crate::pg::errors::raise_hint;
use crate::pg::memory::{insert, or_raise, push};
use crate::pg::temp_files;

/// What a query of a side returns: an id, and a text or an embedding.
pub const SIDE_COLUMNS: [Wanted; 2] = [
    Wanted {
        name: "id",
        type_name: i64::TYPE_NAME,
        kinds: i64::KINDS,
    },
    Wanted {
        name: "value",
        type_name: "text or embedding",
        kinds: &[Kind::Text, Kind::Embedding, Kind::HalfEmbedding],
    },
];

/// One side: embeddings with their ids, in ascending order of ids.
pub struct Loaded {
    /// Source or target.
    pub side: Side,
    /// Ids, ascending, without duplicates.
    pub ids: Vec<i64>,
    /// The embedding of each id.
    pub rows: Rows,
}

impl Loaded {
    /// The row of an id in [`Loaded::rows`], if the side has it; O(log rows).
    pub fn position(&self, id: i64) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    /// Dimensions of the embeddings; 0 when there are none.
    pub fn dimensions(&self) -> usize {
        self.rows.dimensions()
    }
}

/// [`errors::search_failed`] for two loaded sides.
#[cold]
pub fn search_of_failed(error: Error, source: &Loaded, target: &Loaded) -> ! {
    errors::search_failed(error, &source.ids, &target.ids)
}

/// Embeddings whose dimensions are those of the first one.
#[derive(Default)]
pub struct Rows {
    store: Option<RowStore>,
    /// Bytes of its file.
    file: usize,
}

thread_local! {
    /// Bytes of the files of all rows that the session has: functions may call each other.
    static FILES: Cell<usize> = const { Cell::new(0) };
}

impl Drop for Rows {
    fn drop(&mut self) {
        FILES.set(FILES.get().saturating_sub(self.file));
    }
}

impl Rows {
    /// Appends an embedding. `limit` is what may stay in memory.
    pub fn push(&mut self, side: Side, id: i64, row: &[f32], limit: usize) {
        let store = self
            .store
            .get_or_insert_with(|| RowStore::new(row.len(), limit, Some(spill_folder())));
        if store.dimensions() != row.len() {
            raise_hint(
                PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
                format!(
                    "the embedding of {side} id {id} has {} dimensions, the ones before it have {}",
                    row.len(),
                    store.dimensions()
                ),
                format!(
                    "All rows must be embedded by the same model: embed the others again, or leave them out of \
                     the query (WHERE vector_dims(column) = {}).",
                    store.dimensions()
                ),
            );
        }
        if let Err(error) = store.push(row) {
            errors::search_failed(error, &[], &[]);
        }
        if store.spilled() {
            let bytes = store.rows() * store.dimensions() * size_of::<f32>();
            FILES.set(FILES.get() + bytes - self.file);
            self.file = bytes;
            check_limit(0);
        }
    }

    /// For a search.
    pub fn as_rows(&self) -> laser_mining::Rows<'_> {
        match &self.store {
            Some(store) => store.into(),
            None => laser_mining::Rows::Slice(&[]),
        }
    }

    /// A file with all of them.
    pub fn to_file(&self) -> Result<File, Error> {
        match &self.store {
            Some(store) => store.to_file(),
            None => Ok(temporary_file(Some(&spill_folder()))?),
        }
    }

    /// One of the embeddings.
    pub fn row(&self, at: usize) -> Result<Cow<'_, [f32]>, Error> {
        self.store.as_ref().expect("a row exists").row(at)
    }

    /// Number of embeddings.
    pub fn len(&self) -> usize {
        self.store.as_ref().map_or(0, RowStore::rows)
    }

    /// Dimensions of the embeddings; 0 when there are none.
    pub fn dimensions(&self) -> usize {
        self.store.as_ref().map_or(0, RowStore::dimensions)
    }

    /// Whether a file holds some of them.
    pub fn spilled(&self) -> bool {
        self.store.as_ref().is_some_and(RowStore::spilled)
    }
}

/// Where embeddings go that do not fit into memory: the folder of the server's own temporary
/// files in the data directory, which is where a session runs. The files have no names.
pub fn spill_folder() -> PathBuf {
    let folder = PathBuf::from("base/pgsql_tmp");
    if !folder.exists() {
        use std::os::unix::fs::DirBuilderExt;
        // If it cannot be made, the first file in it will say why.
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&folder);
    }
    folder
}

/// Whether temporary files may grow by `bytes` bytes.
pub fn within_limit(bytes: usize) -> bool {
    let bytes = FILES.get().saturating_add(bytes);
    temp_files::limit().is_none_or(|limit| bytes as u64 <= limit)
}

/// Raises a SQL error unless temporary files may grow by `bytes` bytes.
pub fn check_limit(bytes: usize) {
    if !within_limit(bytes) {
        let limit = temp_files::limit().unwrap_or_default() / 1024;
        raise_hint(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            format!("temporary file size exceeds temp_file_limit ({limit}kB)"),
            "Raise laser.mining_memory to keep more in memory.",
        );
    }
}

/// What a search may use after the rows were loaded.
pub fn memory_left(sides: [&Rows; 2]) -> usize {
    let memory = guc::memory();
    if sides.iter().all(|rows| rows.spilled()) {
        memory
    } else {
        memory / 2
    }
}

/// Raises a SQL error unless the lists of up to `k` neighbours of each row of two sides fit into
/// what a function may use.
pub fn check_lists(source: usize, target: usize, k: usize) {
    // Position and cosine.
    let bytes = |rows: usize, others: usize| rows.saturating_mul(k.min(others)).saturating_mul(12);
    let bytes = bytes(source, target).saturating_add(bytes(target, source));
    if bytes > guc::memory() {
        raise_hint(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            format!(
                "the lists of neighbours of {source} and {target} rows at k = {k} take {} kB, more \
                 than laser.mining_memory",
                bytes / 1024
            ),
            format!("Lower k. {}", guc::MORE_MEMORY),
        );
    }
}

/// What one side may keep in memory.
pub fn memory_of_side() -> usize {
    guc::memory() / 4
}

/// Calls `each` for every row of a side in ascending order of ids: with its id and its row in the
/// batch. Raises SQL errors for null and for duplicate ids; passes over rows without a value.
pub fn each_row(
    query: &Query<'_>,
    side: Side,
    progress: &mut Progress,
    mut batch_done: impl FnMut(&Batch<'_>, &[(i64, usize)]),
) {
    let mut last = None;
    let mut count = 0;
    query.run(Snapshot::Caller, 1, |batch| {
        let mut rows = Vec::new();
        for row in 0..batch.rows() {
            let Some(id) = batch.integer(row, 0) else {
                raise_hint(
                    PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
                    format!("the {side} query returned a null id"),
                    "Leave such rows out of the query (WHERE id IS NOT NULL).",
                )
            };
            if last.replace(id) == Some(id) {
                raise_hint(
                    PgSqlErrorCode::ERRCODE_CARDINALITY_VIOLATION,
                    format!("the {side} query returned id {id} more than once"),
                    "Ids must be unique within a side.",
                );
            }
            if batch.datum(row, 1).is_some() {
                push(&mut rows, (id, row));
            }
        }
        count += rows.len();
        batch_done(batch, &rows);
        progress.read(side as usize, count);
    });
}

/// Appends the embeddings of the given rows of a batch, embedding their texts where the column is
/// one of texts.
pub fn push_batch(
    rows: &mut Rows,
    side: Side,
    kind: Kind,
    batch: &Batch<'_>,
    chosen: &[(i64, usize)],
    limit: usize,
) {
    match kind {
        Kind::Text => {
            let texts: Vec<&[u8]> = chosen
                .iter()
                .map(|&(_, row)| batch.bytes(row, 1).unwrap_or_default())
                .collect();
            if texts.is_empty() {
                return;
            }
            let embedded = embed_texts(None, Role::Plain, &texts);
            for (at, &(id, _)) in chosen.iter().enumerate() {
                rows.push(side, id, embedded.row(at), limit);
            }
        }
        Kind::Embedding | Kind::HalfEmbedding => {
            for &(id, row) in chosen {
                batch.embedding(row, 1, |values| rows.push(side, id, values, limit));
            }
        }
        _ => unreachable!("checked when the query was parsed"),
    }
}

/// Bytes for a hash in a set.
pub const HASHED: usize = MemoryBudget::per_hash_entry::<[u8; 16]>();

/// Hash of a text or of an embedding that tells whether two are equal.
pub fn content_hash(seed: &[u8], bytes: &[u8]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(seed).update(bytes);
    let mut hash = [0; 16];
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    hash
}

/// The phase of a side's query.
pub fn reading(side: Side) -> &'static str {
    match side {
        Side::Source => "reading source",
        Side::Target => "reading target",
    }
}

/// Parses the queries of both sides; raises a SQL error if they are known to give embeddings of two
/// models.
pub fn parse<'a>(
    [source, target]: [&'a [u8]; 2],
    spi: &Spi,
    namespace: Oid,
) -> (Query<'a>, Query<'a>) {
    let parse = |name, sql| Query::parse(spi, name, sql, &SIDE_COLUMNS, namespace);
    let queries = (parse("source", source), parse("target", target));
    refuse_two_models(queries.0.origins(), queries.1.origins());
    queries
}

/// Runs the queries of both sides. `unify`: of equal texts only the one with the lowest id is kept.
pub fn load(queries: [&[u8]; 2], unify: bool, call: &mut Call) -> (Loaded, Loaded) {
    let (source, target) = parse(queries, &call.spi, call.namespace);
    (
        load_side(Side::Source, &source, unify, call),
        load_side(Side::Target, &target, unify, call),
    )
}

fn load_side(side: Side, query: &Query<'_>, unify: bool, call: &mut Call) -> Loaded {
    call.progress.phase(reading(side));
    let name = side.to_string();
    let kind = query.kind(1);
    let limit = memory_of_side();
    let mut loaded = Loaded {
        side,
        ids: Vec::new(),
        rows: Rows::default(),
    };
    let mut seen = HashSet::new();
    let budget = &call.budget;
    each_row(query, side, &mut call.progress, |batch, rows| {
        let mut chosen = rows.to_vec();
        if unify && kind == Kind::Text {
            chosen.retain(|&(_, row)| {
                batch.bytes(row, 1).is_none_or(|text| {
                    let new = insert(&mut seen, content_hash(b"", text));
                    budget.reserve(&name, if new { HASHED } else { 0 });
                    new
                })
            });
        }
        budget.reserve(&name, chosen.len() * size_of::<i64>());
        push_batch(&mut loaded.rows, side, kind, batch, &chosen, limit);
        or_raise(laser_memory::extend(
            &mut loaded.ids,
            chosen.iter().map(|&(id, _)| id),
        ));
    });
    loaded
}

/// Raises a SQL error unless both sides have the same dimensions or one is empty. Returns them.
pub fn common_dimensions(source: usize, target: usize) -> usize {
    if source != 0 && target != 0 && source != target {
        raise_hint(
            PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
            format!("source embeddings have {source} dimensions, target embeddings {target}"),
            "Both sides must be embedded by the same model.",
        );
    }
    source.max(target).max(1)
}
