//! Queries given as text, run through SPI in the caller's rights and snapshot.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::CaughtError;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::{FromDatum, PgSqlErrorCode, PgTryBuilder, check_for_interrupts};

use crate::encode::{Origin, Origins};
use crate::pg::encoding;
use crate::pg::errors::{raise, raise_hint, raise_like};
use crate::types::{Embedding, HalfEmbedding, pgvector};

/// Rows fetched at a time.
const BATCH: i64 = 1024;

/// A connection to SPI. It must be closed in the order of nesting; when an error unwinds, the
/// end of the transaction closes it.
pub struct Spi(());

impl Spi {
    /// Begins a connection of SPI, which [`Spi::close`] ends.
    pub fn connect() -> Self {
        // SAFETY: SPI keeps a stack of connections; close() pops this one.
        if unsafe { pg_sys::SPI_connect() } != pg_sys::SPI_OK_CONNECT as i32 {
            raise(
                PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                "could not connect to SPI",
            );
        }
        Spi(())
    }

    /// Disconnects. What was allocated by the server since [`Spi::connect`] is freed.
    pub fn close(self) {
        // SAFETY: connected since `self` exists.
        unsafe { pg_sys::SPI_finish() };
    }
}

/// What a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snapshot {
    /// What the calling query sees.
    Caller,
    /// What a statement sees that begins now.
    New,
    /// What is committed now, whatever the transaction's isolation, and what it has done itself.
    Latest,
}

/// A statement that writes, with parameters.
pub struct Statement {
    plan: pg_sys::SPIPlanPtr,
    parameters: usize,
    memory: pg_sys::MemoryContext,
}

impl Statement {
    /// Prepares a statement with parameters of the given types. SPI must be connected.
    pub fn prepare(spi: &Spi, sql: &str, types: &[Oid]) -> Self {
        let _ = spi;
        let sql = encoding::statement(sql);
        let mut types = types.to_vec();
        // SAFETY: SPI is connected; the types are read during the call. The memory context is a
        // child of SPI's.
        unsafe {
            let plan = pg_sys::SPI_prepare(sql.as_ptr(), types.len() as i32, types.as_mut_ptr());
            if plan.is_null() {
                raise(
                    PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                    "could not prepare a statement",
                );
            }
            let memory = pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"laser mining row".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            Statement {
                plan,
                parameters: types.len(),
                memory,
            }
        }
    }

    /// Runs it with the parameters that `make` allocates. Returns the number of rows touched.
    pub fn run(&self, make: impl FnOnce() -> Vec<Datum>) -> u64 {
        check_for_interrupts!();
        // SAFETY: as many parameters of the right types as were prepared; their memory is freed
        // after the statement.
        unsafe {
            let outer = pg_sys::MemoryContextSwitchTo(self.memory);
            let mut values = make();
            assert_eq!(values.len(), self.parameters);
            let code = pg_sys::SPI_execute_plan(
                self.plan,
                values.as_mut_ptr(),
                std::ptr::null(),
                false,
                0,
            );
            if code < 0 {
                raise(
                    PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                    "could not run a statement",
                );
            }
            pg_sys::MemoryContextSwitchTo(outer);
            pg_sys::MemoryContextReset(self.memory);
            pg_sys::SPI_processed
        }
    }
}

/// What a column of a query may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// smallint, integer or bigint.
    Integer,
    /// real, double precision.
    Float,
    /// text, varchar, char.
    Text,
    /// bytea.
    Bytes,
    /// bigint[].
    Integers,
    /// double precision[].
    Floats,
    /// The extension's `embedding`, or pgvector's `vector`.
    Embedding,
    /// The extension's `halfembedding`, or pgvector's `halfvec`.
    HalfEmbedding,
}

/// A column that a query must have.
pub struct Wanted {
    /// What it holds, for messages: "id".
    pub name: &'static str,
    /// Its type, for messages: "bigint".
    pub type_name: &'static str,
    /// What it may be.
    pub kinds: &'static [Kind],
}

