//! Placeholder.

/// Registers what this module needs from the server.
pub fn init() {}
