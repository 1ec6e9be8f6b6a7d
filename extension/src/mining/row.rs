//! Rows of queries as structs whose fields are named and typed like the columns.

use pgrx::PgSqlErrorCode;

use super::call::Call;
use super::query::{Batch, Kind, Query, Snapshot, Wanted};
use crate::pg::errors::raise;

/// What a column is read as.
pub trait Value: Sized {
    /// What the column may be.
    const KINDS: &'static [Kind];
    /// The type that messages ask for.
    const TYPE_NAME: &'static str;

    /// The value; `None` for NULL.
    fn read(batch: &Batch<'_>, row: usize, column: usize) -> Option<Self>;
}

macro_rules! value {
    ($type:ty, $kind:ident, $name:literal, $read:expr) => {
        impl Value for $type {
            const KINDS: &'static [Kind] = &[Kind::$kind];
            const TYPE_NAME: &'static str = $name;

            fn read(batch: &Batch<'_>, row: usize, column: usize) -> Option<Self> {
                $read(batch, row, column)
            }
        }
    };
}

value!(i64, Integer, "bigint", Batch::integer);
value!(f64, Float, "double precision", Batch::float);
value!(Vec<i64>, Integers, "bigint[]", Batch::array);
value!(Vec<f64>, Floats, "double precision[]", Batch::array);
value!(Vec<u8>, Bytes, "bytea", |batch: &Batch<'_>, row, column| {
    batch.bytes(row, column).map(<[u8]>::to_vec)
});
value!(
    Vec<f32>,
    Embedding,
    "embedding",
    |batch: &Batch<'_>, row, column| batch.embedding(row, column, <[f32]>::to_vec)
);

/// A row of a query, none of whose columns may be null.
pub trait Row: Sized {
    /// The columns that the query must have.
    const COLUMNS: &'static [Wanted];

    /// Reads a row of a batch, or names the column that is null.
    fn read(batch: &Batch<'_>, row: usize) -> Result<Self, &'static str>;
}

/// Defines structs that are rows: each field is a column of the same name.
macro_rules! rows {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty),* $(,)? })*) => { $(
        $(#[$doc])*
        struct $name {
            $($field: $type,)*
        }

        impl $crate::mining::row::Row for $name {
            const COLUMNS: &'static [$crate::mining::query::Wanted] = &[
                $($crate::mining::query::Wanted {
                    name: stringify!($field),
                    type_name: <$type as $crate::mining::row::Value>::TYPE_NAME,
                    kinds: <$type as $crate::mining::row::Value>::KINDS,
                },)*
            ];

            fn read(
                batch: &$crate::mining::query::Batch<'_>,
                row: usize,
            ) -> Result<Self, &'static str> {
                let mut columns = 0..;
                Ok($name {
                    $($field: $crate::mining::row::Value::read(
                        batch,
                        row,
                        columns.next().expect("endless"),
                    )
                    .ok_or(stringify!($field))?,)*
                })
            }
        }
    )* };
}
pub(crate) use rows;

/// Runs a query and hands over its rows, sorted by the first `sorted_by` columns. Raises a SQL
/// error for a null; `name` is what messages call the query.
pub fn read<T: Row>(
    call: &Call,
    name: &str,
    sql: &[u8],
    sorted_by: usize,
    mut take: impl FnMut(T),
) {
    let query = Query::parse(&call.spi, name, sql, T::COLUMNS, call.namespace);
    each(&query, Snapshot::Caller, sorted_by, |row| match row {
        Ok(row) => take(row),
        Err(column) => raise(
            PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            format!("the {name} query returned a null {column}"),
        ),
    });
}

/// Runs a query that was parsed for the columns of `T`. A row with a null is the name of its
/// column.
pub fn each<T: Row>(
    query: &Query<'_>,
    snapshot: Snapshot,
    sorted_by: usize,
    mut take: impl FnMut(Result<T, &'static str>),
) {
    query.run(snapshot, sorted_by, |batch| {
        (0..batch.rows()).for_each(|row| take(T::read(batch, row)));
    });
}