/// A query that was parsed and whose columns were checked.
pub struct Query<'a> {
    name: &'a str,
    /// The statement, without the semicolon that ended it.
    sql: &'a [u8],
    /// Kind and type of each column.
    columns: Vec<(Kind, Oid)>,
    /// Of which model the embeddings are in the last column, as far as that is known.
    origins: Vec<Origin>,
}

impl<'a> Query<'a> {
    /// Parses a query; `name` is what messages call it: "source". SPI must be connected.
    ///
    /// Raises a SQL error unless it is a single SELECT (or VALUES, TABLE) without data-modifying
    /// CTEs or row locks that returns exactly the wanted columns. `namespace` is the schema of
    /// the extension, whose embedding types are meant.
    pub fn parse(
        spi: &Spi,
        name: &'a str,
        sql: &'a [u8],
        wanted: &[Wanted],
        namespace: Oid,
    ) -> Self {
        let _ = spi;
        let plan = about(name, || prepare(sql));
        // SAFETY: a valid plan has a list of plan sources, each with a list of queries after
        // parse analysis; both live as long as the plan.
        let (columns, origins, extent) = unsafe {
            let sources = pg_sys::SPI_plan_get_plan_sources(plan);
            if sources.is_null() || (*sources).length != 1 {
                not_a_select(name);
            }
            let source = (*(*sources).elements)
                .ptr_value
                .cast::<pg_sys::CachedPlanSource>();
            let queries = (*source).query_list;
            if queries.is_null() || (*queries).length != 1 || (*source).resultDesc.is_null() {
                not_a_select(name);
            }
            let query = (*(*queries).elements).ptr_value.cast::<pg_sys::Query>();
            if (*query).commandType != pg_sys::CmdType::CMD_SELECT
                || (*query).hasModifyingCTE
                || !(*query).rowMarks.is_null()
            {
                not_a_select(name);
            }
            let descriptor = (*source).resultDesc;
            let count = (*descriptor).natts;
            let types: Vec<Oid> = (1..=count)
                .map(|at| pg_sys::SPI_gettypeid(descriptor, at))
                .collect();
            let columns = check_columns(name, &types, wanted, namespace);
            let embedded = (wanted.last()).is_some_and(|w| w.kinds.contains(&Kind::Embedding));
            let origins = match columns.last().filter(|_| embedded) {
                Some((Kind::Embedding | Kind::HalfEmbedding, _)) => {
                    Origins::in_schema(namespace).of_output(query, columns.len() as i16)
                }
                Some((Kind::Text, _)) => {
                    let what = format!("the texts of the {name} query");
                    Origin::of_session(what).into_iter().collect()
                }
                _ => Vec::new(),
            };
            // Where a semicolon ended the statement; no length means the end of the text.
            let from = (*query).stmt_location.max(0) as usize;
            let length = (*query).stmt_len.max(0) as usize;
            (
                columns,
                origins,
                from..if length > 0 { from + length } else { sql.len() },
            )
        };
        // SAFETY: made above and not used again.
        unsafe { pg_sys::SPI_freeplan(plan) };
        Query {
            name,
            sql: sql.get(extent).unwrap_or(sql),
            columns,
            origins,
        }
    }

    /// Of which model the embeddings are that the last column has, or that are made of its texts.
    pub fn origins(&self) -> &[Origin] {
        &self.origins
    }

    /// The kind of a column, counted from 0.
    pub fn kind(&self, column: usize) -> Kind {
        self.columns[column].0
    }

    /// The type of a column, counted from 0; that below a domain.
    pub fn type_of(&self, column: usize) -> Oid {
        self.columns[column].1
    }

    /// The statement itself.
    pub fn sql(&self) -> &[u8] {
        self.sql
    }

