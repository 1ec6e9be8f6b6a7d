//! Why a call of the encoder fails.

use std::io;

use laser_memory::OutOfMemory;
use laser_protocol::{ErrorCode, Failure};
use pgrx::PgSqlErrorCode;

use crate::pg::encoding::to_server;
use crate::pg::errors::{raise, raise_hint};
use crate::pg::memory;

/// Why a call failed.
pub enum CallError {
    /// The encoder answered with an error.
    Refused(Failure),
    /// No encoder process came up in time.
    NotRunning(String),
    /// The encoder died each time the request was sent: the number of attempts.
    Lost(u32),
    /// The answer is none to the request, or the two ends do not understand each other.
    Unexpected,
    /// The model was replaced while the call was under way.
    Replaced,
    /// The server runs without workers.
    SingleUser,
    /// The session may not ask the encoder process, which this model, or whatever else was asked for, takes.
    NeedsProcess(String),
    /// There is no memory for the embeddings.
    OutOfMemory(OutOfMemory),
}

impl CallError {
    /// Raises the SQL error.
    pub fn raise(self) -> ! {
        match self {
            Self::Refused(failure) => {
                let code = match failure.code {
                    ErrorCode::Busy => PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                    ErrorCode::UnknownModel => PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
                    ErrorCode::BrokenModel => PgSqlErrorCode::ERRCODE_CONFIG_FILE_ERROR,
                    ErrorCode::TooLong => PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                    ErrorCode::Protocol => PgSqlErrorCode::ERRCODE_PROTOCOL_VIOLATION,
                    ErrorCode::BadInput => PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
                    ErrorCode::WrongTask => PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
                    ErrorCode::Undecided => PgSqlErrorCode::ERRCODE_AMBIGUOUS_PARAMETER,
                    ErrorCode::OutOfMemory => PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY,
                    ErrorCode::Internal => PgSqlErrorCode::ERRCODE_EXTERNAL_ROUTINE_EXCEPTION,
                };
                let message = to_server(&failure.message);
                if failure.hint.is_empty() {
                    raise(code, message)
                }
                raise_hint(code, message, to_server(&failure.hint))
            }
            Self::NotRunning(why) => raise_hint(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                if why.is_empty() {
                    "the encoder process is not running".to_owned()
                } else {
                    format!("the encoder process is not running: {}", to_server(&why))
                },
                "See view laser_encoder_status and the server log.",
            ),
            Self::Lost(attempts) => raise_hint(
                PgSqlErrorCode::ERRCODE_SYSTEM_ERROR,
                format!("the encoder process ended {attempts} times while it worked on this call"),
                "It is started again by itself; see view laser_encoder_status and the server log.",
            ),
            Self::Unexpected => raise_hint(
                PgSqlErrorCode::ERRCODE_PROTOCOL_VIOLATION,
                "the encoder process gave an unexpected answer",
                "If laser was upgraded, reconnect or restart the server.",
            ),
            Self::Replaced => raise_hint(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the model was replaced while its embeddings were computed",
                "Run the statement again.",
            ),
            Self::NeedsProcess(what) => raise_hint(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "{what} needs the encoder process, which laser.encode_in_backend = always disables"
                ),
                "Set laser.encode_in_backend to on, or use a model that sessions run themselves: see \
                 laser_models.in_backend.",
            ),
            Self::OutOfMemory(error) => memory::raise(error),
            Self::SingleUser => raise_hint(
                PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
                "the encoder process does not run in single-user mode",
                "Start the server, or preload laser with a cheap default model (see \
                 laser.encode_in_backend).",
            ),
        }
    }
}

impl From<OutOfMemory> for CallError {
    fn from(error: OutOfMemory) -> Self {
        Self::OutOfMemory(error)
    }
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

/// What ended the use of a connection.
pub enum ConnectionError {
    /// It is closed, broken or silent beyond the deadline; the request can be sent on another one.
    Disconnected,
    /// The call has ended with an error, and is not repeated on another connection.
    Failed(CallError),
}

impl From<io::Error> for ConnectionError {
    fn from(_: io::Error) -> Self {
        Self::Disconnected
    }
}

impl From<CallError> for ConnectionError {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}
