//! How a process ends whose threads cannot: those who wait for a thread that has stopped for good would wait
//! forever.

use std::sync::OnceLock;
use std::time::Duration;

/// How often those who wait for threads call the exit hook.
pub const INTERVAL: Duration = Duration::from_millis(20);

static EXIT_HOOK: OnceLock<fn()> = OnceLock::new();

/// Sets what is called every [`INTERVAL`] while one thread waits for others. It does not return where one of
/// these has failed, as when out of memory, and will never end. What such a thread borrows stays where it is, so
/// that the hook must end the process, or wait until somebody else has. Only the first call has an effect.
pub fn set_exit_hook(hook: fn()) {
    let _ = EXIT_HOOK.set(hook);
}

/// Calls the exit hook, which does not return where a thread has failed.
pub fn exit_if_thread_failed() {
    if let Some(hook) = EXIT_HOOK.get() {
        hook();
    }
}