    /// Runs the query, sorted by its first `sorted_by` columns, and hands over its rows in batches.
    /// Memory that `take` allocates from the server is freed after each batch.
    pub fn run(&self, snapshot: Snapshot, sorted_by: usize, take: impl FnMut(&Batch<'_>)) {
        about(self.name, || self.fetch(snapshot, sorted_by, take));
    }

    fn fetch(&self, snapshot: Snapshot, sorted_by: usize, mut take: impl FnMut(&Batch<'_>)) {
        let order: Vec<String> = (1..=sorted_by).map(|at| at.to_string()).collect();
        // The line break ends a comment at the end of the query.
        let mut sorted = [b"SELECT * FROM (\n", self.sql, b"\n) AS query"].concat();
        if !order.is_empty() {
            sorted.extend_from_slice(format!(" ORDER BY {}", order.join(", ")).as_bytes());
        }
        let plan = prepare(&sorted);
        // SAFETY: the plan has no parameters. A read-only cursor uses the active snapshot, which is
        // that of the calling query unless another one is pushed, and keeps it; others take a new one.
        let portal = unsafe {
            if !pg_sys::SPI_is_cursor_plan(plan) {
                not_a_select(self.name);
            }
            if snapshot == Snapshot::Latest {
                pg_sys::PushActiveSnapshot(pg_sys::GetLatestSnapshot());
            }
            let portal = pg_sys::SPI_cursor_open(
                std::ptr::null(),
                plan,
                std::ptr::null_mut(),
                std::ptr::null(),
                snapshot != Snapshot::New,
            );
            if snapshot == Snapshot::Latest {
                pg_sys::PopActiveSnapshot();
            }
            portal
        };
        // Functions that other queries call meanwhile may say CLOSE ALL. An error unpins.
        // SAFETY: the portal was opened above.
        unsafe { pg_sys::PinPortal(portal) };
        // SAFETY: contexts are made, entered, left and deleted in order; when an error unwinds,
        // the context goes with its parent, SPI's.
        unsafe {
            let memory = pg_sys::AllocSetContextCreateInternal(
                pg_sys::CurrentMemoryContext,
                c"laser mining batch".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            loop {
                check_for_interrupts!();
                pg_sys::SPI_cursor_fetch(portal, true, BATCH);
                let table = pg_sys::SPI_tuptable;
                let rows = pg_sys::SPI_processed as usize;
                if rows == 0 {
                    pg_sys::SPI_freetuptable(table);
                    break;
                }
                self.check_unchanged((*table).tupdesc);
                let outer = pg_sys::MemoryContextSwitchTo(memory);
                take(&Batch {
                    table: &*table,
                    rows,
                    columns: &self.columns,
                });
                pg_sys::MemoryContextSwitchTo(outer);
                pg_sys::MemoryContextReset(memory);
                pg_sys::SPI_freetuptable(table);
            }
            pg_sys::MemoryContextDelete(memory);
            pg_sys::UnpinPortal(portal);
            pg_sys::SPI_cursor_close(portal);
            pg_sys::SPI_freeplan(plan);
        }
    }
}

impl Query<'_> {
    /// Raises an error unless rows have the columns that the query was parsed with. Between parsing
    /// and running it, functions of other queries may have replaced the tables and views that it
    /// names; its values would be read as what they are not.
    ///
    /// # Safety
    /// The descriptor is that of rows of this query.
    unsafe fn check_unchanged(&self, descriptor: pg_sys::TupleDesc) {
        // SAFETY: by contract.
        let found = unsafe { (*descriptor).natts } as usize;
        let same = |(at, &(_, wanted)): (usize, &(Kind, Oid))| {
            // SAFETY: by contract.
            unsafe { base_type(descriptor, at) == wanted }
        };
        if found != self.columns.len() || !self.columns.iter().enumerate().all(same) {
            columns_changed(self.name);
        }
    }
}

/// The type of a column of a result, counted from 0; that below a domain.
///
/// # Safety
/// The descriptor is a valid one.
pub unsafe fn base_type(descriptor: pg_sys::TupleDesc, column: usize) -> Oid {
    // SAFETY: by contract; a column that does not exist has no type.
    unsafe { pg_sys::getBaseType(pg_sys::SPI_gettypeid(descriptor, column as i32 + 1)) }
}

/// Raises the error that the columns of a query are not what they were.
#[cold]
pub fn columns_changed(name: &str) -> ! {
    raise_hint(
        PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
        format!("the columns of the {name} query have changed while it was prepared"),
        "Do not alter or replace its tables and views meanwhile.",
    )
}

/// Some rows of a result.
pub struct Batch<'a> {
    table: &'a pg_sys::SPITupleTable,
    rows: usize,
    columns: &'a [(Kind, Oid)],
}

impl<'a> Batch<'a> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A value; `None` for NULL. It lives as long as the batch.
    pub fn datum(&self, row: usize, column: usize) -> Option<Datum> {
        assert!(row < self.rows && column < self.columns.len());
        let mut null = false;
        // SAFETY: the row and the column exist, as asserted.
        let datum = unsafe {
            pg_sys::SPI_getbinval(
                *self.table.vals.add(row),
                self.table.tupdesc,
                column as i32 + 1,
                &mut null,
            )
        };
        (!null).then_some(datum)
    }

