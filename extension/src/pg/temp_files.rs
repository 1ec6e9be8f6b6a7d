//! Temporary files as the server limits them.
#![allow(unsafe_code)]

use pgrx::pg_sys;

/// Bytes that a session may write to temporary files (`temp_file_limit`); `None` without a limit.
pub fn limit() -> Option<u64> {
    // SAFETY: an integer setting of the server, read on its only thread.
    let kilobytes = unsafe { pg_sys::temp_file_limit };
    u64::try_from(kilobytes)
        .ok()
        .map(|kilobytes| kilobytes * 1024)
}
