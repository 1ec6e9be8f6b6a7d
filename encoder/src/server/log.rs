//! The log of the process, which the worker copies into the server's.

/// Writes a line for the server log to standard error.
pub fn log(message: &str) {
    eprintln!("{}", message.replace('\n', " "));
}
