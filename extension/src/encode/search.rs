//! Searches for neighbours in the encoder process, which has the GPU.

use std::fs::File;
use std::time::{Duration, Instant};

use laser_protocol::{ErrorCode, Reply, Search};

use super::client::connect;
use super::connection::Connection;
use super::error::{CallError, ConnectionError};
use crate::pg::encoding::to_server;

/// How long an encoder that is only asked whether it has a GPU may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What became of a search.
pub enum Searched {
    /// The lists of neighbours are in the result file.
    Found,
    /// The encoder does not run or has no GPU, or the rows cannot be searched: the caller can do
    /// as well.
    Declined,
    /// The search has failed in the encoder process, for this reason.
    Failed(String),
}

/// Files of a search: source rows, target rows, result.
pub struct Files {
    /// Row-major `f32`.
    pub source: File,
    /// Row-major `f32`.
    pub target: File,
    /// Empty; gets the lists.
    pub result: File,
}

/// Lets the encoder process search. `anywhere`: also without a GPU, and the encoder is started
/// where needed. `files` makes the files once they are wanted; `progress` gets the pairs of rows
/// that are compared, and all. Waits with the session's latch, so a cancel works at any time: it
/// closes the connection, which ends the search.
pub fn search(
    search: Search,
    anywhere: bool,
    files: impl FnOnce() -> Files,
    progress: impl FnMut(u64, u64),
) -> Searched {
    match run(search, anywhere, files, progress) {
        Ok(searched) => searched,
        Err(ConnectionError::Disconnected) => Searched::Failed("the encoder process ended".into()),
        Err(ConnectionError::Failed(CallError::Refused(failure))) => match failure.code {
            ErrorCode::BadInput => Searched::Declined,
            _ => Searched::Failed(to_server(&failure.message)),
        },
        Err(ConnectionError::Failed(
            CallError::NotRunning(_) | CallError::SingleUser | CallError::NeedsProcess(_),
        )) => match anywhere {
            true => Searched::Failed("the encoder process is not running".into()),
            false => Searched::Declined,
        },
        Err(ConnectionError::Failed(_)) => {
            Searched::Failed("the encoder process gave an unexpected answer".into())
        }
    }
}

fn run(
    search: Search,
    anywhere: bool,
    files: impl FnOnce() -> Files,
    mut progress: impl FnMut(u64, u64),
) -> Result<Searched, ConnectionError> {
    let mut connection = if anywhere {
        let mut connection = connect()?;
        ask(&mut connection, search, None)?;
        connection
    } else {
        match open_gpu(search) {
            Ok(Some(connection)) => connection,
            // It is gone, or busy for long: nobody waits for it.
            Ok(None) | Err(ConnectionError::Disconnected) => return Ok(Searched::Declined),
            Err(failed) => return Err(failed),
        }
    };
    let Files {
        source,
        target,
        result,
    } = files();
    connection.send_files([&source, &target, &result])?;
    loop {
        match connection.next_reply(None)? {
            Reply::Progress { done, total, .. } => progress(done, total),
            Reply::Found { .. } => return Ok(Searched::Found),
            Reply::Error { failure, .. } => return Err(CallError::from(failure).into()),
            _ => return Err(CallError::Unexpected.into()),
        }
    }
}

/// A connection to an encoder that runs, has a GPU and is ready for the search.
fn open_gpu(search: Search) -> Result<Option<Connection>, ConnectionError> {
    let Some(mut connection) = Connection::open()? else {
        return Ok(None);
    };
    let deadline = Some(Instant::now() + ANSWER_TIMEOUT);
    connection.handshake(deadline)?;
    let device = ask(&mut connection, search, deadline)?;
    Ok((!device.is_empty()).then_some(connection))
}

/// Asks for a search; returns the name of the GPU that will do it, empty without one.
fn ask(
    connection: &mut Connection,
    search: Search,
    deadline: Option<Instant>,
) -> Result<String, ConnectionError> {
    connection.send_search(search);
    match connection.next_reply(deadline)? {
        Reply::Ready { device, .. } => Ok(device),
        Reply::Error { failure, .. } => Err(CallError::from(failure).into()),
        _ => Err(CallError::Unexpected.into()),
    }
}
