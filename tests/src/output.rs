//! What a program has printed.

use std::process::Output;

/// Standard output, then the errors.
pub fn text(output: &Output) -> String {
    let all = [&output.stdout, &output.stderr];
    all.map(|bytes| String::from_utf8_lossy(bytes)).concat()
}
