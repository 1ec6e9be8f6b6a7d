//! How long a step takes.

use std::time::Instant;

/// Wall and processor seconds of a step.
#[derive(Clone, Copy)]
pub struct Time {
    pub wall: f64,
    pub cpu: f64,
}

/// More than any step takes.
pub const NEVER: Time = Time {
    wall: f64::INFINITY,
    cpu: f64::INFINITY,
};

impl Time {
    /// The lesser of both, each by itself.
    pub fn min(self, other: Self) -> Self {
        Self {
            wall: self.wall.min(other.wall),
            cpu: self.cpu.min(other.cpu),
        }
    }
}

/// Processor seconds of all threads of this process, from /proc; 0 where there is no such file.
/// On a busy machine they say more than the clock on the wall.
fn processor_seconds() -> f64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return 0.0;
    };
    let nanoseconds: u64 = tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split(' ').next()?.parse::<u64>().ok())
        .sum();
    nanoseconds as f64 * 1e-9
}

/// The fastest of several runs: the least disturbed one.
pub fn fastest(runs: usize, mut work: impl FnMut()) -> Time {
    work();
    let time = |_| {
        let (begin, cpu) = (Instant::now(), processor_seconds());
        work();
        Time {
            wall: begin.elapsed().as_secs_f64(),
            cpu: processor_seconds() - cpu,
        }
    };
    (0..runs).map(time).fold(NEVER, Time::min)
}