    /// The value of an integer column.
    pub fn integer(&self, row: usize, column: usize) -> Option<i64> {
        Some(integer_of(self.columns[column].1, self.datum(row, column)?))
    }

    /// The value of a float column.
    pub fn float(&self, row: usize, column: usize) -> Option<f64> {
        let datum = self.datum(row, column)?;
        Some(match self.columns[column].1 {
            pg_sys::FLOAT4OID => f64::from(f32::from_bits(datum.value() as u32)),
            _ => f64::from_bits(datum.value() as u64),
        })
    }

    /// The value of an array column; `None` for NULL, and where an element is NULL.
    pub fn array<T>(&self, row: usize, column: usize) -> Option<Vec<T>>
    where
        Vec<T>: FromDatum,
    {
        let datum = self.datum(row, column)?;
        // SAFETY: a non-null datum of an array type, whose elements `T` are by the column's kind. The
        // copy that detoasting may make goes with the batch.
        unsafe {
            let array = pg_sys::pg_detoast_datum(datum.cast_mut_ptr()).cast::<pg_sys::ArrayType>();
            if pg_sys::array_contains_nulls(array) {
                return None;
            }
            Vec::<T>::from_datum(Datum::from(array), false)
        }
    }

    /// Calls `f` with the value of an embedding column, unless it is NULL.
    pub fn embedding<T>(
        &self,
        row: usize,
        column: usize,
        f: impl FnOnce(&[f32]) -> T,
    ) -> Option<T> {
        let datum = self.datum(row, column)?;
        Some(if self.columns[column].0 == Kind::HalfEmbedding {
            // SAFETY: the column was checked to be of this type, and the batch outlives the call.
            let values = unsafe { HalfEmbedding::from_raw(datum) };
            let wide: Vec<f32> = (values.as_slice().iter())
                .map(|value| value.to_f32())
                .collect();
            f(&wide)
        } else {
            // SAFETY: as above.
            f(unsafe { Embedding::from_raw(datum) }.as_slice())
        })
    }

    /// The bytes of a bytea column or of a text column, the latter in the encoding of the
    /// database.
    pub fn bytes(&self, row: usize, column: usize) -> Option<&'a [u8]> {
        let datum = self.datum(row, column)?;
        // SAFETY: a text or bytea datum of the batch, which outlives the result.
        Some(unsafe { bytes_of(datum) })
    }
}

/// The bytes of a text or bytea.
///
/// # Safety
/// `datum` is one and not null; it, or the memory context that it is unpacked into, outlives the
/// result.
pub unsafe fn bytes_of<'a>(datum: Datum) -> &'a [u8] {
    // SAFETY: a varlena, by contract.
    unsafe {
        let flat = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
        let (data, length) = (
            pgrx::varlena::vardata_any(flat),
            pgrx::varlena::varsize_any_exhdr(flat),
        );
        std::slice::from_raw_parts(data.cast(), length)
    }
}

/// The value of a smallint, integer or bigint.
pub fn integer_of(kind: Oid, datum: Datum) -> i64 {
    let value = datum.value();
    match kind {
        pg_sys::INT2OID => i64::from(value as i16),
        pg_sys::INT4OID => i64::from(value as i32),
        _ => value as i64,
    }
}

