//! The messages and their encoding.

use crate::wire::{Reader, Writer};
use crate::{MAX_MODEL_NAME, MAX_TEXT_BYTES, MAX_TEXTS, ProtocolError, Role};

const HELLO: u8 = 1;
const PING: u8 = 2;
const EMBED: u8 = 3;
const MODELS: u8 = 4;
const STATUS: u8 = 5;
const DESCRIBE: u8 = 6;
const SEARCH: u8 = 7;
const RERANK: u8 = 8;
const REPLY_HELLO: u8 = 65;
const REPLY_PONG: u8 = 66;
const REPLY_EMBEDDINGS: u8 = 67;
const REPLY_MODELS: u8 = 68;
const REPLY_STATUS: u8 = 69;
const REPLY_ERROR: u8 = 70;
const REPLY_READY: u8 = 71;
const REPLY_PROGRESS: u8 = 72;
const REPLY_FOUND: u8 = 73;

/// What a session asks.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// First message of a connection.
    Hello {
        /// [`crate::VERSION`] of the session.
        version: u16,
    },
    /// Asks for [`Reply::Pong`].
    Ping {
        /// Returned in the reply.
        id: u64,
    },
    /// Asks for the embeddings of texts.
    Embed {
        /// Returned in the reply.
        id: u64,
        /// Name of the model; empty: the default one.
        model: String,
        /// At most [`MAX_TEXTS`] texts of at most [`MAX_TEXT_BYTES`] bytes.
        texts: Vec<String>,
        /// What they are.
        role: Role,
    },
    /// Asks how well texts answer a query; the reply is [`Reply::Embeddings`] of one dimension each, their
    /// scores.
    Rerank {
        /// Returned in the reply.
        id: u64,
        /// Name of the model.
        model: String,
        /// At most [`MAX_TEXT_BYTES`] bytes.
        query: String,
        /// As in [`Request::Embed`].
        texts: Vec<String>,
    },
    /// Asks for all models that are installed.
    Models {
        /// Returned in the reply.
        id: u64,
    },
    /// Asks for one model, loading it where needed; the reply lists that one.
    Describe {
        /// Returned in the reply.
        id: u64,
        /// Name of the model; empty: the default one.
        model: String,
    },
    /// Asks for the state of the process.
    Status {
        /// Returned in the reply.
        id: u64,
    },
    /// Asks for a search for nearest neighbours; the connection serves nothing else from then on.
    Search {
        /// Returned in the replies.
        id: u64,
        /// What is to be searched, and how.
        search: Search,
    },
}

/// A search for the nearest neighbours of two sets of embeddings by cosine.
///
/// After [`Reply::Ready`] the session sends one byte, and with it three file descriptors (as
/// `SCM_RIGHTS`): the rows of the source and those of the target, row-major `f32` of this machine,
/// and an empty file. [`Reply::Progress`] comes now and then, and [`Reply::Found`] when the lists of
/// neighbours are in that file. Whoever wants the search no longer closes the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// Values of a row.
    pub dimensions: u32,
    /// Neighbours of a row.
    pub k: u32,
    /// Whether the neighbours of target rows are sought as well.
    pub backward: bool,
    /// Rows of the first file, each of `dimensions` values.
    pub source_rows: u64,
    /// Rows of the second file, each of `dimensions` values.
    pub target_rows: u64,
    /// Bytes that the search may use beside the lists.
    pub memory: u64,
    /// Threads that the search may use, at least 1.
    pub threads: u32,
}

/// What the encoder answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// Answer to [`Request::Hello`].
    Hello {
        /// [`crate::VERSION`] of the encoder.
        version: u16,
        /// Process id of the encoder.
        pid: u32,
    },
    /// Answer to [`Request::Ping`].
    Pong {
        /// The request's id.
        id: u64,
    },
    /// Answer to [`Request::Embed`].
    Embeddings {
        /// The request's id.
        id: u64,
        /// Fingerprint of the model that made the embeddings.
        fingerprint: [u8; 32],
        /// Dimensions of each embedding.
        dimensions: u32,
        /// Row-major embeddings, one row per text.
        data: Vec<f32>,
        /// For each text, whether it was cut to the model's limit.
        truncated: Vec<bool>,
    },
    /// Answer to [`Request::Models`] and [`Request::Describe`].
    Models {
        /// The request's id.
        id: u64,
        /// The models, sorted by name.
        models: Vec<ModelInfo>,
    },
    /// Answer to [`Request::Status`].
    Status {
        /// The request's id.
        id: u64,
        /// What the process is doing, and with which models.
        status: Box<Status>,
    },
    /// First answer to [`Request::Search`]: the files can be sent.
    Ready {
        /// The request's id.
        id: u64,
        /// The device that will search, such as "cuda:0"; empty if the processor does.
        device: String,
    },
    /// A search goes on.
    Progress {
        /// The request's id.
        id: u64,
        /// Pairs of rows that are compared.
        done: u64,
        /// Pairs of rows to compare; 0 while others are served first.
        total: u64,
    },
    /// The lists are in the file.
    Found {
        /// The request's id.
        id: u64,
    },
    /// The request failed; the connection stays usable unless `id` is 0.
    Error {
        /// The request's id; 0 where none could be read.
        id: u64,
        /// What went wrong.
        failure: Failure,
    },
}

