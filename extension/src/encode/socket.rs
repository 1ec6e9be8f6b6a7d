//! The socket of the encoder process, as sessions and the worker open it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use super::files::SOCKET;

/// Connects without blocking: the encoder may be stopped, with its backlog full.
pub fn connect_socket() -> io::Result<UnixStream> {
    // SAFETY: the descriptor is owned from its creation on; the address is a zeroed structure of
    // the right family, whose path is terminated because it is shorter than the field.
    unsafe {
        let fd = libc::socket(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
            0,
        );
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        const { assert!(SOCKET.len() < 100) };
        for (to, from) in address.sun_path.iter_mut().zip(SOCKET.bytes()) {
            *to = from as libc::c_char;
        }
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        if libc::connect(fd.as_raw_fd(), (&raw const address).cast(), length) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(UnixStream::from(fd))
    }
}
