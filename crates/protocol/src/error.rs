//! What can be wrong with bytes.

use crate::MAX_FRAME;

/// Bytes that do not follow the protocol. The connection cannot be used any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A frame announces more than [`MAX_FRAME`] bytes.
    #[error("a frame of {0} bytes is longer than the limit of {MAX_FRAME}")]
    FrameTooLong(usize),
    /// A message ends before its last field, or a count inside does not fit.
    #[error("a message is cut off in field \"{0}\"")]
    Truncated(&'static str),
    /// Bytes are left after the last field.
    #[error("{0} bytes follow the end of a message")]
    Trailing(usize),
    /// The first byte names no known message.
    #[error("unknown message kind {0}")]
    UnknownKind(u8),
    /// A string is not UTF-8.
    #[error("field \"{0}\" is not valid UTF-8")]
    NotUtf8(&'static str),
    /// A field holds a value outside its range.
    #[error("field \"{0}\" is out of range")]
    OutOfRange(&'static str),
}
