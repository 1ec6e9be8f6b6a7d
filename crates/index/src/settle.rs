//! What is done with the file of a segment while it is used, by a thread that nobody waits for: it is written to the disk,
//! so that it outlives a crash of the machine, and verified again where that was long ago.
//!
//! Who opens a file need not wait for either. A stamp ([`stamp`]) says of what is on the disk that it is, and a process
//! that ends before has done nothing: the next one that opens the file begins again.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, iter, thread};

use laser_memory::threads::Queue;

use crate::bytes::SegmentBytes;
use crate::segment::SegmentHeader;
use crate::stamp::{self, Reach, Stamp};

/// Bytes that are read from a file at once.
const PART: usize = 64 << 10;
/// Bytes that are written to the disk at once: a process does not end before.
const WRITTEN: u64 = 16 << 20;
/// Files that wait at once. Others are left to who opens them next.
const MOST: usize = 32;

/// Whether a file that is in use was found to be damaged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Damage(Arc<AtomicBool>);

impl Damage {
    pub(crate) fn is_found(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A file that waits.
struct Job {
    file: File,
    path: PathBuf,
    header: SegmentHeader,
    server: u64,
    damage: Damage,
}

static QUEUE: Queue<Job> = Queue::new();

/// Settles the file of a segment, whose name is `path`, after others that wait. A file that turns out to be damaged, or that
/// the disk does not take, is removed. Without a thread, or where another process is at it, nothing is done.
pub(crate) fn settle(
    file: &File,
    path: &Path,
    header: SegmentHeader,
    server: u64,
    damage: &Damage,
) {
    let Ok(file) = file.try_clone() else {
        return;
    };
    let job = Job {
        file,
        path: path.to_path_buf(),
        header,
        server,
        damage: damage.clone(),
    };
    QUEUE.add(iter::once(job), MOST, "laser file", work);
}

fn work() {
    while let Some(job) = QUEUE.next() {
        if job.file.try_lock().is_ok() {
            // Whatever becomes of one, the others have their turn.
            let _ = catch_unwind(AssertUnwindSafe(|| job.settle()));
            // The lock is of what was opened, which the mapping of whoever searches the file keeps open.
            let _ = job.file.unlock();
        }
    }
}

/// The bytes of a file are wrong, or the disk has not taken them: what is mapped may be what the disk has at any time.
struct Unfit;

impl Job {
    fn settle(&self) {
        if self.work().is_ok() {
            return;
        }
        // Another process may have made it again by now.
        let inode = |found: io::Result<fs::Metadata>| found.map(|found| found.ino()).ok();
        if inode(self.file.metadata()) == inode(self.path.symlink_metadata()) {
            let _ = fs::remove_file(&self.path);
        }
        // Last: who hears of it opens what has the name.
        self.damage.0.store(true, Ordering::Release);
    }

    /// Whether the file still has a name: what is removed meanwhile nobody opens again.
    fn is_named(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.nlink() > 0)
    }

    fn work(&self) -> Result<(), Unfit> {
        let (file, nonce) = (&self.file, self.header.nonce);
        if !self.is_named() {
            return Ok(());
        }
        let Some(found) = stamp::read(file, nonce, self.server) else {
            // Somebody has written to it, and who opens it next verifies it.
            return Ok(());
        };
        let mut settled = found;
        if found.is_old() {
            // What a disk cannot read is an error of this call, and a signal to who has the file mapped.
            match read_through(file, &thread::yield_now) {
                Err(error) if is_want(&error) => return Ok(()),
                read => read.map_err(|_| Unfit)?,
            }
            let Ok(bytes) = SegmentBytes::map(file, &self.path) else {
                return Ok(());
            };
            let segment = bytes.get(..self.header.file_len() as usize);
            let segment = segment.ok_or(Unfit)?;
            let verified = self.header.verify(segment, &thread::yield_now);
            verified.map_err(|_| Unfit)?;
            settled = Stamp::now(found.reach);
        }
        if found.reach != Reach::Disk {
            // The system tells once that it could not write, and then takes what it has for what the disk has.
            let written = write_out(file, self.header.file_len(), &|| self.is_named());
            if !written.map_err(|_| Unfit)? {
                return Ok(());
            }
            settled.reach = Reach::Disk;
        }
        restamp(file, nonce, self.server, found, settled);
        Ok(())
    }
}

/// Puts a stamp in place of the one that was found. Whoever has written to the file meanwhile has taken that away, and it stays
/// so.
fn restamp(file: &File, nonce: u64, server: u64, found: Stamp, settled: Stamp) {
    if settled != found && stamp::read(file, nonce, server) == Some(found) {
        settled.set(file, nonce);
    }
}

/// Writes a file that was stamped when it was made to its disk, and says so in its stamp; returns whether that was done.
/// Ends between parts where it is not to go on.
///
/// # Errors
/// What the operating system says. The file is then not to be used by others.
pub(crate) fn settle_new(
    file: &File,
    header: &SegmentHeader,
    server: u64,
    go_on: &dyn Fn() -> bool,
) -> io::Result<bool> {
    let made = stamp::read(file, header.nonce, server);
    let is_done = write_out(file, header.file_len(), go_on)?;
    if let Some(made) = made.filter(|_| is_done) {
        let reach = Reach::Disk;
        restamp(file, header.nonce, server, made, Stamp { reach, ..made });
    }
    Ok(is_done)
}

/// Writes a file to its disk, in parts, so that a process can end between them; says whether it came to the end.
fn write_out(file: &File, len: u64, go_on: &dyn Fn() -> bool) -> io::Result<bool> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    for at in (0..len).step_by(WRITTEN as usize) {
        if !go_on() {
            return Ok(false);
        }
        // SAFETY: a call with an open descriptor and numbers.
        let done =
            unsafe { libc::sync_file_range(file.as_raw_fd(), at as i64, WRITTEN as i64, flags) };
        let error = io::Error::last_os_error();
        // What could not be written the system tells this call or the next one, not both.
        let knows_no_parts = matches!(
            error.raw_os_error(),
            Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE)
        );
        if done != 0 && !knows_no_parts {
            return Err(error);
        }
    }
    // And what is left, all of it where a file system knows no parts.
    file.sync_all().map(|()| true)
}

