//! What threads wait at until all of them run.

use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

/// What threads that are made one after the other wait at until all of them run.
#[derive(Clone, Default)]
pub struct Gate(Arc<RwLock<()>>);

impl Gate {
    /// It is open again when what this returns is dropped.
    pub fn close(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is open.
    pub fn pass(&self) {
        drop(self.0.read().unwrap_or_else(PoisonError::into_inner));
    }
}
