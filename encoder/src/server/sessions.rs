//! The connections of sessions: the socket that is listened on, what each session has sent and not been
//! answered, and the replies to it.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use laser_protocol::{
    Failure, FrameBuffer, ProtocolError, Reply, Request, decode_request, encode_embeddings_reply,
    encode_reply,
};

use super::log::log;
use super::poll::{Epoll, Event, Waker};
use super::queue::{Job, SessionId};
use super::socket::{bind, identity};
use super::writer::{Output, Writer};

/// Requests of one session that may wait; beyond it, the session's socket is not read.
const MAX_REQUESTS: usize = 64;
/// Replies of one session in bytes that may wait for it to read them.
const MAX_UNREAD: usize = 64 << 20;
/// Bytes of requests that are read from one session at a time.
const MAX_INPUT: usize = 1 << 20;
/// How often it is checked whether the socket's file is still there.
const SOCKET_INTERVAL: Duration = Duration::from_secs(2);
/// How often it is checked whether paused sessions may go on.
const PAUSE_INTERVAL: Duration = Duration::from_millis(20);

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const FIRST_SESSION: SessionId = 2;

struct Session {
    output: Arc<Output>,
    input: FrameBuffer,
    handshake_done: bool,
    requests: usize,
    paused: bool,
}

/// All connections.
pub struct Sessions {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's file.
    identity: Option<(u64, u64)>,
    checked: Instant,
    epoll: Epoll,
    waker: Arc<Waker>,
    all: HashMap<SessionId, Session>,
    next: SessionId,
    writer: Writer,
    scratch: Vec<u8>,
    reply: Vec<u8>,
}

