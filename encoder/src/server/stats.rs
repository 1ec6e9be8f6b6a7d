//! Counters for the status.

use std::time::{Duration, Instant};

/// Seconds over which the rate is taken.
const WINDOW: usize = 10;

/// Counters since the start of the process.
pub struct Stats {
    start: Instant,
    /// Batches encoded.
    pub batches: u64,
    /// Texts in them.
    pub sentences: u64,
    /// Tokens of those, after truncation.
    pub tokens: u64,
    /// Last error; empty if there was none.
    pub last_error: String,
    /// Sentences of the last seconds, by second modulo the window.
    recent: [(u64, u64); WINDOW],
}

impl Stats {
    /// Counters at zero; the process starts now.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            batches: 0,
            sentences: 0,
            tokens: 0,
            last_error: String::new(),
            recent: [(0, 0); WINDOW],
        }
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    /// Counts one batch.
    pub fn count(&mut self, sentences: usize, tokens: u64) {
        self.batches += 1;
        self.sentences += sentences as u64;
        self.tokens += tokens;
        let second = self.uptime().as_secs();
        let slot = &mut self.recent[second as usize % WINDOW];
        if slot.0 != second {
            *slot = (second, 0);
        }
        slot.1 += sentences as u64;
    }

    /// Sentences per second over the last ten seconds (or since the start).
    pub fn sentences_per_second(&self) -> f64 {
        let uptime = self.uptime();
        let now = uptime.as_secs();
        let sum: u64 = self
            .recent
            .iter()
            .filter(|(second, _)| second + (WINDOW as u64) > now)
            .map(|(_, n)| n)
            .sum();
        // The current second is not over yet.
        let covered = uptime
            .as_secs_f64()
            .min((WINDOW - 1) as f64 + uptime.as_secs_f64().fract());
        sum as f64 / covered.max(0.001)
    }
}
