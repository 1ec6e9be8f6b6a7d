//! What is known of a segment's file without reading it: that its bytes were right at some time, that nobody has written to
//! it since, and whether they had reached the disk. Its time of change says so.
//!
//! A checksum of gigabytes takes half a second, and each new session opens the file. Whoever has verified it sets its
//! time of change to a fraction of a second that belongs to the segment; whoever writes to it makes that the present
//! time. Where a file system keeps no such fractions, files are verified whenever they are opened.

use std::fs::{File, FileTimes};
use std::time::{Duration, SystemTime};

/// How long a file need not be verified again: what is damaged on the disk itself is found some time.
const VALID: Duration = Duration::from_secs(3600);

/// That the bytes of a file were right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// When that was found, to the second.
    pub at: SystemTime,
    /// Whether the bytes were on the disk before the stamp was set: a crash of the machine has left them as they were.
    pub on_disk: bool,
}

impl Stamp {
    /// Whether that was long ago.
    pub fn is_old(&self) -> bool {
        SystemTime::now()
            .duration_since(self.at)
            .is_ok_and(|age| age >= VALID)
    }
}

/// The fraction of a second, in nanoseconds: never zero, which is what file systems without fractions say.
fn fraction(nonce: u64, on_disk: bool) -> u32 {
    2 * (nonce % 499_999_999) as u32 + 1 + u32::from(on_disk)
}

/// To be called when the file of a segment was verified, or made of what is known to be right. Where that fails, the file
/// is verified again.
pub fn set(file: &File, nonce: u64, on_disk: bool) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // A second ago, or it might not have come yet.
    if let Some(second) = now.ok().and_then(|now| now.as_secs().checked_sub(1)) {
        let fraction = fraction(nonce, on_disk);
        let time = SystemTime::UNIX_EPOCH + Duration::new(second, fraction);
        let _ = file.set_times(FileTimes::new().set_modified(time));
    }
}

/// What is known of the file: nothing where somebody has written to it since, or the clock was set back.
pub fn read(file: &File, nonce: u64) -> Option<Stamp> {
    let at = file.metadata().and_then(|found| found.modified()).ok()?;
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let on_disk = [false, true]
        .into_iter()
        .find(|on_disk| since.subsec_nanos() == fraction(nonce, *on_disk))?;
    (at <= SystemTime::now()).then_some(Stamp { at, on_disk })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn whoever_writes_takes_it_away() {
        for nonce in [0x1234_5678_9abc_def0, u64::MAX, 0, 499_999_998] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"laser").unwrap();
            assert_eq!(read(&file, nonce), None);
            for on_disk in [false, true] {
                set(&file, nonce, on_disk);
                let stamp = read(&file, nonce).unwrap();
                assert_eq!(stamp.on_disk, on_disk);
                assert!(!stamp.is_old());
                assert_eq!(read(&file, nonce ^ 1), None);
            }
            file.write_all_at(b"L", 0).unwrap();
            assert_eq!(read(&file, nonce), None);
        }
    }

    #[test]
    fn it_grows_old() {
        let nonce = 7;
        let file = tempfile::tempfile().unwrap();
        set(&file, nonce, true);
        let changed = file.metadata().unwrap().modified().unwrap();
        for (away, is_old) in [(VALID - Duration::from_secs(60), false), (VALID, true)] {
            let times = FileTimes::new().set_modified(changed - away);
            file.set_times(times).unwrap();
            let stamp = read(&file, nonce).unwrap();
            assert_eq!((stamp.is_old(), stamp.on_disk), (is_old, true));
        }
        let times = FileTimes::new().set_modified(changed + VALID);
        file.set_times(times).unwrap();
        assert_eq!(read(&file, nonce), None, "the clock was set back");
    }
}
