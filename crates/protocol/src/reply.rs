//! The encoding of replies.

use crate::ProtocolError;
use crate::message::{ErrorCode, Failure, ModelInfo, Reply, Status};
use crate::wire::{Reader, Writer, id_only};

const REPLY_HELLO: u8 = 65;
const REPLY_PONG: u8 = 66;
const REPLY_EMBEDDINGS: u8 = 67;
const REPLY_MODELS: u8 = 68;
const REPLY_STATUS: u8 = 69;
const REPLY_ERROR: u8 = 70;
const REPLY_READY: u8 = 71;
const REPLY_PROGRESS: u8 = 72;
const REPLY_FOUND: u8 = 73;

/// Appends a reply as one frame.
pub fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    match reply {
        Reply::Hello { version, pid } => {
            let mut w = Writer::new(out, REPLY_HELLO);
            w.u16(*version);
            w.u32(*pid);
            w.finish();
        }
        Reply::Pong { id } => id_only(out, REPLY_PONG, *id),
        Reply::Embeddings {
            id,
            fingerprint,
            dimensions,
            data,
            truncated,
        } => {
            encode_embeddings_reply(*id, fingerprint, *dimensions, data, truncated, out);
        }
        Reply::Models { id, models } => {
            let mut w = Writer::new(out, REPLY_MODELS);
            w.u64(*id);
            w.u32(models.len() as u32);
            for model in models {
                write_model(&mut w, model);
            }
            w.finish();
        }
        Reply::Status { id, status } => {
            let mut w = Writer::new(out, REPLY_STATUS);
            w.u64(*id);
            write_status(&mut w, status);
            w.finish();
        }
        Reply::Ready { id, device } => {
            let mut w = Writer::new(out, REPLY_READY);
            w.u64(*id);
            w.str(device);
            w.finish();
        }
        Reply::Progress { id, done, total } => {
            let mut w = Writer::new(out, REPLY_PROGRESS);
            w.u64(*id);
            w.u64(*done);
            w.u64(*total);
            w.finish();
        }
        Reply::Found { id } => id_only(out, REPLY_FOUND, *id),
        Reply::Error { id, failure } => {
            let mut w = Writer::new(out, REPLY_ERROR);
            w.u64(*id);
            w.u16(failure.code as u16);
            w.str(&failure.message);
            w.str(&failure.hint);
            w.finish();
        }
    }
}

/// Appends an embeddings reply from borrowed rows: `data` holds `truncated.len()` rows of
/// `dimensions` values.
pub fn encode_embeddings_reply(
    id: u64,
    fingerprint: &[u8; 32],
    dimensions: u32,
    data: &[f32],
    truncated: &[bool],
    out: &mut Vec<u8>,
) {
    debug_assert_eq!(data.len(), truncated.len() * dimensions as usize);
    let mut w = Writer::new(out, REPLY_EMBEDDINGS);
    w.u64(id);
    w.bytes(fingerprint);
    w.u32(dimensions);
    w.u32(truncated.len() as u32);
    for &cut in truncated {
        w.bool(cut);
    }
    w.f32s(data);
    w.finish();
}

