//! A connection to the encoder process: frames in both directions, waits that a cancel ends.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use laser_protocol::{
    FrameBuffer, Reply, Request, Role, Search, VERSION, decode_reply, encode_embed_request,
    encode_request, encode_rerank_request,
};
use pgrx::{check_for_interrupts, pg_sys};

use super::error::{CallError, ConnectionError};
use super::socket::connect_socket;
use crate::pg::waits::{self, Wait};

/// Waits for the latch, the socket (if there is one) and the time in milliseconds (if there is
/// one), and handles interrupts: a cancel raises its error here.
pub fn wait(socket: Option<&UnixStream>, events: u32, timeout: Option<u64>) {
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
            waits::event(Wait::Encoder),
        );
        if happened as u32 & pg_sys::WL_LATCH_SET != 0 {
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
    }
    check_for_interrupts!();
}

/// A connection to the encoder.
pub struct Connection {
    stream: UnixStream,
    input: FrameBuffer,
    output: Vec<u8>,
    sent: usize,
    next_id: u64,
    scratch: Vec<u8>,
    /// End of the last call.
    pub used: Instant,
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
    pub fn open() -> io::Result<Option<Self>> {
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

    /// Agrees with the encoder on the version of the protocol.
    ///
    /// # Errors
    /// [`ConnectionError::Failed`] where the encoder speaks another one; [`ConnectionError::Disconnected`] where it has closed
    /// the connection, or is silent beyond the deadline.
    pub fn handshake(&mut self, deadline: Option<Instant>) -> Result<(), ConnectionError> {
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
    pub fn is_alive(&self) -> bool {
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
    pub fn send_search(&mut self, search: Search) {
        let id = self.id();
        encode_request(&Request::Search { id, search }, &mut self.output);
    }

    /// Asks for the embeddings of some texts, with [`Connection::try_reply`]; returns the request's number.
    pub fn send_embed<'t>(
        &mut self,
        model: &str,
        role: Role,
        texts: impl ExactSizeIterator<Item = &'t str>,
    ) -> u64 {
        let id = self.id();
        encode_embed_request(id, model, role, texts, &mut self.output);
        id
    }

    /// Adds a request for scores to what is to be sent; returns its id.
    pub fn send_rerank<'t>(
        &mut self,
        model: &str,
        query: &str,
        texts: impl ExactSizeIterator<Item = &'t str>,
    ) -> u64 {
        let id = self.id();
        encode_rerank_request(id, model, query, texts, &mut self.output);
        id
    }

    /// Sends files, when nothing else is left to send.
    pub fn send_files(&self, files: [&File; 3]) -> io::Result<()> {
        debug_assert!(self.output.is_empty());
        laser_protocol::send_files(&self.stream, files)
    }

    /// Sends one request and waits for its answer.
    pub fn ask_once(
        &mut self,
        mut request: Request,
        deadline: Option<Instant>,
    ) -> Result<Reply, ConnectionError> {
        let own = self.id();
        match &mut request {
            Request::Models { id }
            | Request::Status { id }
            | Request::Describe { id, .. }
            | Request::Embed { id, .. }
            | Request::Rerank { id, .. }
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
    pub fn next_reply(&mut self, deadline: Option<Instant>) -> Result<Reply, ConnectionError> {
        loop {
            match self.try_reply(deadline)? {
                Some(reply) => return Ok(reply),
                None if deadline.is_some_and(|d| Instant::now() >= d) => {
                    return Err(ConnectionError::Disconnected);
                }
                None => {}
            }
        }
    }

    /// Sends and receives once; waits, until the deadline, if nothing has arrived.
    pub fn try_reply(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<Reply>, ConnectionError> {
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
            let wait_event = waits::event(Wait::Encoder);
            let n = pg_sys::WaitEventSetWait(self.events, timeout, &mut event, 1, wait_event);
            if n > 0 && event.events & pg_sys::WL_LATCH_SET != 0 {
                pg_sys::ResetLatch(pg_sys::MyLatch);
            }
        }
        check_for_interrupts!();
    }

    fn parse(&mut self) -> Result<Option<Reply>, ConnectionError> {
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
