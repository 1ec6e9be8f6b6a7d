//! The encoder server: one event loop that reads requests of all sessions, gathers them into
//! batches, encodes and answers.
//!
//! The loop encodes on its own thread (the encoder spreads large batches over its pool). While it
//! does, requests pile up in the sockets and become the next batch: batches grow with the load by
//! themselves, and a lone text is encoded the moment it is read, without a hand-over between
//! threads. A batch is limited to about [`batch::SECONDS`], so that a single text never waits long
//! behind another session's thousands. Texts whose tokens may be expensive are tokenized by threads
//! ([`tokens`]); what is tokenized on the loop is a little at a time. Loading of models, writing to
//! slow readers and searches have threads of their own.
//!
//! What is under work is noted ([`laser_protocol::work`]): texts under which the last process died run
//! alone, and those under which processes die again and again are refused.

mod batch;
mod log;
mod models;
mod queue;
mod search;
mod socket;
mod stats;
mod sys;
mod tokens;
mod writer;

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use laser_encoder::{Embeddings, Encoder, EncoderError, LoadOptions};
use laser_model::installed;
use laser_protocol::work::{Hash, Record, Suspicion};
use laser_protocol::{
    ErrorCode, Failure, FrameBuffer, MAX_TEXT_BYTES, Reply, Request, Role, Search, VERSION,
    decode_request, encode_embeddings_reply, encode_reply,
};

use batch::{Input, cost_of_batch, encode_inputs, failure};
use models::{Lookup, Models, Report};
use queue::{Batch, Budget, Job, Queue, SessionId};
use search::Searches;
use socket::identity;
use stats::Stats;
use sys::{Epoll, Event, Waker};
use tokens::{Done, Tokens};
use writer::{Output, Writer};

pub use log::log;
pub use socket::bind;
pub use sys::{bound_processors, die_with_parent, exit_now, prepare_process};

/// Texts of a batch that are taken in spite of that: smaller products waste the processor.
const BATCH_LEAST: usize = 32;
/// Seconds after which no more texts of a batch are tokenized on the loop; the rest are left to the
/// next batch.
const TOKENIZE_SECONDS: f64 = 0.02;
/// Bytes of the texts that are tokenized on the loop until the time is looked at.
const TOKENIZE_BYTES: usize = 2 * queue::INLINE_BYTES;
/// Requests of one session that may wait; beyond it, the session's socket is not read.
const MAX_REQUESTS: usize = 64;
/// Replies of one session in bytes that may wait for it to read them.
const MAX_UNREAD: usize = 64 << 20;
/// How often it is looked whether the socket's file is still there, in milliseconds.
const SOCKET_MS: i32 = 2000;
/// How often paused sessions are looked at, in milliseconds.
const PAUSE_MS: i32 = 20;

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const FIRST_SESSION: u64 = 2;

/// What the server is told at its start.
pub struct Options {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Folders of models.
    pub model_path: Vec<PathBuf>,
    /// Name of the default model; empty: the one that ships with laser.
    pub default_model: String,
    /// Device, precision and threads.
    pub load: LoadOptions,
    /// Bytes of models in memory; 0: no limit.
    pub memory_limit: u64,
    /// Texts that may wait.
    pub queue_limit: usize,
    /// How often the process was restarted, for the status.
    pub restarts: u64,
    /// What the processes before this one noted, if it was kept.
    pub record: Option<std::fs::File>,
    /// Whether the last one was ended because it hung.
    pub hung: bool,
}

struct Session {
    output: Arc<Output>,
    input: FrameBuffer,
    greeted: bool,
    requests: usize,
    paused: bool,
}

/// The server.
pub struct Server {
    listener: UnixListener,
    socket: PathBuf,
    /// Device and inode of the socket's file.
    socket_file: Option<(u64, u64)>,
    socket_checked: Instant,
    epoll: Epoll,
    waker: Arc<Waker>,
    models: Models,
    queue: Queue,
    tokens: Tokens,
    record: Arc<Record>,
    suspicion: Suspicion,
    /// What the last batch of a model had no time to tokenize.
    left: Vec<(queue::JobId, u32)>,
    left_model: String,
    queue_limit: usize,
    sessions: HashMap<SessionId, Session>,
    next_session: SessionId,
    describing: Vec<(SessionId, u64, String)>,
    searches: Searches,
    writer: Writer,
    stats: Stats,
    restarts: u64,
    scratch: Vec<u8>,
    reply: Vec<u8>,
}

