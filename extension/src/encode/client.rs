//! The session's side of the encoder process: one connection to the encoder process, kept between calls.
//!
//! A call takes the connection out of its place and puts it back only when no answer is
//! outstanding. Whatever ends a call before that (an error, a cancel, a timeout: pgrx turns them
//! into panics that unwind) drops the connection, which makes the encoder drop the session's
//! queued texts; the next call connects anew. Nothing needs to be resynchronised, and `Drop` runs
//! on every path.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use laser_memory::OutOfMemory;
use laser_protocol::{
    ErrorCode, Failure, FrameBuffer, ModelInfo, Reply, Request, Search, Status, VERSION,
    decode_reply, encode_embed_request, encode_request,
};
use pgrx::{PgSqlErrorCode, check_for_interrupts, pg_sys};

use super::embed::{Cut, Embedded, Model};
use super::files::{self, Lock, SOCKET, State};
use super::{guc, worker};
use crate::encoding::to_server;
use crate::memory;
use crate::types::{raise, raise_hint};

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
const HOPELESS: u32 = 4;
/// How long a connection is used again without a look at it.
const TRUSTED: Duration = Duration::from_millis(100);
/// How long a session that starts a worker keeps others from starting one as well.
const STARTER_PATIENCE: Duration = Duration::from_secs(5);

/// The connection, while no call uses it.
static CONNECTION: Mutex<Option<Connection>> = Mutex::new(None);

