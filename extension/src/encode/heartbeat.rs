//! Whether the encoder process still answers.
//!
//! The worker asks it a trivial question now and then. The process answers between two batches, and
//! a batch of a slow model may take minutes: silence alone proves nothing. A process that is silent
//! and uses no processor time hangs.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use laser_protocol::{FrameBuffer, Reply, Request, VERSION, decode_reply, encode_request};

use super::socket::connect_socket;

/// Parts of the time limit after which the process is asked again.
const QUESTIONS: u32 = 8;
/// Longest time between two questions.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Share of a processor that a process uses at least when it computes on a crowded machine.
const COMPUTES: f64 = 0.01;
/// How many times longer a silent process that computes is left alone.
const COMPUTING_FACTOR: u32 = 10;

/// What the worker makes of the answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// It answers, computes, or has been silent for a short time only.
    Good,
    /// It has neither answered nor computed for half of the time limit.
    Silent,
    /// The time limit is over.
    Hung,
}

/// The questions to one process.
pub struct Heartbeat {
    pid: u32,
    connection: Option<(UnixStream, FrameBuffer)>,
    /// A question is under way.
    asked: bool,
    next: Instant,
    /// The last answer, at first the start, and the processor time until then.
    answered: Instant,
    processor: Duration,
}

impl Heartbeat {
    /// For a process that was started now.
    pub fn new(pid: u32) -> Self {
        Self {
            pid,
            connection: None,
            asked: false,
            next: Instant::now(),
            answered: Instant::now(),
            processor: Duration::ZERO,
        }
    }

    /// How long to wait before the next [`Heartbeat::poll`].
    pub fn pause(&self, limit: Duration) -> Duration {
        self.next
            .saturating_duration_since(Instant::now())
            .min(interval(limit))
    }

    /// How long the process has given no answer.
    pub fn silence(&self) -> Duration {
        self.answered.elapsed()
    }

    /// Takes an answer, asks again when it is time, and judges. Never waits.
    pub fn poll(&mut self, limit: Duration) -> Health {
        if self.asked && self.take_answer() {
            self.asked = false;
            self.answered = Instant::now();
            self.processor = processor_time(self.pid);
        }
        if Instant::now() >= self.next {
            self.next = Instant::now() + interval(limit);
            if !self.asked {
                self.asked = self.ask();
            }
        }
        let silence = self.silence();
        if silence < limit / 2 {
            return Health::Good;
        }
        let computed = processor_time(self.pid).saturating_sub(self.processor);
        let computes = computed.as_secs_f64() >= COMPUTES * silence.as_secs_f64();
        if silence >= limit * COMPUTING_FACTOR || (silence >= limit && !computes) {
            Health::Hung
        } else if computes {
            Health::Good
        } else {
            Health::Silent
        }
    }

    /// Sends a question; returns whether it could be sent.
    fn ask(&mut self) -> bool {
        let mut bytes = Vec::new();
        if self.connection.is_none() {
            let Ok(stream) = connect_socket() else {
                return false;
            };
            encode_request(&Request::Hello { version: VERSION }, &mut bytes);
            self.connection = Some((stream, FrameBuffer::new()));
        }
        encode_request(&Request::Ping { id: 0 }, &mut bytes);
        // One short question at a time: there is always room for it.
        let sent = self
            .connection
            .as_mut()
            .is_some_and(|(stream, _)| stream.write_all(&bytes).is_ok());
        if !sent {
            self.connection = None;
        }
        sent
    }

    /// Whether the answer has arrived.
    fn take_answer(&mut self) -> bool {
        let Some((stream, input)) = &mut self.connection else {
            return false;
        };
        let mut buffer = [0; 256];
        let mut open = match stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(n) => {
                input.push(&buffer[..n]);
                true
            }
            Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        let mut answered = false;
        while open {
            match input.next_frame().map(|frame| frame.map(decode_reply)) {
                Ok(None) => break,
                Ok(Some(Ok(reply))) => answered |= matches!(reply, Reply::Pong { .. }),
                _ => open = false,
            }
        }
        if !open {
            self.connection = None;
            self.asked = false;
        }
        answered
    }
}

fn interval(limit: Duration) -> Duration {
    (limit / QUESTIONS).min(LONGEST_PAUSE)
}

/// User and system time of a process, of which Linux counts hundredths of seconds; zero if there is
/// no such process.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain anything; utime and stime are fields 14 and 15.
    let ticks: u64 = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    Duration::from_millis(ticks * 10)
}
