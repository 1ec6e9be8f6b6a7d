//! What `laser_mining_progress` shows.
//!
//! Shared memory is only there when the library was preloaded, and `pg_stat_progress_*` have a
//! fixed list of commands. So each mining session keeps a small file in the server's folder for
//! temporary statistics, where the view finds it; base backups leave that folder out. A file is
//! replaced by rename and removed when the function ends; one that a crash left behind is removed
//! by the next look.
#![allow(unsafe_code)]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pgrx::datum::TimestampWithTimeZone;
use pgrx::prelude::*;

use super::forecast::Forecast;
use super::guc;
use crate::pg::catalogs::reads_all_statistics;

const FOLDER: &str = "pg_stat_tmp";
const PREFIX: &str = "laser_mining.";
/// How often the file is written.
const INTERVAL: Duration = Duration::from_millis(250);

/// The progress of the function that this session is running.
pub struct Progress {
    path: PathBuf,
    written: Option<Instant>,
    started: i64,
    phase: &'static str,
    rows: [usize; 2],
    done: u64,
    total: u64,
    /// What searches will take.
    pub forecast: Forecast,
}

impl Progress {
    /// Starts to report.
    pub fn start() -> Self {
        // SAFETY: plain variables and functions of the server, on its only thread.
        let (pid, now) = unsafe { (pg_sys::MyProcPid, pg_sys::GetCurrentTimestamp()) };
        Progress {
            path: Path::new(FOLDER).join(format!("{PREFIX}{pid}")),
            written: None,
            started: now,
            phase: "starting",
            rows: [0; 2],
            done: 0,
            total: 0,
            forecast: Forecast::default(),
        }
    }

    /// Enters a phase, such as "reading source".
    pub fn phase(&mut self, phase: &'static str) {
        self.phase = phase;
        (self.done, self.total) = (0, 0);
        self.forecast.begin();
        self.write();
    }

    /// Tells how many rows of a side (0 source, 1 target) were read.
    pub fn read(&mut self, side: usize, rows: usize) {
        self.rows[side] = rows;
        self.write_sometimes();
    }

    /// Tells how many pairs of rows a search has compared, and how many there are.
    pub fn search(&mut self, done: u64, total: u64) {
        (self.done, self.total) = (done, total);
        self.write_sometimes();
        self.forecast.look(done, total);
    }

    /// The same of a search that is finding out how many of these it need not compare, so that there is no forecast.
    pub fn measuring(&mut self, done: u64, total: u64) {
        (self.done, self.total) = (done, total);
        self.write_sometimes();
        self.forecast.begin();
    }

    /// Pairs of rows that the last search compared.
    pub fn compared(&self) -> u64 {
        self.total
    }

    fn write_sometimes(&mut self) {
        if self
            .written
            .is_none_or(|written| written.elapsed() >= INTERVAL)
        {
            self.write();
        }
    }

    /// Progress is a courtesy: a file that cannot be written stops nobody.
    fn write(&mut self) {
        self.written = Some(Instant::now());
        let mut text = String::new();
        // SAFETY: plain variables and functions of the server, on its only thread.
        let (database, user) = unsafe { (pg_sys::MyDatabaseId, pg_sys::GetUserId()) };
        let _ = write!(
            text,
            "{} {} {} {} {} {} {} {} {} {}",
            self.started,
            database.to_u32(),
            user.to_u32(),
            self.rows[0],
            self.rows[1],
            self.done,
            self.total,
            guc::threads(),
            guc::memory() / 1024,
            self.phase,
        );
        let new = self.path.with_extension("new");
        if fs::write(&new, text).is_ok() {
            let _ = fs::rename(&new, &self.path);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn runs(pid: i32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    let reached = unsafe { libc::kill(pid, 0) } == 0;
    reached || std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Whether the current role may see how far a session of another one is, as `pg_stat_progress_*` have it
/// (`HAS_PGSTAT_PERMISSIONS`, src/backend/utils/adt/pgstatfuncs.c).
fn sees(role: pg_sys::Oid) -> bool {
    // SAFETY: a plain question to the server.
    reads_all_statistics() || unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), role) }
}

/// One row for each session that mines; of other roles' sessions no more than that they do.
#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_mining_progress() -> TableIterator<
    'static,
    (
        name!(pid, i32),
        name!(datid, pg_sys::Oid),
        name!(usesysid, pg_sys::Oid),
        name!(started_at, Option<TimestampWithTimeZone>),
        name!(phase, Option<String>),
        name!(source_rows, Option<i64>),
        name!(target_rows, Option<i64>),
        name!(pairs_done, Option<i64>),
        name!(pairs_total, Option<i64>),
        name!(threads, Option<i32>),
        name!(memory_kb, Option<i64>),
    ),
> {
    let mut rows = Vec::new();
    for entry in fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let Ok(pid) = pid.parse::<i32>() else {
            continue;
        };
        if !runs(pid) {
            let _ = fs::remove_file(entry.path());
            continue;
        }
        let Ok(text) = fs::read_to_string(entry.path()) else {
            continue;
        };
        let mut words = text.splitn(10, ' ');
        let mut number = || words.next()?.parse::<i64>().ok();
        let numbers: Option<Vec<i64>> = (0..9).map(|_| number()).collect();
        let (Some(n), Some(phase)) = (numbers, words.next()) else {
            continue;
        };
        let Ok(started) = TimestampWithTimeZone::try_from(n[0]) else {
            continue;
        };
        let role = pg_sys::Oid::from(n[2] as u32);
        let seen = sees(role).then_some(());
        let number = |at: usize| seen.map(|()| n[at]);
        rows.push((
            pid,
            pg_sys::Oid::from(n[1] as u32),
            role,
            seen.map(|()| started),
            seen.map(|()| phase.to_owned()),
            number(3),
            number(4),
            number(5),
            number(6),
            number(7).map(|threads| threads as i32),
            number(8),
        ));
    }
    TableIterator::new(rows)
}
