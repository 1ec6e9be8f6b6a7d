//! What is known of a segment's file without reading it: that its bytes were right at some time, that nobody has written to
//! it since, and whether they had reached the disk. Its time of change says so.
//!
//! A checksum of gigabytes takes half a second, and each new session opens the file. Whoever has verified it sets its
//! time of change to a fraction of a second that belongs to the segment; whoever writes to it makes that the present
//! time. Where a file system keeps no such fractions, files are verified whenever they are opened.

use std::fs::{File, FileTimes};
use std::time::{Duration, SystemTime};

use laser_sampling::mix;

/// How long a file need not be verified again: what is damaged on the disk itself is found some time.
pub const VALID: Duration = Duration::from_secs(3600);
/// How long it may be used before that is done.
const USABLE: Duration = Duration::from_secs(24 * 3600);

/// Who may believe that the bytes of a file are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Processes of the server that is known by this number. The bytes may not be on the disk, which only matters when the machine
    /// has ended, and the server with it.
    Server(u64),
    /// Everybody: the bytes were on the disk before the stamp was set.
    Disk,
}

/// That the bytes of a file were right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// When that was found, to the second.
    pub at: SystemTime,
    pub reach: Reach,
}

impl Stamp {
    /// That they are now.
    pub fn now(reach: Reach) -> Self {
        // A second ago, or it might not have come yet.
        let at = SystemTime::now() - Duration::from_secs(1);
        Self { at, reach }
    }

    fn is_older_than(&self, age: Duration) -> bool {
        SystemTime::now()
            .duration_since(self.at)
            .is_ok_and(|own| own >= age)
    }

    /// Whether the file is to be verified again.
    pub fn is_old(&self) -> bool {
        self.is_older_than(VALID)
    }

    /// Whether it is to be verified before it is used.
    pub fn is_too_old(&self) -> bool {
        self.is_older_than(USABLE)
    }

    /// Stamps the file of a segment. Where that fails, the file is verified again.
    pub fn set(&self, file: &File, nonce: u64) {
        if let Ok(since) = self.at.duration_since(SystemTime::UNIX_EPOCH) {
            let since = Duration::new(since.as_secs(), fraction(nonce, self.reach));
            let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + since);
            let _ = file.set_times(times);
        }
    }
}

/// The fraction of a second, in nanoseconds: never zero, which is what file systems without fractions say.
fn fraction(nonce: u64, reach: Reach) -> u32 {
    let (number, parity) = match reach {
        Reach::Server(server) => (mix(nonce ^ mix(server)), 1),
        Reach::Disk => (nonce, 2),
    };
    2 * (number % 499_999_999) as u32 + parity
}

/// What processes of a server may believe of a file: nothing where somebody has written to it since, or the clock was set back.
pub fn read(file: &File, nonce: u64, server: u64) -> Option<Stamp> {
    let at = file.metadata().and_then(|found| found.modified()).ok()?;
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let reach = [Reach::Disk, Reach::Server(server)]
        .into_iter()
        .find(|reach| since.subsec_nanos() == fraction(nonce, *reach))?;
    (at <= SystemTime::now()).then_some(Stamp { at, reach })
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
            assert_eq!(read(&file, nonce, 7), None);
            for reach in [Reach::Server(7), Reach::Disk] {
                Stamp::now(reach).set(&file, nonce);
                let stamp = read(&file, nonce, 7).unwrap();
                assert_eq!(stamp.reach, reach);
                assert!(!stamp.is_old());
                assert_eq!(read(&file, nonce ^ 1, 7), None);
                let others = read(&file, nonce, 8);
                assert_eq!(others.is_some(), reach == Reach::Disk);
            }
            file.write_all_at(b"L", 0).unwrap();
            assert_eq!(read(&file, nonce, 7), None);
        }
    }

    #[test]
    fn it_grows_old() {
        let (nonce, minute) = (7, Duration::from_secs(60));
        let file = tempfile::tempfile().unwrap();
        Stamp::now(Reach::Disk).set(&file, nonce);
        let changed = file.metadata().unwrap().modified().unwrap();
        for (age, is_old, is_too_old) in [
            (VALID - minute, false, false),
            (VALID, true, false),
            (USABLE - minute, true, false),
            (USABLE, true, true),
        ] {
            let times = FileTimes::new().set_modified(changed - age);
            file.set_times(times).unwrap();
            let stamp = read(&file, nonce, 0).unwrap();
            assert_eq!((stamp.is_old(), stamp.is_too_old()), (is_old, is_too_old));
        }
        let times = FileTimes::new().set_modified(changed + VALID);
        file.set_times(times).unwrap();
        assert_eq!(read(&file, nonce, 0), None, "the clock was set back");
    }
}
