//! The encoding of requests.

use crate::message::{Request, Search};
use crate::wire::{Reader, Writer, id_only};
use crate::{MAX_MODEL_NAME, MAX_TEXT_BYTES, MAX_TEXTS, ProtocolError, Role};

const HELLO: u8 = 1;
const PING: u8 = 2;
pub(crate) const EMBED: u8 = 3;
const MODELS: u8 = 4;
const STATUS: u8 = 5;
const DESCRIBE: u8 = 6;
const SEARCH: u8 = 7;
const RERANK: u8 = 8;

/// Appends a request as one frame.
pub fn encode_request(request: &Request, out: &mut Vec<u8>) {
    match request {
        Request::Hello { version } => {
            let mut w = Writer::new(out, HELLO);
            w.u16(*version);
            w.finish();
        }
        Request::Ping { id } => id_only(out, PING, *id),
        Request::Models { id } => id_only(out, MODELS, *id),
        Request::Status { id } => id_only(out, STATUS, *id),
        Request::Describe { id, model } => {
            let mut w = Writer::new(out, DESCRIBE);
            w.u64(*id);
            w.str(model);
            w.finish();
        }
        Request::Embed {
            id,
            model,
            texts,
            role,
        } => {
            encode_embed_request(*id, model, *role, texts.iter().map(String::as_str), out);
        }
        Request::Rerank {
            id,
            model,
            query,
            texts,
        } => {
            encode_rerank_request(*id, model, query, texts.iter().map(String::as_str), out);
        }
        Request::Search { id, search } => {
            let mut w = Writer::new(out, SEARCH);
            w.u64(*id);
            w.u32(search.dimensions);
            w.u32(search.k);
            w.bool(search.backward);
            w.u64(search.source_rows);
            w.u64(search.target_rows);
            w.u64(search.memory);
            w.u32(search.threads);
            w.finish();
        }
    }
}

/// Appends an embed request for borrowed texts. The caller keeps to [`MAX_TEXTS`] and
/// [`MAX_TEXT_BYTES`], else the encoder refuses it.
pub fn encode_embed_request<'a>(
    id: u64,
    model: &str,
    role: Role,
    texts: impl ExactSizeIterator<Item = &'a str>,
    out: &mut Vec<u8>,
) {
    let mut w = Writer::new(out, EMBED);
    w.u64(id);
    w.str(model);
    w.bytes(&[role as u8]);
    write_texts(&mut w, texts);
    w.finish();
}

/// Appends a rerank request for borrowed texts, as [`encode_embed_request`].
pub fn encode_rerank_request<'a>(
    id: u64,
    model: &str,
    query: &str,
    texts: impl ExactSizeIterator<Item = &'a str>,
    out: &mut Vec<u8>,
) {
    let mut w = Writer::new(out, RERANK);
    w.u64(id);
    w.str(model);
    w.str(query);
    write_texts(&mut w, texts);
    w.finish();
}

fn write_texts<'a>(w: &mut Writer<'_>, texts: impl ExactSizeIterator<Item = &'a str>) {
    w.u32(texts.len() as u32);
    for text in texts {
        w.str(text);
    }
}

fn read_texts(r: &mut Reader<'_>) -> Result<Vec<String>, ProtocolError> {
    let n = r.count(4, "texts")?;
    if n > MAX_TEXTS {
        return Err(ProtocolError::OutOfRange("texts"));
    }
    let mut texts = Vec::with_capacity(n);
    for _ in 0..n {
        texts.push(read_text(r)?);
    }
    Ok(texts)
}

fn read_text(r: &mut Reader<'_>) -> Result<String, ProtocolError> {
    let text = r.str("text")?;
    if text.len() > MAX_TEXT_BYTES {
        return Err(ProtocolError::OutOfRange("text"));
    }
    Ok(text.to_owned())
}

/// Reads a request from a frame's payload.
///
/// # Errors
/// Any [`ProtocolError`]; never panics.
pub fn decode_request(payload: &[u8]) -> Result<Request, ProtocolError> {
    let mut r = Reader::new(payload);
    let request = match r.u8("kind")? {
        HELLO => Request::Hello {
            version: r.u16("version")?,
        },
        PING => Request::Ping { id: r.u64("id")? },
        MODELS => Request::Models { id: r.u64("id")? },
        STATUS => Request::Status { id: r.u64("id")? },
        DESCRIBE => Request::Describe {
            id: r.u64("id")?,
            model: model_name(&mut r)?,
        },
        EMBED => {
            let id = r.u64("id")?;
            let model = model_name(&mut r)?;
            let role = Role::from_u8(r.u8("role")?).ok_or(ProtocolError::OutOfRange("role"))?;
            Request::Embed {
                id,
                model,
                texts: read_texts(&mut r)?,
                role,
            }
        }
        RERANK => Request::Rerank {
            id: r.u64("id")?,
            model: model_name(&mut r)?,
            query: read_text(&mut r)?,
            texts: read_texts(&mut r)?,
        },
        SEARCH => Request::Search {
            id: r.u64("id")?,
            search: Search {
                dimensions: r.u32("dimensions")?,
                k: r.u32("k")?,
                backward: r.bool("backward")?,
                source_rows: r.u64("source_rows")?,
                target_rows: r.u64("target_rows")?,
                memory: r.u64("memory")?,
                threads: r.u32("threads")?,
            },
        },
        kind => return Err(ProtocolError::UnknownKind(kind)),
    };
    r.finish()?;
    Ok(request)
}

fn model_name(r: &mut Reader<'_>) -> Result<String, ProtocolError> {
    let name = r.str("model")?;
    if name.len() > MAX_MODEL_NAME {
        return Err(ProtocolError::OutOfRange("model"));
    }
    Ok(name.to_owned())
}
