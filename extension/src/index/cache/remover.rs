//! Removes folders of relations and databases that are gone: what the end of a transaction has no time for on a thread
//! beside the session's own.

use std::thread;
use std::time::{Duration, Instant};

use laser_memory::room::can_be_mapped;
use laser_memory::threads::Queue;

use super::super::storage::{LASTING, PASSING, Storage, database_folder};
use super::folders::{self, HERE, Removal, ShortPath};
use super::sessions;

/// Bytes that must be left for a thread to be made. What then remains sweeps find.
const ROOM: usize = 16 << 20;
const INTERVAL: Duration = Duration::from_millis(5);

/// What has files though it is gone, or is about to go.
#[derive(Clone, Copy)]
pub(super) enum Gone {
    Relation(Storage),
    Database(u32),
}

impl Gone {
    /// Removes its files, until a moment.
    pub(super) fn remove(self, until: Option<Instant>) -> Removal {
        match self {
            Gone::Relation(storage) => {
                folders::remove(HERE, &ShortPath::new(storage.folder()), 0, until)
            }
            Gone::Database(database) => {
                let remove = |folder| {
                    let folder = ShortPath::new(database_folder(folder, database));
                    folders::remove(HERE, &folder, 1, until)
                };
                folders::remove(HERE, &ShortPath::new(sessions::folder(database)), 0, until);
                remove(PASSING).max(remove(LASTING))
            }
        }
    }
}

static QUEUE: Queue<Gone> = Queue::new();

/// Removes files of these, what is left at a moment on another thread; says whether there were any. It fails in nothing:
/// a transaction may have been committed.
pub(super) fn remove(mut gone: Vec<Gone>, until: Instant) -> bool {
    let mut had_files = false;
    gone.retain(|one| {
        if Instant::now() >= until {
            return true;
        }
        let removal = one.remove(Some(until));
        had_files |= removal != Removal::Missing;
        removal == Removal::Unfinished
    });
    if !gone.is_empty() && can_be_mapped(ROOM).is_ok() {
        QUEUE.add(gone.into_iter(), usize::MAX, "laser files", work);
    }
    had_files
}

fn work() {
    // The database of which files were removed since its sessions were told.
    let mut untold = None;
    loop {
        let next = match untold {
            None => QUEUE.next(),
            Some(_) => QUEUE.next_if_any(),
        };
        match (next, untold) {
            (Some(next), _) => {
                let removal = next.remove(None);
                if let Gone::Relation(storage) = next
                    && removal != Removal::Missing
                {
                    untold = Some(storage.database);
                }
            }
            // Those that were told at the end of the transaction have found these files where they were.
            (None, Some(database)) => {
                untold = None;
                sessions::wake(database);
            }
            (None, None) => return,
        }
    }
}

/// Waits until the other thread is done, for `timeout` at most.
pub(super) fn wait(timeout: Duration) {
    let until = Instant::now() + timeout;
    while QUEUE.is_at_work() && Instant::now() < until {
        thread::sleep(INTERVAL);
    }
}
