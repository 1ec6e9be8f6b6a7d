//! Backtraces of Rust stay out of the messages of the server.
#![allow(unsafe_code)]

use std::backtrace::Backtrace;
use std::env;

/// Before `RUST_BACKTRACE`, the variable that says whether [`Backtrace::capture`] does anything.
const VARIABLE: &str = "RUST_LIB_BACKTRACE";

/// Where whoever started the server had `RUST_BACKTRACE` in his environment, pgrx would append a
/// backtrace to the DETAIL of every error, for all clients to read. The standard library looks at
/// the environment once, at the first capture, which is this one. The environment itself stays what
/// it was, for the encoder process inherits it.
pub fn off() {
    let before = env::var_os(VARIABLE);
    // SAFETY: the server loads libraries on the only thread of a process.
    unsafe { env::set_var(VARIABLE, "0") };
    let _ = Backtrace::capture();
    match before {
        // SAFETY: as above.
        Some(value) => unsafe { env::set_var(VARIABLE, value) },
        // SAFETY: as above.
        None => unsafe { env::remove_var(VARIABLE) },
    }
}
