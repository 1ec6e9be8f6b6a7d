//! Processes that a command runs do not outlive it.

use std::io::{Error, Result};

/// Has this process end as by SIGTERM, at which a training saves a checkpoint, when the one that has started it ends,
/// whatever ends that. Systems other than Linux cannot.
///
/// # Errors
/// That process, with the number `parent`, is gone already.
pub fn end_with(parent: u32) -> Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    if std::os::unix::process::parent_id() == parent {
        return Ok(());
    }
    Err(Error::other(
        "the process that has started this one is gone",
    ))
}
