//! Memory that is free and still held by the C library.
#![allow(unsafe_code)]

/// Gives the system back what is free. The C library keeps it for the next time, also blocks as large as the largest
/// that it was given before: making ready a model, or looking at a sample of vectors, takes several times as much for a
/// moment as what comes after it.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
