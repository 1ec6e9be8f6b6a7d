//! Replies that do not fit a socket's buffer are finished by a thread of their own, so that a slow
//! or stopped reader never holds up the encoder.

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use super::log::log;
use super::poll::{Waker, poll_writable};

/// The sending half of a connection.
pub struct Output {
    stream: UnixStream,
    /// Bytes that the writer thread still holds. While it is not zero, everything goes through the
    /// writer, which keeps the order.
    pending: AtomicUsize,
    broken: AtomicBool,
}

impl Output {
    /// The sending half of a non-blocking stream.
    pub fn new(stream: UnixStream) -> Arc<Self> {
        Arc::new(Self {
            stream,
            pending: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        })
    }

    /// The socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Bytes that wait for the reader.
    pub fn pending(&self) -> usize {
        self.pending.load(Ordering::Acquire)
    }

    /// Writes what the socket takes. Returns the number of bytes, or `None` if the peer is gone.
    fn write_some(&self, bytes: &[u8]) -> Option<usize> {
        let mut written = 0;
        while written < bytes.len() {
            match (&self.stream).write(&bytes[written..]) {
                Ok(0) => return None,
                Ok(n) => written += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => return None,
            }
        }
        Some(written)
    }
}

struct Rest {
    output: Arc<Output>,
    bytes: Vec<u8>,
    written: usize,
}

/// Sends replies; owns the writer thread.
pub struct Writer {
    rest: Sender<Rest>,
    waker: Arc<Waker>,
}

impl Writer {
    /// Starts the thread.
    pub fn new() -> std::io::Result<Self> {
        let (rest, incoming) = mpsc::channel();
        let waker = Arc::new(Waker::new()?);
        let thread_waker = waker.clone();
        std::thread::Builder::new()
            .name("writer".into())
            .spawn(move || write_rests(&incoming, &thread_waker))?;
        Ok(Self { rest, waker })
    }

    /// Sends `bytes` and leaves the buffer empty. What the socket does not take at once is left to
    /// the thread. An error of the peer is noticed by the event loop as a hang-up.
    pub fn send(&self, output: &Arc<Output>, bytes: &mut Vec<u8>) {
        let written = if output.pending() == 0 {
            match output.write_some(bytes) {
                Some(n) => n,
                None => bytes.len(),
            }
        } else {
            0
        };
        if written < bytes.len() {
            output
                .pending
                .fetch_add(bytes.len() - written, Ordering::AcqRel);
            let rest = Rest {
                output: output.clone(),
                bytes: std::mem::take(bytes),
                written,
            };
            if self.rest.send(rest).is_ok() {
                self.waker.wake();
            }
        }
        bytes.clear();
    }
}

fn write_rests(incoming: &Receiver<Rest>, waker: &Waker) {
    let mut rests: Vec<Rest> = Vec::new();
    loop {
        let fds: Vec<_> = rests.iter().map(|r| r.output.stream.as_fd()).collect();
        let writable = match poll_writable(waker, &fds) {
            Ok(writable) => writable,
            Err(e) => {
                log(&format!("could not wait for readers: {e}"));
                return;
            }
        };
        // The first rest of a connection goes first: a later one must not overtake it.
        let mut blocked: Vec<*const Output> = Vec::new();
        for (rest, writable) in rests.iter_mut().zip(writable) {
            let address = Arc::as_ptr(&rest.output);
            if !writable || blocked.contains(&address) {
                blocked.push(address);
                continue;
            }
            let left = rest.bytes.len() - rest.written;
            let n = if rest.output.broken.load(Ordering::Relaxed) {
                left
            } else {
                rest.output
                    .write_some(&rest.bytes[rest.written..])
                    .unwrap_or_else(|| {
                        rest.output.broken.store(true, Ordering::Relaxed);
                        left
                    })
            };
            rest.written += n;
            if n < left {
                blocked.push(address);
            }
            rest.output.pending.fetch_sub(n, Ordering::AcqRel);
        }
        rests.retain(|r| r.written < r.bytes.len());
        waker.clear();
        loop {
            match incoming.try_recv() {
                Ok(rest) => rests.push(rest),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_slow_reader_gets_everything_in_order() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let output = Output::new(ours);
        let writer = Writer::new().unwrap();
        let mut expected = Vec::new();
        for i in 0..40u8 {
            let mut bytes = vec![i; 100_000 + usize::from(i)];
            expected.extend_from_slice(&bytes);
            writer.send(&output, &mut bytes);
            assert!(bytes.is_empty());
        }
        assert!(output.pending() > 0);
        let mut seen = vec![0; expected.len()];
        theirs.read_exact(&mut seen).unwrap();
        assert!(seen == expected);
        while output.pending() > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_gone_reader_frees_its_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let output = Output::new(ours);
        let writer = Writer::new().unwrap();
        writer.send(&output, &mut vec![1; 4 << 20]);
        drop(theirs);
        while output.pending() > 0 {
            std::thread::yield_now();
        }
    }
}