impl Server {
    /// A server on an open socket; starts loading the default model.
    pub fn new(listener: UnixListener, options: Options) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let waker = Arc::new(Waker::new()?);
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER)?;
        epoll.add(&*waker, WAKER)?;
        let searches = Searches::new(options.load.device);
        let (record, suspicion) = Record::open(options.record, options.hung);
        let record = Arc::new(record);
        let threads = match options.load.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let tokens = Tokens::new(threads, &record, &waker)?;
        let mut models = Models::new(
            options.model_path,
            options.default_model,
            options.memory_limit,
            options.load,
            waker.clone(),
        )?;
        if let Some(name) = models.default_name() {
            models.lookup(&name);
        }
        Ok(Self {
            listener,
            socket_file: identity(&options.socket),
            socket: options.socket,
            socket_checked: Instant::now(),
            epoll,
            waker,
            models,
            queue: Queue::default(),
            tokens,
            record,
            suspicion,
            left: Vec::new(),
            left_model: String::new(),
            queue_limit: options.queue_limit,
            sessions: HashMap::new(),
            next_session: FIRST_SESSION,
            describing: Vec::new(),
            searches,
            writer: Writer::new()?,
            stats: Stats::new(),
            restarts: options.restarts,
            scratch: vec![0; 1 << 16],
            reply: Vec::new(),
        })
    }

    /// Serves until an error of the event loop itself.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        let mut more = false;
        loop {
            let timeout = if more {
                0
            } else if self.sessions.values().any(|s| s.paused) {
                PAUSE_MS
            } else {
                SOCKET_MS
            };
            self.epoll.wait(timeout, &mut events)?;
            self.check_socket()?;
            for event in &events {
                match event.token {
                    LISTENER => self.accept(),
                    WAKER => self.waker.clear(),
                    _ => self.session_event(event),
                }
            }
            self.loader_reports();
            self.resume_paused();
            let done = self.tokens.reports();
            self.take_tokens(done);
            self.start_tokenizing();
            more = self.encode_batch();
        }
    }

    /// Makes the socket's file again if somebody has removed or replaced it: without it nobody new
    /// would get here. Those who are connected stay so.
    fn check_socket(&mut self) -> io::Result<()> {
        if self.socket_checked.elapsed() < Duration::from_millis(SOCKET_MS as u64) {
            return Ok(());
        }
        self.socket_checked = Instant::now();
        if self.socket_file.is_some() && identity(&self.socket) == self.socket_file {
            return Ok(());
        }
        log("the socket's file is gone, it is made again");
        let listener = bind(&self.socket)?;
        listener.set_nonblocking(true)?;
        self.epoll.add(&listener, LISTENER)?;
        self.epoll.remove(&self.listener)?;
        self.listener = listener;
        self.socket_file = identity(&self.socket);
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    // Out of descriptors, for example: the client waits in the backlog.
                    log(&format!("could not accept a connection: {e}"));
                    std::thread::sleep(Duration::from_millis(10));
                    return;
                }
            };
            let id = self.next_session;
            self.next_session += 1;
            if stream
                .set_nonblocking(true)
                .and_then(|()| self.epoll.add(&stream, id))
                .is_err()
            {
                continue;
            }
            self.sessions.insert(
                id,
                Session {
                    output: Output::new(stream),
                    input: FrameBuffer::new(),
                    greeted: false,
                    requests: 0,
                    paused: false,
                },
            );
        }
    }

    fn session_event(&mut self, event: &Event) {
        if event.hangup {
            self.close(event.token);
        } else if event.readable {
            self.read(event.token);
        }
    }

    fn close(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.remove(&id) {
            let _ = self.epoll.remove(session.output.stream());
            self.queue.forget(id);
            self.describing.retain(|d| d.0 != id);
        }
    }

    /// Reads what has arrived (one buffer's worth; level-triggered events bring the rest) and
    /// handles complete requests.
    fn read(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        loop {
            match session.output.stream().read(&mut self.scratch) {
                Ok(0) => return self.close(id),
                Ok(n) => {
                    session.input.push(&self.scratch[..n]);
                    if n < self.scratch.len() || session.input.len() > 1 << 20 {
                        break;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return self.close(id),
            }
        }
        self.handle_frames(id);
    }

    fn handle_frames(&mut self, id: SessionId) {
        loop {
            let Some(session) = self.sessions.get_mut(&id) else {
                return;
            };
            let pause = session.requests >= MAX_REQUESTS || session.output.pending() > MAX_UNREAD;
            if pause != session.paused {
                session.paused = pause;
                let _ = self.epoll.set_reading(session.output.stream(), id, !pause);
            }
            if pause {
                return;
            }
            let request = match session.input.next_frame() {
                Ok(None) => return session.input.shrink(1 << 20),
                Ok(Some(frame)) => decode_request(frame),
                Err(e) => Err(e),
            };
            match request {
                Ok(request) => self.handle(id, request),
                Err(e) => {
                    self.send_failure(
                        id,
                        0,
                        Failure {
                            code: ErrorCode::Protocol,
                            message: format!("the encoder cannot read a request: {e}"),
                            hint: String::new(),
                        },
                    );
                    return self.close(id);
                }
            }
        }
    }

    fn resume_paused(&mut self) {
        let paused: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, s)| s.paused)
            .map(|(&id, _)| id)
            .collect();
        for id in paused {
            self.handle_frames(id);
        }
    }

    fn handle(&mut self, id: SessionId, request: Request) {
        let greeted = self.sessions.get(&id).is_some_and(|s| s.greeted);
        match request {
            Request::Hello { version } if version == VERSION => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.greeted = true;
                }
                self.send(
                    id,
                    &Reply::Hello {
                        version: VERSION,
                        pid: std::process::id(),
                    },
                );
            }
            Request::Hello { version } => {
                self.send_failure(
                    id,
                    0,
                    Failure {
                        code: ErrorCode::Protocol,
                        message: format!(
                            "the encoder speaks protocol version {VERSION}, not {version}"
                        ),
                        hint: "laser was upgraded; restart the server, or reconnect.".into(),
                    },
                );
                self.close(id);
            }
            _ if !greeted => {
                self.send_failure(
                    id,
                    0,
                    Failure {
                        code: ErrorCode::Protocol,
                        message: "the first message is not a greeting".into(),
                        hint: String::new(),
                    },
                );
                self.close(id);
            }
            Request::Ping { id: request } => self.send(id, &Reply::Pong { id: request }),
            Request::Status { id: request } => {
                let status = Box::new(self.status());
                self.send(
                    id,
                    &Reply::Status {
                        id: request,
                        status,
                    },
                );
            }
            Request::Models { id: request } => self.models.list((id, request)),
            Request::Describe { id: request, model } => self.describe(id, request, &model),
            Request::Embed {
                id: request,
                model,
                texts,
                role,
            } => self.embed(id, request, &model, role, texts),
            Request::Search {
                id: request,
                search,
            } => self.search(id, request, search),
        }
    }

    /// Gives the connection to a thread that searches.
    fn search(&mut self, id: SessionId, request: u64, search: Search) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let idle = session.requests == 0 && session.output.pending() == 0;
        let started = if idle && session.input.is_empty() {
            session
                .output
                .stream()
                .try_clone()
                .and_then(|stream| self.searches.start(stream, request, search))
        } else {
            Err(io::Error::other("its connection is in use"))
        };
        if let Err(e) = started {
            let failure = Failure {
                code: ErrorCode::Internal,
                message: format!("could not start a search: {e}"),
                hint: String::new(),
            };
            self.send_failure(id, request, failure);
        }
        self.close(id);
    }

    fn status(&mut self) -> laser_protocol::Status {
        let (loaded, memory, device) = self.models.loaded();
        laser_protocol::Status {
            pid: std::process::id(),
            device,
            default_model: self.models.default_name().unwrap_or_default(),
            loaded,
            memory,
            sessions: self.sessions.len() as u32,
            queued: self.queue.waiting() as u64,
            queue_limit: self.queue_limit as u64,
            batches: self.stats.batches,
            sentences: self.stats.sentences,
            tokens: self.stats.tokens,
            sentences_per_second: self.stats.sentences_per_second(),
            restarts: self.restarts,
            uptime_ms: self.stats.uptime().as_millis() as u64,
            last_error: self.stats.last_error.clone(),
        }
    }

    fn describe(&mut self, id: SessionId, request: u64, model: &str) {
        let name = match self.models.resolve(model) {
            Ok(name) => name,
            Err(failure) => return self.send_failure(id, request, failure),
        };
        match self.models.lookup(&name) {
            Lookup::Ready => self.send_model(id, request, &name),
            Lookup::Loading => self.describing.push((id, request, name)),
            Lookup::Failed(failure) => self.send_failure(id, request, failure),
        }
    }

    fn send_model(&mut self, id: SessionId, request: u64, name: &str) {
        let models = self.models.info(name).into_iter().collect();
        let reply = Reply::Models {
            id: request,
            models,
        };
        self.send(id, &reply);
    }

    fn embed(&mut self, id: SessionId, request: u64, model: &str, role: Role, texts: Vec<String>) {
        let name = match self.models.resolve(model) {
            Ok(name) => name,
            Err(failure) => return self.send_failure(id, request, failure),
        };
        if let Lookup::Failed(failure) = self.models.lookup(&name) {
            return self.send_failure(id, request, failure);
        }
        // What comes for a model that is being loaded is refused when it is tokenized.
        if role == Role::Undecided
            && let Some(model) = self.models.get(&name)
            && model.encoder.config().prefixes.differ()
        {
            return self.send_failure(id, request, installed::undecided(&name));
        }
        let waiting = self.queue.waiting();
        // A request larger than the whole queue is taken when nothing else waits.
        if waiting > 0 && waiting + texts.len() > self.queue_limit {
            let failure = Failure {
                code: ErrorCode::Busy,
                message: format!("the encoder's queue is full ({waiting} texts wait)"),
                hint: "Try again later, or raise laser.encoder_queue.".into(),
            };
            return self.send_failure(id, request, failure);
        }
        if texts.is_empty() {
            let failure = Failure {
                code: ErrorCode::Protocol,
                message: "a request without texts".into(),
                hint: String::new(),
            };
            return self.send_failure(id, request, failure);
        }
        debug_assert!(texts.iter().all(|t| t.len() <= MAX_TEXT_BYTES));
        let job = Job::new(id, request, name, role, texts);
        if self.suspicion.refuses() {
            let culprit = |hash: &Hash| self.suspicion.is_culprit(hash);
            if let Some(at) = job.hashes.iter().position(culprit) {
                let beginning: String = job.texts[at].chars().take(40).collect();
                let failure = Failure {
                    code: ErrorCode::Internal,
                    message: "the encoder process ended again and again while it worked on one text alone"
                        .into(),
                    hint: format!(
                        "The text begins with \"{beginning}\" and is refused for ten minutes, or until \
                         settings of the encoder change; others are not affected. See the server log."
                    ),
                };
                return self.send_failure(id, request, failure);
            }
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.requests += 1;
        }
        self.queue.push(job);
    }

    /// Hands out texts to the threads that tokenize.
    fn start_tokenizing(&mut self) {
        while self.tokens.idle() {
            let models = &mut self.models;
            let ready = |name: &str| models.get(name).is_some();
            let Some(piece) = self.queue.take_piece(&self.suspicion, ready) else {
                return;
            };
            let model = self.queue.job_mut(piece.job).map(|job| job.model.clone());
            let Some(model) = model.and_then(|name| self.models.get(&name)) else {
                return;
            };
            let (encoder, fingerprint) = (model.encoder.clone(), model.fingerprint);
            self.tokens.start(piece, encoder, fingerprint);
        }
    }

    fn take_tokens(&mut self, done: Vec<Done>) {
        for done in done {
            match done.tokens {
                Ok(tokens) => self.queue.tokenized(done.piece, tokens, done.fingerprint),
                Err(error) => {
                    if let Some(job) = self.queue.remove(done.piece.job) {
                        self.fail_job(&job, failure(&error, &job.model));
                    }
                }
            }
        }
    }

    fn loader_reports(&mut self) {
        for report in self.models.reports() {
            match report {
                Report::Listed {
                    asker: (id, request),
                    models,
                } => {
                    self.send(
                        id,
                        &Reply::Models {
                            id: request,
                            models,
                        },
                    );
                }
                Report::Loaded { name, failure } => {
                    let (ours, rest) = self
                        .describing
                        .drain(..)
                        .partition(|(_, _, model)| *model == name);
                    self.describing = rest;
                    let asked: Vec<(SessionId, u64, String)> = ours;
                    for (id, request, _) in asked {
                        match &failure {
                            Some(failure) => self.send_failure(id, request, failure.clone()),
                            None => self.send_model(id, request, &name),
                        }
                    }
                    if let Some(failure) = failure {
                        self.stats.last_error.clone_from(&failure.message);
                        for job in self.queue.remove_model(&name) {
                            self.fail_job(&job, failure.clone());
                        }
                    }
                }
            }
        }
    }

    /// Encodes one batch, if a model with waiting texts is loaded. Returns whether texts are left
    /// that can be encoded at once.
    fn encode_batch(&mut self) -> bool {
        if !self.left.is_empty() {
            match self.models.lookup(&self.left_model) {
                // It was dropped, or its files are being replaced.
                Lookup::Loading => {}
                Lookup::Failed(failure) => {
                    // These are in no line any more.
                    for (id, _) in std::mem::take(&mut self.left) {
                        if let Some(job) = self.queue.remove(id) {
                            self.fail_job(&job, failure.clone());
                        }
                    }
                    for job in self.queue.remove_model(&self.left_model) {
                        self.fail_job(&job, failure.clone());
                    }
                }
                Lookup::Ready => {
                    if let Some(model) = self.models.get(&self.left_model) {
                        let (encoder, fingerprint) = (model.encoder.clone(), model.fingerprint);
                        let batch = Batch {
                            model: self.left_model.clone(),
                            items: std::mem::take(&mut self.left),
                            alone: false,
                        };
                        self.encode(&encoder, fingerprint, &batch);
                        return self.queue.waiting() > 0 || !self.left.is_empty();
                    }
                }
            }
        }
        for name in self.queue.next_models() {
            match self.models.lookup(&name) {
                Lookup::Loading => continue,
                Lookup::Failed(failure) => {
                    for job in self.queue.remove_model(&name) {
                        self.fail_job(&job, failure.clone());
                    }
                    continue;
                }
                Lookup::Ready => {}
            }
            let Some(model) = self.models.get(&name) else {
                continue;
            };
            let budget = Budget {
                cost: cost_of_batch(model.seconds_per_cost),
                least: BATCH_LEAST,
            };
            let encoder = model.encoder.clone();
            let fingerprint = model.fingerprint;
            if !self.left.is_empty() && self.left_model != name {
                // One model at a time has texts left.
                continue;
            }
            if let Some(batch) = self.queue.take(&name, budget, &self.suspicion) {
                self.encode(&encoder, fingerprint, &batch);
                return self.queue.waiting() > 0 || !self.left.is_empty();
            }
        }
        false
    }

    fn encode(&mut self, encoder: &Encoder, fingerprint: [u8; 32], batch: &Batch) {
        // Rows of one request must come from one model: if its folder was replaced between two
        // batches, the request starts over.
        let mut restarted = Vec::new();
        for &(id, _) in &batch.items {
            if let Some(job) = self.queue.job_mut(id)
                && (!job.rows.is_empty() && job.fingerprint != fingerprint
                    || job.tokens_of.is_some_and(|of| of != fingerprint))
                && !restarted.contains(&id)
            {
                restarted.push(id);
            }
        }
        for &id in &restarted {
            self.queue.restart(id);
            self.left.retain(|(job, _)| *job != id);
        }
        let items: Vec<(queue::JobId, u32)> = batch
            .items
            .iter()
            .copied()
            .filter(|(id, _)| !restarted.contains(id))
            .collect();
        if items.is_empty() {
            return;
        }
        if batch.alone {
            // Nothing else may be to blame if the process dies now.
            let done = self.tokens.wait_for_all();
            self.take_tokens(done);
        }
        let hashes: Vec<Hash> = items.iter().filter_map(|item| self.hash(item)).collect();
        self.record.begin(0, hashes.iter().copied());
        let start = Instant::now();
        let tokenized = self.tokenize_items(encoder, &items);
        self.left.extend(&items[tokenized..]);
        self.left_model.clone_from(&batch.model);
        let items = items[..tokenized].to_vec();
        let (result, cost) = self.encode_items(encoder, &items);
        let seconds = start.elapsed().as_secs_f64();
        self.record.end(0);
        if batch.alone {
            hashes
                .iter()
                .for_each(|hash| self.suspicion.clear(&self.record, hash));
        }
        match result {
            Ok((embeddings, tokens)) => {
                self.stats.count(items.len(), tokens);
                if let Some(model) = self.models.get(&batch.model) {
                    // Small batches cost more for each unit; only those near the budget tell the
                    // speed of large ones, but anything is better than nothing.
                    let measured = seconds / cost as f64;
                    model.seconds_per_cost = match model.seconds_per_cost {
                        0.0 => measured,
                        old => 0.7 * old + 0.3 * measured.min(4.0 * old),
                    };
                }
                self.deliver(&items, &embeddings, fingerprint);
            }
            Err(failure) => self.encode_one_by_one(encoder, fingerprint, &items, failure),
        }
    }

    fn hash(&mut self, &(id, index): &(queue::JobId, u32)) -> Option<Hash> {
        Some(self.queue.job_mut(id)?.hashes[index as usize])
    }

    /// Tokenizes texts of a batch whose tokens are not known yet, for a while. Returns how many of
    /// them can be encoded; the rest are left to the next batch. What fails is left to be tried, and
    /// reported, text by text.
    fn tokenize_items(&mut self, encoder: &Encoder, items: &[(queue::JobId, u32)]) -> usize {
        let start = Instant::now();
        let mut at = 0;
        while at < items.len() {
            if at > 0 && start.elapsed().as_secs_f64() > TOKENIZE_SECONDS {
                break;
            }
            let first = at;
            let (mut texts, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
            while let Some(&(id, index)) = items.get(at)
                && (bytes < TOKENIZE_BYTES || at == first)
            {
                if let Some(job) = self.queue.job_mut(id)
                    && job.tokens[index as usize].is_none()
                {
                    bytes += job.texts[index as usize].len();
                    texts.push((job.role, std::mem::take(&mut job.texts[index as usize])));
                    places.push((id, index));
                }
                at += 1;
            }
            let prefixes = &encoder.config().prefixes;
            let mut inputs = Vec::with_capacity(texts.len());
            // One that is refused is left without tokens.
            inputs.extend(
                texts
                    .iter()
                    .map_while(|(role, text)| prefixes.apply(*role, text).ok()),
            );
            let tokens = match &inputs[..] {
                [] => Ok(Ok(Vec::new())),
                inputs => catch_unwind(AssertUnwindSafe(|| encoder.tokenize(inputs))),
            };
            drop(inputs);
            let mut tokens = tokens.ok().and_then(Result::ok).map(Vec::into_iter);
            for ((id, index), (_, text)) in places.into_iter().zip(texts) {
                if let Some(job) = self.queue.job_mut(id) {
                    job.texts[index as usize] = text;
                    job.tokens[index as usize] = tokens.as_mut().and_then(Iterator::next);
                }
            }
        }
        at
    }

    /// One text of the batch made the encoder fail: each job is tried for itself, so that the
    /// others get their answers.
    fn encode_one_by_one(
        &mut self,
        encoder: &Encoder,
        fingerprint: [u8; 32],
        items: &[(queue::JobId, u32)],
        failure: Failure,
    ) {
        let mut jobs: Vec<queue::JobId> = items.iter().map(|&(id, _)| id).collect();
        jobs.sort_unstable();
        jobs.dedup();
        if let [only] = jobs[..] {
            self.stats.last_error.clone_from(&failure.message);
            log(&failure.message);
            if let Some(job) = self.queue.remove(only) {
                self.fail_job(&job, failure);
            }
            return;
        }
        for id in jobs {
            let own: Vec<(queue::JobId, u32)> = items
                .iter()
                .copied()
                .filter(|&(job, _)| job == id)
                .collect();
            match self.encode_items(encoder, &own).0 {
                Ok((embeddings, tokens)) => {
                    self.stats.count(own.len(), tokens);
                    self.deliver(&own, &embeddings, fingerprint);
                }
                Err(failure) => {
                    self.encode_one_by_one(encoder, fingerprint, &own, failure);
                }
            }
        }
    }

    /// Encodes the texts of `items`; returns the embeddings with the number of tokens, and the
    /// cost of the texts as the queue counts it.
    fn encode_items(
        &mut self,
        encoder: &Encoder,
        items: &[(queue::JobId, u32)],
    ) -> (Result<(Embeddings, u64), Failure>, usize) {
        // Tokens are moved out for the time of the call and put back, in case they are needed again.
        let mut texts = Vec::with_capacity(items.len());
        let mut name = String::new();
        for &(id, index) in items {
            texts.push(match self.queue.job_mut(id) {
                Some(job) => {
                    name.clone_from(&job.model);
                    match job.tokens[index as usize].take() {
                        Some(tokens) => Input::Tokens(tokens),
                        None => Input::Text(job.texts[index as usize].clone(), job.role),
                    }
                }
                None => Input::Text(String::new(), Role::Plain),
            });
        }
        let cost = texts.iter().map(Input::cost).sum::<usize>().max(1);
        let result = catch_unwind(AssertUnwindSafe(|| encode_inputs(encoder, &texts)))
            .unwrap_or_else(|_| Err(EncoderError::Compute("the encoder failed".into())))
            .map_err(|e| failure(&e, &name));
        let rows = result.as_ref().map_or(0, |(e, _)| e.truncated.len());
        for (&(id, index), text) in items.iter().zip(texts) {
            if let Some(job) = self.queue.job_mut(id)
                && let Input::Tokens(tokens) = text
            {
                job.tokens[index as usize] = Some(tokens);
            }
        }
        debug_assert!(result.is_err() || rows == items.len());
        (result, cost)
    }

    fn deliver(
        &mut self,
        items: &[(queue::JobId, u32)],
        embeddings: &Embeddings,
        fingerprint: [u8; 32],
    ) {
        for (i, &(id, index)) in items.iter().enumerate() {
            let Some(job) = self.queue.job_mut(id) else {
                continue;
            };
            let row = embeddings.row(i);
            if row.iter().any(|v| !v.is_finite()) {
                let failure = Failure::not_finite(&job.model);
                self.stats.last_error.clone_from(&failure.message);
                if let Some(job) = self.queue.remove(id) {
                    self.fail_job(&job, failure);
                }
                continue;
            }
            job.fingerprint = fingerprint;
            if job.store(index, row, embeddings.truncated[i])
                && let Some(job) = self.queue.remove(id)
            {
                self.finish_job(&job);
            }
        }
    }

    fn finish_job(&mut self, job: &Job) {
        let Some(session) = self.sessions.get_mut(&job.session) else {
            return;
        };
        session.requests -= 1;
        encode_embeddings_reply(
            job.request,
            &job.fingerprint,
            job.dimensions as u32,
            &job.rows,
            &job.truncated,
            &mut self.reply,
        );
        self.writer.send(&session.output, &mut self.reply);
    }

    fn fail_job(&mut self, job: &Job, failure: Failure) {
        if let Some(session) = self.sessions.get_mut(&job.session) {
            session.requests -= 1;
        }
        self.send_failure(job.session, job.request, failure);
    }

    fn send_failure(&mut self, session: SessionId, request: u64, failure: Failure) {
        self.send(
            session,
            &Reply::Error {
                id: request,
                failure,
            },
        );
    }

    fn send(&mut self, session: SessionId, reply: &Reply) {
        let Some(session) = self.sessions.get(&session) else {
            return;
        };
        encode_reply(reply, &mut self.reply);
        self.writer.send(&session.output, &mut self.reply);
    }
}
