//! Files of segments, made from their pages.
//!
//! A file has a name that contains the segment's random identity, is written under a temporary name in a
//! folder for files in the making, renamed to where it belongs when it is complete, and is compared with its
//! checksums before it is used, unless that was done ([`stamp`]) and nobody has written to it since. It may be deleted at
//! any time, with its folder: who has it mapped keeps it, the next one makes it again. It may stay when the server ends: what
//! has reached the disk is used by the next one ([`crate::settle`]), what may not have is verified.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use laser_memory::OutOfMemory;
use memmap2::MmapMut;

use crate::appendix;
use crate::background;
use crate::bytes::SegmentBytes;
use crate::error::{IndexError, Result};
use crate::meta::{Parameters, SegmentEntry};
use crate::scratch::{Scratch, make_folder};
use crate::segment::{SegmentHeader, SegmentMap};
use crate::settle::{Damage, is_want, read_through, settle, settle_new};
use crate::stamp::{self, Reach, Stamp};
use crate::store::PageStore;
use crate::view::SegmentView;
use crate::walk::Guide;

/// Gives the file of a segment whose bytes are right the guide for those who open it, and its final name. A large one is written
/// to the disk as long as `go_on` says so, else by the thread that settles files, which tells `damage`.
///
/// # Errors
/// What the operating system says.
pub(crate) fn keep(
    made: Scratch,
    path: &Path,
    server: u64,
    (header, guide): (&SegmentHeader, &Guide),
    damage: &Damage,
    go_on: &dyn Fn() -> bool,
) -> Result<()> {
    let (nonce, len) = (header.nonce, header.file_len());
    let is_whole = appendix::append(made.file(), len, nonce, guide);
    if is_whole {
        Stamp::now(Reach::Server(server)).set(made.file(), nonce);
    }
    let kept = made.keep(path)?;
    if is_whole && len >= LONG_FILE {
        match settle_new(kept.file(), header, server, go_on) {
            Ok(true) => {}
            Ok(false) => settle(kept.file(), path, *header, server, damage),
            Err(error) => {
                let _ = fs::remove_file(path);
                return Err(IndexError::io("write", path, error));
            }
        }
    }
    Ok(())
}

/// Bytes that the file system of a folder has left for this account, if there is such a folder.
pub fn free_space(folder: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let folder = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the name ends with a zero, and `found` is read only after success.
    unsafe {
        if libc::statvfs(folder.as_ptr(), found.as_mut_ptr()) != 0 {
            return None;
        }
        let found = found.assume_init();
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

/// Zeros that nobody has to write, to be filled and forgotten: of a file in `folder` where they are many and it has room,
/// whose pages the system may write out and take, else of memory.
///
/// # Errors
/// Want of memory.
pub fn passing_bytes(len: u64, folder: &Path) -> Result<MmapMut> {
    if len >= LONG_FILE
        && let Ok(scratch) = Scratch::new(folder)
        && let Ok(bytes) = scratch.map(len)
    {
        // The mapping outlives the name.
        return Ok(bytes);
    }
    let bytes = len as usize;
    Ok(MmapMut::map_anon(bytes).map_err(|_| OutOfMemory { bytes })?)
}

/// Bytes of a file that are verified before anybody has waited long for it.
const LONG_FILE: u64 = 32 << 20;

/// Opens what a segment's file should be: a plain file of this account that nobody else may write
/// to, not what a link leads to, and never with waiting, as a pipe would want it.
fn open_file(path: &Path) -> io::Result<Option<File>> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if is_want(&error) => return Err(error),
        Err(_) => return Ok(None),
    };
    let found = file.metadata()?;
    // SAFETY: a plain question to the system.
    let account = unsafe { libc::geteuid() };
    let is_ours = found.is_file() && found.uid() == account && found.mode() & 0o022 == 0;
    Ok(is_ours.then_some(file))
}

/// What a segment's file turns out to be.
enum Existing {
    Sound(Box<SegmentView>),
    /// It is missing, damaged, or somebody else's.
    Useless,
    /// This process lacks what it takes to look at it. Others use it.
    OutOfReach,
}

impl Existing {
    /// Of a failure to open or verify a file.
    fn after(error: &IndexError) -> Self {
        match error {
            IndexError::Io { source, .. } | IndexError::Thread(source) if is_want(source) => {
                Self::OutOfReach
            }
            IndexError::OutOfMemory(_) | IndexError::GraphMemory => Self::OutOfReach,
            _ => Self::Useless,
        }
    }
}

/// Waits until no other process makes a file in a folder, which is made if need be, and keeps others away while what is
/// returned lives. None where that cannot be had.
fn turn(folder: &Path, pause: &dyn Fn()) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    if !folder.is_dir() {
        make_folder(folder).ok()?;
    }
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = OpenOptions::new();
    let lock = options.read(true).custom_flags(flags).open(folder).ok()?;
    loop {
        match lock.try_lock() {
            Ok(()) => return Some(lock),
            Err(TryLockError::WouldBlock) => {
                pause();
                thread::sleep(Duration::from_millis(10));
            }
            Err(TryLockError::Error(_)) => return None,
        }
    }
}

/// Where the file of a segment is.
#[derive(Debug, Clone, Copy)]
pub struct Location<'a> {
    /// Its name, in a folder that is made if need be.
    pub path: &'a Path,
    /// Folder for files in the making.
    pub folder: &'a Path,
    /// What this run of the server is known by. What another one has made may not have reached the disk when its machine
    /// ended.
    pub server: u64,
}

