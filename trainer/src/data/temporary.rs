//! Temporary files beside what is written.

use std::fs::File;
use std::path::Path;

/// An unnamed file: it is gone when it is closed, however the program ends.
pub(super) fn unnamed_file(folder: &Path) -> std::io::Result<File> {
    let name = folder.join(format!(".pack-{}-{:x}", std::process::id(), unique()));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&name)?;
    std::fs::remove_file(&name)?;
    Ok(file)
}

fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    COUNTER.fetch_add(1, Ordering::Relaxed)
}