/// Embeds texts with a model (empty: the process's default); returns the embeddings, and how many
/// texts were cut. Waits with the session's latch, so a cancel works at any time.
pub fn embed(model: &str, texts: &[Cow<'_, str>]) -> Result<(Embedded, Cut), CallError> {
    Call { model, texts }.run()
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
            ..
        }) => Ok(Model {
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
            connection.greet(Some(deadline)).ok()?;
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

/// Why a call failed.
pub enum CallError {
    /// The encoder answered with an error.
    Refused(Failure),
    /// No encoder process came up in time.
    NotRunning(String),
    /// The encoder died as often as the request was sent.
    Lost,
    /// The answer is none to the request, or the two ends do not understand each other.
    Unexpected,
    /// The model was replaced while the call was under way.
    Replaced,
    /// The server runs without workers.
    SingleUser,
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
            Self::Lost => raise_hint(
                PgSqlErrorCode::ERRCODE_SYSTEM_ERROR,
                format!("the encoder process ended {ATTEMPTS} times while it worked on this call"),
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

/// What happened on a connection: it is gone (and the request can be sent on another one), or the
/// call failed.
pub(super) enum Trouble {
    Gone,
    Failed(CallError),
}

impl From<io::Error> for Trouble {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

impl From<CallError> for Trouble {
    fn from(error: CallError) -> Self {
        Self::Failed(error)
    }
}

fn take_connection() -> Option<Connection> {
    let kept = CONNECTION
        .lock()
        .unwrap_or_else(|e| e.into_inner())
        .take()?;
    // One that was used a moment ago is not looked at: if the encoder has died since, the request
    // is sent again, as if it had died under it.
    (kept.used.elapsed() < TRUSTED || kept.is_alive()).then_some(kept)
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
            Err(Trouble::Failed(error)) => return Err(error),
            Err(Trouble::Gone) => {}
        }
    }
    Err(CallError::Lost)
}

/// The kept connection or a new one; starts the worker if none runs, and waits for it.
pub(super) fn connect() -> Result<Connection, CallError> {
    if let Some(connection) = take_connection() {
        return Ok(connection);
    }
    let start = Instant::now();
    let patience = Duration::from_millis(guc::START_TIMEOUT.get() as u64);
    let mut pause = 5;
    let mut starter: Option<Lock> = None;
    let mut problem = String::new();
    loop {
        match Connection::open() {
            // A process that is there is waited for like for any other answer: it may have a slow
            // batch before it, and if it hangs, the worker ends it.
            Ok(Some(mut connection)) => match connection.greet(None) {
                Ok(()) => return Ok(connection),
                Err(Trouble::Failed(error)) => return Err(error),
                Err(Trouble::Gone) => {}
            },
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
                if state.failures >= HOPELESS {
                    return Err(CallError::NotRunning(state.last_error));
                }
                problem = state.last_error;
            }
            Ok(false) => {
                if starter.is_none()
                    && let Ok(Some(lock)) = files::lock_starter()
                {
                    starter = Some(lock);
                    if !worker::start() {
                        problem = "no background worker could be started (max_worker_processes is \
                                   reached)"
                            .into();
                        starter = None;
                    }
                }
            }
            Err(e) => problem = format!("could not look for the worker: {e}"),
        }
        if start.elapsed() > STARTER_PATIENCE {
            starter = None;
        }
        if start.elapsed() >= patience {
            return Err(CallError::NotRunning(problem));
        }
        wait(None, 0, Some(pause));
        pause = (pause * 3 / 2).min(50);
    }
}

/// Waits for the latch, the socket (if there is one) and the time in milliseconds (if there is
/// one), and handles interrupts: a cancel raises its error here.
fn wait(socket: Option<&UnixStream>, events: u32, timeout: Option<u64>) {
    let mut wake = pg_sys::WL_LATCH_SET | pg_sys::WL_EXIT_ON_PM_DEATH;
    let mut fd = -1;
    if let Some(socket) = socket {
        wake |= events;
        fd = socket.as_raw_fd();
    }
    if timeout.is_some() {
        wake |= pg_sys::WL_TIMEOUT;
    }
    // SAFETY: MyLatch belongs to this process, and the socket is open.
    unsafe {
        let happened = pg_sys::WaitLatchOrSocket(
            pg_sys::MyLatch,
            wake as i32,
            fd,
            timeout.unwrap_or(0) as std::ffi::c_long,
            pg_sys::PG_WAIT_EXTENSION,
        );
        if happened as u32 & pg_sys::WL_LATCH_SET != 0 {
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
    }
    check_for_interrupts!();
}

/// A connection to the encoder.
pub(super) struct Connection {
    stream: UnixStream,
    input: FrameBuffer,
    output: Vec<u8>,
    sent: usize,
    next_id: u64,
    scratch: Vec<u8>,
    /// End of the last call.
    used: Instant,
    /// The latch, the postmaster and the socket's input; null until the first wait. Setting it up
    /// for every wait would cost more system calls than the rest of a short call.
    events: *mut pg_sys::WaitEventSet,
}

// SAFETY: the pointer is only used by the main thread; the connection is in a static variable,
// which asks for the promise, and in nobody else's hands.
unsafe impl Send for Connection {}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the set, if there is one, belongs to this connection; ReleaseExternalFD() pairs
        // with AcquireExternalFD() in open(). Neither raises errors.
        unsafe {
            if !self.events.is_null() {
                pg_sys::FreeWaitEventSet(self.events);
            }
            pg_sys::ReleaseExternalFD();
        }
    }
}

impl Connection {
    /// Connects; `None` if nobody listens (yet).
    pub(super) fn open() -> io::Result<Option<Self>> {
        // SAFETY: counts a file descriptor against the session's limit.
        if !unsafe { pg_sys::AcquireExternalFD() } {
            return Err(io::Error::last_os_error());
        }
        match connect_socket() {
            Ok(stream) => Ok(Some(Self {
                stream,
                input: FrameBuffer::new(),
                output: Vec::new(),
                sent: 0,
                next_id: 1,
                scratch: vec![0; 1 << 16],
                used: Instant::now(),
                events: std::ptr::null_mut(),
            })),
            Err(e) => {
                // SAFETY: the descriptor counted above does not exist.
                unsafe { pg_sys::ReleaseExternalFD() };
                match e.raw_os_error() {
                    Some(libc::ENOENT | libc::ECONNREFUSED | libc::EAGAIN) => Ok(None),
                    _ => Err(e),
                }
            }
        }
    }

    /// Exchanges greetings.
    pub(super) fn greet(&mut self, deadline: Option<Instant>) -> Result<(), Trouble> {
        encode_request(&Request::Hello { version: VERSION }, &mut self.output);
        match self.next_reply(deadline)? {
            Reply::Hello {
                version: VERSION, ..
            } => Ok(()),
            Reply::Error { failure, .. } => Err(CallError::from(failure).into()),
            _ => Err(CallError::Unexpected.into()),
        }
    }

    /// Whether the encoder has neither closed the connection nor said anything unasked.
    fn is_alive(&self) -> bool {
        let mut byte = 0u8;
        // SAFETY: the buffer is one byte long; MSG_PEEK leaves the data in place.
        let n = unsafe {
            libc::recv(
                self.stream.as_raw_fd(),
                (&raw mut byte).cast(),
                1,
                libc::MSG_PEEK | libc::MSG_DONTWAIT,
            )
        };
        n < 0 && io::Error::last_os_error().kind() == ErrorKind::WouldBlock
    }

    fn id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// Asks for a search; the connection serves nothing else from then on.
    pub(super) fn send_search(&mut self, search: Search) {
        let id = self.id();
        encode_request(&Request::Search { id, search }, &mut self.output);
    }

    /// Sends files, when nothing else is left to send.
    pub(super) fn send_files(&self, files: [&File; 3]) -> io::Result<()> {
        debug_assert!(self.output.is_empty());
        laser_protocol::send_files(&self.stream, files)
    }

    /// Sends one request and waits for its answer.
    fn ask_once(
        &mut self,
        mut request: Request,
        deadline: Option<Instant>,
    ) -> Result<Reply, Trouble> {
        let own = self.id();
        match &mut request {
            Request::Models { id }
            | Request::Status { id }
            | Request::Describe { id, .. }
            | Request::Embed { id, .. }
            | Request::Ping { id }
            | Request::Search { id, .. } => *id = own,
            Request::Hello { .. } => {}
        }
        encode_request(&request, &mut self.output);
        let reply = self.next_reply(deadline)?;
        match &reply {
            Reply::Models { id, .. }
            | Reply::Status { id, .. }
            | Reply::Embeddings { id, .. }
            | Reply::Pong { id }
            | Reply::Error { id, .. }
                if *id == own =>
            {
                Ok(reply)
            }
            _ => Err(CallError::Unexpected.into()),
        }
    }

    /// Sends what is left to send, and waits for the next answer.
    pub(super) fn next_reply(&mut self, deadline: Option<Instant>) -> Result<Reply, Trouble> {
        loop {
            match self.try_reply(deadline)? {
                Some(reply) => return Ok(reply),
                None if deadline.is_some_and(|d| Instant::now() >= d) => return Err(Trouble::Gone),
                None => {}
            }
        }
    }

    /// Sends and receives once; waits, until the deadline, if nothing has arrived.
    fn try_reply(&mut self, deadline: Option<Instant>) -> Result<Option<Reply>, Trouble> {
        if let Some(reply) = self.parse()? {
            return Ok(Some(reply));
        }
        self.flush()?;
        let timeout = deadline.map(|d| {
            // Rounded up, so that the deadline has passed when the wait ends.
            d.saturating_duration_since(Instant::now()).as_millis() as u64 + 1
        });
        if self.output.is_empty() {
            self.wait_for_input(timeout);
        } else {
            let events = pg_sys::WL_SOCKET_READABLE | pg_sys::WL_SOCKET_WRITEABLE;
            wait(Some(&self.stream), events, timeout);
        }
        self.fill()?;
        self.parse()
    }

    /// As [`wait`], for input on the socket alone.
    fn wait_for_input(&mut self, timeout: Option<u64>) {
        // SAFETY: the set is made once, with the process's latch and the connection's socket, which
        // both outlive it. Room for one event is enough: what else has happened is still there at
        // the next wait.
        unsafe {
            if self.events.is_null() {
                #[cfg(any(feature = "pg17", feature = "pg18"))]
                let set = pg_sys::CreateWaitEventSet(std::ptr::null_mut(), 3);
                #[cfg(not(any(feature = "pg17", feature = "pg18")))]
                let set = pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, 3);
                self.events = set;
                let none = std::ptr::null_mut();
                let latch = pg_sys::MyLatch;
                pg_sys::AddWaitEventToSet(set, pg_sys::WL_LATCH_SET, -1, latch, none);
                let ends = pg_sys::WL_EXIT_ON_PM_DEATH;
                pg_sys::AddWaitEventToSet(set, ends, -1, std::ptr::null_mut(), none);
                let fd = self.stream.as_raw_fd();
                let input = pg_sys::WL_SOCKET_READABLE;
                pg_sys::AddWaitEventToSet(set, input, fd, std::ptr::null_mut(), none);
            }
            let mut event: pg_sys::WaitEvent = std::mem::zeroed();
            let timeout = timeout.map_or(-1, |t| t as std::ffi::c_long);
            let wait_event = pg_sys::PG_WAIT_EXTENSION;
            let n = pg_sys::WaitEventSetWait(self.events, timeout, &mut event, 1, wait_event);
            if n > 0 && event.events & pg_sys::WL_LATCH_SET != 0 {
                pg_sys::ResetLatch(pg_sys::MyLatch);
            }
        }
        check_for_interrupts!();
    }

    fn parse(&mut self) -> Result<Option<Reply>, Trouble> {
        let frame = match self.input.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(None),
            Err(_) => return Err(CallError::Unexpected.into()),
        };
        match decode_reply(frame) {
            Ok(reply) => {
                self.input.shrink(1 << 16);
                Ok(Some(reply))
            }
            Err(_) => Err(CallError::Unexpected.into()),
        }
    }

    /// Writes what the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads what has arrived.
    fn fill(&mut self) -> io::Result<()> {
        loop {
            match self.stream.read(&mut self.scratch) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.input.push(&self.scratch[..n]);
                    if n < self.scratch.len() {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }
}

/// Connects without blocking: the encoder may be stopped, with its backlog full.
pub fn connect_socket() -> io::Result<UnixStream> {
    // SAFETY: the descriptor is owned from its creation on; the address is a zeroed structure of
    // the right family, whose path is terminated because it is shorter than the field.
    unsafe {
        let fd = libc::socket(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            0,
        );
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        const { assert!(SOCKET.len() < 100) };
        for (to, from) in address.sun_path.iter_mut().zip(SOCKET.bytes()) {
            *to = from as libc::c_char;
        }
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        if libc::connect(fd.as_raw_fd(), (&raw const address).cast(), length) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(UnixStream::from(fd))
    }
}

/// One call of [`embed_texts`]: its texts go out in requests of limited size, several under way at
/// a time.
struct Call<'a> {
    model: &'a str,
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
        let mut cut = Cut::default();
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
                Err(Trouble::Failed(error)) => {
                    if sent.is_empty() {
                        keep_connection(connection);
                    }
                    return Err(error);
                }
                Err(Trouble::Gone) => {
                    // Answers that arrived count as progress: only a request that is lost again
                    // and again is given up.
                    waiting.extend(sent.into_values());
                    deaths += 1;
                    if deaths >= ATTEMPTS {
                        return Err(CallError::Lost);
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
    ) -> Result<(), Trouble> {
        let patience = Duration::from_millis(guc::BUSY_TIMEOUT.get() as u64);
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
                let id = connection.id();
                let texts = self.texts[chunk.clone()].iter().map(|t| &**t);
                encode_embed_request(id, self.model, texts, &mut connection.output);
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
                    for (at, _) in truncated.iter().enumerate().filter(|(_, cut)| **cut) {
                        cut.add(chunk.start + at);
                    }
                    self.store(result, chunk, fingerprint, dimensions as usize, &data)?;
                }
                Some(Reply::Error { id, failure }) => {
                    let chunk = sent.remove(&id);
                    let (ErrorCode::Busy, Some(chunk)) = (failure.code, chunk) else {
                        return Err(CallError::from(failure).into());
                    };
                    let since = *busy_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= patience {
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
