//! The server's log.

use pgrx::{PgLogLevel, PgSqlErrorCode, ereport};

/// Writes a line to the server's log.
pub fn log(message: String) {
    ereport!(
        PgLogLevel::LOG,
        PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
        message
    );
}
