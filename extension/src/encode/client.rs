//! The session's side of the encoder process: one connection to the encoder process, kept between calls.
//!
//! A call takes the connection out of its place and puts it back only when no answer is
//! outstanding. Whatever ends a call before that (an error, a cancel, a timeout: pgrx turns them
//! into panics that unwind) drops the connection, which makes the encoder drop the session's
//! queued texts; the next call connects again. Nothing needs to be resynchronised, and `Drop` runs
//! on every path.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use laser_protocol::{ErrorCode, ModelInfo, Reply, Request, Role, Status};
use pgrx::pg_sys;

use super::connection::{Connection, wait};
use super::embedded::{Cut, Embedded, Model};
use super::error::{CallError, ConnectionError};
use super::files::{self, State};
use super::{guc, registration};
use crate::pg::file_lock::Lock;

/// Texts of one request. Small enough that requests of several sessions interleave, large enough
/// that sorting by length pays.
const CHUNK_TEXTS: usize = 256;
/// Bytes of one request, unless its only text is longer.
const CHUNK_BYTES: usize = 128 << 10;
/// Requests under way at a time: the encoder works on one while the next ones arrive.
const WINDOW: usize = 4;
/// How often a request is sent again after the encoder died under it. The encoder finds out under which
/// text it dies, which takes it some deaths, and answers with an error for that one; this is for what
/// it cannot find.
const ATTEMPTS: u32 = 12;
/// Starts in a row that failed, after which a call does not wait any longer.
const MAX_FAILED_STARTS: u32 = 4;
/// How long a connection is used again without a look at it.
const RECENT_USE: Duration = Duration::from_millis(100);
/// How long a session that starts a worker keeps others from starting one as well.
const STARTER_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection, while no call uses it.
static CONNECTION: Mutex<Option<Connection>> = Mutex::new(None);

