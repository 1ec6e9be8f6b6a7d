//! What this session has opened.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::MaybeUninit;
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
    // Not another one that was made in its place.
    let is_there = |nonce: u64, opened: &Opened| {
        let folder = opened.storage.folder();
        let path = ShortPath::new(format_args!("{folder}/{}", segment_name(nonce)));
        let mut found = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the path ends with a zero, and `found` is read only after success.
        let inode = unsafe {
            let is_found = libc::lstat(path.as_ptr(), found.as_mut_ptr()) == 0;
            is_found.then(|| found.assume_init().st_ino)
        };
        inode.is_some() && inode == opened.view.inode()
    };
    let _ = SESSION.try_with(|session| {
        if let Ok(mut session) = session.try_borrow_mut()
            && !session.opened.is_empty()
            && sessions::files_removed()
        {
            session
                .opened
                .retain(|nonce, o| !o.view.is_file() || is_there(*nonce, o));
        }
    });
}
