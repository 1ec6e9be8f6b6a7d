//! What the process asks of the operating system for itself: its parent, its limits, its processors, its
//! end.
#![allow(unsafe_code)]

use std::io;

use rustix::fs::Mode;
use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit, umask,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Asks the kernel to send SIGTERM when the parent dies, and checks that it has not died already.
/// `parent` is its expected process id. Returns false if the parent is gone.
///
/// # Errors
/// What the operating system says.
pub fn die_with_parent(parent: u32) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::TERM))?;
    Ok(getppid().is_some_and(|pid| pid.as_raw_nonzero().get() as u32 == parent))
}

/// Raises the limit of open files as far as allowed, and keeps the socket file private.
pub fn prepare_process() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is refused, sessions beyond the limit wait in the backlog of the socket.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    umask(Mode::RWXG | Mode::RWXO);
    // A cancelled query in a terminal signals the whole group; it is not meant for us.
    // SAFETY: to ignore a signal needs no handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
}

/// Lets the process run on at most `threads` processors, which bounds what all its threads take together:
/// those that encode, tokenize, load models and search, and those of libraries. To be called before
/// any of them starts. Zero bounds nothing.
///
/// # Errors
/// What the operating system says.
pub fn bound_processors(threads: usize) -> io::Result<()> {
    if threads == 0 {
        return Ok(());
    }
    let allowed = sched_getaffinity(None)?;
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .collect();
    if threads >= processors.len() {
        return Ok(());
    }
    // Encoders of several servers shall not all take the same ones.
    let first = std::process::id() as usize;
    let mut chosen = CpuSet::new();
    for i in 0..threads {
        chosen.set(processors[(first + i) % processors.len()]);
    }
    Ok(sched_setaffinity(None, &chosen)?)
}

/// Ends the process at once, without destructors of threads that are in the middle of something.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}
