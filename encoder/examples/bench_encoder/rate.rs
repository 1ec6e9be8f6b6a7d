//! Time that calls take, on the clock and on processors.

use std::path::Path;
use std::time::{Duration, Instant};

/// Seconds that the threads of this process have run; those that ended do not count.
pub fn cpu_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    tasks.flatten().map(|task| ran(&task.path())).sum()
}

/// Seconds that a thread has run, to the nanosecond.
fn ran(task: &Path) -> f64 {
    let schedstat = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let nanoseconds = schedstat.split(' ').next().unwrap_or("");
    nanoseconds.parse::<f64>().unwrap_or(f64::NAN) * 1e-9
}

/// Seconds that the calling thread has run.
pub fn cpu_of_thread() -> f64 {
    ran(Path::new("/proc/thread-self"))
}

/// What calls have taken.
pub struct Rate {
    /// Seconds of wall time.
    pub wall: f64,
    /// Seconds that all threads have run.
    pub cpu: f64,
    pub calls: usize,
}

/// Calls `f` for about `seconds` after one call to warm up.
pub fn measure(seconds: f64, mut f: impl FnMut()) -> Rate {
    f();
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let mut calls = 0;
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        f();
        calls += 1;
    }
    Rate {
        wall: start.elapsed().as_secs_f64(),
        cpu: cpu_seconds() - cpu,
        calls,
    }
}
