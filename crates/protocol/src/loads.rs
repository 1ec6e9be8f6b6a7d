//! Which model an encoder process loads, noted in the same file as what it works on ([`crate::work`]).
//!
//! Where a library gets no memory, or does not survive a file, the process ends, and the next one ends by whoever asks
//! for that model again: all sessions' texts wait for a process that is always about to start. A model under whose
//! loading processes have ended several times in a row is refused for a while, twice as long after each further time.
//! The encoders of one model for different languages count as one: they lie in one folder, and end processes alike.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::model_and_language;
use crate::work::{self, DEATHS, Hash, LOADS_AT};

/// How long a model is refused, at first and at most.
const REFUSED: (u64, u64) = (30, 600);
/// Models that are remembered.
const MOST: usize = 16;

/// What stands in front of a hash while a model is loaded.
const LOADING: u64 = 0x3153_4441_4f4c_0000;
const HASH_AT: usize = 8;
const COUNT_AT: usize = HASH_AT + size_of::<Hash>();
const LOADS: usize = COUNT_AT + 8;
/// Hash, deaths (u64), time of the last one (u64).
const LOAD_BYTES: usize = 32;
const BYTES: usize = LOADS + MOST * LOAD_BYTES;

fn hash(model: &str) -> Hash {
    work::hash(model_and_language(model).0, "")
}

/// Notes what is loaded; one model at a time.
pub struct LoadNote(Option<File>);

impl LoadNote {
    /// Before a model is loaded.
    pub fn begin(&self, model: &str) {
        let Some(file) = &self.0 else { return };
        let mut bytes = LOADING.to_le_bytes().to_vec();
        bytes.extend_from_slice(&hash(model));
        let _ = file.write_all_at(&bytes, LOADS_AT);
    }