/// Reads a file once, so that what its disk cannot read is an error and not a signal. Calls `pause` every few milliseconds.
///
/// # Errors
/// What the operating system says.
pub(crate) fn read_through(file: &File, pause: &dyn Fn()) -> io::Result<()> {
    let mut part = [0; PART];
    let mut at = 0;
    loop {
        pause();
        match file.read_at(&mut part, at) {
            Ok(0) => return Ok(()),
            Ok(len) => at += len as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether this process lacks descriptors or memory, which says nothing of what it asked for.
pub(crate) fn is_want(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN)
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use bytemuck::Zeroable;

    use super::*;

    #[test]
    fn what_was_not_written_out_is_not_said_to_be() {
        let mut header = SegmentHeader::zeroed();
        header.nonce = 7;
        header.space.len = 1000;
        let file = || {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[1; 1000]).unwrap();
            Stamp::now(Reach::Server(1)).set(&file, 7);
            file
        };
        let reach = |file: &File| stamp::read(file, 7, 1).map(|stamp| stamp.reach);
        let whole = file();
        assert!(settle_new(&whole, &header, 1, &|| true).unwrap());
        assert_eq!(reach(&whole), Some(Reach::Disk));
        let left = file();
        assert!(!settle_new(&left, &header, 1, &|| false).unwrap());
        assert_eq!(reach(&left), Some(Reach::Server(1)));
        // Somebody writes to it meanwhile.
        let changed = file();
        let write = || (&changed).write_all(b"x").is_ok();
        assert!(settle_new(&changed, &header, 1, &write).unwrap());
        assert_eq!(reach(&changed), None);
    }
}
