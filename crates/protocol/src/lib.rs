//! The wire protocol between PostgreSQL sessions and the encoder process.
//!
//! Both ends run on one machine and speak over a Unix stream socket. A message is a *frame*: the
//! length of the payload as a little-endian `u32`, then the payload, whose first byte is the kind
//! of the message. All integers are little-endian; strings are UTF-8 with a `u32` byte length in
//! front. Lengths are checked against [`MAX_FRAME`] and against the bytes that are present before
//! anything is allocated, so hostile bytes give a [`ProtocolError`] and nothing else.
//!
//! A session first sends [`Request::Hello`] and gets [`Reply::Hello`]; after that it may send any
//! number of requests without waiting. Replies carry the `id` of their request and may arrive in
//! another order. [`Request::Search`] takes the connection for itself.

mod files;
mod frame;
mod message;
mod wire;
pub mod work;

pub use files::{receive_files, send_files};
pub use frame::{FrameBuffer, MAX_FRAME};
pub use message::{
    ErrorCode, Failure, ModelInfo, Reply, Request, Search, Status, decode_reply, decode_request,
    encode_embed_request, encode_embeddings_reply, encode_reply, encode_request,
};

/// Version of the protocol; both ends must speak the same one. The library that a running session
/// has loaded and the encoder program on disk differ for the time of an upgrade.
pub const VERSION: u16 = 3;

/// Most texts that one embed request may carry. Sessions split larger arrays, so that one request
/// never occupies the encoder for long.
pub const MAX_TEXTS: usize = 4096;

/// Longest text in bytes that is accepted. It is far above what any model reads (the tokenizer
/// would cut it), and keeps one session from occupying the tokenizer.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// Longest model name in bytes.
pub const MAX_MODEL_NAME: usize = 63;

/// Whether `name` may name a model: 1 to [`MAX_MODEL_NAME`] characters of `A-Z a-z 0-9 . _ -`, not
/// starting with a dot, so that a name never leads out of the model folders.
pub fn valid_model_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_MODEL_NAME
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

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
