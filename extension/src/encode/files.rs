//! What the worker and the sessions share in the data directory, which is the working directory of
//! every server process. None of it outlives its purpose: it is made again after a crash.
//!
//! The names begin with `pgsql_tmp`, which base backups and pg_rewind leave out.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

/// Folder of all files.
const FOLDER: &str = "laser";
/// The encoder's socket.
pub const SOCKET: &str = "laser/pgsql_tmp_encoder.sock";
/// Locked by the one worker.
const WORKER_LOCK: &str = "laser/pgsql_tmp_worker.lock";
/// Locked by the session that is starting a worker.
const STARTER_LOCK: &str = "laser/pgsql_tmp_starter.lock";
/// What the worker reports.
const STATE: &str = "laser/pgsql_tmp_worker.state";
const STATE_NEW: &str = "laser/pgsql_tmp_worker.state.new";

/// A lock on a file, held until dropped or until the process ends.
pub struct Lock {
    _file: File,
}

fn lock_request() -> libc::flock {
    // SAFETY: all zeros are valid for this plain structure: the whole file, from its start.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::F_WRLCK as _;
    request.l_whence = libc::SEEK_SET as _;
    request
}

fn open(path: &str) -> io::Result<File> {
    match fs::create_dir(FOLDER) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // Locks of this kind belong to the process and its open file; a child does not inherit them.
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
}

fn try_lock(path: &str) -> io::Result<Option<Lock>> {
    let file = open(path)?;
    let request = lock_request();
    // SAFETY: the structure is valid for the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &request) } == 0 {
        return Ok(Some(Lock { _file: file }));
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
        e => Err(e),
    }
}

/// Locks the place of the worker; `None` if another process has it.
pub fn lock_worker() -> io::Result<Option<Lock>> {
    try_lock(WORKER_LOCK)
}

/// Locks the right to start a worker; `None` if another session has it.
pub fn lock_starter() -> io::Result<Option<Lock>> {
    try_lock(STARTER_LOCK)
}

/// Whether a worker runs. Takes no lock, so it never keeps a worker from starting.
pub fn worker_runs() -> io::Result<bool> {
    let file = open(WORKER_LOCK)?;
    let mut request = lock_request();
    // SAFETY: the structure is valid for the call, which writes the answer into it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(request.l_type != libc::F_UNLCK as libc::c_short)
}

/// What the worker says about the encoder process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// starting, running, not answering, backing off or stopped.
    pub state: String,
    /// Process id of the encoder, 0 if there is none.
    pub encoder: u32,
    /// Process id of the worker.
    pub worker: u32,
    /// Starts of the encoder after the first.
    pub restarts: u64,
    /// Starts in a row that did not lead to a healthy encoder.
    pub failures: u32,
    /// Why the encoder last ended; empty if it has not.
    pub last_error: String,
}

impl State {
    /// Writes the state for others to see.
    pub fn write(&self) -> io::Result<()> {
        let error = self.last_error.replace('\n', " ");
        let text = format!(
            "{}\n{}\n{}\n{}\n{}\n{error}\n",
            self.state, self.encoder, self.worker, self.restarts, self.failures
        );
        fs::write(STATE_NEW, text)?;
        fs::rename(STATE_NEW, STATE)
    }

    /// The last state that a worker wrote. Without a worker there is no encoder either.
    pub fn read() -> Self {
        let text = fs::read_to_string(STATE).unwrap_or_default();
        let mut lines = text.lines();
        let mut next = || lines.next().unwrap_or_default();
        let mut state = Self {
            state: next().to_owned(),
            encoder: next().parse().unwrap_or(0),
            worker: next().parse().unwrap_or(0),
            restarts: next().parse().unwrap_or(0),
            failures: next().parse().unwrap_or(0),
            last_error: next().to_owned(),
        };
        if !worker_runs().unwrap_or(false) {
            state.state = "stopped".into();
            state.encoder = 0;
            state.worker = 0;
            state.failures = 0;
        }
        state
    }
}