    /// Afterwards, however it went.
    pub fn end(&self) {
        if let Some(file) = &self.0 {
            let _ = file.write_all_at(&[0; HASH_AT], LOADS_AT);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Load {
    hash: Hash,
    deaths: u64,
    seconds: u64,
}

impl Load {
    /// Seconds for which it is still refused, never more than it was at first, wherever the clock was then.
    fn refused_for(&self, now: u64) -> u64 {
        let Some(further) = self.deaths.checked_sub(u64::from(DEATHS)) else {
            return 0;
        };
        let longer = REFUSED.0.saturating_mul(1 << further.min(32));
        let longer = longer.min(REFUSED.1);
        let end = self.seconds.saturating_add(longer);
        end.saturating_sub(now).min(longer)
    }
}

/// Models under whose loading processes have ended.
pub struct Loads {
    file: Option<File>,
    known: Vec<Load>,
}

impl Loads {
    /// Continues the record in `file`: what is noted there as being loaded is what the last process ended by. Without a
    /// file nothing is noted.
    pub fn open(file: Option<&File>) -> (LoadNote, Self) {
        let note = LoadNote(file.and_then(|file| file.try_clone().ok()));
        let mut loads = Self {
            file: file.and_then(|file| file.try_clone().ok()),
            known: Vec::new(),
        };
        let mut bytes = [0; BYTES];
        let Some(file) = &loads.file else {
            return (note, loads);
        };
        // A record that nobody has written to yet is shorter.
        if file.read_exact_at(&mut bytes, LOADS_AT).is_ok() {
            loads.known = read(&bytes);
            if number(&bytes, 0) == LOADING {
                let mut hash = Hash::default();
                hash.copy_from_slice(&bytes[HASH_AT..COUNT_AT]);
                loads.count(hash, work::now());
            }
        }
        // It counts once: this process may end by something else before it loads anything.
        note.end();
        loads.write();
        (note, loads)
    }

    fn count(&mut self, hash: Hash, now: u64) {
        let before = self.known.iter().position(|load| load.hash == hash);
        let deaths = before.map_or(0, |at| self.known.remove(at).deaths);
        if self.known.len() == MOST {
            // Of those with the fewest deaths the one whose last was the longest ago, so that none that is refused is
            // forgotten for others that ended a process once.
            let least = (0..MOST).min_by_key(|at| self.known[*at].deaths);
            self.known.remove(least.unwrap_or(0));
        }
        self.known.push(Load {
            hash,
            deaths: deaths.saturating_add(1),
            seconds: now,
        });
    }

    fn write(&self) {
        let Some(file) = &self.file else { return };
        let mut bytes = (self.known.len() as u64).to_le_bytes().to_vec();
        for load in &self.known {
            bytes.extend_from_slice(&load.hash);
            bytes.extend_from_slice(&load.deaths.to_le_bytes());
            bytes.extend_from_slice(&load.seconds.to_le_bytes());
        }
        bytes.resize(BYTES - COUNT_AT, 0);
        let _ = file.write_all_at(&bytes, LOADS_AT + COUNT_AT as u64);
    }

    /// For how long a model is still refused.
    pub fn refused(&self, model: &str) -> Option<Duration> {
        let hash = hash(model);
        let load = self.known.iter().find(|load| load.hash == hash)?;
        let rest = load.refused_for(work::now());
        (rest > 0).then(|| Duration::from_secs(rest))
    }

    /// A model was loaded, or could not be, and the process lives.
    pub fn clear(&mut self, model: &str) {
        let hash = hash(model);
        let before = self.known.len();
        self.known.retain(|load| load.hash != hash);
        if self.known.len() < before {
            self.write();
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"))
}

fn read(bytes: &[u8; BYTES]) -> Vec<Load> {
    let count = usize::try_from(number(bytes, COUNT_AT)).unwrap_or(usize::MAX);
    let entries = bytes[LOADS..].chunks_exact(LOAD_BYTES).take(count);
    let load = |entry: &[u8]| Load {
        hash: *entry.first_chunk().expect("thirty-two bytes"),
        deaths: number(entry, 16),
        seconds: number(entry, 24),
    };
    entries.map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_processes_again_and_again_is_refused() {
        let file = tempfile::tempfile().unwrap();
        for death in 0..5 {
            let (note, loads) = Loads::open(Some(&file));
            let rest = loads.refused("bad").map(|rest| rest.as_secs());
            match death {
                0..3 => assert_eq!(rest, None, "{death}"),
                3 => assert!(rest.is_some_and(|s| (25..=30).contains(&s)), "{rest:?}"),
                _ => assert!(rest.is_some_and(|s| (55..=60).contains(&s)), "{rest:?}"),
            }
            assert_eq!(loads.refused("good"), None);
            note.begin("good");
            note.end();
            note.begin("bad");
        }
        let (_, mut loads) = Loads::open(Some(&file));
        assert!(loads.refused("bad").is_some());
        loads.clear("bad");
        assert_eq!(loads.refused("bad"), None);
        // What other processes end by is nobody's fault here, and what was cleared stays so.
        let (note, loads) = Loads::open(Some(&file));
        assert_eq!(loads.refused("bad"), None);
        note.begin("bad");
        assert_eq!(Loads::open(Some(&file)).1.refused("bad"), None);
    }

    #[test]
    fn what_is_noted_counts_once() {
        let file = tempfile::tempfile().unwrap();
        Loads::open(Some(&file)).0.begin("model");
        for _ in 0..4 {
            let (_, loads) = Loads::open(Some(&file));
            assert_eq!(loads.refused("model"), None);
            assert_eq!(loads.known[0].deaths, 1);
        }
    }

    #[test]
    fn as_many_are_remembered_as_there_is_room_for() {
        let file = tempfile::tempfile().unwrap();
        for _ in 0..3 {
            for model in 0..MOST + 4 {
                Loads::open(Some(&file)).0.begin(&format!("model {model}"));
            }
        }
        let (_, loads) = Loads::open(Some(&file));
        assert_eq!(loads.known.len(), MOST);
        assert!(Loads::open(None).1.refused("model 1").is_none());
    }

    #[test]
    fn encoders_of_one_model_count_as_one() {
        let file = tempfile::tempfile().unwrap();
        for language in 0..30 {
            let (note, loads) = Loads::open(Some(&file));
            assert_eq!(loads.refused("pair@xx").is_some(), language >= 3);
            note.begin(&format!("pair@l{language}"));
        }
    }

    #[test]
    fn others_do_not_make_a_refused_model_be_forgotten() {
        let file = tempfile::tempfile().unwrap();
        for _ in 0..3 {
            Loads::open(Some(&file)).0.begin("bad");
        }
        for model in 0..3 * MOST {
            Loads::open(Some(&file)).0.begin(&format!("model {model}"));
        }
        assert!(Loads::open(Some(&file)).1.refused("bad").is_some());
    }

    #[test]
    fn a_clock_that_was_ahead_refuses_nothing_for_long() {
        let load = Load {
            hash: Hash::default(),
            deaths: 3,
            seconds: 1 << 40,
        };
        assert_eq!(load.refused_for(1), 30);
    }

    #[test]
    fn both_records_share_a_file() {
        let file = tempfile::tempfile().unwrap();
        for _ in 0..4 {
            let open = || work::Record::open(Some(file.try_clone().unwrap()), false);
            let (record, _) = open();
            let (note, _) = Loads::open(Some(&file));
            record.begin(0, std::iter::once(work::hash("m", "text")));
            note.begin("m");
        }
        assert!(work::was_working(&file));
        let (_, mut suspicion) = work::Record::open(Some(file.try_clone().unwrap()), false);
        assert!(suspicion.is_culprit(&work::hash("m", "text")));
        assert!(Loads::open(Some(&file)).1.refused("m").is_some());
    }
}
