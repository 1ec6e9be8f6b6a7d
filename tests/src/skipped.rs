//! Tests that cannot run here. Other crates include this file, which needs nothing but std.

use std::io::Write;

/// Says on the terminal, past the test harness, that something was not tested, and why. `make test` lists
/// what has been said here at its end (`LASER_SKIPPED` names its file).
pub fn skipped(what: &str, why: &str) {
    let line = format!("SKIPPED: {what}: {}\n", why.trim().replace('\n', "; "));
    // Without a standard error nobody listens.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("LASER_SKIPPED") {
        // One write a line, since tests run side by side.
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.expect("the list of skipped tests can be written");
    }
}
