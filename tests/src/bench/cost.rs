//! What a statement costs: time of the wall and of processors, and memory.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use postgres::Client;

use crate::{Cluster, wait_until};

/// How often memory is read.
const LOOK: Duration = Duration::from_millis(50);

/// The cost of a statement.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Seconds that went by.
    pub wall: f64,
    /// Seconds of processors, of the session and of the parallel workers that it started.
    pub cpu: f64,
    /// Bytes of memory of their own (`RssAnon`) that the session and its workers had at most, beyond what the session had
    /// before. What they share, as pgvector's parallel builds do, is in other bytes.
    pub memory: u64,
}

/// Runs something in a session, and says what it cost.
///
/// # Errors
/// Those of `run`, and what the system says where it is asked for times.
pub fn timed<T>(
    cluster: &Cluster,
    client: &mut Client,
    run: impl FnOnce(&mut Client) -> Result<T>,
) -> Result<(T, Cost)> {
    let pid = session(client)?;
    let postmaster = cluster.pid().context("the server runs")?;
    // The postmaster counts the time of sessions when they have ended: those of pgbench do so now, and the worker that merges
    // what others have inserted, which would take processors as well.
    wait_until("other sessions have ended", || {
        let others = "SELECT count(*) FROM pg_stat_activity
             WHERE backend_type IN ('client backend', 'laser maintenance') AND pid <> pg_backend_pid()";
        Ok(client.query_one(others, &[])?.get::<_, i64>(0) == 0)
    })?;
    std::thread::sleep(Duration::from_millis(100));
    let before = (cpu(pid)?.0, cpu(postmaster)?.1);
    let memory_before = own_memory(pid);
    let ended = AtomicBool::new(false);
    let (result, wall, most) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !ended.load(Ordering::Relaxed) {
                most = most.max(memory_of_all(pid));
                std::thread::sleep(LOOK);
            }
            most
        });
        let start = Instant::now();
        let result = run(client);
        let wall = start.elapsed().as_secs_f64();
        ended.store(true, Ordering::Relaxed);
        (result, wall, watch.join().expect("no panic"))
    });
    let after = (cpu(pid)?.0, cpu(postmaster)?.1);
    let cost = Cost {
        wall,
        cpu: after.0 - before.0 + after.1 - before.1,
        memory: most.saturating_sub(memory_before),
    };
    Ok((result?, cost))
}

/// Runs statements, and says what they cost.
///
/// # Errors
/// As [`timed`].
pub fn of_statements(cluster: &Cluster, client: &mut Client, sql: &str) -> Result<Cost> {
    let ((), cost) = timed(cluster, client, |client| Ok(client.batch_execute(sql)?))?;
    Ok(cost)
}

/// Runs something in this process, and says what time it took; its memory is left out.
///
/// # Errors
/// Those of `run`, and what the system says where it is asked for times.
pub fn timed_here<T>(run: impl FnOnce() -> Result<T>) -> Result<(T, Cost)> {
    let own = std::process::id();
    let (before, start) = (cpu(own)?.0, Instant::now());
    let result = run()?;
    let cost = Cost {
        wall: start.elapsed().as_secs_f64(),
        cpu: cpu(own)?.0 - before,
        memory: 0,
    };
    Ok((result, cost))
}

/// The process of a session.
///
/// # Errors
/// When the session has ended.
pub fn session(client: &mut Client) -> Result<u32> {
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    Ok(pid as u32)
}

/// Bytes that a process has had read from storage; `None` where the system does not tell.
pub fn bytes_read(pid: u32) -> Option<u64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "))?;
    line.trim().parse().ok()
}

/// Seconds of processor time of a process, and of its children that have ended.
fn cpu(pid: u32) -> Result<(f64, f64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |i: usize| {
        fields
            .get(i)
            .and_then(|x| x.parse::<f64>().ok())
            .unwrap_or(0.0)
            / 100.0
    };
    Ok((ticks(11) + ticks(12), ticks(13) + ticks(14)))
}

/// Bytes of a process that no other has; none of one that has ended.
fn own_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| {
        let rest = line.strip_prefix("RssAnon:")?;
        rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    });
    1024 * kilobytes.unwrap_or(0)
}

/// Bytes of a session and of its parallel workers.
fn memory_of_all(session: u32) -> u64 {
    let title = format!("parallel worker for PID {session}");
    let processes = Path::new("/proc")
        .read_dir()
        .into_iter()
        .flatten()
        .flatten();
    let workers = processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let is_worker = String::from_utf8_lossy(&command).contains(&title);
        is_worker.then(|| own_memory(pid))
    });
    own_memory(session) + workers.sum::<u64>()
}
