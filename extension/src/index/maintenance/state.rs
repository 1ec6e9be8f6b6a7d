//! What the worker of a database and the sessions tell each other: files in the data directory.
//!
//! Shared memory would be there only where the library is preloaded, and an index has work seldom enough
//! that files do. A lock on one says that there is a worker, and which process it is; a second one has what
//! the worker does and what it has put off, which a session reads now and then; a third one counts starts
//! that came to nothing. Files of databases that are gone are removed by the next worker.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Seek, Write as _};

use crate::pg::file_lock::{self, FOLDER, Lock};

const PREFIX: &str = "pgsql_tmp_maintenance_";

fn path(database: u32, what: &str) -> String {
    format!("{FOLDER}/{PREFIX}{database}.{what}")
}

/// Locks the place of a database's worker; `None` if another process has it.
pub fn lock_worker(database: u32) -> io::Result<Option<Lock>> {
    Lock::attempt(&path(database, "lock"))
}

/// The process of a database's worker.
pub fn worker_of(database: u32) -> Option<i32> {
    file_lock::holder(&path(database, "lock")).ok().flatten()
}

/// Other databases that have a worker. A process that looks at the lock that it has loses it (fcntl(2)).
pub fn other_active_databases(database: u32) -> impl Iterator<Item = u32> {
    databases()
        .into_iter()
        .filter(move |&other| other != database && worker_of(other).is_some())
}

/// A merge at work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// OID of the index.
    pub index: u32,
    /// Name of the index without its schema, as the merge has found it.
    pub name: String,
    /// What it is at.
    pub phase: String,
    /// Rows that the phase has done, of `total`.
    pub done: u64,
    pub total: u64,
    /// As a `timestamptz`.
    pub started: i64,
}

/// An index whose merge has failed, or that somebody else has: VACUUM, a check, another merge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeferredMerge {
    /// OID of the index.
    pub index: u32,
    /// Name of the index without its schema; empty if it was gone.
    pub name: String,
    /// Failures in a row; none where somebody else has the index.
    pub failures: u32,
    /// When it has failed and when it is tried again, as `timestamptz`.
    pub failed: i64,
    pub until: i64,
    /// Why it has failed.
    pub error: String,
}

/// What a worker publishes: the content of its state file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// The merge that is running.
    pub work: Option<Work>,
    /// Merges that wait for their next attempt.
    pub deferred: Vec<DeferredMerge>,
}

/// As part of a line.
fn plain(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

impl State {
    /// Writes the state for others to see.
    pub fn write(&self, database: u32) -> io::Result<()> {
        let mut text = String::new();
        if let Some(w) = &self.work {
            let _ = writeln!(
                text,
                "work\t{}\t{}\t{}\t{}\t{}\t{}",
                w.index,
                plain(&w.name),
                w.phase,
                w.done,
                w.total,
                w.started
            );
        }
        for p in &self.deferred {
            let _ = writeln!(
                text,
                "put off\t{}\t{}\t{}\t{}\t{}\t{}",
                p.index,
                plain(&p.name),
                p.failures,
                p.failed,
                p.until,
                plain(&p.error)
            );
        }
        let new = path(database, "state.new");
        fs::write(&new, text)?;
        fs::rename(&new, path(database, "state"))
    }

    /// The state that the last worker of a database has written; its `work` is meaningful while that worker runs.
    pub fn read(database: u32) -> Self {
        let text = fs::read_to_string(path(database, "state")).unwrap_or_default();
        let mut state = Self::default();
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            match fields[..] {
                ["work", index, name, phase, done, total, started] => {
                    state.work = Some(Work {
                        index: number(index),
                        name: name.to_owned(),
                        phase: phase.to_owned(),
                        done: number(done),
                        total: number(total),
                        started: number(started),
                    });
                }
                ["put off", index, name, failures, failed, until, error] => {
                    state.deferred.push(DeferredMerge {
                        index: number(index),
                        name: name.to_owned(),
                        failures: number(failures),
                        failed: number(failed),
                        until: number(until),
                        error: error.to_owned(),
                    });
                }
                _ => {}
            }
        }
        state
    }

    /// The entry of an index that is put off until later than `now`; none that was made later: a clock that was set
    /// back puts nothing off.
    pub fn deferred(&self, index: u32, now: i64) -> Option<&DeferredMerge> {
        let mut entries = self.deferred.iter();
        entries.find(|p| p.index == index && p.until > now && p.failed <= now)
    }
}

fn number<N: std::str::FromStr + Default>(text: &str) -> N {
    text.parse().unwrap_or_default()
}

/// Starts of a database's worker that have not led to one that works, and when the last one was
/// (`timestamptz`). Its lock is the right to start one.
pub struct Starts {
    lock: Lock,
    pub count: u32,
    pub last: i64,
}

impl Starts {
    /// Of a database; `None` while another session has the right.
    pub fn of(database: u32) -> io::Result<Option<Self>> {
        let Some(lock) = Lock::attempt(&path(database, "starts"))? else {
            return Ok(None);
        };
        let mut text = String::new();
        lock.file().read_to_string(&mut text)?;
        let mut words = text.split_whitespace().map(str::to_owned);
        let count = words.next().map_or(0, |word| number(&word));
        let last = words.next().map_or(0, |word| number(&word));
        Ok(Some(Self { lock, count, last }))
    }

    /// Notes another start.
    pub fn note(&self, count: u32, at: i64) -> io::Result<()> {
        let mut file = self.lock.file();
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{count} {at}").as_bytes())
    }

    /// Forgets all of them: there is a worker, and it works.
    pub fn forget(database: u32) {
        let _ = fs::remove_file(path(database, "starts"));
    }
}

/// Databases of which there are files.
pub fn databases() -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let database: Option<u32> = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok());
        found.extend(database);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Removes the files of a database that is gone.
pub fn remove(database: u32) {
    for what in ["state", "state.new", "starts", "lock"] {
        let _ = fs::remove_file(path(database, what));
    }
}
