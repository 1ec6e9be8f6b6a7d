//! System calls on folders and files of segments, which allocate as little as they can: a commit that has happened, and
//! a rollback, must not fail.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io::{self, Write as _};
use std::ops::Deref;
use std::time::Instant;

/// Paths are relative to the data directory, where every process of the server is.
pub(super) const HERE: c_int = libc::AT_FDCWD;

/// The name of a segment's file.
pub(super) fn segment_name(nonce: u64) -> impl fmt::Display {
    fmt::from_fn(move |f| write!(f, "{nonce:016x}"))
}

/// A path of ours for the C library, made without an allocation: a commit that has happened, and a rollback, must not
/// fail.
pub(super) struct ShortPath([u8; 128]);

impl ShortPath {
    pub(super) fn new(path: impl fmt::Display) -> Self {
        let mut bytes = [0; 128];
        write!(&mut bytes[..127], "{path}").expect("a constant and four numbers");
        Self(bytes)
    }
}

impl Deref for ShortPath {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).expect("the last byte is zero")
    }
}

/// Shows a folder's descriptor and the names in it, if there is such a folder. It allocates nothing but what the C
/// library opens a folder with, and shows nothing where there is no memory for that.
pub(super) fn list(parent: c_int, folder: &CStr, mut look: impl FnMut(c_int, &CStr)) {
    list_while(parent, folder, |folder, name| {
        look(folder, name);
        true
    });
}

/// As [`list`], as long as it is told to go on.
fn list_while(parent: c_int, folder: &CStr, mut look: impl FnMut(c_int, &CStr) -> bool) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the folder is open until it is closed; a name ends with a zero, and is used before the next one is read.
    unsafe {
        let descriptor = libc::openat(parent, folder.as_ptr(), flags);
        if descriptor < 0 {
            return;
        }
        let folder = libc::fdopendir(descriptor);
        if folder.is_null() {
            libc::close(descriptor);
            return;
        }
        loop {
            let file = libc::readdir(folder);
            if file.is_null() {
                break;
            }
            let name = CStr::from_ptr((*file).d_name.as_ptr());
            if name != c"." && name != c".." && !look(descriptor, name) {
                break;
            }
        }
        libc::closedir(folder);
    }
}

/// Removes a file; says whether there is none of that name now.
pub(super) fn unlink(folder: c_int, name: &CStr) -> bool {
    // SAFETY: the name ends with a zero.
    unsafe { libc::unlinkat(folder, name.as_ptr(), 0) == 0 }
}

/// What became of a folder that was to be removed; of several, the greatest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Removal {
    /// There was none.
    Missing,
    Done,
    /// Something is left.
    Unfinished,
}

/// Removes a folder with what is in it, down to `levels` levels of folders, until a moment. It allocates no more than
/// [`list`].
pub(super) fn remove(parent: c_int, folder: &CStr, levels: u32, until: Option<Instant>) -> Removal {
    let is_time = || until.is_none_or(|until| Instant::now() < until);
    list_while(parent, folder, |descriptor, name| {
        if !unlink(descriptor, name) && levels > 0 {
            remove(descriptor, name, levels - 1, until);
        }
        is_time()
    });
    // SAFETY: the name ends with a zero. What is not empty stays.
    if unsafe { libc::unlinkat(parent, folder.as_ptr(), libc::AT_REMOVEDIR) } == 0 {
        Removal::Done
    } else if io::Error::last_os_error().kind() == io::ErrorKind::NotFound {
        Removal::Missing
    } else {
        Removal::Unfinished
    }
}
