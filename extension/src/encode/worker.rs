//! The background worker: starts the encoder process, watches it, starts it again when it ends or
//! hangs, and takes it down with the server.
//!
//! It is registered (`registration.rs`) at server start when laser is preloaded, and by the first call
//! that needs it otherwise (or when it is gone). A lock on a file keeps it alone. It uses no database, so it is
//! in nobody's way when one is dropped. The encoder process has none of the server's file
//! descriptors and no shared memory: it may be killed at any time without harm to the server, and
//! the kernel ends it when the worker dies.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use laser_protocol::work;
use pgrx::bgworkers::{BackgroundWorker, SignalWakeFlags};
use pgrx::{pg_guard, pg_sys};

use super::files::{self, SOCKET, State};
use super::heartbeat::{Health, Heartbeat};
use super::log::log;
use super::{guc, installation};

/// First pause before the encoder is started again; doubled with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// How long an encoder has to run to count as healthy again.
const HEALTHY: Duration = Duration::from_secs(10);
/// Failures that are counted at most where a text may be to blame: the next start finds out about it,
/// and sessions wait for that.
const FEW_FAILURES: u32 = 2;
/// How long an encoder may take to end when asked to.
const GRACE: Duration = Duration::from_secs(2);
/// How long a process that was killed is waited for.
const KILLED: Duration = Duration::from_secs(5);

/// How the encoder is run: its command line, but for what changes between two starts.
#[derive(Clone, PartialEq, Eq)]
struct Plan {
    program: PathBuf,
    arguments: Vec<String>,
}

impl Plan {
    /// The plan that the settings ask for.
    fn current() -> Self {
        let mut arguments = vec![format!("--socket={SOCKET}")];
        let folders = installation::model_folders();
        arguments.extend(
            folders
                .iter()
                .map(|f| format!("--model-path={}", f.display())),
        );
        arguments.push(format!("--default-model={}", guc::model()));
        arguments.push(format!("--device={}", guc::device()));
        arguments.push(format!("--threads={}", guc::THREADS.get()));
        arguments.push(format!("--memory={}", guc::MEMORY.get()));
        arguments.push(format!("--precision={}", guc::PRECISION.get().name()));
        arguments.push(format!("--queue={}", guc::QUEUE.get()));
        Self {
            program: installation::encoder_program(),
            arguments,
        }
    }
}

/// Entry point of the worker process.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn laser_encoder_worker(_argument: pg_sys::Datum) {
    BackgroundWorker::attach_signal_handlers(
        SignalWakeFlags::SIGHUP | SignalWakeFlags::SIGTERM | SignalWakeFlags::SIGCHLD,
    );
    let _lock = match files::lock_worker() {
        Ok(Some(lock)) => lock,
        // Another one was faster.
        Ok(None) => return,
        Err(e) => {
            log(format!(
                "laser: could not lock the place of the encoder's worker: {e}"
            ));
            return;
        }
    };
    Watch::new().run();
}

/// A running encoder process.
struct Running {
    child: Child,
    /// Its standard output and error.
    pipe: PipeReader,
    /// The part of a line that has arrived.
    partial: Vec<u8>,
    started: Instant,
    ready: bool,
    heartbeat: Heartbeat,
    last_line: String,
}

struct Watch {
    plan: Plan,
    state: State,
    running: Option<Running>,
    starts: u64,
    next_start: Instant,
    /// In which the process notes what it works on, for the next one.
    record: Option<File>,
    /// The last process was ended because it hung.
    hung: bool,
}

impl Watch {
    fn new() -> Self {
        Self {
            plan: Plan::current(),
            state: State {
                worker: std::process::id(),
                ..State::default()
            },
            running: None,
            starts: 0,
            next_start: Instant::now(),
            record: new_record(),
            hung: false,
        }
    }

    /// Runs until SIGTERM.
    fn run(&mut self) {
        loop {
            if self.running.is_none() && Instant::now() >= self.next_start {
                self.start();
            }
            self.wait();
            if BackgroundWorker::sigterm_received() {
                break;
            }
            if BackgroundWorker::sighup_received() {
                self.reload();
            }
            self.look();
        }
        self.stop();
        self.report("stopped");
    }

