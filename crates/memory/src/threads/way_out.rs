//! What whoever waits for threads does where one has stopped for good.

use std::sync::OnceLock;
use std::time::Duration;

/// How often whoever waits for threads looks whether that is in vain.
pub const INTERVAL: Duration = Duration::from_millis(20);

static HOPELESS: OnceLock<fn()> = OnceLock::new();

/// Says what whoever waits for threads calls now and then: it does not return where one has stopped, as for
/// want of memory, and will never end. What it borrows stays where it is, so that this must end the process, or
/// wait until somebody else has. The first call counts.
pub fn set_way_out(leave: fn()) {
    let _ = HOPELESS.set(leave);
}

/// Does not return where to wait is in vain.
pub fn leave_if_hopeless() {
    if let Some(leave) = HOPELESS.get() {
        leave();
    }
}
