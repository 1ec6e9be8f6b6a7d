//! Waiting for descriptors, with epoll and poll, and a counter that wakes who waits.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Events that are taken from the kernel at a time.
const EVENTS: usize = 256;

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
    events: Vec<epoll::Event>,
}

impl Epoll {
    /// An instance that watches nothing yet.
    ///
    /// # Errors
    /// What the operating system says, here and below.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            fd: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS),
        })
    }

    /// Watches `fd` for input and hang-ups.
    pub fn add(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        let data = EventData::new_u64(token);
        Ok(epoll::add(&self.fd, fd, data, interest(true))?)
    }

    /// Switches the interest in input; hang-ups are always reported.
    pub fn set_reading(&self, fd: impl AsFd, token: u64, read: bool) -> io::Result<()> {
        let data = EventData::new_u64(token);
        Ok(epoll::modify(&self.fd, fd, data, interest(read))?)
    }

    /// Forgets `fd`.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits for events, at most for `timeout`. An interrupting signal counts as no events.
    pub fn wait(&mut self, timeout: Duration, out: &mut Vec<Event>) -> io::Result<()> {
        out.clear();
        self.events.clear();
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let room = spare_capacity(&mut self.events);
        match epoll::wait(&self.fd, room, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        out.extend(self.events.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            Event {
                token: data.u64(),
                readable: flags.contains(EventFlags::IN),
                hangup: flags.intersects(EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP),
            }
        }));
        Ok(())
    }
}

fn interest(read: bool) -> EventFlags {
    if read {
        EventFlags::RDHUP | EventFlags::IN
    } else {
        EventFlags::RDHUP
    }
}

/// A counter that wakes an epoll or poll loop from another thread.
pub struct Waker(File);

impl Waker {
    /// A counter at zero.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(File::from(fd)))
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        // A full counter means that it is readable already.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }

    /// Sets the counter to zero, so that the descriptor is not readable.
    pub fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until `input` is readable or one of `outputs` is writable (or broken); returns for each
/// output whether it is.
///
/// # Errors
/// What the operating system says.
pub fn poll_writable(input: &Waker, outputs: &[BorrowedFd<'_>]) -> io::Result<Vec<bool>> {
    let mut fds = vec![PollFd::new(input, PollFlags::IN)];
    let outputs = outputs.iter().copied();
    fds.extend(outputs.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect())
}
