//! What a plan or a scan says of itself, once a statement.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::thread::LocalKey;

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode as Code, function_name, pg_sys};

use super::options;

/// A statement that a client has sent: when the message began that it came with, and where it begins in
/// the message's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statement(pg_sys::TimestampTz, i32);

impl Statement {
    /// The one that runs.
    pub fn current() -> Self {
        // SAFETY: plain questions to the server. A portal that runs has its statements, each of which is
        // a plan or stands in one; before that there is none.
        unsafe {
            let start = pg_sys::GetCurrentStatementStartTimestamp();
            let place = pg_sys::ActivePortal
                .as_ref()
                .and_then(|portal| portal.stmts.as_ref())
                .filter(|list| list.length > 0)
                .and_then(|list| {
                    (*list.elements)
                        .ptr_value
                        .cast::<pg_sys::PlannedStmt>()
                        .as_ref()
                })
                .map_or(-1, |statement| statement.stmt_location);
            Self(start, place)
        }
    }
}

/// The last statement that has sent a notice: one for each kind of notice.
pub type LastNotified = LocalKey<Cell<Statement>>;

/// Sends a notice with a hint, unless `laser.scan_notices` is off or the statement has sent one of this kind
/// already. `message` returns both; it is called only then, and may return `None`.
pub fn notify_once(
    last: &'static LastNotified,
    message: impl FnOnce() -> Option<(String, String)>,
) {
    let statement = Statement::current();
    if !options::scan_notices() || last.get() == statement {
        return;
    }
    let Some((message, hint)) = message() else {
        return;
    };
    last.set(statement);
    let hint = format!("{hint}, or set laser.scan_notices = off to hide this notice.");
    notify(&message, &hint);
}

/// Sends a notice with a hint.
pub fn notify(message: &str, hint: &str) {
    ErrorReport::new(
        Code::ERRCODE_SUCCESSFUL_COMPLETION,
        message.to_owned(),
        function_name!(),
    )
    .set_hint(hint.to_owned())
    .report(PgLogLevel::NOTICE);
}
