//! Whether a segment's file was verified lately and nobody has written to it since: its time of change says so.
//!
//! A checksum of gigabytes takes half a second, and each new session opens the file. Whoever has verified it sets its
//! time of change to a fraction of a second that belongs to the segment; whoever writes to it makes that the present
//! time. Where a file system keeps no such fractions, files are verified whenever they are opened.

use std::fs::{File, FileTimes};
use std::time::{Duration, SystemTime};

/// How long a file need not be verified again: what is damaged on the disk itself is found some time.
const VALID: Duration = Duration::from_secs(3600);

/// The fraction of a second, in nanoseconds: never zero, which is what file systems without fractions say.
fn fraction(nonce: u64) -> u32 {
    (nonce % 999_999_999) as u32 + 1
}

/// To be called when the file of a segment was verified, or made of what is known to be right. Where that fails, the file
/// is verified again.
pub fn set(file: &File, nonce: u64) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    // A second ago, or it might not have come yet.
    if let Some(second) = now.ok().and_then(|now| now.as_secs().checked_sub(1)) {
        let time = SystemTime::UNIX_EPOCH + Duration::new(second, fraction(nonce));
        let _ = file.set_times(FileTimes::new().set_modified(time));
    }
}

/// Whether the file need not be verified.
pub fn is_valid(file: &File, nonce: u64) -> bool {
    let Ok(changed) = file.metadata().and_then(|found| found.modified()) else {
        return false;
    };
    let since = changed.duration_since(SystemTime::UNIX_EPOCH);
    since.is_ok_and(|since| since.subsec_nanos() == fraction(nonce))
        && SystemTime::now()
            .duration_since(changed)
            .is_ok_and(|age| age < VALID)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn whoever_writes_takes_it_away() {
        let nonce = 0x1234_5678_9abc_def0;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"laser").unwrap();
        assert!(!is_valid(&file, nonce));
        set(&file, nonce);
        assert!(is_valid(&file, nonce));
        assert!(!is_valid(&file, nonce + 1));
        file.write_all_at(b"L", 0).unwrap();
        assert!(!is_valid(&file, nonce));
    }

    #[test]
    fn it_is_not_for_ever() {
        let nonce = 7;
        let file = tempfile::tempfile().unwrap();
        set(&file, nonce);
        let changed = file.metadata().unwrap().modified().unwrap();
        for (away, valid) in [(VALID - Duration::from_secs(60), true), (VALID, false)] {
            let times = FileTimes::new().set_modified(changed - away);
            file.set_times(times).unwrap();
            assert_eq!(is_valid(&file, nonce), valid);
        }
        let times = FileTimes::new().set_modified(changed + VALID);
        file.set_times(times).unwrap();
        assert!(!is_valid(&file, nonce), "the clock was set back");
    }
}
