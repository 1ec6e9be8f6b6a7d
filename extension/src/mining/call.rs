//! What every mining function begins and ends with.
#![allow(unsafe_code)]

use laser_mining::Error;
use pgrx::pg_sys::{self, Oid};

use super::progress::Progress;
use super::query::Spi;

/// Lets a cancel or a shutdown through; may unwind.
pub fn interrupts() {
    pgrx::check_for_interrupts!();
}

/// [`interrupts`] for work that is watched.
pub fn watch() -> Result<(), Error> {
    interrupts();
    Ok(())
}

/// A running mining function.
pub struct Call {
    /// Its connection.
    pub spi: Spi,
    /// The schema of the extension, whose types are meant.
    pub namespace: Oid,
    /// What the progress view shows of it.
    pub progress: Progress,
}

impl Call {
    /// Connects, and begins to report progress.
    pub fn begin(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        Call {
            spi: Spi::connect(),
            // SAFETY: fcinfo comes from the fmgr, which fills flinfo.
            namespace: unsafe { pg_sys::get_func_namespace((*(*fcinfo).flinfo).fn_oid) },
            progress: Progress::start(),
        }
    }

    /// Disconnects, and hands on the result, which the server's memory has no part in.
    pub fn end<T>(self, result: T) -> T {
        self.spi.close();
        result
    }
}
