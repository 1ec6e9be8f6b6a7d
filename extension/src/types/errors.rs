//! SQL errors.

use laser_vector::{ErrorClass, VectorError};
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::panic::{ErrorReport, ErrorReportWithLevel};
use pgrx::{PgLogLevel, function_name};

/// The SQLSTATE of a class of errors.
fn code(class: ErrorClass) -> PgSqlErrorCode {
    match class {
        ErrorClass::Syntax => PgSqlErrorCode::ERRCODE_INVALID_TEXT_REPRESENTATION,
        ErrorClass::OutOfRange => PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
        ErrorClass::Data => PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
        ErrorClass::TooLarge => PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
        ErrorClass::Binary => PgSqlErrorCode::ERRCODE_INVALID_BINARY_REPRESENTATION,
    }
}

fn finish(report: ErrorReport) -> ! {
    report.report(PgLogLevel::ERROR);
    unreachable!("an error was reported and control came back")
}

/// Raises a SQL error.
#[cold]
pub fn raise(code: PgSqlErrorCode, message: impl Into<String>) -> ! {
    finish(ErrorReport::new(code, message.into(), function_name!()))
}

/// Raises a SQL error with a hint.
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

/// Raises a SQL error like one of the server's, with another detail.
#[cold]
pub fn raise_like(error: &ErrorReportWithLevel, detail: impl Into<String>) -> ! {
    let message = error.message().to_owned();
    let mut report = ErrorReport::new(error.sql_error_code(), message, function_name!());
    if let Some(hint) = error.hint() {
        report = report.set_hint(hint);
    }
    finish(report.set_detail(detail))
}

/// Raises a SQL error for what is not an embedding.
#[cold]
pub fn report(error: VectorError) -> ! {
    let mut report = ErrorReport::new(code(error.class()), error.to_string(), function_name!());
    if let Some(detail) = error.detail() {
        report = report.set_detail(detail);
    }
    finish(report)
}

/// The value, or the SQL error.
pub trait OrReport<T> {
    /// The value, or a SQL error.
    fn or_report(self) -> T;
}

impl<T> OrReport<T> for Result<T, VectorError> {
    #[inline]
    fn or_report(self) -> T {
        match self {
            Ok(value) => value,
            Err(error) => report(error),
        }
    }
}
