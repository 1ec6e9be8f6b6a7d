//! Memory that is free and still held by the C library.
#![allow(unsafe_code)]

/// Gives the system back what is free: making ready a model takes several times its size for a moment,
/// and the C library keeps blocks of that size for the next time.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
