//! The messages. How they are encoded is in `request.rs` and `reply.rs`.

use crate::Role;

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
        /// At most [`crate::MAX_TEXTS`] texts of at most [`crate::MAX_TEXT_BYTES`] bytes.
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
        /// At most [`crate::MAX_TEXT_BYTES`] bytes.
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
    /// The system has no memory for it; trying again later can succeed.
    OutOfMemory = 10,
}

impl ErrorCode {
    pub(crate) fn from_u16(code: u16) -> Option<Self> {
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
            10 => Self::OutOfMemory,
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
