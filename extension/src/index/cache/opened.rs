//! What this session has opened.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use laser_index::view::SegmentView;

use super::super::storage::Storage;
use super::folders::{ShortPath, segment_name};
use super::sessions;

pub struct Opened {
    pub storage: Storage,
    pub view: Rc<SegmentView>,
    /// The session's clock when it was searched last.
    pub used: u64,
}

#[derive(Default)]
pub struct Session {
    /// By the segments' identities.
    pub opened: HashMap<u64, Opened>,
    /// Searches so far.
    pub clock: u64,
}

thread_local! {
    pub static SESSION: RefCell<Session> = RefCell::default();
}

/// Forgets segments of storage that goes, so that their files' room is the disk's again. A scan keeps what it reads.
pub fn forget(storage: Storage) {
    // Where the session ends, there may be nothing left to forget.
    let _ = SESSION.try_with(|session| {
        if let Ok(mut session) = session.try_borrow_mut() {
            session.opened.retain(|_, o| o.storage != storage);
        }
    });
}

/// Forgets segments whose files others have removed meanwhile. A scan keeps what it reads.
pub fn forget_removed() {
    let is_there = |nonce: u64, storage: Storage| {
        let path = ShortPath::new(format_args!("{}/{}", storage.folder(), segment_name(nonce)));
        // SAFETY: the path ends with a zero.
        unsafe { libc::access(path.as_ptr(), libc::F_OK) == 0 }
    };
    let _ = SESSION.try_with(|session| {
        if let Ok(mut session) = session.try_borrow_mut()
            && !session.opened.is_empty()
            && sessions::files_removed()
        {
            session
                .opened
                .retain(|nonce, o| !o.view.is_file() || is_there(*nonce, o.storage));
        }
    });
}
