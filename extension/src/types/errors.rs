//! SQL errors of what is not an embedding.

use laser_vector::{ErrorClass, VectorError};
use pgrx::PgSqlErrorCode;
use pgrx::function_name;
use pgrx::pg_sys::panic::ErrorReport;

use crate::pg::encoding::to_server;
use crate::pg::errors::finish;

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

/// Raises a SQL error for what is not an embedding.
#[cold]
pub fn report(error: VectorError) -> ! {
    // It may show what was given, of which not every letter is in the encoding of the database.
    let message = to_server(&error.to_string());
    let mut report = ErrorReport::new(code(error.class()), message, function_name!());
    if let Some(detail) = error.detail() {
        report = report.set_detail(to_server(detail));
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