/// Calls `f`. An error of the server in it tells, as its detail, which query it is about.
fn about<T>(name: &str, f: impl FnOnce() -> T) -> T {
    PgTryBuilder::new(AssertUnwindSafe(f))
        .catch_others(|error| match error {
            CaughtError::PostgresError(report)
                if report.sql_error_code() != PgSqlErrorCode::ERRCODE_QUERY_CANCELED =>
            {
                let detail = report.detail().map_or_else(
                    || format!("The error is in the {name} query."),
                    encoding::to_server,
                );
                raise_like(&report, encoding::to_server, detail)
            }
            other => other.rethrow(),
        })
        .execute()
}

/// Prepares a statement in the encoding of the database.
fn prepare(sql: &[u8]) -> pg_sys::SPIPlanPtr {
    let text = CString::new(sql).expect("a text datum has no zero byte");
    // SAFETY: SPI is connected; no parameters.
    let plan = unsafe { pg_sys::SPI_prepare(text.as_ptr(), 0, std::ptr::null_mut()) };
    if plan.is_null() {
        // SAFETY: set by SPI_prepare.
        let code = unsafe { CStr::from_ptr(pg_sys::SPI_result_code_string(pg_sys::SPI_result)) };
        raise(
            PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
            format!("could not prepare a query: {}", code.to_string_lossy()),
        );
    }
    plan
}

#[cold]
fn not_a_select(name: &str) -> ! {
    raise_hint(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("the {name} query must be one SELECT that only reads"),
        "Statements that write, lock rows, or return no rows are not accepted.",
    )
}

fn check_columns(name: &str, types: &[Oid], wanted: &[Wanted], namespace: Oid) -> Vec<(Kind, Oid)> {
    let expected = || {
        let columns = wanted
            .iter()
            .map(|wanted| format!("{} {}", wanted.name, wanted.type_name));
        columns.collect::<Vec<_>>().join(", ")
    };
    if types.len() != wanted.len() {
        raise_hint(
            PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
            format!(
                "the {name} query must return {} columns, not {}",
                wanted.len(),
                types.len()
            ),
            format!("It must return ({}).", expected()),
        );
    }
    let kind_of = |oid: Oid| {
        // SAFETY: catalogue look-ups on the server's only thread.
        let base = unsafe { pg_sys::getBaseType(oid) };
        let kind = match base {
            pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID => Some(Kind::Integer),
            pg_sys::FLOAT4OID | pg_sys::FLOAT8OID => Some(Kind::Float),
            pg_sys::BYTEAOID => Some(Kind::Bytes),
            pg_sys::INT8ARRAYOID => Some(Kind::Integers),
            pg_sys::FLOAT8ARRAYOID => Some(Kind::Floats),
            pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID => Some(Kind::Text),
            _ if base == own_type(c"embedding", namespace) => Some(Kind::Embedding),
            _ if base == own_type(c"halfembedding", namespace) => Some(Kind::HalfEmbedding),
            _ => pgvector(base).map(|theirs| match theirs.is_half {
                true => Kind::HalfEmbedding,
                false => Kind::Embedding,
            }),
        };
        kind.map(|kind| (kind, base))
    };
    let mut columns = Vec::with_capacity(types.len());
    for (at, (&oid, wanted)) in types.iter().zip(wanted).enumerate() {
        match kind_of(oid) {
            Some((kind, base)) if wanted.kinds.contains(&kind) => columns.push((kind, base)),
            _ => {
                // SAFETY: returns a new C string.
                let found = unsafe { CStr::from_ptr(pg_sys::format_type_be(oid)) };
                raise_hint(
                    PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
                    format!(
                        "column {} ({}) of the {name} query must be {}, not {}",
                        at + 1,
                        wanted.name,
                        wanted.type_name,
                        found.to_string_lossy()
                    ),
                    format!(
                        "It must return ({}); cast the column if need be.",
                        expected()
                    ),
                );
            }
        }
    }
    columns
}

/// A type of the extension.
pub fn own_type(name: &CStr, namespace: Oid) -> Oid {
    // SAFETY: a catalogue look-up with a name and an OID as keys.
    unsafe {
        pg_sys::GetSysCacheOid(
            pg_sys::SysCacheIdentifier::TYPENAMENSP as i32,
            pg_sys::Anum_pg_type_oid as i16,
            Datum::from(name.as_ptr()),
            Datum::from(namespace),
            Datum::from(0),
            Datum::from(0),
        )
    }
}