/// Opens the file of a segment; makes it from the pages if it is missing or damaged, and does without a file if there is
/// no room for one. A file that was verified is not verified again before it is used, see [`stamp`]; where that was long
/// ago, a large one is meanwhile ([`SegmentView::is_damaged`]).
///
/// # Errors
/// [`IndexError::Moved`] when the segment is gone, or damage of the pages.
pub fn open(
    store: &impl PageStore,
    parameters: &Parameters,
    entry: &SegmentEntry,
    location: Location<'_>,
) -> Result<SegmentView> {
    let Location {
        path,
        folder,
        server,
    } = location;
    let is_long = entry.bytes >= LONG_FILE;
    let verify = |bytes, file: Option<&File>| {
        if !is_long {
            return SegmentView::open(parameters, entry, bytes);
        }
        let file = file.and_then(|file| file.try_clone().ok());
        let (parameters, entry, path) = (parameters.clone(), *entry, path.to_path_buf());
        background::run(&|| store.pause(), move |pause| {
            if let Some(file) = file {
                read_through(&file, pause).map_err(|e| IndexError::io("read", &path, e))?;
            }
            SegmentView::open(&parameters, &entry, bytes)
        })
    };
    let existing = || {
        let file = match open_file(path) {
            Ok(Some(file)) => file,
            Ok(None) => return Existing::Useless,
            Err(_) => return Existing::OutOfReach,
        };
        let bytes = match SegmentBytes::map(&file, path) {
            Ok(bytes) => bytes,
            Err(error) => return Existing::after(&error),
        };
        let Some(behind) = bytes.get(entry.bytes as usize..) else {
            return Existing::Useless;
        };
        let guide = appendix::read(entry.nonce, behind);
        if guide.is_none() && !behind.is_empty() {
            return Existing::Useless;
        }
        let stamp = stamp::read(&file, entry.nonce, server).filter(|stamp| match is_long {
            true => !stamp.is_too_old(),
            false => !stamp.is_old(),
        });
        let view = match guide.filter(|_| stamp.is_some()) {
            Some(guide) => SegmentView::open_verified(parameters, entry, bytes, guide),
            None => verify(bytes, Some(&file))
                .inspect(|_| Stamp::now(Reach::Server(server)).set(&file, entry.nonce)),
        };
        if let Ok(view) = &view
            && is_long
            && stamp.is_none_or(|stamp| stamp.is_old() || stamp.reach != Reach::Disk)
        {
            settle(&file, path, *view.header(), server, view.damage());
        }
        match view {
            Ok(view) => Existing::Sound(Box::new(view)),
            Err(error) => Existing::after(&error),
        }
    };
    let sound = |view: SegmentView| {
        if is_long {
            view.expect_walks();
        }
        Ok(view)
    };
    if let Existing::Sound(view) = existing() {
        return sound(*view);
    }
    // One process makes the file, however many want it at once, as after a start of the server.
    let _turn = path
        .parent()
        .and_then(|folder| turn(folder, &|| store.pause()));
    let is_out_of_reach = match existing() {
        Existing::Sound(view) => return sound(*view),
        Existing::OutOfReach => true,
        Existing::Useless => {
            // Whatever else has the name makes room for the file.
            let _ = fs::remove_file(path);
            false
        }
    };
    let map = SegmentMap::read(store, entry)?;
    map.header(store, parameters)?;
    if !is_out_of_reach
        && let Ok(scratch) = Scratch::new(folder)
        && let Ok(mut bytes) = scratch.map(entry.bytes)
    {
        map.read_bytes(store, 0, &mut bytes)?;
        drop(bytes);
        let view = verify(SegmentBytes::map(scratch.file(), path)?, None)?;
        // Without its name the file still serves this process.
        let segment = (view.header(), &view.guide());
        let _ = keep(scratch, path, server, segment, view.damage(), &|| false);
        return sound(view);
    }
    let mut bytes = MmapMut::map_anon(entry.bytes as usize)
        .map_err(|e| IndexError::io("map memory for", path, e))?;
    map.read_bytes(store, 0, &mut bytes)?;
    verify(SegmentBytes::Memory(bytes), None)
}

/// Has a large file that is in use verified again in the background where that was long ago. To be called when it is searched, where
/// [`SegmentView::take_due`]: so the file of an index that is used has a stamp that the next server believes, however
/// long sessions live. Returns whether it still is the one that has the name: one that is not was removed, for damage perhaps.
pub fn renew(view: &SegmentView, location: Location<'_>) -> bool {
    if !view.is_file() {
        return true;
    }
    let Location { path, server, .. } = location;
    let file = match open_file(path) {
        Ok(Some(file)) => file,
        Ok(None) => return false,
        Err(_) => return true,
    };
    let is_its = file.metadata().ok().map(|found| found.ino()) == view.inode();
    if is_its && view.header().file_len() >= LONG_FILE {
        settle(&file, path, *view.header(), server, view.damage());
    }
    is_its
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident bytes of this process that no file stands behind, from `/proc/self/smaps` of the mapping at `bytes`.
    fn anonymous(bytes: &MmapMut) -> u64 {
        let start = format!("{:x}-", bytes.as_ptr() as usize);
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.find(|line| line.starts_with("Anonymous:")).unwrap();
        let kb: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kb << 10
    }

    #[test]
    fn what_is_large_and_forgotten_is_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let filled = |len: u64, folder: &Path| {
            let mut bytes = passing_bytes(len, folder).unwrap();
            assert!(bytes.iter().all(|b| *b == 0));
            bytes.fill(1);
            assert_eq!(bytes.len() as u64, len);
            anonymous(&bytes)
        };
        assert_eq!(filled(LONG_FILE, folder.path()), 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_ne!(filled(LONG_FILE - 1, folder.path()), 0);
        // Without a place for the file it is memory all the same.
        let nowhere = Path::new("/proc/self/nowhere");
        assert!(filled(LONG_FILE, nowhere) >= LONG_FILE);
    }
}
