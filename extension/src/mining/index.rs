//! Mining with laser indexes instead of the exact search.

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Oid;

use laser_mining::{Margin, Retrieval};

use super::functions::Mined;
use super::progress::Progress;
use super::query::Spi;
use crate::types::raise_hint;

/// Mines with the laser indexes on the tables of both queries.
pub fn mine(
    _spi: &Spi,
    _queries: [&[u8]; 2],
    _k: usize,
    _selection: (Margin, Retrieval, f64),
    _unify: bool,
    _namespace: Oid,
    _progress: &mut Progress,
) -> Vec<Mined> {
    raise_hint(
        PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
        "mining with an index is not supported",
        "Use method => 'exact'.",
    )
}
