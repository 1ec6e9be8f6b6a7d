//! Whether the system has memory left, without keeping any of it.
#![allow(unsafe_code)]

use std::{io, ptr};

/// Whether `bytes` bytes can be mapped now. The heap is not asked: it would give back to the system what is
/// freed at its end, which may be the last that there is. Allocates nothing.
///
/// # Errors
/// What the operating system says.
pub fn can_be_mapped(bytes: usize) -> io::Result<()> {
    // SAFETY: a mapping of its own, which nobody uses and which is removed at once.
    unsafe {
        let start = libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(start, bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_are_addresses_cannot() {
        assert!(can_be_mapped(1 << 20).is_ok());
        assert!(can_be_mapped(1 << 60).is_err());
    }
}
