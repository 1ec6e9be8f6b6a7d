//! What sessions wait for, as `pg_stat_activity` names it.
#![allow(unsafe_code)]

/// A wait event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Wait {
    /// A session waits for the encoder process: for its start, an answer, or room in its queue.
    Encoder,
    /// A writer waits a little since its pending list grows faster than merges make it shorter.
    MergeBacklog,
}

/// The number of an event, which has a name where the server lets extensions give some. May raise an error.
#[cfg(any(feature = "pg17", feature = "pg18"))]
pub fn event(wait: Wait) -> u32 {
    use std::cell::Cell;

    use pgrx::pg_sys;

    thread_local! {
        static EVENTS: [Cell<u32>; 2] = const { [const { Cell::new(0) }; 2] };
    }
    let name = match wait {
        Wait::Encoder => c"LaserEncoder",
        Wait::MergeBacklog => c"LaserMergeBacklog",
    };
    EVENTS.with(|events| {
        let event = &events[wait as usize];
        if event.get() == 0 {
            // SAFETY: the server copies the name; it gives the same number to all who ask for it.
            event.set(unsafe { pg_sys::WaitEventExtensionNew(name.as_ptr()) });
        }
        event.get()
    })
}

/// Before PostgreSQL 17, `Extension`.
#[cfg(not(any(feature = "pg17", feature = "pg18")))]
pub fn event(_wait: Wait) -> u32 {
    pgrx::pg_sys::PG_WAIT_EXTENSION
}