/// Reads a reply from a frame's payload.
///
/// # Errors
/// Any [`ProtocolError`]; never panics.
pub fn decode_reply(payload: &[u8]) -> Result<Reply, ProtocolError> {
    let mut r = Reader::new(payload);
    let reply = match r.u8("kind")? {
        REPLY_HELLO => Reply::Hello {
            version: r.u16("version")?,
            pid: r.u32("pid")?,
        },
        REPLY_PONG => Reply::Pong { id: r.u64("id")? },
        REPLY_EMBEDDINGS => {
            let id = r.u64("id")?;
            let fingerprint = r.digest("fingerprint")?;
            let dimensions = r.u32("dimensions")?;
            let rows = r.count(1, "rows")?;
            let mut truncated = Vec::with_capacity(rows);
            for _ in 0..rows {
                truncated.push(r.bool("truncated")?);
            }
            let bytes = rows
                .checked_mul(dimensions as usize)
                .and_then(|n| n.checked_mul(4))
                .ok_or(ProtocolError::OutOfRange("dimensions"))?;
            let data = r
                .take(bytes, "data")?
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            Reply::Embeddings {
                id,
                fingerprint,
                dimensions,
                data,
                truncated,
            }
        }
        REPLY_MODELS => {
            let id = r.u64("id")?;
            let n = r.count(32, "models")?;
            let mut models = Vec::with_capacity(n);
            for _ in 0..n {
                models.push(read_model(&mut r)?);
            }
            Reply::Models { id, models }
        }
        REPLY_STATUS => Reply::Status {
            id: r.u64("id")?,
            status: Box::new(read_status(&mut r)?),
        },
        REPLY_READY => Reply::Ready {
            id: r.u64("id")?,
            device: r.string("device")?,
        },
        REPLY_PROGRESS => Reply::Progress {
            id: r.u64("id")?,
            done: r.u64("done")?,
            total: r.u64("total")?,
        },
        REPLY_FOUND => Reply::Found { id: r.u64("id")? },
        REPLY_ERROR => Reply::Error {
            id: r.u64("id")?,
            failure: Failure {
                code: ErrorCode::from_u16(r.u16("code")?)
                    .ok_or(ProtocolError::OutOfRange("code"))?,
                message: r.string("message")?,
                hint: r.string("hint")?,
            },
        },
        kind => return Err(ProtocolError::UnknownKind(kind)),
    };
    r.finish()?;
    Ok(reply)
}

fn write_model(w: &mut Writer<'_>, model: &ModelInfo) {
    w.str(&model.name);
    w.u32(model.dimensions);
    w.str(&model.architecture);
    w.bool(model.reranker);
    w.u32(model.max_tokens);
    w.bool(model.fingerprint.is_some());
    if let Some(fingerprint) = &model.fingerprint {
        w.bytes(fingerprint);
    }
    w.bool(model.loaded);
    w.str(&model.precision);
    w.bool(model.default);
    w.str(&model.query_prefix);
    w.str(&model.passage_prefix);
    w.str(&model.error);
}

fn read_model(r: &mut Reader<'_>) -> Result<ModelInfo, ProtocolError> {
    Ok(ModelInfo {
        name: r.string("name")?,
        dimensions: r.u32("dimensions")?,
        architecture: r.string("architecture")?,
        reranker: r.bool("reranker")?,
        max_tokens: r.u32("max_tokens")?,
        fingerprint: if r.bool("has_fingerprint")? {
            Some(r.digest("fingerprint")?)
        } else {
            None
        },
        loaded: r.bool("loaded")?,
        precision: r.string("precision")?,
        default: r.bool("default")?,
        query_prefix: r.string("query_prefix")?,
        passage_prefix: r.string("passage_prefix")?,
        error: r.string("error")?,
    })
}

fn write_status(w: &mut Writer<'_>, s: &Status) {
    w.u32(s.pid);
    w.str(&s.device);
    w.str(&s.default_model);
    w.u32(s.loaded.len() as u32);
    for name in &s.loaded {
        w.str(name);
    }
    w.u64(s.memory);
    w.u32(s.sessions);
    w.u64(s.queued);
    w.u64(s.queue_limit);
    w.u64(s.batches);
    w.u64(s.sentences);
    w.u64(s.tokens);
    w.f64(s.sentences_per_second);
    w.u64(s.restarts);
    w.u64(s.uptime_ms);
    w.str(&s.last_error);
}

fn read_status(r: &mut Reader<'_>) -> Result<Status, ProtocolError> {
    let pid = r.u32("pid")?;
    let device = r.string("device")?;
    let default_model = r.string("default_model")?;
    let n = r.count(4, "loaded")?;
    let mut loaded = Vec::with_capacity(n);
    for _ in 0..n {
        loaded.push(r.string("loaded")?);
    }
    Ok(Status {
        pid,
        device,
        default_model,
        loaded,
        memory: r.u64("memory")?,
        sessions: r.u32("sessions")?,
        queued: r.u64("queued")?,
        queue_limit: r.u64("queue_limit")?,
        batches: r.u64("batches")?,
        sentences: r.u64("sentences")?,
        tokens: r.u64("tokens")?,
        sentences_per_second: r.f64("sentences_per_second")?,
        restarts: r.u64("restarts")?,
        uptime_ms: r.u64("uptime_ms")?,
        last_error: r.string("last_error")?,
    })
}
