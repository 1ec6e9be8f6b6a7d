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

mod error;
mod files;
mod frame;
mod limits;
pub mod loads;
mod message;
mod reply;
mod request;
mod role;
#[cfg(test)]
mod tests;
mod wire;
pub mod work;

pub use error::ProtocolError;
pub use files::{receive_files, send_files};
pub use frame::FrameBuffer;
pub use limits::{
    MAX_FRAME, MAX_MODEL_NAME, MAX_TEXT_BYTES, MAX_TEXTS, VERSION, language_model_name,
    model_and_language, valid_folder_name, valid_model_name,
};
pub use message::{ErrorCode, Failure, ModelInfo, Reply, Request, Search, Status};
pub use reply::{decode_reply, encode_embeddings_reply, encode_reply};
pub use request::{decode_request, encode_embed_request, encode_request, encode_rerank_request};
pub use role::Role;
