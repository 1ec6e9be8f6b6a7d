//! What every mining function begins and ends with.
#![allow(unsafe_code)]

use std::cell::Cell;

use laser_mining::Error;
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::{self, Oid};

use super::guc;
use super::progress::Progress;
use super::query::Spi;
use crate::pg::errors::raise_hint;
use crate::pg::interrupts::pause;

/// [`pause`] for searches of `laser-mining`.
pub fn watch() -> Result<(), Error> {
    pause();
    Ok(())
}

/// Bytes that a running function has reserved for ids, hashes of texts, pairs and results: at most
/// `laser.mining_memory`, beside embeddings and lists of neighbours, which have budgets of their own.
#[derive(Debug, Default)]
pub struct MemoryBudget(Cell<usize>);

impl MemoryBudget {
    /// Bytes of an entry of a hash table, with what it keeps free in order to grow.
    pub const fn per_hash_entry<T>() -> usize {
        2 * (size_of::<T>() + 1) + size_of::<T>() / 2
    }

    /// Reserves bytes until the function ends; raises a SQL error where the budget is exceeded. `name` is what
    /// messages call the query that they are for.
    pub fn reserve(&self, name: &str, bytes: usize) {
        self.check(name, bytes);
        self.0.set(self.0.get().saturating_add(bytes));
    }

    /// Bytes that may still be reserved.
    pub fn left(&self) -> usize {
        guc::memory().saturating_sub(self.0.get())
    }

    /// As [`MemoryBudget::reserve`], without reserving: for what is allocated for a moment only.
    pub fn check(&self, name: &str, bytes: usize) {
        if self.0.get().saturating_add(bytes) > guc::memory() {
            raise_hint(
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                format!(
                    "the rows of the {name} query take more memory than laser.mining_memory allows"
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
    /// What it has reserved.
    pub budget: MemoryBudget,
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
            budget: MemoryBudget::default(),
            _running: guc::Running::begin(),
        }
    }

    /// Disconnects, and hands on the result, which the server's memory has no part in.
    pub fn end<T>(self, result: T) -> T {
        self.spi.close();
        result
    }
}