/// Embeds texts, which are what `role` says, with a model (empty: the process's default); returns the
/// embeddings, and how many texts were cut. Waits with the session's latch, so a cancel works at any time.
pub fn embed(
    model: &str,
    role: Role,
    texts: &[Cow<'_, str>],
) -> Result<(Embedded, Cut), CallError> {
    let asked = Asked::Embeddings(role);
    Call {
        model,
        asked,
        texts,
    }
    .run()
}

/// The scores by which texts answer a query, and how many pairs were cut; otherwise as [`embed`].
pub fn rerank(
    model: &str,
    query: &str,
    texts: &[Cow<'_, str>],
) -> Result<(Embedded, Cut), CallError> {
    let asked = Asked::Scores(query);
    Call {
        model,
        asked,
        texts,
    }
    .run()
}

/// Dimensions and fingerprint of a model; loads it where needed.
pub fn describe(model: String) -> Result<Model, CallError> {
    let Reply::Models { models, .. } = ask(Request::Describe { id: 0, model })? else {
        return Err(CallError::Unexpected);
    };
    match models.into_iter().next() {
        Some(ModelInfo {
            name,
            dimensions,
            max_tokens,
            fingerprint: Some(fingerprint),
            reranker,
            ..
        }) => Ok(Model {
            reranker,
            name,
            dimensions: dimensions as usize,
            max_tokens: max_tokens as usize,
            fingerprint,
        }),
        _ => Err(CallError::Unexpected),
    }
}

/// All installed models.
pub fn list_models() -> Vec<ModelInfo> {
    match ask(Request::Models { id: 0 }) {
        Ok(Reply::Models { models, .. }) => models,
        Ok(_) => CallError::Unexpected.raise(),
        Err(error) => error.raise(),
    }
}

/// State of the encoder process; `None` if it does not answer. Starts nothing and does not wait
/// for a start.
pub fn status() -> Option<Status> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut connection = match take_connection() {
        Some(connection) => connection,
        None => {
            let mut connection = Connection::open().ok()??;
            connection.handshake(Some(deadline)).ok()?;
            connection
        }
    };
    match connection.ask_once(Request::Status { id: 0 }, Some(deadline)) {
        Ok(Reply::Status { status, .. }) => {
            keep_connection(connection);
            Some(*status)
        }
        _ => None,
    }
}

fn take_connection() -> Option<Connection> {
    let kept = CONNECTION
        .lock()
        .unwrap_or_else(|e| e.into_inner())
        .take()?;
    // One that was used a moment ago is not checked: if the encoder has died since, the request
    // is sent again, as if it had died under it.
    (kept.used.elapsed() < RECENT_USE || kept.is_alive()).then_some(kept)
}

fn keep_connection(mut connection: Connection) {
    connection.used = Instant::now();
    *CONNECTION.lock().unwrap_or_else(|e| e.into_inner()) = Some(connection);
}

/// Sends a request with a single answer, on a new connection again if the encoder dies.
fn ask(request: Request) -> Result<Reply, CallError> {
    for _ in 0..ATTEMPTS {
        let mut connection = connect()?;
        match connection.ask_once(request.clone(), None) {
            Ok(Reply::Error { failure, .. }) => {
                keep_connection(connection);
                return Err(failure.into());
            }
            Ok(reply) => {
                keep_connection(connection);
                return Ok(reply);
            }
            Err(ConnectionError::Failed(error)) => return Err(error),
            Err(ConnectionError::Disconnected) => {}
        }
    }
    Err(CallError::Lost(ATTEMPTS))
}

/// The kept connection or a new one; starts the worker if none runs, and waits for it.
pub(super) fn connect() -> Result<Connection, CallError> {
    if guc::in_backend() == guc::InBackend::Always {
        return Err(CallError::NeedsProcess("this".into()));
    }
    if let Some(connection) = take_connection() {
        return Ok(connection);
    }
    // Of a wait for a process that is started.
    let mut start = Instant::now();
    let timeout = Duration::from_millis(guc::START_TIMEOUT.get() as u64);
    let mut pause = 5;
    let mut starter: Option<Lock> = None;
    let mut problem = String::new();
    loop {
        match Connection::open() {
            // A process that is there is waited for like for any other answer: it may have a slow
            // batch before it, and if it hangs, the worker ends it.
            Ok(Some(mut connection)) => {
                let began = Instant::now();
                match connection.handshake(None) {
                    Ok(()) => return Ok(connection),
                    Err(ConnectionError::Failed(error)) => return Err(error),
                    Err(ConnectionError::Disconnected) => start += began.elapsed(),
                }
            }
            Ok(None) => {}
            Err(e) => problem = format!("could not connect: {e}"),
        }
        // SAFETY: reads a variable of the process.
        if !unsafe { pg_sys::IsUnderPostmaster } {
            return Err(CallError::SingleUser);
        }
        match files::worker_runs() {
            Ok(true) => {
                let state = State::read();
                if state.failures >= MAX_FAILED_STARTS {
                    return Err(CallError::NotRunning(state.last_error));
                }
                problem = state.last_error;
            }
            Ok(false) => {
                if starter.is_none()
                    && let Ok(Some(lock)) = files::lock_starter()
                {
                    starter = Some(lock);
                    if !registration::start() {
                        problem = "no background worker could be started (max_worker_processes is \
                                   reached)"
                            .into();
                        starter = None;
                    }
                }
            }
            Err(e) => problem = format!("could not look for the worker: {e}"),
        }
        if start.elapsed() > STARTER_TIMEOUT {
            starter = None;
        }
        if start.elapsed() >= timeout {
            return Err(CallError::NotRunning(problem));
        }
        wait(None, 0, Some(pause));
        pause = (pause * 3 / 2).min(50);
    }
}

/// What a call asks about its texts.
#[derive(Clone, Copy)]
enum Asked<'a> {
    /// Their embeddings, as what they are.
    Embeddings(Role),
    /// How well they answer a query.
    Scores(&'a str),
}

/// One call of [`embed_texts`]: its texts go out in requests of limited size, several under way at
/// a time.
struct Call<'a> {
    model: &'a str,
    asked: Asked<'a>,
    texts: &'a [Cow<'a, str>],
}

