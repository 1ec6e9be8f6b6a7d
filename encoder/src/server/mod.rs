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
mod poll;
mod process;
mod queue;
mod scheduler;
mod search;
mod sessions;
mod socket;
mod stats;
mod tokens;
mod writer;

use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use laser_encoder::{LoadOptions, Purpose};
use laser_protocol::loads::Loads;
use laser_protocol::work::Record;
use laser_protocol::{ErrorCode, Failure, Reply, Request, Search, VERSION};

use models::{Lookup, Models, Report};
use poll::{Event, Waker};
use queue::SessionId;
use scheduler::Scheduler;
use search::Searches;
use sessions::Sessions;
use tokens::Tokens;

pub use log::log;
pub use process::{bound_processors, die_with_parent, exit_now, prepare_process};
pub use socket::bind;

/// What the server is told at its start.
pub struct Options {
    /// Path of the Unix socket that the server listens on; its file is made again where it is gone.
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

/// The event loop with all that it serves: one thread owns it.
pub struct Server {
    sessions: Sessions,
    models: Models,
    scheduler: Scheduler,
    searches: Searches,
    /// Requests for the description of a model that is being loaded.
    describing: Vec<(SessionId, u64, String)>,
    restarts: u64,
}

impl Server {
    /// A server on an open socket; starts loading the default model.
    ///
    /// # Errors
    /// When a thread or a descriptor cannot be had.
    pub fn new(listener: UnixListener, options: Options) -> io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        let sessions = Sessions::new(listener, options.socket, waker.clone())?;
        let searches = Searches::new(options.load.device);
        let loads = Loads::open(options.record.as_ref());
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
            loads,
            waker,
        )?;
        if let Some(name) = models.default_name() {
            models.lookup(&name);
        }
        Ok(Self {
            sessions,
            models,
            scheduler: Scheduler::new(options.queue_limit, tokens, record, suspicion),
            searches,
            describing: Vec::new(),
            restarts: options.restarts,
        })
    }

    /// Serves until an error of the event loop itself.
    ///
    /// # Errors
    /// That error.
    pub fn run(&mut self) -> io::Result<()> {
        let mut events = Vec::new();
        let mut busy = false;
        loop {
            self.sessions.wait(busy, &mut events)?;
            for event in &events {
                self.session_event(event);
            }
            self.take_reports();
            for id in self.sessions.paused() {
                self.handle_requests(id);
            }
            self.scheduler.take_tokens(&mut self.sessions);
            self.scheduler.start_tokenizing(&mut self.models);
            busy = self
                .scheduler
                .encode_batch(&mut self.models, &mut self.sessions);
        }
    }

    fn session_event(&mut self, event: &Event) {
        if event.hangup {
            self.close(event.token);
        } else if event.readable {
            if self.sessions.receive(event.token) {
                self.handle_requests(event.token);
            } else {
                self.close(event.token);
            }
        }
    }

    fn close(&mut self, id: SessionId) {
        if self.sessions.close(id) {
            self.scheduler.forget(id);
            self.describing.retain(|d| d.0 != id);
        }
    }

    fn handle_requests(&mut self, id: SessionId) {
        while let Some(request) = self.sessions.next_request(id) {
            match request {
                Ok(request) => self.handle(id, request),
                Err(e) => {
                    let message = format!("the encoder cannot read a request: {e}");
                    return self.refuse(id, message, "");
                }
            }
        }
    }

    /// Ends a connection whose peer does not speak the protocol.
    fn refuse(&mut self, id: SessionId, message: impl Into<String>, hint: &str) {
        let failure = Failure::new(ErrorCode::Protocol, message, hint);
        self.sessions.fail(id, 0, failure);
        self.close(id);
    }

    fn handle(&mut self, id: SessionId, request: Request) {
        match request {
            Request::Hello { version } if version == VERSION => {
                self.sessions.set_handshake_done(id);
                let pid = std::process::id();
                self.sessions.send(id, &Reply::Hello { version, pid });
            }
            Request::Hello { version } => {
                let message =
                    format!("the encoder speaks protocol version {VERSION}, not {version}");
                let hint = "laser was upgraded; restart the server, or reconnect.";
                self.refuse(id, message, hint);
            }
            _ if !self.sessions.handshake_done(id) => {
                self.refuse(id, "the first message is not a handshake", "");
            }
            Request::Ping { id: request } => self.sessions.send(id, &Reply::Pong { id: request }),
            Request::Status { id: request } => {
                let reply = Reply::Status {
                    id: request,
                    status: Box::new(self.status()),
                };
                self.sessions.send(id, &reply);
            }
            Request::Models { id: request } => self.models.list((id, request)),
            Request::Describe { id: request, model } => self.describe(id, request, &model),
            Request::Embed {
                id: request,
                model,
                texts,
                role,
            } => self.submit(id, request, &model, Purpose::Embed(role), texts),
            Request::Rerank {
                id: request,
                model,
                query,
                texts,
            } => self.submit(id, request, &model, Purpose::Rerank(query.into()), texts),
            Request::Search {
                id: request,
                search,
            } => self.search(id, request, search),
        }
    }

    /// Gives the connection to a thread that searches.
    fn search(&mut self, id: SessionId, request: u64, search: Search) {
        let stream = self.sessions.stream(id);
        let started = stream.and_then(|stream| self.searches.start(stream, request, search));
        if let Err(e) = started {
            let message = format!("could not start a search: {e}");
            let failure = Failure::new(ErrorCode::Internal, message, "");
            self.sessions.fail(id, request, failure);
        }
        self.close(id);
    }

    fn status(&mut self) -> laser_protocol::Status {
        let (loaded, memory, device) = self.models.loaded();
        let stats = self.scheduler.stats();
        laser_protocol::Status {
            pid: std::process::id(),
            device,
            default_model: self.models.default_name().unwrap_or_default(),
            loaded,
            memory,
            sessions: self.sessions.len() as u32,
            queued: self.scheduler.waiting() as u64,
            queue_limit: self.scheduler.limit() as u64,
            batches: stats.batches,
            sentences: stats.sentences,
            tokens: stats.tokens,
            sentences_per_second: stats.sentences_per_second(),
            restarts: self.restarts,
            uptime_ms: stats.uptime().as_millis() as u64,
            last_error: stats.last_error.clone(),
        }
    }

    fn describe(&mut self, id: SessionId, request: u64, model: &str) {
        let name = match self.models.resolve(model) {
            Ok(name) => name,
            Err(failure) => return self.sessions.fail(id, request, failure),
        };
        match self.models.lookup(&name) {
            Lookup::Ready => self.send_model(id, request, &name),
            Lookup::Loading => self.describing.push((id, request, name)),
            Lookup::Failed(failure) => self.sessions.fail(id, request, failure),
        }
    }

    fn send_model(&mut self, id: SessionId, request: u64, name: &str) {
        let models = self.models.info(name).into_iter().collect();
        let reply = Reply::Models {
            id: request,
            models,
        };
        self.sessions.send(id, &reply);
    }

    /// Queues what a session asks about texts, or answers why not.
    fn submit(
        &mut self,
        id: SessionId,
        request: u64,
        model: &str,
        purpose: Purpose,
        texts: Vec<String>,
    ) {
        match self.try_submit(id, request, model, purpose, texts) {
            Ok(()) => self.sessions.begin_job(id),
            Err(failure) => self.sessions.fail(id, request, failure),
        }
    }

    fn try_submit(
        &mut self,
        id: SessionId,
        request: u64,
        model: &str,
        purpose: Purpose,
        texts: Vec<String>,
    ) -> Result<(), Failure> {
        let name = self.models.resolve(model)?;
        if let Lookup::Failed(failure) = self.models.lookup(&name) {
            return Err(failure);
        }
        // What comes for a model that is being loaded is refused when it is tokenized.
        if let Some(model) = self.models.get(&name)
            && let Err(error) = model.encoder.check(&purpose)
        {
            return Err(batch::failure(&error.into(), &name));
        }
        self.scheduler.submit(id, request, name, purpose, texts)
    }

    /// Answers those who wait for what the loader has done.
    fn take_reports(&mut self) {
        for report in self.models.reports() {
            match report {
                Report::Listed {
                    asker: (id, request),
                    models,
                } => {
                    let reply = Reply::Models {
                        id: request,
                        models,
                    };
                    self.sessions.send(id, &reply);
                }
                Report::Loaded { name, failure } => {
                    let is_asked = |d: &mut (SessionId, u64, String)| d.2 == name;
                    let asked: Vec<_> = self.describing.extract_if(.., is_asked).collect();
                    for (id, request, _) in asked {
                        match &failure {
                            Some(failure) => self.sessions.fail(id, request, failure.clone()),
                            None => self.send_model(id, request, &name),
                        }
                    }
                    if let Some(failure) = failure {
                        self.scheduler.note_error(&failure.message);
                        self.scheduler
                            .fail_model(&name, &failure, &mut self.sessions);
                    }
                }
            }
        }
    }
}