    /// Waits for a signal, a line of the encoder, its end, or the time of the next start.
    fn wait(&self) {
        let mut events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
        let mut fd = -1;
        let pause = match &self.running {
            Some(running) => {
                events |= pg_sys::WL_SOCKET_READABLE;
                fd = running.pipe.as_raw_fd();
                let pause = running.heartbeat.pause(timeout_setting());
                if self.state.failures > 0 {
                    // To notice that a failing encoder has become a healthy one.
                    pause.min(Duration::from_secs(1))
                } else {
                    pause
                }
            }
            None => self.next_start.saturating_duration_since(Instant::now()),
        };
        // SAFETY: MyLatch belongs to this process, and the pipe is open.
        unsafe {
            pg_sys::WaitLatchOrSocket(
                pg_sys::MyLatch,
                events as i32,
                fd,
                pause.as_millis() as std::ffi::c_long + 1,
                pg_sys::PG_WAIT_EXTENSION,
            );
            pg_sys::ResetLatch(pg_sys::MyLatch);
        }
        pgrx::check_for_interrupts!();
    }

    fn report(&mut self, state: &str) {
        state.clone_into(&mut self.state.state);
        self.state.encoder = self.running.as_ref().map_or(0, |r| r.child.id());
        if let Err(e) = self.state.write() {
            log(format!(
                "laser: could not write the state of the encoder: {e}"
            ));
        }
    }

    fn start(&mut self) {
        self.state.restarts = self.starts;
        self.starts += 1;
        let hung = std::mem::take(&mut self.hung);
        match spawn(&self.plan, self.state.restarts, self.record.as_ref(), hung) {
            Ok((child, pipe)) => {
                self.running = Some(Running {
                    heartbeat: Heartbeat::new(child.id()),
                    child,
                    pipe,
                    partial: Vec::new(),
                    started: Instant::now(),
                    ready: false,
                    last_line: String::new(),
                });
                self.report("starting");
            }
            Err(e) => {
                let error = format!("could not run \"{}\": {e}", self.plan.program.display());
                self.failed(error);
            }
        }
    }

    /// Takes up what the encoder has said, and its end.
    fn look(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        let (lines, open) = running.read_lines();
        let mut became_ready = false;
        for line in lines {
            if line == "ready" && !running.ready {
                running.ready = true;
                became_ready = true;
            } else {
                log(format!("laser encoder: {line}"));
                running.last_line = line;
            }
        }
        let healthy = running.ready && running.started.elapsed() >= HEALTHY;
        let ended = if open {
            running.child.try_wait().ok().flatten()
        } else {
            // It has closed its output: it has ended, or is about to.
            running.end(GRACE)
        };
        if let Some(status) = ended {
            if healthy {
                self.state.failures = 0;
            }
            let last_line = std::mem::take(&mut running.last_line);
            self.running = None;
            let mut error = format!("the encoder process {}", describe(status));
            if !last_line.is_empty() && !status.success() && status.signal().is_none() {
                error = format!("{error}: {last_line}");
            }
            self.failed(error);
            return;
        }
        let health = running.heartbeat.poll(timeout_setting());
        let ready = running.ready;
        if health == Health::Hung {
            let seconds = running.heartbeat.silence().as_secs();
            // It does not listen to requests to end either.
            running.end(Duration::ZERO);
            self.running = None;
            self.hung = true;
            self.failed(format!(
                "the encoder process did not answer for {seconds} s and was ended"
            ));
            return;
        }
        let recovered = healthy && self.state.failures > 0;
        if recovered {
            self.state.failures = 0;
        }
        let state = match (ready, health) {
            (false, _) => "starting",
            (true, Health::Silent) => "not answering",
            (true, _) => "running",
        };
        if became_ready || recovered || state != self.state.state {
            self.report(state);
        }
    }

    /// Notes a failure and sets the time of the next start.
    fn failed(&mut self, error: String) {
        let pause = FIRST_PAUSE
            .saturating_mul(1 << self.state.failures.min(16))
            .min(LAST_PAUSE);
        self.state.failures += 1;
        if self.record.as_ref().is_some_and(work::was_working) {
            self.state.failures = self.state.failures.min(FEW_FAILURES);
        }
        self.next_start = Instant::now() + pause;
        log(format!(
            "laser: {error}; it is started again in {} ms",
            pause.as_millis()
        ));
        self.state.last_error = error;
        self.report("backing off");
    }

    /// Reads the settings again, and restarts the encoder if they ask for another one.
    fn reload(&mut self) {
        // SAFETY: this is the main loop of the process, where settings may change.
        unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
        let plan = Plan::current();
        if plan != self.plan {
            log("laser: restarting the encoder process with changed settings".into());
            self.plan = plan;
            self.stop();
            // What was refused may be tried again.
            self.record = new_record();
        }
        // A reload also ends a pause: whatever was wrong may have been put right.
        self.state.failures = 0;
        if self.running.is_none() {
            self.next_start = Instant::now();
        }
    }