impl Call<'_> {
    /// The embeddings, and how many texts were cut.
    fn run(&self) -> Result<(Embedded, Cut), CallError> {
        let mut result = Embedded {
            dimensions: 0,
            data: Vec::new(),
            fingerprint: [0; 32],
        };
        let mut cut: Cut = 0;
        let mut waiting = self.chunks();
        let mut deaths = 0;
        while !waiting.is_empty() {
            let mut connection = connect()?;
            let mut sent: HashMap<u64, Range<usize>> = HashMap::new();
            match self.exchange(
                &mut connection,
                &mut waiting,
                &mut sent,
                &mut result,
                &mut cut,
            ) {
                Ok(()) => keep_connection(connection),
                Err(ConnectionError::Failed(error)) => {
                    if sent.is_empty() {
                        keep_connection(connection);
                    }
                    return Err(error);
                }
                Err(ConnectionError::Disconnected) => {
                    // Answers that arrived count as progress: only a request that is lost again
                    // and again is given up.
                    waiting.extend(sent.into_values());
                    deaths += 1;
                    if deaths >= ATTEMPTS {
                        return Err(CallError::Lost(ATTEMPTS));
                    }
                }
            }
        }
        Ok((result, cut))
    }

    fn chunks(&self) -> VecDeque<Range<usize>> {
        let mut chunks = VecDeque::new();
        let (mut start, mut bytes) = (0, 0);
        for (i, text) in self.texts.iter().enumerate() {
            let full = i - start >= CHUNK_TEXTS || bytes + text.len() > CHUNK_BYTES;
            if i > start && full {
                chunks.push_back(start..i);
                (start, bytes) = (i, 0);
            }
            bytes += text.len();
        }
        if start < self.texts.len() {
            chunks.push_back(start..self.texts.len());
        }
        chunks
    }

    fn exchange(
        &self,
        connection: &mut Connection,
        waiting: &mut VecDeque<Range<usize>>,
        sent: &mut HashMap<u64, Range<usize>>,
        result: &mut Embedded,
        cut: &mut Cut,
    ) -> Result<(), ConnectionError> {
        let timeout = Duration::from_millis(guc::BUSY_TIMEOUT.get() as u64);
        let mut busy_since: Option<Instant> = None;
        let mut retry_at: Option<Instant> = None;
        while !waiting.is_empty() || !sent.is_empty() {
            if retry_at.is_some_and(|at| Instant::now() >= at) {
                retry_at = None;
            }
            while retry_at.is_none()
                && sent.len() < WINDOW
                && let Some(chunk) = waiting.pop_front()
            {
                let texts = self.texts[chunk.clone()].iter().map(|t| &**t);
                let id = match self.asked {
                    Asked::Embeddings(role) => connection.send_embed(self.model, role, texts),
                    Asked::Scores(query) => connection.send_rerank(self.model, query, texts),
                };
                sent.insert(id, chunk);
            }
            match connection.try_reply(retry_at)? {
                None => {}
                Some(Reply::Embeddings {
                    id,
                    fingerprint,
                    dimensions,
                    data,
                    truncated,
                }) => {
                    let Some(chunk) = sent.remove(&id) else {
                        return Err(CallError::Unexpected.into());
                    };
                    busy_since = None;
                    *cut += truncated.iter().filter(|cut| **cut).count();
                    self.store(result, chunk, fingerprint, dimensions as usize, &data)?;
                }
                Some(Reply::Error { id, failure }) => {
                    let chunk = sent.remove(&id);
                    let (ErrorCode::Busy, Some(chunk)) = (failure.code, chunk) else {
                        return Err(CallError::from(failure).into());
                    };
                    let since = *busy_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= timeout {
                        return Err(CallError::from(failure).into());
                    }
                    waiting.push_front(chunk);
                    retry_at = Some(Instant::now() + Duration::from_millis(20));
                }
                Some(_) => return Err(CallError::Unexpected.into()),
            }
        }
        Ok(())
    }

    fn store(
        &self,
        result: &mut Embedded,
        chunk: Range<usize>,
        fingerprint: [u8; 32],
        dimensions: usize,
        data: &[f32],
    ) -> Result<(), CallError> {
        if dimensions == 0 || data.len() != chunk.len() * dimensions {
            return Err(CallError::Unexpected);
        }
        if result.data.is_empty() {
            result.dimensions = dimensions;
            result.fingerprint = fingerprint;
            result.data = laser_memory::filled(0.0, self.texts.len().saturating_mul(dimensions))?;
        } else if result.fingerprint != fingerprint || result.dimensions != dimensions {
            return Err(CallError::Replaced);
        }
        result.data[chunk.start * dimensions..chunk.end * dimensions].copy_from_slice(data);
        Ok(())
    }
}
