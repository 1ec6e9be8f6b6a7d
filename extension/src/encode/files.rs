//! What the worker and the sessions share in the data directory. It is made again after a crash.

use std::fs;
use std::io;

use crate::pg::file_lock::{self, Lock};

/// The encoder's socket, by its path from the data directory.
pub const SOCKET: &str = "laser/pgsql_tmp_encoder.sock";
/// Locked by the one worker.
const WORKER_LOCK: &str = "laser/pgsql_tmp_worker.lock";
/// Locked by the session that is starting a worker.
const STARTER_LOCK: &str = "laser/pgsql_tmp_starter.lock";
/// What the worker reports.
const STATE: &str = "laser/pgsql_tmp_worker.state";
const STATE_NEW: &str = "laser/pgsql_tmp_worker.state.new";

/// Locks the place of the worker; `None` if another process has it.
pub fn lock_worker() -> io::Result<Option<Lock>> {
    Lock::attempt(WORKER_LOCK)
}

/// Locks the right to start a worker; `None` if another session has it.
pub fn lock_starter() -> io::Result<Option<Lock>> {
    Lock::attempt(STARTER_LOCK)
}

/// Whether a worker runs. Takes no lock, so it never keeps a worker from starting.
pub fn worker_runs() -> io::Result<bool> {
    Ok(file_lock::holder(WORKER_LOCK)?.is_some())
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
