//! The system calls that the standard library does not wrap: epoll, eventfd, poll and process
//! attributes. Everything is checked here, so that the rest of the server is safe code.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// One event of [`Epoll::wait`].
#[derive(Debug, Clone, Copy)]
pub struct Event {
    /// The token that was registered.
    pub token: u64,
    /// There may be bytes (or an end of file) to read.
    pub readable: bool,
    /// The peer is gone.
    pub hangup: bool,
}

/// A level-triggered epoll instance.
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    /// A new instance.
    pub fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes no pointers.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the descriptor was just created and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            fd,
            events: vec![libc::epoll_event { events: 0, u64: 0 }; 256],
        })
    }

    fn control(&self, op: libc::c_int, fd: RawFd, token: u64, read: bool) -> io::Result<()> {
        let mut events = libc::EPOLLRDHUP as u32;
        if read {
            events |= libc::EPOLLIN as u32;
        }
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: `event` is valid for the call, which does not keep the pointer.
        check(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), op, fd, &mut event) })?;
        Ok(())
    }

    /// Watches `fd` for input.
    pub fn add(&self, fd: &impl AsRawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), token, true)
    }

    /// Switches the interest in input; hang-ups are always reported.
    pub fn set_reading(&self, fd: &impl AsRawFd, token: u64, read: bool) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), token, read)
    }

    /// Forgets `fd`.
    pub fn remove(&self, fd: &impl AsRawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, false)
    }

    /// Waits for events, at most `timeout` milliseconds (-1: without limit). An interrupting
    /// signal counts as no events.
    pub fn wait(&mut self, timeout: i32, out: &mut Vec<Event>) -> io::Result<()> {
        out.clear();
        // SAFETY: the buffer is valid for `len` events and is only written during the call.
        let n = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                self.events.as_mut_ptr(),
                self.events.len() as libc::c_int,
                timeout,
            )
        };
        let n = match check(n) {
            Ok(n) => n as usize,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            Err(e) => return Err(e),
        };
        out.extend(self.events[..n].iter().map(|e| {
            let (events, token) = (e.events, e.u64);
            Event {
                token,
                readable: events & libc::EPOLLIN as u32 != 0,
                hangup: events & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32 != 0,
            }
        }));
        Ok(())
    }
}

/// A counter that wakes an epoll or poll loop from another thread.
pub struct Waker(std::fs::File);

impl Waker {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes no pointers; the descriptor it returns belongs to nobody else.
        unsafe {
            let fd = check(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?;
            Ok(Self(std::fs::File::from_raw_fd(fd)))
        }
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        // A full counter means that it is readable already.
        let _ = io::Write::write(&mut &self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable again.
    pub fn clear(&self) {
        let _ = io::Read::read(&mut &self.0, &mut [0; 8]);
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits until `input` is readable or one of `outputs` is writable (or broken); returns for each
/// output whether it is.
pub fn poll_writable(input: RawFd, outputs: &[RawFd]) -> io::Result<Vec<bool>> {
    let mut fds: Vec<libc::pollfd> = std::iter::once((input, libc::POLLIN))
        .chain(outputs.iter().map(|&fd| (fd, libc::POLLOUT)))
        .map(|(fd, events)| libc::pollfd {
            fd,
            events,
            revents: 0,
        })
        .collect();
    // SAFETY: the array is valid for its length and only used during the call.
    match check(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) }) {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
        Err(e) => return Err(e),
    }
    Ok(fds[1..].iter().map(|f| f.revents != 0).collect())
}

/// Asks the kernel to send SIGTERM when the parent dies, and checks that it has not died already.
/// `parent` is its expected process id. Returns false if the parent is gone.
pub fn die_with_parent(parent: u32) -> io::Result<bool> {
    // SAFETY: prctl with PR_SET_PDEATHSIG and getppid take no pointers.
    unsafe {
        check(libc::prctl(
            libc::PR_SET_PDEATHSIG,
            libc::SIGTERM as libc::c_ulong,
            0,
            0,
            0,
        ))?;
        Ok(libc::getppid() as u32 == parent)
    }
}

/// Raises the limit of open files as far as allowed, and keeps the socket file private.
pub fn prepare_process() {
    // SAFETY: the structure is valid for both calls, which only read or write it; umask and signal
    // take no pointers.
    unsafe {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
        libc::umask(0o077);
        // A cancelled query in a terminal signals the whole group; it is not meant for us.
        libc::signal(libc::SIGINT, libc::SIG_IGN);
    }
}

/// Lets the process run on so many processors at most, which bounds what all its threads take together:
/// those that encode, tokenize, load models and search, and those of libraries. To be called before
/// any of them starts. Zero bounds nothing.
pub fn bound_processors(threads: usize) -> io::Result<()> {
    if threads == 0 {
        return Ok(());
    }
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a set is plain bits, for which zeros are valid; both calls read or write it within its
    // size, and the macros' indexes are below its number of bits.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        check(libc::sched_getaffinity(0, size, &mut allowed))?;
        let processors: Vec<usize> = (0..8 * size)
            .filter(|&cpu| libc::CPU_ISSET(cpu, &allowed))
            .collect();
        if threads >= processors.len() {
            return Ok(());
        }
        // Encoders of several servers shall not all take the same ones.
        let first = std::process::id() as usize;
        let mut chosen: libc::cpu_set_t = std::mem::zeroed();
        for i in 0..threads {
            libc::CPU_SET(processors[(first + i) % processors.len()], &mut chosen);
        }
        check(libc::sched_setaffinity(0, size, &chosen))?;
    }
    Ok(())
}

/// Ends the process at once, without destructors of threads that are in the middle of something.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}
