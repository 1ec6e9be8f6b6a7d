//! Searches for neighbours, for sessions that mine: on the GPU where there is one, else on the
//! processor. Each has a thread that owns its connection, and takes its turn.
//!
//! Rows and results are in files that the session passes, so that neither the socket nor the
//! memory of this process has to hold them. A session that goes away ends its search.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;

use laser_encoder::DeviceChoice;
use laser_mining::{Device, Error, RowStore, knn};
use laser_protocol::{ErrorCode, Failure, Reply, Search, encode_reply, receive_files};

use super::log::log;

/// How often a session hears of the progress, and how soon it is noticed that it has gone.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// How long a session may take to read or to send what this end waits for.
const SOCKET_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts searches, one of which computes at a time.
pub struct Searches {
    shared: Arc<Shared>,
}

struct Shared {
    choice: DeviceChoice,
    /// Opened by the first search; `None` where the processor has to do.
    device: OnceLock<Option<Device>>,
    /// Held by the search that computes.
    turn: Mutex<()>,
}

impl Searches {
    /// Searches on the device that models are to use.
    pub fn new(choice: DeviceChoice) -> Self {
        Searches {
            shared: Arc::new(Shared {
                choice,
                device: OnceLock::new(),
                turn: Mutex::new(()),
            }),
        }
    }

    /// Serves a session that asked for a search on a connection of which nothing is left to read.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(&self, stream: UnixStream, id: u64, search: Search) -> io::Result<()> {
        let shared = self.shared.clone();
        std::thread::Builder::new()
            .name("search".into())
            .spawn(move || {
                if let Err(error) = serve(&shared, &stream, id, &search)
                    && !gone(&error)
                {
                    log(&format!("a search failed: {error}"));
                }
            })?;
        Ok(())
    }
}

/// Whether an error of the socket says that the session no longer waits.
fn gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset
    )
}

impl Shared {
    fn device(&self) -> Option<&Device> {
        self.device.get_or_init(|| open(self.choice)).as_ref()
    }

    /// Waits for its turn, or for the end of the wish to search.
    fn turn(&self, control: &knn::Control) -> Result<MutexGuard<'_, ()>, Error> {
        while !control.cancel.load(Ordering::Relaxed) {
            match self.turn.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(turn)) => return Ok(turn.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PROGRESS_INTERVAL / 4),
            }
        }
        Err(Error::Cancelled)
    }
}

#[cfg(feature = "cuda")]
fn open(choice: DeviceChoice) -> Option<Device> {
    let number = match choice {
        DeviceChoice::Cpu => return None,
        DeviceChoice::Auto => 0,
        DeviceChoice::Cuda(number) => number,
    };
    Device::cuda(number)
        .inspect_err(|error| log(&format!("searches use the processor: {error}")))
        .ok()
}

#[cfg(not(feature = "cuda"))]
fn open(_: DeviceChoice) -> Option<Device> {
    None
}

fn serve(shared: &Shared, stream: &UnixStream, id: u64, search: &Search) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
    stream.set_write_timeout(Some(SOCKET_TIMEOUT))?;
    let device = shared.device();
    let name = device.map(Device::name).unwrap_or_default();
    send(stream, &Reply::Ready { id, device: name })?;
    let [source, target, result] = receive_files(stream)?;

    let control = &knn::Control::default();
    let found = std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        std::thread::Builder::new()
            .name("searching".into())
            .spawn_scoped(scope, move || {
                let found = shared
                    .turn(control)
                    .and_then(|_turn| find(search, [source, target], result, device, control));
                // The receiver is gone when the session is.
                let _ = sender.send(found);
            })?;
        watch(stream, id, control, &receiver).inspect_err(|_| {
            control.cancel.store(true, Ordering::Relaxed);
        })
    })?;
    match found {
        Ok(()) => send(stream, &Reply::Found { id }),
        Err(error) => {
            let code = match error {
                Error::Cancelled | Error::Spill(_) | Error::Device(_) => ErrorCode::Internal,
                _ => ErrorCode::BadInput,
            };
            let failure = Failure {
                code,
                message: error.to_string(),
                hint: String::new(),
            };
            send(stream, &Reply::Error { id, failure })
        }
    }
}

/// Waits for the end of the search; tells of its progress until then. An error when the session
/// has gone.
fn watch(
    stream: &UnixStream,
    id: u64,
    control: &knn::Control,
    receiver: &mpsc::Receiver<Result<(), Error>>,
) -> io::Result<Result<(), Error>> {
    stream.set_nonblocking(true)?;
    let result = loop {
        match receiver.recv_timeout(PROGRESS_INTERVAL) {
            Ok(found) => break found,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                break Err(Error::Device(
                    "the thread that searched has panicked".into(),
                ));
            }
        }
        // The session has nothing to say: what can be read is its end.
        match (&mut &*stream).read(&mut [0]) {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Err(ErrorKind::InvalidData.into()),
            Err(e) => return Err(e),
        }
        let progress = frame(&Reply::Progress {
            id,
            done: control.done.load(Ordering::Relaxed),
            total: control.total.load(Ordering::Relaxed),
        });
        match (&mut &*stream).write(&progress) {
            Ok(written) if written == progress.len() => {}
            // Half a frame: the session has not listened for long.
            Ok(_) => return Err(ErrorKind::WriteZero.into()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e),
        }
    };
    stream.set_nonblocking(false)?;
    Ok(result)
}

/// Searches, and writes the lists into `result`: forward, then backward if wanted.
fn find(
    search: &Search,
    [source, target]: [File; 2],
    result: File,
    device: Option<&Device>,
    control: &knn::Control,
) -> Result<(), Error> {
    let dimensions = search.dimensions as usize;
    let store = |file: File, rows: u64| RowStore::from_file(file, rows as usize, dimensions);
    let source = store(source, search.source_rows)?;
    let target = store(target, search.target_rows)?;
    let options = knn::Options {
        threads: search.threads.max(1) as usize,
        device,
        memory: Some(search.memory as usize),
        control: Some(control),
        ..knn::Options::default()
    };
    let (x, y, k) = ((&source).into(), (&target).into(), search.k as usize);
    let mut out = BufWriter::new(result);
    if search.backward {
        let (forward, backward) = knn::both_rows(x, y, dimensions, k, &options)?;
        forward.write(&mut out)?;
        backward.write(&mut out)?;
    } else {
        knn::forward(x, y, dimensions, k, &options)?.write(&mut out)?;
    }
    out.flush()?;
    Ok(())
}

fn frame(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_reply(reply, &mut bytes);
    bytes
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    stream.write_all(&frame(reply))
}
