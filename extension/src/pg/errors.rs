//! SQL errors.

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::panic::{ErrorReport, ErrorReportWithLevel};
use pgrx::{PgLogLevel, function_name};

/// Raises what a report says.
pub fn finish(report: ErrorReport) -> ! {
    report.report(PgLogLevel::ERROR);
    unreachable!("an error was reported and control came back")
}

/// Raises a SQL error without a hint; message in the encoding of the database.
#[cold]
pub fn raise(code: PgSqlErrorCode, message: impl Into<String>) -> ! {
    finish(ErrorReport::new(code, message.into(), function_name!()))
}

/// Raises a SQL error whose hint says what to do; both in the encoding of the database.
#[cold]
#[allow(dead_code)]
pub fn raise_hint(code: PgSqlErrorCode, message: impl Into<String>, hint: impl Into<String>) -> ! {
    finish(ErrorReport::new(code, message.into(), function_name!()).set_hint(hint))
}

/// Raises a SQL error with a detail and a hint.
#[cold]
pub fn raise_detail(
    code: PgSqlErrorCode,
    message: impl Into<String>,
    detail: impl Into<String>,
    hint: impl Into<String>,
) -> ! {
    let report = ErrorReport::new(code, message.into(), function_name!());
    finish(report.set_detail(detail).set_hint(hint))
}

/// Raises a SQL error like one of the server's, with another detail. What pgrx has of its texts is UTF-8 in all databases,
/// of which `shown` makes what a message may have.
#[cold]
pub fn raise_like(
    error: &ErrorReportWithLevel,
    shown: impl Fn(&str) -> String,
    detail: impl Into<String>,
) -> ! {
    let message = shown(error.message());
    let mut report = ErrorReport::new(error.sql_error_code(), message, function_name!());
    if let Some(hint) = error.hint() {
        report = report.set_hint(shown(hint));
    }
    finish(report.set_detail(detail))
}
