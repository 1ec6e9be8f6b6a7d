//! What every mining function begins and ends with.
#![allow(unsafe_code)]

use std::cell::Cell;

use laser_mining::Error;
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::{self, Oid};

use super::guc;
use super::progress::Progress;
use super::query::Spi;
use crate::interrupts::pause;
use crate::types::raise_hint;

/// [`pause`] for searches of `laser-mining`.
pub fn watch() -> Result<(), Error> {
    pause();
    Ok(())
}

/// What a running function keeps of ids, hashes of texts, pairs and results: as much as
/// `laser.mining_memory`, beside the embeddings and the lists of neighbours, which are counted where
/// they are.
#[derive(Debug, Default)]
pub struct Room(Cell<usize>);

impl Room {
    /// Bytes of an entry of a hash table, with what it keeps free in order to grow.
    pub const fn of_hashed<T>() -> usize {
        2 * (size_of::<T>() + 1) + size_of::<T>() / 2
    }

    /// Counts what is about to be kept; raises a SQL error where that is too much. `name` is what
    /// messages call the query that it is of.
    pub fn take(&self, name: &str, bytes: usize) {
        self.check(name, bytes);
        self.0.set(self.0.get().saturating_add(bytes));
    }

    /// Bytes that may still be kept.
    pub fn left(&self) -> usize {
        guc::memory().saturating_sub(self.0.get())
    }

    /// The same for what is kept for a moment only.
    pub fn check(&self, name: &str, bytes: usize) {
        if self.0.get().saturating_add(bytes) > guc::memory() {
            raise_hint(
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                format!(
                    "what is kept of the rows of the {name} query takes more than laser.mining_memory"
                ),
                guc::MORE_MEMORY,
            );
        }
    }
}

/// A running mining function.
pub struct Call {
    /// Its connection.
    pub spi: Spi,
    /// The schema of the extension, whose types are meant.
    pub namespace: Oid,
    /// What the progress view shows of it.
    pub progress: Progress,
    /// What it keeps.
    pub room: Room,
    _running: guc::Running,
}

impl Call {
    /// Connects, and begins to report progress.
    pub fn begin(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        Call {
            spi: Spi::connect(),
            // SAFETY: fcinfo comes from the fmgr, which fills flinfo.
            namespace: unsafe { pg_sys::get_func_namespace((*(*fcinfo).flinfo).fn_oid) },
            progress: Progress::start(),
            room: Room::default(),
            _running: guc::Running::begin(),
        }
    }

    /// Disconnects, and hands on the result, which the server's memory has no part in.
    pub fn end<T>(self, result: T) -> T {
        self.spi.close();
        result
    }
}
