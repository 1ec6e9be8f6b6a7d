//! Locks of processes on files in the data directory, which is the working directory of every server
//! process. They are there without a preloaded library, tell who holds them, and end with their process.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};

use pgrx::pg_sys::{self, Datum};

/// Folder of the files that server processes share. Names in it begin with `pgsql_tmp`, which base backups
/// and pg_rewind leave out: nothing there outlives its purpose.
pub const FOLDER: &str = "laser";

/// A lock on a file, held until dropped or until the process ends. The kernel also takes it back when the
/// process closes the file another time: open it here alone.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Locks a file of [`FOLDER`], which is made where it is missing; `None` if another process has it.
    pub fn attempt(path: &str) -> io::Result<Option<Self>> {
        let file = open(path)?;
        let request = request();
        // SAFETY: the structure is valid for the call.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &request) } == 0 {
            return Ok(Some(Self { file }));
        }
        match io::Error::last_os_error() {
            e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
            e => Err(e),
        }
    }

    /// Keeps the lock until the process ends: until its transaction has, and before it leaves its database. Who
    /// sees that it has left (CREATE DATABASE … TEMPLATE) finds the lock free. To be called before the process
    /// connects: callbacks run in the reverse order (ipc.c), and connecting adds the one that ends transactions.
    pub fn until_exit(self) {
        let file = Datum::from(self.file.into_raw_fd());
        // SAFETY: registers a function of the type that the server asks for, and a number.
        unsafe { pg_sys::before_shmem_exit(Some(release), file) };
    }

    /// The file that is locked; closing any descriptor of it in this process gives up the lock (fcntl(2)).
    pub fn file(&self) -> &File {
        &self.file
    }
}

unsafe extern "C-unwind" fn release(_code: c_int, file: Datum) {
    // SAFETY: the file of [`Lock::until_exit`], which nothing else has.
    unsafe { libc::close(file.value() as c_int) };
}

/// The process that has locked a file, if one has. Takes no lock, so it keeps nobody from taking it.
pub fn holder(path: &str) -> io::Result<Option<i32>> {
    let file = open(path)?;
    let mut request = request();
    // SAFETY: the structure is valid for the call, which writes the answer into it.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((request.l_type != libc::F_UNLCK as libc::c_short).then_some(request.l_pid))
}

fn request() -> libc::flock {
    // SAFETY: all zeros are valid for this plain structure: the whole file, from its start.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = libc::F_WRLCK as _;
    request.l_whence = libc::SEEK_SET as _;
    request
}

fn open(path: &str) -> io::Result<File> {
    match fs::create_dir(FOLDER) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // Locks of this kind belong to the process and its open file; a child does not inherit them.
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
}