/// An error that crosses the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Kind of the error.
    pub code: ErrorCode,
    /// Message in PostgreSQL's style.
    pub message: String,
    /// What the user can do about it; may be empty.
    pub hint: String,
}

impl Failure {
    /// A failure with a message in PostgreSQL's style, and a hint that may be empty.
    pub fn new(code: ErrorCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: hint.into(),
        }
    }

    /// The model's answer contains NaN or infinity.
    pub fn not_finite(model: &str) -> Self {
        Self {
            code: ErrorCode::BrokenModel,
            message: format!("model \"{model}\" gave an embedding that is not finite"),
            hint: "The model's weights are damaged; install it again.".into(),
        }
    }
}

/// Kinds of errors; the session maps them to SQLSTATEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum ErrorCode {
    /// The two ends speak different versions, or bytes that are no message.
    Protocol = 1,
    /// The queue is full; trying again later can succeed.
    Busy = 2,
    /// No model of this name is installed.
    UnknownModel = 3,
    /// The model's folder cannot be loaded.
    BrokenModel = 4,
    /// A text or a request is larger than the limits.
    TooLong = 5,
    /// The encoder failed on this request.
    Internal = 6,
    /// The rows of a search cannot be searched; whoever has them can tell why.
    BadInput = 7,
    /// What a text is, a query or a passage, has to be said.
    Undecided = 8,
    /// The model is not for this: one embeds, another scores pairs.
    WrongTask = 9,
}

impl ErrorCode {
    fn from_u16(code: u16) -> Option<Self> {
        Some(match code {
            1 => Self::Protocol,
            2 => Self::Busy,
            3 => Self::UnknownModel,
            4 => Self::BrokenModel,
            5 => Self::TooLong,
            6 => Self::Internal,
            7 => Self::BadInput,
            8 => Self::Undecided,
            9 => Self::WrongTask,
            _ => return None,
        })
    }
}

/// A model as users see it: no paths.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Name of the model's folder.
    pub name: String,
    /// Dimensions of its embeddings; 0 where the folder is broken.
    pub dimensions: u32,
    /// Architecture as in its config.json.
    pub architecture: String,
    /// Whether it scores pairs of a query and a text, and embeds none.
    pub reranker: bool,
    /// Tokens beyond which a text is cut.
    pub max_tokens: u32,
    /// Hash of its files; `None` where they cannot be read.
    pub fingerprint: Option<[u8; 32]>,
    /// Whether it is in memory.
    pub loaded: bool,
    /// The arithmetic that it runs in, and what was asked for instead; empty unless it is loaded.
    pub precision: String,
    /// Whether it is the encoder's default.
    pub default: bool,
    /// What it reads before queries.
    pub query_prefix: String,
    /// What it reads before passages.
    pub passage_prefix: String,
    /// Why it cannot be used; empty if it can.
    pub error: String,
}

/// State of the encoder process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Status {
    /// Process id.
    pub pid: u32,
    /// Device of the loaded models.
    pub device: String,
    /// Name of the default model; empty where there is none.
    pub default_model: String,
    /// Names of the models in memory.
    pub loaded: Vec<String>,
    /// Memory of the loaded models in bytes.
    pub memory: u64,
    /// Connections of sessions that are open.
    pub sessions: u32,
    /// Texts that wait.
    pub queued: u64,
    /// Texts that may wait.
    pub queue_limit: u64,
    /// Batches since the start.
    pub batches: u64,
    /// Sentences since the start.
    pub sentences: u64,
    /// Tokens since the start.
    pub tokens: u64,
    /// Sentences per second over the last ten seconds.
    pub sentences_per_second: f64,
    /// Times that the worker has restarted the process.
    pub restarts: u64,
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// Last error; empty if there was none.
    pub last_error: String,
}

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

