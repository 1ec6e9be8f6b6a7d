//! The socket that the server listens on.

use std::io::{self, ErrorKind};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::log::log;

/// Opens the socket. A file that nobody listens on is left over from a crash and is replaced.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(e) if e.kind() == ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(
                    ErrorKind::AddrInUse,
                    "another encoder listens on this socket",
                ));
            }
            log("replacing a socket file that nobody listens on");
            std::fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        other => other,
    }
}

/// Device and inode of a file, if there is one.
pub fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = path.symlink_metadata().ok()?;
    Some((found.dev(), found.ino()))
}
