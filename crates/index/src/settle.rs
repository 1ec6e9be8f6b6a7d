//! What is done with the file of a segment while it is used, by a thread that nobody waits for: it is written to the disk,
//! so that it outlives a crash of the machine, and verified again where that was long ago.
//!
//! Who opens a file need not wait for either. A stamp ([`stamp`]) says of what is on the disk that it is, and a process
//! that ends before has done nothing: the next one that opens the file begins again.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, thread};

use laser_memory::threads;

use crate::bytes::SegmentBytes;
use crate::segment::SegmentHeader;
use crate::stamp;

/// Bytes that are read from a file at once.
const PART: usize = 64 << 10;

/// Whether a file that is in use was found to be damaged.
#[derive(Debug, Clone, Default)]
pub(crate) struct Damage(Arc<AtomicBool>);

impl Damage {
    pub(crate) fn is_found(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Settles the file of a segment, whose final name is `path`. A file that turns out to be damaged is removed. Without a thread, or
/// where another process is at it, nothing is done.
pub(crate) fn settle(file: &File, path: &Path, header: SegmentHeader, damage: &Damage) {
    let Ok(file) = file.try_clone() else {
        return;
    };
    let (path, damage) = (path.to_path_buf(), damage.clone());
    let _ = threads::spawn("laser file", move || {
        // Locks of files belong to what was opened, which the thread keeps no longer than its work.
        if file.try_lock().is_err() {
            return;
        }
        if work(&file, &path, &header).is_err() {
            damage.0.store(true, Ordering::Relaxed);
            // By another name it would be another's.
            let _ = fs::remove_file(&path);
        }
        let _ = file.unlock();
    });
}

/// What is wrong with a file, if anything is.
struct IsDamaged;

fn work(file: &File, path: &Path, header: &SegmentHeader) -> Result<(), IsDamaged> {
    let Some(found) = stamp::read(file, header.nonce) else {
        // Somebody has written to it, and who opens it next verifies it.
        return Ok(());
    };
    let is_old = found.is_old();
    if found.on_disk && !is_old {
        return Ok(());
    }
    if is_old {
        // What a disk cannot read is an error of this call, and a signal to who has the file mapped.
        read_through(file, &thread::yield_now).map_err(|_| IsDamaged)?;
        let Ok(bytes) = SegmentBytes::map(file, path) else {
            return Ok(());
        };
        let segment = bytes.get(..header.file_len() as usize).ok_or(IsDamaged)?;
        let verified = header.verify(segment, &thread::yield_now);
        verified.map_err(|_| IsDamaged)?;
    }
    // Whoever has written to the file meanwhile has taken the stamp away, and it stays so.
    if file.sync_all().is_ok() && stamp::read(file, header.nonce) == Some(found) {
        stamp::set(file, header.nonce, true);
    }
    Ok(())
}

/// Reads a file once, so that what its disk cannot read is an error and not a signal. Calls `pause` every few milliseconds.
///
/// # Errors
/// What the operating system says.
pub(crate) fn read_through(file: &File, pause: &dyn Fn()) -> io::Result<()> {
    let mut part = [0; PART];
    let mut at = 0;
    loop {
        pause();
        match file.read_at(&mut part, at) {
            Ok(0) => return Ok(()),
            Ok(len) => at += len as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
