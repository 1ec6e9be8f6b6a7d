//! SQL errors of mining.

use laser_mining::{Error, Side};
use pgrx::PgSqlErrorCode;

use crate::pg::errors::{raise, raise_hint};

/// Raises the SQL error for an error of a search over the given rows.
#[cold]
pub fn search_failed(error: Error, source: &[i64], target: &[i64]) -> ! {
    let id = |side, row: usize| match side {
        Side::Source => source.get(row).copied().unwrap_or_default(),
        Side::Target => target.get(row).copied().unwrap_or_default(),
    };
    match error {
        Error::ZeroVector { side, row } => zero_vector(side, id(side, row)),
        Error::NotFinite { side, row } => raise(
            PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
            format!("the embedding of {side} id {} is not finite", id(side, row)),
        ),
        Error::Spill(error) => spill_failed(&error),
        Error::OutOfMemory(error) => crate::pg::memory::raise(error),
        Error::ZeroK => bad_k(0),
        Error::TooManyRows { .. } => raise(
            PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            error.to_string(),
        ),
        _ => raise(PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, error.to_string()),
    }
}

#[cold]
fn zero_vector(side: Side, id: i64) -> ! {
    raise_hint(
        PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
        format!("the embedding of {side} id {id} is a zero vector, which has no cosine"),
        "Leave such rows out of the query.",
    )
}

/// Raises the SQL error for a temporary file that could not be used.
#[cold]
pub fn spill_failed(error: &std::io::Error) -> ! {
    if error.kind() == std::io::ErrorKind::OutOfMemory {
        raise_hint(
            PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
            error.to_string(),
            "Work on less at a time, or make more memory available to the server.",
        );
    }
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            PgSqlErrorCode::ERRCODE_DISK_FULL
        }
        _ => PgSqlErrorCode::ERRCODE_IO_ERROR,
    };
    raise_hint(
        code,
        format!("could not use a temporary file for mining: {error}"),
        "Free space in the data directory, or raise laser.mining_memory to keep more in memory.",
    )
}

/// Raises the SQL error for a k that is not positive.
#[cold]
pub fn bad_k(k: i32) -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("k must be at least 1, not {k}"),
    )
}

/// Raises the SQL error for a name that is none of those in `known`.
#[cold]
pub fn bad_name(what: &str, name: &str, known: &str) -> ! {
    raise_hint(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        format!("unknown {what} \"{name}\""),
        format!("Valid values are {known}."),
    )
}
