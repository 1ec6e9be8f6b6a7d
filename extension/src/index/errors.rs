//! Errors of the index storage as SQL errors.

use std::io::ErrorKind;

use laser_index::IndexError;
use laser_index::quantization::Quantization;
use pgrx::PgSqlErrorCode as Code;

use crate::pg::errors::{raise, raise_hint};

/// Raises an error of the storage.
#[cold]
pub fn report(error: IndexError) -> ! {
    let message = error.to_string();
    match error {
        IndexError::Corrupt { .. }
        | IndexError::Segment { .. }
        | IndexError::Moved { .. }
        | IndexError::Graph(_) => raise_hint(
            Code::ERRCODE_INDEX_CORRUPTED,
            message,
            "The table is not affected. Rebuild the index with REINDEX; laser_index_check() gives details.",
        ),
        // A temporary table that is emptied at a commit stays so if rebuilding its index fails.
        IndexError::NotAnIndex => raise_hint(
            Code::ERRCODE_WRONG_OBJECT_TYPE,
            message,
            "If it is one whose last build has failed, rebuild it with REINDEX.",
        ),
        IndexError::Version { .. } => raise_hint(
            Code::ERRCODE_FEATURE_NOT_SUPPORTED,
            message,
            "Rebuild the index with REINDEX, or install the version of laser that wrote it.",
        ),
        IndexError::Dimensions { .. } => raise_hint(
            Code::ERRCODE_DATA_EXCEPTION,
            message,
            "All vectors of a laser index have the same length: that of the column or, where it \
             declares none, of the first vector.",
        ),
        IndexError::NotFinite => raise(Code::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE, message),
        IndexError::TooWide { quantization, .. } => raise_hint(
            Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            message,
            match quantization {
                Quantization::B1 => "Index a part of the vector.",
                Quantization::I8 => "Use a coarser quantization: WITH (quantization = b1).",
                _ => "Use a coarser quantization, as in WITH (quantization = i8).",
            },
        ),
        IndexError::TooManySegments(_) => {
            let hint = hint(&error).unwrap_or_default();
            raise_hint(Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED, message, hint)
        }
        IndexError::OutOfMemory(error) => crate::pg::memory::raise(error),
        IndexError::GraphMemory => raise_hint(
            Code::ERRCODE_OUT_OF_MEMORY,
            message,
            "Lower maintenance_work_mem, or make more memory available to the server.",
        ),
        IndexError::Thread(_) => raise(Code::ERRCODE_INSUFFICIENT_RESOURCES, message),
        IndexError::Io { ref source, .. } => {
            let code = match source.kind() {
                ErrorKind::OutOfMemory => Code::ERRCODE_OUT_OF_MEMORY,
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Code::ERRCODE_DISK_FULL,
                _ => Code::ERRCODE_IO_ERROR,
            };
            raise(code, message)
        }
    }
}

/// What to do about an error that is worth a warning.
pub fn hint(error: &IndexError) -> Option<&'static str> {
    matches!(error, IndexError::TooManySegments(_)).then_some(
        "increase maintenance_work_mem and effective_cache_size, which bound the size of a segment",
    )
}

/// The value, or the SQL error.
pub trait OrReport<T> {
    /// The value, or a SQL error.
    fn or_report(self) -> T;
}

impl<T> OrReport<T> for laser_index::Result<T> {
    #[inline]
    fn or_report(self) -> T {
        match self {
            Ok(value) => value,
            Err(error) => report(error),
        }
    }
}
