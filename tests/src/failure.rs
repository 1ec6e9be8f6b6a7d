//! What a statement fails with.

use anyhow::{Context, Result};
use postgres::Client;
use postgres::error::SqlState;

/// Code, message and hint of the error that `sql` ends with.
///
/// # Errors
/// If the statement succeeds, or the connection fails and not the statement.
pub fn failure(client: &mut Client, sql: &str) -> Result<(SqlState, String, String)> {
    let error = client
        .batch_execute(sql)
        .err()
        .with_context(|| format!("{sql} has not failed"))?;
    let error = error
        .as_db_error()
        .with_context(|| format!("{sql}: {error}"))?;
    Ok((
        error.code().clone(),
        error.message().to_owned(),
        error.hint().unwrap_or_default().to_owned(),
    ))
}

/// Whether an error is the end of the session, by `pg_terminate_backend` or with its server: the server
/// says so (57P01), or the connection is closed before that is read.
pub fn was_ended(error: &postgres::Error) -> bool {
    match error.as_db_error() {
        Some(error) => error.code() == &SqlState::ADMIN_SHUTDOWN,
        None => {
            error.is_closed()
                || std::error::Error::source(error).is_some_and(|e| e.is::<std::io::Error>())
        }
    }
}
