//! Threads that tokenize, so that a text whose tokens are expensive does not hold the event loop and
//! with it every session. A few bytes can take long: their number grows where they are normalised, and
//! nothing tells beforehand by how much.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use laser_encoder::{Encoder, EncoderError, Tokenized};
use laser_protocol::work::{Record, THREADS};

use super::poll::Waker;
use super::queue::Piece;

struct Task {
    piece: Piece,
    encoder: Arc<Encoder>,
    fingerprint: [u8; 32],
}

/// The result for a piece.
pub struct Done {
    /// What was to be tokenized.
    pub piece: Piece,
    /// Its tokens, in its order.
    pub tokens: Result<Vec<Tokenized>, EncoderError>,
    /// The model whose tokens they are.
    pub fingerprint: [u8; 32],
}

/// The pool of threads that tokenize.
pub struct Tokens {
    tasks: Sender<Task>,
    done: Receiver<Done>,
    threads: usize,
    busy: usize,
}

impl Tokens {
    /// Starts `threads` threads, which note in `record` what they work on and wake `waker` after each
    /// piece.
    pub fn new(threads: usize, record: &Arc<Record>, waker: &Arc<Waker>) -> std::io::Result<Self> {
        let threads = threads.clamp(1, THREADS);
        let (tasks, incoming) = crossbeam_channel::unbounded::<Task>();
        let (report, done) = crossbeam_channel::unbounded();
        for place in 1..=threads {
            let (incoming, report) = (incoming.clone(), report.clone());
            let (record, waker) = (record.clone(), waker.clone());
            std::thread::Builder::new()
                .name(format!("tokens-{place}"))
                .spawn(move || {
                    while let Ok(task) = incoming.recv() {
                        record.begin(place, task.piece.hashes.iter().copied());
                        let done = tokenize(task);
                        record.end(place);
                        if report.send(done).is_err() {
                            return;
                        }
                        waker.wake();
                    }
                })?;
        }
        Ok(Self {
            tasks,
            done,
            threads,
            busy: 0,
        })
    }

    /// Whether a thread waits for a piece. No more are handed out than there are threads, so that
    /// sessions take turns.
    pub fn idle(&self) -> bool {
        self.busy < self.threads
    }

    /// Gives a piece to a thread.
    pub fn start(&mut self, piece: Piece, encoder: Arc<Encoder>, fingerprint: [u8; 32]) {
        let task = Task {
            piece,
            encoder,
            fingerprint,
        };
        if self.tasks.send(task).is_ok() {
            self.busy += 1;
        }
    }

    /// What is done since the last call.
    pub fn reports(&mut self) -> Vec<Done> {
        let done: Vec<Done> = self.done.try_iter().collect();
        self.busy -= done.len();
        done
    }

    /// Waits until no thread works.
    pub fn wait_for_all(&mut self) -> Vec<Done> {
        let mut done_so_far = self.reports();
        while self.busy > 0
            && let Ok(done) = self.done.recv()
        {
            self.busy -= 1;
            done_so_far.push(done);
        }
        done_so_far
    }
}

fn tokenize(task: Task) -> Done {
    let tokens = catch_unwind(AssertUnwindSafe(|| {
        let Piece { purpose, texts, .. } = &task.piece;
        let tokens = texts
            .iter()
            .map(|text| task.encoder.tokenize_for(purpose, text));
        tokens.collect()
    }))
    .unwrap_or_else(|_| Err(EncoderError::Compute("the encoder failed".into())));
    Done {
        piece: task.piece,
        tokens,
        fingerprint: task.fingerprint,
    }
}