    /// Ends the encoder and waits for its end.
    fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.end(GRACE);
            // A process that had to be killed leaves its socket.
            let _ = std::fs::remove_file(SOCKET);
        }
    }
}

impl Running {
    /// Complete lines that have arrived, and whether the pipe is still open.
    fn read_lines(&mut self) -> (Vec<String>, bool) {
        let mut buffer = [0; 4096];
        let mut open = true;
        loop {
            match self.pipe.read(&mut buffer) {
                Ok(0) => {
                    open = false;
                    break;
                }
                Ok(n) => self.partial.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    open = false;
                    break;
                }
            }
            // A process that only ever writes must not keep the worker here.
            if self.partial.len() > 1 << 16 {
                break;
            }
        }
        let mut lines = Vec::new();
        while let Some(end) = self.partial.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line[..end]).into_owned());
        }
        if !open && !self.partial.is_empty() {
            lines.push(String::from_utf8_lossy(&self.partial).into_owned());
            self.partial.clear();
        }
        (lines, open)
    }

    /// Asks the process to end, insists after a while, and collects it.
    fn end(&mut self, grace: Duration) -> Option<ExitStatus> {
        // SAFETY: the child has not been waited for, so its process id is still its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        if let Some(status) = self.ended_within(grace) {
            return Some(status);
        }
        let _ = self.child.kill();
        // One that a device driver holds in the kernel does not end, and must not keep the server from stopping.
        self.ended_within(KILLED)
    }

    fn ended_within(&mut self, time: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(_) => break,
            }
        }
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // On an error of the worker itself: the process would end with it anyway.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end(GRACE);
        }
    }
}

/// `laser.encoder_timeout`.
fn timeout_setting() -> Duration {
    Duration::from_millis(guc::TIMEOUT.get() as u64)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        _ => "ended".into(),
    }
}

/// A file without a name, in memory.
fn new_record() -> Option<File> {
    // SAFETY: a new descriptor, which nobody else has.
    unsafe {
        let fd = libc::memfd_create(c"laser".as_ptr(), libc::MFD_CLOEXEC);
        (fd >= 0).then(|| File::from(OwnedFd::from_raw_fd(fd)))
    }
}

/// Starts the encoder, with its output in a pipe that reads without blocking.
fn spawn(
    plan: &Plan,
    restarts: u64,
    record: Option<&File>,
    hung: bool,
) -> io::Result<(Child, PipeReader)> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: sets a flag of an open descriptor of ours.
    unsafe {
        let flags = libc::fcntl(reader.as_raw_fd(), libc::F_GETFL);
        if flags < 0 || libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) < 0
        {
            return Err(io::Error::last_os_error());
        }
    }
    let mut command = Command::new(&plan.program);
    command
        .args(&plan.arguments)
        .arg(format!("--restarts={restarts}"))
        .arg(format!("--parent={}", std::process::id()))
        .args(record.map(|_| "--record"))
        .args(hung.then_some("--hung"))
        // Nobody reads a backtrace of it, and finding the names for one takes memory under a lock of the standard
        // library: a thread that finds none waits for itself, with all that it holds.
        .env("RUST_BACKTRACE", "0")
        .env("RUST_LIB_BACKTRACE", "0")
        .stdin(match record {
            Some(file) => Stdio::from(file.try_clone()?),
            None => Stdio::null(),
        })
        .stdout(writer.try_clone()?)
        .stderr(writer);
    // SAFETY: the closure only makes system calls, which is allowed between fork and exec.
    unsafe { command.pre_exec(prepare_child) };
    Ok((command.spawn()?, reader))
}

/// In the child, before the program is run: none of the server's descriptors go along (sockets of
/// the postmaster, its death pipe, data files), and no signal is blocked.
fn prepare_child() -> io::Result<()> {
    // SAFETY: system calls on descriptors and masks of the child alone; the signal set is
    // initialised by sigemptyset.
    unsafe {
        // Marked rather than closed: the standard library still reports a failing exec through one.
        if libc::syscall(
            libc::SYS_close_range,
            3 as libc::c_uint,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        ) != 0
        {
            let most = libc::sysconf(libc::_SC_OPEN_MAX).clamp(256, 65_536) as libc::c_int;
            for fd in 3..most {
                libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
            }
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    Ok(())
}