impl Sessions {
    /// Listens on an open socket, whose file is at `path`; `waker` ends a wait.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(listener: UnixListener, path: PathBuf, waker: Arc<Waker>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER)?;
        epoll.add(&*waker, WAKER)?;
        Ok(Self {
            listener,
            identity: identity(&path),
            path,
            checked: Instant::now(),
            epoll,
            waker,
            all: HashMap::new(),
            next: FIRST_SESSION,
            writer: Writer::new()?,
            scratch: vec![0; 1 << 16],
            reply: Vec::new(),
        })
    }

    /// Waits for something to do, or only looks for it while there is work (`busy`), and accepts new
    /// connections. `events` are those of sessions, whose tokens are their ids.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn wait(&mut self, busy: bool, events: &mut Vec<Event>) -> io::Result<()> {
        let timeout = if busy {
            Duration::ZERO
        } else if self.all.values().any(|s| s.paused) {
            PAUSE_INTERVAL
        } else {
            SOCKET_INTERVAL
        };
        self.epoll.wait(timeout, events)?;
        self.check_socket()?;
        events.retain(|event| match event.token {
            LISTENER => {
                self.accept();
                false
            }
            WAKER => {
                self.waker.clear();
                false
            }
            _ => true,
        });
        Ok(())
    }

    /// Makes the socket's file again if somebody has removed or replaced it: without it nobody new
    /// would get here. Those who are connected stay so.
    fn check_socket(&mut self) -> io::Result<()> {
        if self.checked.elapsed() < SOCKET_INTERVAL {
            return Ok(());
        }
        self.checked = Instant::now();
        if self.identity.is_some() && identity(&self.path) == self.identity {
            return Ok(());
        }
        log("the socket's file is gone, it is made again");
        let listener = bind(&self.path)?;
        listener.set_nonblocking(true)?;
        self.epoll.add(&listener, LISTENER)?;
        self.epoll.remove(&self.listener)?;
        self.listener = listener;
        self.identity = identity(&self.path);
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
            let id = self.next;
            self.next += 1;
            if stream
                .set_nonblocking(true)
                .and_then(|()| self.epoll.add(&stream, id))
                .is_err()
            {
                continue;
            }
            let session = Session {
                output: Output::new(stream),
                input: FrameBuffer::new(),
                handshake_done: false,
                requests: 0,
                paused: false,
            };
            self.all.insert(id, session);
        }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Closes a connection; returns whether it was open.
    pub fn close(&mut self, id: SessionId) -> bool {
        let Some(session) = self.all.remove(&id) else {
            return false;
        };
        let _ = self.epoll.remove(session.output.stream());
        true
    }

    /// Reads what has arrived: one buffer's worth, level-triggered events bring the rest. Returns false
    /// if the peer is gone.
    pub fn receive(&mut self, id: SessionId) -> bool {
        let Some(session) = self.all.get_mut(&id) else {
            return true;
        };
        loop {
            match session.output.stream().read(&mut self.scratch) {
                Ok(0) => return false,
                Ok(n) => {
                    session.input.push(&self.scratch[..n]);
                    if n < self.scratch.len() || session.input.len() > MAX_INPUT {
                        return true;
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
    }

    /// The next request of a session that has arrived completely. A session that has too many requests or
    /// replies under way is paused: it has none, and is not read.
    pub fn next_request(&mut self, id: SessionId) -> Option<Result<Request, ProtocolError>> {
        let session = self.all.get_mut(&id)?;
        let pause = session.requests >= MAX_REQUESTS || session.output.pending() > MAX_UNREAD;
        if pause != session.paused {
            session.paused = pause;
            let _ = self.epoll.set_reading(session.output.stream(), id, !pause);
        }
        if pause {
            return None;
        }
        match session.input.next_frame() {
            Ok(None) => {
                session.input.shrink(MAX_INPUT);
                None
            }
            Ok(Some(frame)) => Some(decode_request(frame)),
            Err(e) => Some(Err(e)),
        }
    }

    /// Sessions that are paused.
    pub fn paused(&self) -> Vec<SessionId> {
        let paused = self.all.iter().filter(|(_, s)| s.paused);
        paused.map(|(&id, _)| id).collect()
    }

    /// Whether a session has said which protocol it speaks.
    pub fn handshake_done(&self, id: SessionId) -> bool {
        self.all.get(&id).is_some_and(|s| s.handshake_done)
    }

    /// To be called when a session has said so.
    pub fn set_handshake_done(&mut self, id: SessionId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.handshake_done = true;
        }
    }

    /// The connection of a session, for a thread that goes on with it.
    ///
    /// # Errors
    /// When requests or replies of the session are under way, or no descriptor is left.
    pub fn stream(&self, id: SessionId) -> io::Result<UnixStream> {
        let session = self.all.get(&id).filter(|session| {
            session.requests == 0 && session.output.pending() == 0 && session.input.is_empty()
        });
        match session {
            Some(session) => session.output.stream().try_clone(),
            None => Err(io::Error::other("its connection is in use")),
        }
    }

    /// Counts a request that will be answered by [`Self::finish_job`] or [`Self::fail_job`].
    pub fn begin_job(&mut self, id: SessionId) {
        if let Some(session) = self.all.get_mut(&id) {
            session.requests += 1;
        }
    }

    /// Answers a job with its embeddings.
    pub fn finish_job(&mut self, job: &Job) {
        let Some(session) = self.all.get_mut(&job.session) else {
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

    /// Answers a job with an error.
    pub fn fail_job(&mut self, job: &Job, failure: Failure) {
        if let Some(session) = self.all.get_mut(&job.session) {
            session.requests -= 1;
        }
        self.fail(job.session, job.request, failure);
    }

    /// Answers a request with an error.
    pub fn fail(&mut self, id: SessionId, request: u64, failure: Failure) {
        let reply = Reply::Error {
            id: request,
            failure,
        };
        self.send(id, &reply);
    }

    /// Queues a reply for a session, and drops it if the session is gone.
    pub fn send(&mut self, id: SessionId, reply: &Reply) {
        let Some(session) = self.all.get(&id) else {
            return;
        };
        encode_reply(reply, &mut self.reply);
        self.writer.send(&session.output, &mut self.reply);
    }
}