fn id_only(out: &mut Vec<u8>, kind: u8, id: u64) {
    let mut w = Writer::new(out, kind);
    w.u64(id);
    w.finish();
}

fn model_name(r: &mut Reader<'_>) -> Result<String, ProtocolError> {
    let name = r.str("model")?;
    if name.len() > MAX_MODEL_NAME {
        return Err(ProtocolError::OutOfRange("model"));
    }
    Ok(name.to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameBuffer, valid_model_name};
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            any::<u16>().prop_map(|version| Request::Hello { version }),
            any::<u64>().prop_map(|id| Request::Ping { id }),
            any::<u64>().prop_map(|id| Request::Models { id }),
            any::<u64>().prop_map(|id| Request::Status { id }),
            (any::<u64>(), "[a-z0-9._-]{0,63}")
                .prop_map(|(id, model)| Request::Describe { id, model }),
            (
                any::<u64>(),
                "[a-z0-9._-]{0,63}",
                proptest::collection::vec(".{0,40}", 0..20),
                0u8..=3,
            )
                .prop_map(|(id, model, texts, role)| Request::Embed {
                    id,
                    model,
                    texts,
                    role: Role::from_u8(role).unwrap(),
                }),
            (
                any::<u64>(),
                "[a-z0-9._-]{0,63}",
                ".{0,40}",
                proptest::collection::vec(".{0,40}", 0..20),
            )
                .prop_map(|(id, model, query, texts)| Request::Rerank {
                    id,
                    model,
                    query,
                    texts,
                }),
            any::<(u64, u32, u32, bool, u64, u64, u64, u32)>().prop_map(|a| Request::Search {
                id: a.0,
                search: Search {
                    dimensions: a.1,
                    k: a.2,
                    backward: a.3,
                    source_rows: a.4,
                    target_rows: a.5,
                    memory: a.6,
                    threads: a.7,
                },
            }),
        ]
    }

    fn model() -> impl Strategy<Value = ModelInfo> {
        (
            ".{0,20}",
            any::<u32>(),
            ".{0,20}",
            any::<u32>(),
            any::<Option<[u8; 32]>>(),
            any::<(bool, bool)>(),
            ".{0,20}",
            any::<bool>(),
            (".{0,20}", ".{0,20}", ".{0,20}"),
        )
            .prop_map(
                |(name, dimensions, architecture, max_tokens, fingerprint, l, p, d, texts)| {
                    ModelInfo {
                        name,
                        dimensions,
                        architecture,
                        reranker: l.1,
                        max_tokens,
                        fingerprint,
                        loaded: l.0,
                        precision: p,
                        default: d,
                        query_prefix: texts.1,
                        passage_prefix: texts.2,
                        error: texts.0,
                    }
                },
            )
    }

    fn status() -> impl Strategy<Value = Status> {
        (
            any::<(u32, u32, u64, u64, u64, u64)>(),
            any::<(u64, u64, u64, u32)>(),
            proptest::collection::vec(".{0,10}", 0..4),
            ".{0,30}",
        )
            .prop_map(|(a, b, loaded, text)| Status {
                pid: a.0,
                device: text.clone(),
                default_model: text.chars().rev().collect(),
                loaded,
                memory: a.2,
                sessions: a.1,
                queued: a.3,
                queue_limit: a.4,
                batches: a.5,
                sentences: b.0,
                tokens: b.1,
                sentences_per_second: f64::from(b.3),
                restarts: b.2,
                uptime_ms: a.2 ^ b.0,
                last_error: text,
            })
    }

    fn reply() -> impl Strategy<Value = Reply> {
        prop_oneof![
            any::<(u16, u32)>().prop_map(|(version, pid)| Reply::Hello { version, pid }),
            any::<u64>().prop_map(|id| Reply::Pong { id }),
            (any::<u64>(), any::<[u8; 32]>(), 0usize..8, 0usize..8).prop_flat_map(
                |(id, fingerprint, rows, dims)| {
                    (
                        proptest::collection::vec(-1e3f32..1e3, rows * dims),
                        proptest::collection::vec(any::<bool>(), rows),
                    )
                        .prop_map(move |(data, truncated)| Reply::Embeddings {
                            id,
                            fingerprint,
                            dimensions: dims as u32,
                            data,
                            truncated,
                        })
                }
            ),
            (any::<u64>(), proptest::collection::vec(model(), 0..5))
                .prop_map(|(id, models)| Reply::Models { id, models }),
            (any::<u64>(), status()).prop_map(|(id, status)| Reply::Status {
                id,
                status: Box::new(status)
            }),
            (any::<u64>(), ".{0,30}").prop_map(|(id, device)| Reply::Ready { id, device }),
            any::<(u64, u64, u64)>().prop_map(|(id, done, total)| Reply::Progress {
                id,
                done,
                total
            }),
            any::<u64>().prop_map(|id| Reply::Found { id }),
            (any::<u64>(), 1u16..=9, ".{0,30}", ".{0,30}").prop_map(|(id, code, message, hint)| {
                Reply::Error {
                    id,
                    failure: Failure {
                        code: ErrorCode::from_u16(code).unwrap(),
                        message,
                        hint,
                    },
                }
            }),
        ]
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire(messages in proptest::collection::vec(request(), 1..6),
                                     step in 1usize..64) {
            let mut bytes = Vec::new();
            for message in &messages {
                encode_request(message, &mut bytes);
            }
            let mut buffer = FrameBuffer::new();
            let mut seen = Vec::new();
            for piece in bytes.chunks(step) {
                buffer.push(piece);
                while let Some(frame) = buffer.next_frame().unwrap() {
                    seen.push(decode_request(frame).unwrap());
                }
            }
            prop_assert_eq!(seen, messages);
        }

        #[test]
        fn replies_survive_the_wire(message in reply()) {
            let mut bytes = Vec::new();
            encode_reply(&message, &mut bytes);
            let mut buffer = FrameBuffer::new();
            buffer.push(&bytes);
            let seen = decode_reply(buffer.next_frame().unwrap().unwrap()).unwrap();
            prop_assert_eq!(seen, message);
            prop_assert!(buffer.is_empty());
        }

        #[test]
        fn every_cut_message_is_an_error(message in reply(), at in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            encode_reply(&message, &mut bytes);
            let payload = &bytes[4..];
            prop_assert!(decode_reply(&payload[..at.index(payload.len())]).is_err());
        }

        #[test]
        fn hostile_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
                                     kind in prop_oneof![1u8..=8, 65u8..=73, any::<u8>()]) {
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            let _ = decode_request(&bytes);
            let _ = decode_reply(&bytes);
            let mut buffer = FrameBuffer::new();
            buffer.push(&bytes);
            while let Ok(Some(frame)) = buffer.next_frame() {
                let _ = decode_request(frame);
                let _ = decode_reply(frame);
            }
        }

        #[test]
        fn a_flipped_byte_never_panics(message in request(), at in any::<prop::sample::Index>(),
                                       value in any::<u8>()) {
            let mut bytes = Vec::new();
            encode_request(&message, &mut bytes);
            let at = at.index(bytes.len());
            bytes[at] = value;
            let mut buffer = FrameBuffer::new();
            buffer.push(&bytes);
            while let Ok(Some(frame)) = buffer.next_frame() {
                let _ = decode_request(frame);
            }
        }
    }

    #[test]
    fn counts_beyond_the_payload_are_refused_before_allocation() {
        let mut bytes = vec![EMBED];
        bytes.extend_from_slice(&7u64.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.push(Role::Plain as u8);
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(
            decode_request(&bytes),
            Err(ProtocolError::Truncated("texts"))
        );
    }

    #[test]
    fn limits_are_enforced() {
        let mut bytes = Vec::new();
        let long = "x".repeat(MAX_TEXT_BYTES + 1);
        encode_embed_request(1, "m", Role::Plain, [long.as_str()].into_iter(), &mut bytes);
        assert_eq!(
            decode_request(&bytes[4..]),
            Err(ProtocolError::OutOfRange("text"))
        );
        bytes.clear();
        let texts = vec![""; MAX_TEXTS + 1];
        encode_embed_request(1, "m", Role::Plain, texts.into_iter(), &mut bytes);
        assert_eq!(
            decode_request(&bytes[4..]),
            Err(ProtocolError::OutOfRange("texts"))
        );
    }

    #[test]
    fn model_names_are_names() {
        for good in ["a", "laser-2_v1.0", "A9", "laser@de", "laser@roa-tara"] {
            assert!(valid_model_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "../x",
            "a b",
            "ä",
            &"x".repeat(64),
            "@",
            "@de",
            "laser@",
            "laser@..",
            "laser@../x",
            "../x@de",
            "laser@de@de",
            &format!("{}@de", "x".repeat(61)),
        ] {
            assert!(!valid_model_name(bad), "{bad}");
        }
    }
}
